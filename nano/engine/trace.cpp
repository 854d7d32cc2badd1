#include "engine/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"  // Error, NANO_CHECK

namespace nano {

namespace {

using Json = nlohmann::json;

const char* kind_name(BlockEvent::Kind kind) {
  switch (kind) {
    case BlockEvent::Kind::allocated: return "allocated";
    case BlockEvent::Kind::hit: return "hit";
    case BlockEvent::Kind::shared: return "shared";
    case BlockEvent::Kind::cached: return "cached";
    case BlockEvent::Kind::freed: return "freed";
    case BlockEvent::Kind::evicted: return "evicted";
  }
  return "?";
}

// dump, but bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

template <typename Iterator>
void append_list(std::string& line, const char* name, Iterator begin, Iterator end) {
  fmt::format_to(std::back_inserter(line), "\"{}\":[{}]", name, fmt::join(begin, end, ","));
}

}  // namespace

TraceWriter::TraceWriter(const std::string& path, const std::string& header_json)
    : path_(path), file_(nullptr, std::fclose) {
  Json header = Json::parse(header_json, nullptr, false);
  if (!header.is_object()) throw Error("the header is not a JSON object", "trace " + path);
  header["trace"] = "nano";
  header["version"] = 2;
  file_.reset(std::fopen(path.c_str(), "wb"));
  if (!file_) throw Error(std::string("cannot be written: ") + std::strerror(errno), "trace " + path);
  line_ = dumped(header);
  write_line();
}

bool TraceWriter::close() {
  if (file_ && std::fclose(file_.release()) != 0) stop();
  return !stopped_;
}

void TraceWriter::stop() {
  std::fprintf(stderr, "warning: trace %s: cannot be written: %s; it stops here, the answers go on\n",
               path_.c_str(), std::strerror(errno));
  stopped_ = true;
  file_.reset();
}

void TraceWriter::append_texts(const char* name, const std::vector<int32_t>& ids) {
  fmt::format_to(std::back_inserter(line_), "\"{}\":[", name);
  for (size_t i = 0; i < ids.size(); ++i) line_ += (i ? "," : "") + dumped(text_of(ids[i]));
  line_ += "],";
}

void TraceWriter::append_seq(const ScheduledSeq& seq, const SeqResult& result) {
  std::vector<int32_t> sampled;
  for (const SampledToken& token : result.sampled) sampled.push_back(token.id);
  fmt::format_to(std::back_inserter(line_), R"({{"id":{},"pos":{},"n":{},)", seq.id, seq.first_pos,
                 seq.num_tokens());
  append_list(line_, "new_blocks", seq.block_table.end() - seq.num_new_blocks, seq.block_table.end());
  fmt::format_to(std::back_inserter(line_), R"(,"samples":{},"discard":{},)", seq.samples, seq.discard);
  if (text_of) append_texts("texts", seq.tokens), append_texts("sampled_texts", sampled);
  append_list(line_, "sampled", sampled.begin(), sampled.end());
  if (!result.error.empty()) line_ += ",\"error\":" + dumped(result.error);
  if (result.finish_reason != FinishReason::none)
    fmt::format_to(std::back_inserter(line_), R"(,"finish":"{}")", to_string(result.finish_reason));
  line_ += '}';
}

void TraceWriter::step(const StepPlan& plan, const StepResult& result, const std::vector<BlockEvent>& events,
                       double start_seconds) {
  NANO_CHECK(plan.seqs.size() == result.seqs.size(), "the plan and the result of different steps");
  fmt::format_to(std::back_inserter(line_),
                 R"({{"step":{},"time":{:.6f},"schedule":{:.6f},"forward":{:.6f},"sample":{:.6f},)",
                 plan.step, start_seconds, result.schedule_seconds, result.forward_seconds,
                 result.sample_seconds);
  fmt::format_to(std::back_inserter(line_), R"("tokens":{},"running":{},"waiting":{},"free_blocks":{},)",
                 plan.num_tokens, plan.num_running, plan.num_waiting, plan.num_free_blocks);
  line_ += "\"admitted\":[";
  for (size_t i = 0; i < plan.admitted.size(); ++i)
    fmt::format_to(std::back_inserter(line_), "{}[{},{}]", i ? "," : "", plan.admitted[i].id,
                   plan.admitted[i].num_cached);
  line_ += "],";
  append_list(line_, "preempted", plan.preempted.begin(), plan.preempted.end());
  line_ += ",\"events\":[";
  for (size_t i = 0; i < events.size(); ++i)
    fmt::format_to(std::back_inserter(line_), R"({}["{}",{},{}])", i ? "," : "", kind_name(events[i].kind),
                   events[i].seq, events[i].block);
  line_ += "],\"seqs\":[";
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    if (i) line_ += ',';
    append_seq(plan.seqs[i], result.seqs[i]);
  }
  line_ += "]}";
  write_line();
}

void TraceWriter::request(const char* event, const std::string& request_id, const Sequence& seq,
                          double seconds) {
  line_ +=
      fmt::format(R"({{"request":{},"id":{},"request_id":{},"index":{},"prompt_tokens":{},"time":{:.6f}}})",
                  dumped(event), seq.id, dumped(request_id), seq.index, seq.num_prompt_tokens, seconds);
  write_line();
}

// stdio buffers: a line costs a copy, not a system call.
void TraceWriter::write_line() {
  line_ += '\n';
  if (file_ && std::fwrite(line_.data(), 1, line_.size(), file_.get()) != line_.size()) stop();
  line_.clear();
}

}  // namespace nano
