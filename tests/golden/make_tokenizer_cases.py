"""Golden values for pre-tokenizers by name, strips, Metaspace, normalised added tokens, and one vocabulary in two forms.

pip install tokenizers==0.23.* gguf; run in the repository root: python3 tests/golden/make_tokenizer_cases.py
Everything comes from Hugging Face tokenizers, never from nano. The patterns are those of the published tokenizer.json
files (llama.cpp's src/llama-vocab.cpp lists them too). Reads what make_tokenizers.py has written.
"""
import json
import pathlib
import random

import gguf
import tokenizers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

OUT = pathlib.Path("tests/golden/tokenizers")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
         "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
         "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
RULES = {
    "llama-bpe": [WORDS.replace("DIGITS", r"\p{N}{1,3}")],
    "smaug-bpe": [WORDS.replace("DIGITS", r"\p{N}{1,3}")],
    "qwen2": [WORDS.replace("DIGITS", r"\p{N}")],
    "seed-coder": [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "tekken": [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "gpt-2": [GPT2],
    "mpt": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "deepseek-llm": [r"[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""],
    "poro-chat": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
}
# Other names for some of these, as their tokenizer.json files have it.
ALIASES = {"dbrx": "llama-bpe", "olmo": "gpt-2", "exaone": "smollm", "bloom": "poro-chat", "a.x-4.0": "gpt-2", "trillion": "gpt-2",
           "granite-docling": "gpt-2"}
UNITS = ["a", "Ab", "HTML", "the", "x", " ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "1", "23", "4567", "٣", "½", "'s", "'T", "'ll", ".", "...",
         ",", "!?", "(", ")", "$", "<=", "`", "|", "/", "_", "é", "e\u0301", "\u0301", "Ω", "\u2126", "\u212a", "ǅ", "ʔ", "Привет", "日本語", "カナ", "한국", "ไทย",
         "क्ष", "שלום", "।", "。", "、", "…", "“", "😀", "\u200d", "ᾀ", "Ａ", "£", "ª"]


def save(name, rows):
    (OUT / name).write_text(json.dumps({"about": f"tokenizers {tokenizers.__version__}", **rows}, ensure_ascii=False, separators=(",", ":")) + "\n")


def texts(rng, units, count, longest):
    return ["".join(rng.choice(units) for _ in range(rng.randrange(1, longest))) for _ in range(count)]


def pieces(patterns, text):
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
    return [text[a:b] for _, (a, b) in split.pre_tokenize_str(text)]


rng = random.Random(19)
rules = {n: [[t, pieces(p, t)] for t in texts(rng, UNITS, 40, 14)] for n, p in RULES.items()}
more = random.Random(20)
rules.update({n: [[t, pieces(RULES[p], t)] for t in texts(more, UNITS, 40, 14)] for n, p in ALIASES.items()})
WHITE = [" ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "\u0085", "\u2003", "a", "12", "日", "!"]
rules["deepseek-llm"] += [[t, pieces(RULES["deepseek-llm"], t)] for t in texts(more, WHITE, 80, 10)]
save("pretokenizers.expected.json", {"rules": rules})

# Added tokens that strip and meet white space that is itself an added token; normalised added tokens; Metaspace.
SPACES = [" ", "  ", "\n", "\t", "\u3000", "a", "the", "12", "é", "e\u0301", "日本", "<", ">", "▁", "\u0301", "\u0338", "\u212a"]


def cases(name, count):
    t = Tokenizer.from_file(str(OUT / f"{name}.json"))
    units = [t.id_to_token(i) for i in sorted(t.get_added_tokens_decoder())] * 2 + SPACES
    save(f"{name}.expected.json", {"rows": [[s, t.encode(s).ids] for s in ["", "hello", " hello", "  ", "A</s> B", "<s>x"] + texts(rng, units, count, 9)]})


def variant(name, base, flags, **members):
    j = json.loads((OUT / f"{base}.json").read_text())
    for a in j["added_tokens"]: a.update(flags.get(a["content"], {}))
    (OUT / f"{name}.json").write_text(json.dumps({**j, **members}, separators=(",", ":"), ensure_ascii=False))


cases("strips", 400)
cases("metaspace", 100)
cases("normalized-added", 200)
MARK = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
variant("metaspace-always", "llama2-style", {}, normalizer=None, pre_tokenizer=MARK)
variant("nfc-added", "qwen2-style", {"éX": {"normalized": True}, "<tool>": {"normalized": True, "rstrip": True, "lstrip": True},
                                     "<|im_end|>": {"normalized": True}})
cases("metaspace-always", 60)
cases("nfc-added", 150)

# One vocabulary as tokenizer.json and as GGUF: without strips, which GGUF can't state.
FLAT = {c: {"lstrip": False, "rstrip": False} for c in ("<tool>", "<sp>")}
ANY = SPACES + ["x", " war", "\u0000", "<0x41>", "\u1112\u1161", "\u11ab", "ſ", "😀", "\u200d", "1234", "'s", "...", "\r\n", "éX", "<tool>", "<|im_start|>", "</s>"]


def both(name, base, pre):
    variant(name, base, FLAT, post_processor=None)
    j = json.loads((OUT / f"{name}.json").read_text())
    t = Tokenizer.from_file(str(OUT / f"{name}.json"))
    added = {a["id"]: a for a in j["added_tokens"]}
    words = {**{i: w for w, i in j["model"]["vocab"].items()}, **{i: a["content"] for i, a in added.items()}}
    tokens = [words[i] for i in range(len(words))]
    merges = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    w = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
    w.add_tokenizer_model("gpt2" if pre else "llama")
    w.add_token_list(tokens)
    kind = lambda i: (2 if tokens[i] == "<unk>" else 3 if added[i]["special"] else 4) if i in added else 6 if not pre and tokens[i][:3] == "<0x" else 1
    w.add_token_types([kind(i) for i in range(len(tokens))])
    if pre:
        w.add_tokenizer_pre(pre)
        w.add_token_merges(merges)
    else:  # the score of a token is the place of the first merge that gives it
        place = {}
        for n, m in enumerate(merges): place.setdefault(m.replace(" ", ""), n)
        w.add_token_scores([-float(place.get(x, len(merges))) for x in tokens])
        w.add_unk_token_id(0)
        w.add_add_space_prefix(base == "llama2-style")
    w.add_add_bos_token(False)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    save(f"{name}.expected.json", {"rows": [[s, t.encode(s).ids] for s in texts(rng, ANY, 150, 12)]})


both("both-llama2", "llama2-style", None)
both("both-gemma", "gemma-style", None)
both("both-qwen2", "qwen2-style", "qwen2")

# Named chat templates beside the default one.
w = gguf.GGUFWriter(OUT / "templates.gguf", "llama")
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("gpt-2")
w.add_token_list(["a", "b", "ab"])
w.add_token_merges(["a b"])
w.add_chat_template([{"name": n, "template": f"{n}: {{{{ messages }}}}"} for n in ("rag", "tool_use", "default")])
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
