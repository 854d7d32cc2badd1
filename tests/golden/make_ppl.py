"""Perplexity of ppl.txt under checkpoints/gemma3-bf16, whose tokenizer adds BOS: what `ppl` must say.

Independent of nano: tokenizers encodes, numpy runs Gemma 3 in float64, and the definition is that of llama.cpp's
perplexity tool: the text is tokenised once (with BOS), cut into chunks of ctx tokens, the first token of each chunk
is replaced by BOS, and of the predictions those of tokens ctx / 2 + 1 … ctx - 1 count (ppl_second_half); ppl counts
them all. First it is checked against the logits in golden.json, which are from transformers.
Usage: python make_ppl.py > ppl.json   (numpy 2.4, tokenizers 0.23, safetensors 0.8)
"""
import json
import pathlib

import numpy as np
from safetensors import deserialize
from tokenizers import Tokenizer

here = pathlib.Path(__file__).parent
model = here / "checkpoints" / "gemma3-bf16"
config = json.loads((model / "config.json").read_text())
W = {}
for name, info in deserialize((model / "model.safetensors").read_bytes()):
    bits = np.frombuffer(info["data"], "<u2").astype("<u4") << 16
    W[name.removeprefix("model.")] = bits.view("<f4").reshape(info["shape"]).astype(np.float64)
L, H, KVH, D = (config[k] for k in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"))


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * (1 + weight)


def rope(x, theta):  # [T, heads, D]
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(0, D, 2) / D)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def logits_of(ids):
    T = len(ids)
    x = W["embed_tokens.weight"][ids] * np.sqrt(config["hidden_size"])
    distance = np.arange(T)[:, None] - np.arange(T)[None]
    for i in range(L):
        w = {k.split(".", 2)[2].removesuffix(".weight"): v for k, v in W.items() if k.startswith(f"layers.{i}.")}
        everything = (i + 1) % config["sliding_window_pattern"] == 0
        theta = config["rope_theta"] if everything else config["rope_local_base_freq"]
        seen = (distance >= 0) & (everything | (distance < config["sliding_window"]))
        h = norm(x, w["input_layernorm"])
        q = rope(norm((h @ w["self_attn.q_proj"].T).reshape(T, H, D), w["self_attn.q_norm"]), theta)
        k = rope(norm((h @ w["self_attn.k_proj"].T).reshape(T, KVH, D), w["self_attn.k_norm"]), theta)
        v = (h @ w["self_attn.v_proj"].T).reshape(T, KVH, D)
        k, v = (np.repeat(y, H // KVH, axis=1) for y in (k, v))
        score = np.einsum("thd,shd->hts", q, k) * config["query_pre_attn_scalar"] ** -0.5
        p = np.exp(np.where(seen, score, -np.inf) - np.where(seen, score, -np.inf).max(-1, keepdims=True))
        h = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v).reshape(T, H * D) @ w["self_attn.o_proj"].T
        x = x + norm(h, w["post_attention_layernorm"])
        h = norm(x, w["pre_feedforward_layernorm"])
        gate = h @ w["mlp.gate_proj"].T
        gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + norm((gate * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T, w["post_feedforward_layernorm"])
    return norm(x, W["norm.weight"]) @ W["embed_tokens.weight"].T


def nll_of(ids):  # of tokens 1, 2, …
    z = logits_of(ids)[:-1]
    z = z - z.max(-1, keepdims=True)
    return -(z[np.arange(len(z)), ids[1:]] - np.log(np.exp(z).sum(-1)))


def perplexity(ids, ctx, bos):
    first, second = [], []
    for begin in range(0, len(ids) - ctx + 1, ctx):
        chunk = list(ids[begin : begin + ctx])
        if bos is not None:
            chunk[0] = bos
        nll = nll_of(chunk)
        first += list(nll)
        second += list(nll[ctx // 2 :])
    return {"ppl": np.exp(np.mean(first)), "ppl_second_half": np.exp(np.mean(second)), "tokens": len(first)}


golden = json.loads((model / "golden.json").read_text())
last = logits_of(golden["prompts"][0]["ids"])[-1]
worst = np.abs(last - golden["variants"]["weights"][0]["last_logits"]).max()
assert worst < 1e-3, worst
bos = config["bos_token_id"]
ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode((here / "ppl.txt").read_text()).ids
assert ids[0] == bos
out = {"ctx": 24, **perplexity(ids, 24, bos), "first_chunk_only_bos": perplexity(ids, 24, None)}
print(json.dumps(out, indent=1))
