#!/usr/bin/env python3
"""Make tests/golden/tiny.json: reference values for lessons/models/tiny and tiny-draft, from transformers in float32 on the CPU.

    pip install torch transformers tokenizers safetensors gguf numpy
    python tests/golden/make_tiny.py --models lessons/models --out tests/golden/tiny.json        # 1 to 3 minutes

tiny.json:
  provenance        tool versions, command, sha256 of every file read
  tokenize          [{text, ids}]: add_special_tokens=False (special tokens written in the text are still recognised)
  sections.M.W      M = tiny, tiny-draft; W = bf16 (the HF directory) or q8_0 (weights dequantised from the GGUF file, q and k rows put back
                    into HF order, computed in float32 with transformers: so an engine that quantises activations to 8 bits differs a little)
    generate        per prompt: ids (with <|bos|>), top10 [[id, logit]] of the first generated position, greedy (48 ids, not stopped at
                    <|eos|>) and margin (logit of the best id minus the second best, at each of the 48 steps)
    ppl             on lessons/models/sample.txt: tokenise the whole text once without <|bos|>, cut the ids into consecutive chunks of 256,
                    drop the incomplete last one, put nothing in front, predict tokens 1..255 of each chunk from those before it in the
                    chunk. ppl_all = exp(nll_sum / predicted); ppl_second_half counts only predicted tokens with index >= 128 in a chunk.
  agreement         share of tiny's greedy tokens (all prompts, bf16) that tiny-draft would also have chosen, given the same prefix
Margins matter: two correct programs may choose differently where the margin is below their difference in logits.
"""
import argparse, hashlib, importlib.metadata, json, math, os, platform, re, sys
from pathlib import Path
import gguf, numpy, tokenizers, torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, CHUNK = 48, 256
PROMPTS = [
    "In the beginning God created the heaven and the earth.",
    "The LORD is my shepherd;",
    "And it came to pass in those days, that",
    "Blessed are the poor in spirit: for theirs is the kingdom of heaven.\nBlessed are they that mourn: for they shall be comforted.\n"
    "Blessed are the meek: for they shall inherit the earth.\nBlessed are they which do hunger and thirst after righteousness: for they "
    "shall be filled.\nBlessed are the merciful: for they shall obtain mercy.\nBlessed are the pure in heart: for they shall see God.\n"
    "Blessed are the peacemakers: for they shall be called the children of God.\nBlessed are they which are persecuted for righteousness' "
    "sake: for theirs is the kingdom of heaven.\nBlessed are ye, when men shall revile you, and persecute you, and shall say all manner of "
    "evil against you falsely, for my sake.\nRejoice, and be exceeding glad: for great is your reward in heaven:",
    "起初神創造天地。🌍✨",
    "A",
]
DRAFT_PROMPTS = [0, 1, 3]
TEXTS = [
    "", " ", "  ", "   x", "x   ", "a  b", "\n", "\n\n", " \n ", "\t\tx\t", "\r\nx\r\n", "one\n\n two\n", "0", "1234567890", "in 1611, 3.14%", "1 2  3",
    "Hello, world!", "don't DON'T I'll we've he'd", "And God said, Let there be light: and there was light.", "the LORD", "the\u00a0LORD\u3000x",
    "naïve café", "cafe\u0301", "e\u0301\u0323\u0308", "Việt Nam đất nước", "ภาษาไทย น้ำ", "日本語のテキスト", "起初神創造天地。", "한국어 ㄱ",
    "العربية עברית", "हिन्दी क्षत्रिय", "😀", "👨‍👩‍👧‍👦 family", "👍🏽🇩🇪✨", "a\u0000b", "\u0000", "\ufeffbom", "\u200b\u200d", "\U0010ffff", "\x7f\x80",
    "<|bos|>x<|eos|>", "<|bos|> x <|eos|> ", "<|bos|><|bos|>", "<|bos", "<|BOS|>", "x<|endoftext|>", "--- === ***", "a_b-c/d\\e", "…—“quotes”", "²³½Ⅷ①",
]


def q8_weights(path, model):
    """The GGUF file's weights as a state dict in HF order."""
    config, out = model.config, {}
    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
    for t in gguf.GGUFReader(path).tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)])
        part = t.name.split(".")
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(part[-2])
        if heads:                                         # GGUF row 2i + b of a head is HF row b * D/2 + i
            w = w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}.get(part[0]) or f"model.layers.{part[1]}.{names[part[2]]}"
        out[name + ".weight"] = torch.from_numpy(w.astype("float32"))
    return out


@torch.no_grad()
def generate(model, tok, text):
    ids = tok(text)["input_ids"]
    assert ids[0] == tok.bos_token_id
    seq, greedy, margin = list(ids), [], []
    for step in range(STEPS):                             # no KV cache: the plainest reference
        logits = model(torch.tensor([seq]), use_cache=False).logits[0, -1]
        value, index = logits.topk(10)
        if step == 0:
            top = [[int(i), round(float(v), 5)] for v, i in zip(value, index)]
        greedy.append(int(index[0])), margin.append(round(float(value[0] - value[1]), 5))
        seq.append(greedy[-1])
    return dict(prompt=text, ids=ids, top10=top, greedy=greedy, margin=margin, text=tok.decode(greedy))


@torch.no_grad()
def perplexity(model, ids):
    chunks = torch.tensor(ids[:len(ids) // CHUNK * CHUNK]).reshape(-1, CHUNK)
    nll = torch.cat([torch.nn.functional.cross_entropy(model(c[None], use_cache=False).logits[0, :-1], c[1:], reduction="none")[None] for c in chunks]).double()
    late = nll[:, 127:]                                   # column j predicts token j + 1
    return dict(tokens=len(ids), chunks=len(chunks), chunk=CHUNK, predicted=nll.numel(), nll_sum=nll.sum().item(), ppl_all=math.exp(nll.mean().item()),
                predicted_second_half=late.numel(), nll_sum_second_half=late.sum().item(), ppl_second_half=math.exp(late.mean().item()))


@torch.no_grad()
def agreement(draft, rows):
    same = total = 0
    for r in rows:
        guess = draft(torch.tensor([r["ids"] + r["greedy"][:-1]]), use_cache=False).logits[0, len(r["ids"]) - 1:].argmax(-1)
        same, total = same + int((guess == torch.tensor(r["greedy"])).sum()), total + len(r["greedy"])
    return dict(same=same, positions=total, share=same / total)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    torch.set_num_threads(2)
    tok = AutoTokenizer.from_pretrained(a.models / "tiny")
    sample = tok((a.models / "sample.txt").read_text(), add_special_tokens=False)["input_ids"]
    sections, used = {}, ["sample.txt"]
    for name in ("tiny", "tiny-draft"):
        sections[name] = {}
        used += [f"{name}/config.json", f"{name}/model.safetensors", f"{name}/tokenizer.json", f"{name}-Q8_0.gguf"]
        model = AutoModelForCausalLM.from_pretrained(a.models / name, dtype=torch.float32, attn_implementation="eager").eval()
        bf16 = {k: v.clone() for k, v in model.state_dict().items()}
        for weights in ("bf16", "q8_0"):
            if weights == "q8_0":
                missing = model.load_state_dict(q8_weights(a.models / f"{name}-Q8_0.gguf", model), strict=False)
                assert not missing.unexpected_keys and missing.missing_keys in ([], ["lm_head.weight"])
                assert model.lm_head.weight is model.model.embed_tokens.weight
                for k, v in model.state_dict().items():   # permuted, scaled or missing weights would show here
                    largest = bf16[k].reshape(-1, 32).abs().amax(1, keepdim=True)     # half a step + float16 rounding of the step times q <= 127
                    assert ((v - bf16[k]).reshape(-1, 32).abs() <= largest / 127 * (0.5 + 127 * 2**-11) * 1.001 + 127 * 2**-25).all(), k
            prompts = PROMPTS if name == "tiny" else [PROMPTS[i] for i in DRAFT_PROMPTS]
            sections[name][weights] = dict(generate=[generate(model, tok, t) for t in prompts], ppl=perplexity(model, sample))
            if name == "tiny-draft" and weights == "bf16":
                agree = agreement(model, sections["tiny"]["bf16"]["generate"])
    golden = dict(
        provenance=dict(command="python tests/golden/make_tiny.py --models lessons/models --out tests/golden/tiny.json", computed="float32, CPU, eager attention, no KV cache",
                        versions={m.__name__: m.__version__ for m in (torch, transformers, tokenizers, numpy)} | {"gguf": importlib.metadata.version("gguf"), "python": platform.python_version()},
                        sha256={f: hashlib.sha256((a.models / f).read_bytes()).hexdigest() for f in used}),
        tokenize=[dict(text=t, ids=tok(t, add_special_tokens=False)["input_ids"]) for t in TEXTS],
        sections=sections, agreement=agree)
    text = json.dumps(golden, indent=1, ensure_ascii=True)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda m: "[" + " ".join(m[0][1:-1].split()) + "]", text)     # number lists on one line
    assert json.loads(text) == golden
    tmp = a.out.with_suffix(".tmp")
    tmp.write_text(text + "\n")
    os.replace(tmp, a.out)
    for name, s in sections.items():
        for w, v in s.items():
            print(name, w, {k: round(v["ppl"][k], 3) for k in ("ppl_all", "ppl_second_half")}, "smallest margin", min(min(g["margin"]) for g in v["generate"]), file=sys.stderr)
    print("agreement", agree, file=sys.stderr)


if __name__ == "__main__":
    main()
