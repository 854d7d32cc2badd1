#!/usr/bin/env python3
"""Make lessons/gdb/tour.json: what `make tour` must see in the debugger, computed without nano.

    pip install gguf numpy tokenizers
    python tests/golden/make_tour.py          # a second; from the repository's root

Token ids and texts come from the tokenizers library; activations, scores and logits from a plain float64 Llama below
(no KV cache: each step computes the whole sequence), which must first give the logits that transformers gave for the
prompts of tests/golden/tiny.json. Blocks and slots are counted by hand: an empty pool of 16 blocks of 4, one sequence.
"""
import importlib.metadata, json
from pathlib import Path
import gguf, numpy, tokenizers

MODEL, PROMPT, BLOCK, BLOCKS = Path("lessons/models/tiny"), "In the beginning", 4, 16  # as in `make tour`


def weights(path, c):
    """Matrices and vectors by their names in the file; rows of q and k in the order of half-split RoPE."""
    out = {}
    for t in gguf.GGUFReader(path).tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)]).astype("f8")
        heads = {"attn_q": c["num_attention_heads"], "attn_k": c["num_key_value_heads"]}.get(t.name.split(".")[-2])
        if heads:  # row 2i + b of a head in the file is row b * D/2 + i
            w = w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        out[t.name.removesuffix(".weight")] = w
    return out


def bf16_weights():
    data = (MODEL / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    out = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16"
        begin, end = (8 + size + offset for offset in t["data_offsets"])
        bits = numpy.frombuffer(data[begin:end], "<u2").astype("<u4") << 16
        out[name] = bits.view("<f4").astype("f8").reshape(t["shape"])
    return out


def norm(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rope(x, theta):  # [T, heads, D]: the pair (i, i + D/2) turns by position / theta^(2i/D)
    T, _, D = x.shape
    angle = numpy.arange(T)[:, None] * theta ** (-numpy.arange(0, D, 2) / D)
    cos, sin = numpy.cos(angle)[:, None], numpy.sin(angle)[:, None]
    a, b = x[..., :D // 2], x[..., D // 2:]
    return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def forward(w, c, ids):
    """Logits of the last position, and what layer 0 did on the way."""
    H, KVH, D, eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
    T, seen = len(ids), {}
    x = w["token_embd"][ids]
    for i in range(c["num_hidden_layers"]):
        layer = lambda name: w[f"blk.{i}.{name}"]
        h = norm(x, layer("attn_norm"), eps)
        q, k, v = ((h @ layer(f"attn_{p}").T).reshape(T, -1, D) for p in "qkv")
        rq, rk = rope(q, c["rope_theta"]), rope(k, c["rope_theta"])
        group = H // KVH
        attn = numpy.zeros((T, H, D))
        for head in range(H):
            scores = rq[:, head] @ rk[:, head // group].T / D ** 0.5
            if i == head == 0:
                seen.update(x=x, h=h, q=q, k=rk, v=v, scores=scores[-1])
            scores[numpy.triu_indices(T, 1)] = -numpy.inf
            p = numpy.exp(scores - scores.max(-1, keepdims=True))
            attn[:, head] = p / p.sum(-1, keepdims=True) @ v[:, head // group]
        if i == 0:
            seen["attn"] = attn.reshape(T, -1)
        x = x + attn.reshape(T, -1) @ layer("attn_output").T
        h = norm(x, layer("ffn_norm"), eps)
        gate, up = h @ layer("ffn_gate").T, h @ layer("ffn_up").T
        x = x + (gate / (1 + numpy.exp(-gate)) * up) @ layer("ffn_down").T
    return norm(x[-1], w["output_norm"], eps) @ w["token_embd"].T, seen


def check_against_transformers(w, c):
    for case in json.load(open("tests/golden/tiny.json"))["sections"]["tiny"]["q8_0"]["generate"]:
        logits = forward(w, c, case["ids"])[0]
        best = numpy.argsort(-logits, kind="stable")[:10]
        assert [int(i) for i in best] == [i for i, _ in case["top10"]], case["prompt"]
        assert all(abs(logits[i] - value) < 1e-4 for i, value in case["top10"]), case["prompt"]


def step(w, c, tok, ids, first, blocks):
    """One step of a sequence whose positions from `first` on are computed."""
    logits, seen = forward(w, c, ids)
    best = [int(i) for i in numpy.argsort(-logits, kind="stable")[:5]]
    numbers = lambda values: [round(float(v), 5) for v in values]
    n = len(ids)
    return best[0], {
        "T": n - first, "S": 1, "R": 1, "token_ids": ids[first:], "positions": list(range(first, n)),
        "slot_mapping": [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(first, n)],
        "query_start": [0, n - first], "seq_len": [n], "logit_rows": [n - first - 1],
        "x": f"x [{n - first}, {c['hidden_size']}] row 0: {printed(seen['x'][first])}",
        "h": numbers(seen["h"][first][:4]),
        "q": numbers(seen["q"][first][0][:4]), "K of the last position": numbers(seen["k"][-1][0][:4]),
        "V of the last position": numbers(seen["v"][-1][0][:4]), "scores": numbers(seen["scores"]),
        "attn of the last row": numbers(seen["attn"][-1][:4]),
        "best": best, "best texts": [tok.decode([i], skip_special_tokens=False) for i in best],
        "best logits": numbers(logits[best]), "token": best[0], "text": tok.decode([best[0]]),
    }


def printed(row):
    """As lessons/gdb/nano.py shows a long row. Only for numbers that float32 holds exactly: weights of Q8_0."""
    return "[" + " ".join(f"{x:.5g}" for x in row[:8]) + " …]"


def listing(numbers):
    return "[" + " ".join(map(str, numbers)) + "]"


def texts(tok, c, ids, first, blocks, token, matrices):
    """What the printers and commands of lessons/gdb/nano.py say in that step, written from what is true then."""
    n, of, step_number, output = len(ids), c["hidden_size"], int(first > 0), len(ids) - 5
    state, held = ("running", blocks) if first else ("waiting", [])
    text = lambda i: repr(tok.id_to_token(i) if i == c["bos_token_id"] else tok.decode([i]))
    findable = lambda block: " (findable by its prefix)" if (block + 1) * BLOCK <= first else ""
    free = list(range(len(blocks), BLOCKS))
    out = {
        "sequences": f"seq 0: {state}, 5 prompt + {output} output tokens {listing(ids)}, {first} computed, blocks {listing(held)}",
        "waiting": int(first == 0), "running": int(first > 0), "to compute": n - first, "budget": 2048, "to hold": n,
        "free before": (list(range(BLOCKS)) if first == 0 else free)[:4],
        "plan": f"step {step_number}: {n - first} tokens, 1 running, 0 waiting, {len(free)} blocks free"
                + ("" if first else " admitted [0]")
                + f"\n  seq 0: positions {first}..{n - 1} tokens {listing(ids[first:])} blocks {listing(blocks)} "
                + f"({len(blocks) - len(held)} new), 1 logit rows, samples",
        "blocks": "\n  ".join([f"{BLOCKS} blocks of {BLOCK}: {len(blocks)} used, {len(free)} free, reused in this order: "
                               + listing(free[:8])[:-1] + " …]"]
                              + [f"block {b}: seq 0 positions {b * BLOCK}..{b * BLOCK + BLOCK - 1}" + findable(b) for b in blocks]),
        "tokens": "\n".join(["seq 0: running"] + [
            f"  {p:4}  {i:6}  {text(i):14} {'prompt' if p < 5 else 'output'}  {f'block {blocks[p // BLOCK]} + {p % BLOCK}':12} "
            f"{'computed' if p < first else 'to do'}" for p, i in enumerate(ids)]),
        "batch": f"T={n - first} S=1 R=1\n  token_ids {listing(ids[first:])}\n  positions {listing(range(first, n))}"
                 f"\n  slot_mapping {listing(blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(first, n))}"
                 f"\n  query_start [0 {n - first}]\n  seq_len [{n}]\n  block_table {listing(blocks)}\n  logit_rows [{n - first - 1}]",
        "callers": ["RefBackend::linear", "Transformer::decoder_block", "Transformer::forward", "Runner::run_body",
                    "RefBackend::step", "Runner::run"],
        "h shape": ["h", n - first, of], "attn shape": ["attn", n - first, of],
        "matrix": "\n  ".join([f"{sum(m.shape[0] for m in matrices)} outputs of {of} inputs, "
                               f"{sum(m.size for m in matrices) // 32 * 34} bytes"]
                              + [f"blk.0.attn_{name}.weight [{m.shape[0]}, {of}] q8_0 group 32 row 0: {printed(m[0])}"
                                 for name, m in zip("qkv", matrices)]),
        "nano kv": f"layer 0 position {n - 1} (slot {n - 1}) K head 0",
        "result": f"step {step_number}:\n  seq 0: computed {n - first}, token {token}",
    }
    return out if first else {**out, "blocks known": 0}


def main():
    c = json.load(open(MODEL / "config.json"))
    w = weights(f"{MODEL}-Q8_0.gguf", c)  # what nano takes for `tiny`
    check_against_transformers(w, c)
    tok = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    ids = tok.encode(PROMPT).ids
    n = len(ids)
    blocks = list(range((n + BLOCK - 1) // BLOCK))
    token, prefill = step(w, c, tok, ids, 0, blocks)
    blocks = list(range((n + 1 + BLOCK - 1) // BLOCK))
    second, decode = step(w, c, tok, ids + [token], n, blocks)
    matrices = [w[f"blk.0.attn_{name}"] for name in "qkv"]
    prefill.update(texts(tok, c, ids, 0, blocks, token, matrices))
    decode.update(texts(tok, c, ids + [token], n, blocks, second, matrices))
    bf16 = bf16_weights()
    ids_q = bf16["model.layers.0.self_attn.q_proj.weight"]
    x = norm(bf16["model.embed_tokens.weight"][ids], bf16["model.layers.0.input_layernorm.weight"], c["rms_norm_eps"])
    k = rope((x @ bf16["model.layers.0.self_attn.k_proj.weight"].T).reshape(n, -1, c["head_dim"]), c["rope_theta"])
    formats = {"bf16": f"model.layers.0.self_attn.q_proj.weight [{ids_q.shape[0]}, {ids_q.shape[1]}] bf16 row 0: {printed(ids_q[0])}",
               "f16 K of position 4": [round(float(v), 5) for v in k[4][0][:4]]}
    end = {"exit code": 0, "printed": tok.decode([token, second]) + "\n"}
    start = {"model": "tiny", "text": PROMPT, "bos id": c["bos_token_id"], "bos text": tok.id_to_token(c["bos_token_id"]),
             "prompt": ids, "prompt texts": [tok.id_to_token(i) if i == c["bos_token_id"] else tok.decode([i]) for i in ids]}
    provenance = {"command": "python tests/golden/make_tour.py", "gguf": importlib.metadata.version("gguf"), "numpy": numpy.__version__,
                  "tokenizers": tokenizers.__version__}
    out = {"provenance": provenance, "start": start, "prefill": prefill, "decode": decode, "end": end,
           "formats": formats}
    lines = [f'"{name}": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in part.items()) + "\n}"
             for name, part in out.items()]
    Path("lessons/gdb/tour.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
