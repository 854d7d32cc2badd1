#include "catch.h"

#include <algorithm>
#include <random>

#include "base/error.h"           // Error
#include "text/stream_decoder.h"  // StreamDecoder
#include "text/tokenizer.h"       // Tokenizer
#include "base/mapped_file.h"     // read_file
#include "checkpoint/gguf.h"      // GgufFile
#include "data.h"                 // data_path

using namespace nano;

namespace {

// A tokenizer that only decodes: ids are indices into a list of byte strings; id 0 is a special token.
Tokenizer piece_tokenizer(const std::vector<std::string>& pieces) {
  std::vector<Tokenizer::Token> tokens = {{"<s>", "<s>", true}};
  for (const std::string& piece : pieces) tokens.push_back({piece, piece, false});
  return Tokenizer(tokens, BpeModel({}), Normalizer(), Pretokenizer());
}

// Feeds ids 1, 2, … and returns the chunks; the last one is finish().
std::vector<std::string> stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stop,
                                bool include_stop = false) {
  const Tokenizer tokenizer = piece_tokenizer(pieces);
  StreamDecoder decoder(tokenizer, stop, include_stop);
  std::vector<std::string> chunks;
  for (size_t i = 1; i <= pieces.size(); ++i) chunks.push_back(decoder.add(int32_t(i)));
  chunks.push_back(decoder.finish());
  return chunks;
}

using Chunks = std::vector<std::string>;

}  // namespace

TEST_CASE("F1 a stop string over several tokens is never streamed, not even its beginning") {
  CHECK(stream({"DEF", "G", "HI", "J"}, {"DEFGHIJ"}) == Chunks{"", "", "", "", ""});
  CHECK(stream({"DEF", "G", "HI", "K"}, {"DEFGHIJ"}) == Chunks{"", "", "", "DEFGHIK", ""});
  CHECK(stream({"DEF", "G"}, {"DEFGHIJ"}) == Chunks{"", "", "DEFG"});
  CHECK(stream({"DEF", "G", "HI", "J"}, {"DEFGHIJ"}, true) == Chunks{"", "", "", "DEFGHIJ", ""});
}

TEST_CASE("F1 a stop string inside one token keeps the text before it") {
  CHECK(stream({",b,c"}, {"b,c"}) == Chunks{",", ""});
  CHECK(stream({",b,cd"}, {"b,c"}, true) == Chunks{",b,c", ""});
}

TEST_CASE("F1 the earliest match in the text wins, and says which string it was") {
  const Tokenizer tokenizer = piece_tokenizer({"xab", "xa", "b", "zabcb"});
  for (const Chunks& stop : {Chunks{"a", "ab"}, Chunks{"ab", "a"}}) {
    StreamDecoder one(tokenizer, stop);
    CHECK(one.add(1) == "x");
    CHECK(one.stopped());
    CHECK(one.stop_string() == "a");
    StreamDecoder two(tokenizer, stop);
    CHECK(two.add(2) == "x");
    CHECK(two.stop_string() == "a");
    CHECK(two.add(3) == "");  // nothing comes after a stop
    CHECK(two.finish() == "");
    CHECK(two.text() == "x");
  }
  StreamDecoder later(tokenizer, {"b", "abc"});
  CHECK(later.add(4) == "z");
  CHECK(later.stop_string() == "abc");
}

TEST_CASE("only what can still become a stop string is held back") {
  CHECK(stream({"hello ab", "x", "ab"}, {"abc"}) == Chunks{"hello ", "abx", "", "ab"});
  CHECK(stream({"aa", "a", "b"}, {"aab"}) == Chunks{"", "a", "", ""});
  CHECK(stream({"abab", "abac"}, {"ababac"}) == Chunks{"", "ab", ""});
}

TEST_CASE("an empty stop string is no reason to stop") {
  CHECK(stream({"a", "b"}, {""}) == Chunks{"a", "b", ""});
  CHECK(stream({"a", "b"}, {"", "b"}) == Chunks{"a", "", ""});
}

TEST_CASE("no stop string is looked for in unchecked tokens, but one may begin there") {
  const Tokenizer tokenizer = piece_tokenizer({"ab", "a", "b"});
  StreamDecoder decoder(tokenizer, {"ab", "bab"});
  CHECK(decoder.add(1, false) == "a");  // "b" may become "bab"
  CHECK(!decoder.stopped());
  CHECK(decoder.add(2) == "");
  CHECK(decoder.add(3) == "");
  CHECK(decoder.stop_string() == "bab");
  CHECK(decoder.text() == "a");
}

TEST_CASE("bytes wait until their character is complete") {
  CHECK(stream({"\xE2", "\x82", "\xAC!"}, {}) == Chunks{"", "", "€!", ""});
  CHECK(stream({"a\xE2\x82"}, {}) == Chunks{"a", "\xEF\xBF\xBD"});  // cut off at the end
  CHECK(stream({"\xE2\x82", "b"}, {}) == Chunks{"",
                                                "\xEF\xBF\xBD"
                                                "b",
                                                ""});  // never completed
  CHECK(stream({"\xFF"}, {}) == Chunks{"\xEF\xBF\xBD", ""});
  CHECK(stream({"\xC3", "\xA9"}, {"é"}) == Chunks{"", "", ""});
}

TEST_CASE("invalid bytes: one U+FFFD for each maximal piece, or for each byte") {
  const std::string bad =
      "\xF0\x9F\x8C"
      "a\xED\xA0\x80";
  auto decoded = [&](bool each) {
    LossyUtf8 utf8(each);
    std::string out;
    utf8.add(bad, out);
    utf8.add("\xE4\xBD", out);
    utf8.finish(out);
    return out;
  };
  const std::string r = "\xEF\xBF\xBD";
  CHECK(decoded(false) == r + "a" + r + r + r + r);
  CHECK(decoded(true) == r + r + r + "a" + r + r + r + r + r);
}

TEST_CASE("special tokens are skipped or shown") {
  const Tokenizer tokenizer = piece_tokenizer({"a"});
  StreamDecoder hide(tokenizer), show(tokenizer, {}, false, false);
  CHECK(hide.add(0) + hide.add(1) == "a");
  CHECK(show.add(0) + show.add(1) == "<s>a");
}

TEST_CASE("T1 characters split over tokens, two streams interleaved: valid UTF-8, no U+FFFD, join = decode") {
  auto tokenizer = tokenizer_from_json(read_file(nano_test::data_path("golden/give-t-tokenizer.json")), "t");
  const std::string texts[2] = {"👩‍👩‍👧‍👦 family Việt Nam ệ",
                                "ภาษาไทย กำ 漢字かな 🏳️‍🌈"};
  std::vector<int32_t> ids[2] = {tokenizer->encode(texts[0]), tokenizer->encode(texts[1])};
  StreamDecoder decoders[2] = {StreamDecoder(*tokenizer), StreamDecoder(*tokenizer)};
  std::string joined[2];
  bool cut_inside = false;
  for (size_t i = 0; i < std::max(ids[0].size(), ids[1].size()); ++i) {
    for (int s = 0; s < 2; ++s) {
      if (i >= ids[s].size()) continue;
      cut_inside |= find_invalid_utf8(tokenizer->piece(ids[s][i], true, i == 0)) != std::string::npos;
      std::string chunk = decoders[s].add(ids[s][i]);
      CHECK(find_invalid_utf8(chunk) == std::string::npos);
      CHECK(chunk.find("\xEF\xBF\xBD") == std::string::npos);
      joined[s] += chunk;
    }
  }
  CHECK(cut_inside);
  for (int s = 0; s < 2; ++s) {
    CHECK(decoders[s].finish() == "");
    CHECK(joined[s] == texts[s]);
    CHECK(joined[s] == tokenizer->decode(ids[s], true));
  }
}

TEST_CASE("T5 one dummy space is dropped at the start of a whole text, none when the text goes on") {
  auto tokenizer = tokenizer_from_gguf(GgufFile(nano_test::data_path("golden/tokenizers/spm.gguf")));
  std::vector<int32_t> ids = {tokenizer->find("▁"), tokenizer->find("▁a"), tokenizer->find("▁b")};
  REQUIRE(*std::min_element(ids.begin(), ids.end()) >= 0);
  CHECK(tokenizer->decode(ids) == " a b");
  StreamDecoder whole(*tokenizer), continued(*tokenizer, {}, false, true, true);
  std::string w, c;
  for (int32_t id : ids) w += whole.add(id), c += continued.add(id);
  CHECK(w == " a b");
  CHECK(c == "  a b");
  StreamDecoder after_bos(*tokenizer);
  CHECK(after_bos.add(tokenizer->bos_id) + after_bos.add(ids[1]) ==
        "a");  // a skipped BOS is not the first piece
}

// The plain way: the whole text again after each token.
struct NaiveStream {
  std::string stop, text;
  void run(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const Chunks& stops,
           size_t unchecked) {
    size_t old_size = 0;
    for (size_t n = 1; n <= ids.size(); ++n) {
      LossyUtf8 utf8(false);
      text.clear();
      for (size_t i = 0; i < n; ++i) utf8.add(tokenizer.piece(ids[i], true, false), text);
      size_t best = text.size() + 1;
      for (const std::string& s : stops) {
        for (size_t at = 0; (at = text.find(s, at)) != text.npos; ++at) {
          bool ends_in_new = at + s.size() > old_size;
          if (n <= unchecked || !ends_in_new || at > best || (at == best && s.size() >= stop.size()))
            continue;
          best = at;
          stop = s;
        }
      }
      if (!stop.empty()) return text.resize(best);
      old_size = text.size();
    }
    text = tokenizer.decode(ids, true);
  }
};

TEST_CASE("random streams with random stop strings equal the naive search") {
  const uint32_t seed = 20240;
  INFO("seed " << seed);
  std::mt19937 rng(seed);
  auto pick = [&](int n) { return int(rng() % uint32_t(n)); };
  const Chunks parts = {"a", "b", "ab", "ba", "aab", "é", "\xC3", "\xA9", "\xE2\x82", "\xAC", "\xFF", "aé"};
  const Tokenizer tokenizer = piece_tokenizer(parts);
  int num_stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    Chunks stops;
    for (int i = pick(3); i > 0; --i) {
      std::string s;
      for (int k = 1 + pick(4); k > 0; --k) s += Chunks{"a", "b", "é"}[size_t(pick(3))];
      stops.push_back(s);
    }
    std::vector<int32_t> ids;
    for (int i = 1 + pick(10); i > 0; --i) ids.push_back(pick(int(parts.size()) + 1));
    size_t unchecked = size_t(pick(4));
    NaiveStream naive;
    naive.run(tokenizer, ids, stops, unchecked);
    StreamDecoder decoder(tokenizer, stops);
    std::string joined;
    for (size_t i = 0; i < ids.size(); ++i) {
      std::string chunk = decoder.add(ids[i], i >= unchecked);
      REQUIRE(find_invalid_utf8(chunk) == std::string::npos);
      joined += chunk;
      REQUIRE(naive.text.compare(0, joined.size(), joined) == 0);  // never more than the final text
    }
    joined += decoder.finish();
    CAPTURE(round, stops, ids, unchecked);
    REQUIRE(decoder.stop_string() == naive.stop);
    REQUIRE(joined == naive.text);
    REQUIRE(decoder.text() == joined);
    num_stopped += decoder.stopped();
  }
  CHECK(num_stopped > 300);
  CHECK(num_stopped < 2700);
}

TEST_CASE("a very long stop string costs linear time") {
  const Tokenizer tokenizer = piece_tokenizer({std::string(1000, 'a'), "b"});
  StreamDecoder decoder(tokenizer, {std::string(100'000, 'a') + "b"});
  for (int i = 0; i < 1000; ++i) decoder.add(1);
  decoder.add(2);
  CHECK(decoder.stopped());
  CHECK(decoder.text().size() == 900'000);
}
