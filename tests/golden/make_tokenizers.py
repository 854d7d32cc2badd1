"""Makes the small tokenizers of tests/golden/tokenizers and the ids that independent tools give for tricky texts.

pip install tokenizers==0.23.* sentencepiece gguf; run in the repository root: python3 tests/golden/make_tokenizers.py
The ids come from Hugging Face tokenizers (tokenizer.json files, gpt2.gguf) and from SentencePiece (spm*.gguf), never
from nano. Training text: lessons/models/sample.txt and the lines below.
"""
import io
import json
import pathlib
import random

import gguf
import sentencepiece as spm
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path("tests/golden/tokenizers")
SAMPLE = pathlib.Path("lessons/models/sample.txt").read_text()[:60000]
LINES = ["Größe naïve café résumé", "Việt Nam", "ภาษาไทย กำ", "漢字 日本語 你好", "def f(x):\n    return x + 1\n", "https://a.b/c?d=1",
         "1234 5678 90", "don't we'll I'd", "Привет мир", "שלום", "🙂🌶️👩‍👩‍👧"]
TEXTS = ["", " ", "  ", "   ", "a", "the", " the the", "The  war", "1234", "12345 6", "٠١٢٣ ½ ²", "it's 12, DON'T we'LL 'S",
         "a\r\n\r\nb\r\n", "\t\tx\n\n  y", "trailing   ", "\n", "e\u0301 é n\u0303 \u1e9b\u0323", "\u0b47\u0b56 \u1112\u1161\u11ab",
         "Việt Viê\u0323t", "ภาษาไทย กำ", "漢字かな交じり文。你好,世界", "👨‍👩‍👧 🏳️‍🌈 🌶", "a\u0000b", "\ufffd\ufeffx", "\u3000\u00a0\u2003\u180e\u0085x",
         "x = [1, 2.5];  // ok\n", "naïve Größe: 3.14", "\u2581a \u2581\u2581", "Ġthe <0x41>", "ſ'ſ 'ſt K", "a" * 70, " " * 37 + "b",
         "<|im_start|>user\nHi<|im_end|>", "x <|im_end|> y", "<tool>  x<tool>", "a <sp> b<sp>c", "word wordy aword word", "word\u200d \u2167word word\u24b6 word_ (word)", "Norm norm e\u0301X éX"]
ADDED = [AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<|im_end|>", special=True, normalized=False),
         AddedToken("<tool>", rstrip=True, normalized=False), AddedToken("<sp>", lstrip=True, normalized=False),
         AddedToken("éX", normalized=False)]


def rows(encode, decode):
    """[text, ids, decoded with specials, decoded without], and decodings of random ids."""
    return [[t, encode(t), decode(encode(t), False), decode(encode(t), True)] for t in TEXTS]


def save(name, about, data):
    (OUT / f"{name}.expected.json").write_text(json.dumps({"about": about, **data}, ensure_ascii=True, separators=(",", ":")) + "\n")


def hf(name, normalizer, pre, decoder, post=None, alphabet=True, vocab=420):
    t = Tokenizer(models.BPE())
    if normalizer: t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoder
    t.train_from_iterator([SAMPLE] + LINES, trainers.BpeTrainer(vocab_size=vocab, show_progress=False,
                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else []))
    t.add_tokens(ADDED)
    if post: t.post_processor = post(t)
    return finish(name, t)


def finish(name, t, check_random=True):
    enc = lambda s: t.encode(s, add_special_tokens=True).ids
    odd = t.token_to_id("éX")  # tokenizers decodes it as if é were a stand-in for a byte; no golden text for that
    byte_level = isinstance(t.decoder, decoders.ByteLevel)
    dec = lambda ids, skip: None if byte_level and odd in ids else t.decode(ids, skip_special_tokens=skip)
    rng = random.Random(7)
    data = {"rows": rows(enc, dec)}
    if check_random:
        seqs = [[rng.randrange(t.get_vocab_size()) for _ in range(12)] for _ in range(40)]
        data["decode"] = [[s, dec(s, False), dec(s, True)] for s in seqs]
    path = OUT / f"{name}.json"
    t.save(str(path), pretty=False)
    save(name, f"tokenizers {tokenizers.__version__}", data)
    return t


QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
byte_level = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
hf("qwen2-style", normalizers.NFC(), pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), "isolated"), byte_level(False)]),
   decoders.ByteLevel())
smollm = hf("smollm-style", None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]), decoders.ByteLevel())
gpt2 = hf("gpt2-style", None, pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel(),
          post=lambda t: processors.TemplateProcessing(single="<|im_start|> $A <|im_end|>", special_tokens=[
              ("<|im_start|>", t.token_to_id("<|im_start|>")), ("<|im_end|>", t.token_to_id("<|im_end|>"))]))

# ---- SentencePiece ----
model = io.BytesIO()
spm.SentencePieceTrainer.train(sentence_iterator=iter([l for l in SAMPLE.split("\n") + LINES if l.strip()]), model_writer=model, vocab_size=620,
                               model_type="bpe", byte_fallback=True, character_coverage=0.99, normalization_rule_name="identity",
                               remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True,
                               add_dummy_prefix=True, num_threads=1, minloglevel=2)
sp = spm.SentencePieceProcessor(model_proto=model.getvalue())
pieces = [sp.id_to_piece(i) for i in range(sp.get_piece_size())]
kind = lambda i: 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 5 if sp.is_unused(i) else 1
PLAIN = [t for t in TEXTS if "\0" not in t]


def spm_gguf(name, prefix):
    from sentencepiece import sentencepiece_model_pb2 as pb
    m = pb.ModelProto()
    m.ParseFromString(model.getvalue())
    m.normalizer_spec.add_dummy_prefix = prefix
    s = spm.SentencePieceProcessor(model_proto=m.SerializeToString())
    w = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list(pieces)
    w.add_token_scores([sp.get_score(i) for i in range(len(pieces))])
    w.add_token_types([kind(i) for i in range(len(pieces))])
    w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_unk_token_id(0)
    w.add_add_bos_token(False); w.add_add_space_prefix(prefix)
    write(w)
    rng = random.Random(8)
    seqs = [[rng.randrange(3, 259 if n % 2 else len(pieces)) for _ in range(12)] for n in range(40)]
    seqs += [[s.piece_to_id("\u2581"), s.piece_to_id("\u2581a"), s.piece_to_id("\u2581b")]]
    save(name, f"sentencepiece {spm.__version__}", {"rows": [[t, s.encode(t), s.decode(s.encode(t))] for t in PLAIN],
                                                   "decode": [[q, s.decode(q)] for q in seqs]})


def write(w):
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


spm_gguf("spm", True)
spm_gguf("spm-no-prefix", False)

# The same pieces as Gemma's and Llama-2's tokenizer.json state them: merges in order of score.
vocab = {p: i for i, p in enumerate(pieces)}
merges = sorted([(-sp.get_score(vocab[p]), len(p[:k]), p[:k], p[k:]) for p in pieces if kind(vocab[p]) == 1 for k in range(1, len(p))
                 if p[:k] in vocab and p[k:] in vocab])
bpe = lambda: models.BPE(vocab, [(a, b) for _, _, a, b in merges], byte_fallback=True, fuse_unk=True, unk_token="<unk>")


def like_sentencepiece(name, normalizer, pre, decoder):
    t = Tokenizer(bpe())
    if normalizer: t.normalizer = normalizer
    if pre: t.pre_tokenizer = pre
    t.decoder = decoder
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.add_tokens(ADDED)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    finish(name, t, check_random=False)


D = decoders
like_sentencepiece("gemma-style", normalizers.Replace(" ", "\u2581"), pre_tokenizers.Split(" ", "merged_with_previous"),
                   D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse()]))
like_sentencepiece("llama2-style", normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), None,
                   D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]))

# ---- vocabulary-only GGUF files of byte-level tokenizers ----


def bpe_gguf(name, pre, path):
    t = json.loads((OUT / path).read_text())
    added = {a["content"]: a for a in t["added_tokens"]}
    all_tokens = {**t["model"]["vocab"], **{c: a["id"] for c, a in added.items()}}
    tokens = sorted(all_tokens, key=all_tokens.get)
    w = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types([(3 if added[x]["special"] else 4) if x in added else 1 for x in tokens])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    w.add_eos_token_id(all_tokens["<|im_end|>"])
    if "<|begin_of_text|>" in all_tokens: w.add_bos_token_id(all_tokens["<|begin_of_text|>"])
    write(w)


bpe_gguf("smollm", "smollm", "smollm-style.json")
no_flags = json.loads((OUT / "smollm-style.json").read_text())  # GGUF has no flags on its tokens
for a in no_flags["added_tokens"]: a.update(lstrip=False, rstrip=False, single_word=False, normalized=False)
t = Tokenizer.from_str(json.dumps(no_flags))
save("smollm", f"tokenizers {tokenizers.__version__}", {"rows": [[s, t.encode(s).ids] for s in TEXTS]})
bpe_gguf("llama-bpe", "llama-bpe", "llama/tokenizer.json")
bpe_gguf("qwen2", "qwen2", "qwen2/tokenizer.json")
t = Tokenizer.from_file(str(OUT / "gpt2-style.json"))
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
t.post_processor = processors.ByteLevel()
plain = [s for s in TEXTS if not any(a.content in s for a in ADDED)]
bpe_gguf("gpt-2", "gpt-2", "gpt2-style.json")
save("gpt-2", f"tokenizers {tokenizers.__version__}", {"rows": [[s, t.encode(s).ids] for s in plain]})
