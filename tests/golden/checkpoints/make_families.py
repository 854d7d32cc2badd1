"""Makes mistral-bf16, smollm3-bf16 and their GGUF forms, with golden values. Run beside llama-fp32, whose tokenizer and
prompts they share:  python make_families.py   (torch, transformers, gguf, safetensors, numpy; the README has the versions)

Random weights, but such that the features count: without Mistral's window, or with RoPE on SmolLM3's fourth layer, the
logits move by more than 1 (checked below), while the test's tolerance is 1e-3. Both forms hold the same bfloat16 numbers.
"""
import copy, hashlib, json, pathlib, shutil
import gguf, numpy as np, torch, transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
SOURCE = HERE / "llama-fp32"
PROMPTS = json.loads((SOURCE / "golden.json").read_text())["prompts"]
torch.set_num_threads(1)

SHAPE = dict(vocab_size=384, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
             rms_norm_eps=1e-5, hidden_act="silu", bos_token_id=0, eos_token_id=[1, 3], pad_token_id=4)
CONFIGS = {
    "mistral": dict(SHAPE, architectures=["MistralForCausalLM"], model_type="mistral", num_hidden_layers=2, head_dim=24,
                    intermediate_size=96, rope_theta=10000.0, sliding_window=16, tie_word_embeddings=False,
                    torch_dtype="bfloat16"),
    "smollm3": dict(SHAPE, architectures=["SmolLM3ForCausalLM"], model_type="smollm3", num_hidden_layers=4,
                    intermediate_size=64, rope_parameters=dict(rope_type="default", rope_theta=50000.0),
                    no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4, layer_types=["full_attention"] * 4,
                    use_sliding_window=False, sliding_window=None, attention_bias=False, mlp_bias=False,
                    tie_word_embeddings=True, dtype="bfloat16"),
}


def build(config):
    c = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    c._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(c, dtype=torch.float32).eval()


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def fill(model, seed):
    """Normal matrices: attention looks far (scores of deviation 2), each branch is as large as what it is added to."""
    rng = np.random.Generator(np.random.PCG64(seed))
    gain = dict(q_proj=1.6, k_proj=1.6, v_proj=1.0, o_proj=3.0, gate_proj=1.5, up_proj=1.0, down_proj=2.0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                value = np.exp(0.2 * rng.standard_normal(p.shape))
            elif "proj" in name:
                value = rng.standard_normal(p.shape) * gain[name.split(".")[-2]] / np.sqrt(p.shape[1])
            else:  # embedding and head
                value = rng.standard_normal(p.shape) * (1.0 if "embed" in name else 3.0 / np.sqrt(p.shape[1]))
            p.copy_(torch.tensor(value).to(torch.bfloat16))
        if model.config.tie_word_embeddings:
            model.model.norm.weight.mul_(0.375)
            model.model.norm.weight.copy_(model.model.norm.weight.to(torch.bfloat16))


def sig(x):
    return float(f"{float(x):.6g}")


def golden(model):
    rows = []
    for prompt in PROMPTS:
        first = logits(model, prompt["ids"])
        top = np.argsort(-first, 1, kind="stable")[:, :5]
        ids, greedy, margin = list(prompt["ids"]), [], []
        for _ in range(16):
            last = logits(model, ids)[-1]
            best, second = np.argsort(-last, kind="stable")[:2]
            greedy.append(int(best)), margin.append(sig(last[best] - last[second])), ids.append(int(best))
        rows.append(dict(last_logits=[sig(x) for x in first[-1]],
                         top5=[[[int(i), sig(first[t, i])] for i in top[t]] for t in range(len(first))],
                         greedy=greedy, greedy_margin=margin, min_margin=min(margin)))
    return rows


def prompt_logprobs(model, prompt=3):
    ids = PROMPTS[prompt]["ids"]
    x = logits(model, ids).astype(np.float64)
    lp = x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)
    return dict(prompt=prompt, values=[None] + [sig(lp[i, t]) for i, t in enumerate(ids[1:])])


def most_difference(a, b):
    return min(float(np.abs(logits(a, p["ids"]) - logits(b, p["ids"])).max()) for p in PROMPTS)


def variant(config, state, **changes):
    other = build(dict(config, **changes))
    other.load_state_dict(state)
    return other


def weights_of(model):  # of a tied model without the head
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return state


def interleaved(w, heads):  # rows of a head for RoPE on adjacent pairs, as llama.cpp's converter orders them
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return NAMES[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def write_gguf(path, arch, config, state):
    w = gguf.GGUFWriter(str(path), arch)
    D = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(D)
    w.add_value_length(D)
    w.add_rope_dimension_count(D)
    w.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_vocab_size(config["vocab_size"])
    if config.get("sliding_window"):
        w.add_sliding_window(config["sliding_window"])
    tokenizer = json.loads((SOURCE / "tokenizer.json").read_text())
    texts = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    special = {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    texts.update(special)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list([texts[i] for i in range(config["vocab_size"])])
    w.add_token_types([3 if i in special else 1 for i in range(config["vocab_size"])])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    w.add_bos_token_id(config["bos_token_id"])
    w.add_eos_token_id(config["eos_token_id"][0])
    w.add_add_bos_token(True)
    for name, tensor in state.items():
        x = tensor.numpy()
        if "q_proj" in name: x = interleaved(x, config["num_attention_heads"])
        if "k_proj" in name: x = interleaved(x, config["num_key_value_heads"])
        if x.ndim == 1:
            w.add_tensor(gguf_name(name), x.astype(np.float32))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            w.add_tensor(gguf_name(name), gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_golden(path, name, model, hashes, logprobs):
    double = copy.deepcopy(model).double()
    difference = max(float(np.abs(logits(model, p["ids"]) - logits(double, p["ids"])).max()) for p in PROMPTS)
    out = dict(name=name, how=dict(greedy="16 tokens, not stopped at EOS; margin = best minus second logit of each step "
                                          "(a small one is a fair tie)", weights="float32 activations and weights"),
               about=dict(max_diff_to_float64_torch=sig(difference), transformers=transformers.__version__,
                          torch=torch.__version__, rounding="6 significant digits"),
               prompts=PROMPTS, sha256=hashes, variants=dict(weights=golden(model)))
    if logprobs: out["prompt_logprobs"] = prompt_logprobs(model)
    path.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
    ties = sum(m < 0.01 for row in out["variants"]["weights"] for m in row["greedy_margin"])
    print(name, "float64 difference", difference, "ties", ties)


def main():
    for seed, (family, config) in enumerate(CONFIGS.items(), start=31):
        model = build(config)
        fill(model, seed)
        state = weights_of(model)
        full = model.state_dict()
        changed = (variant(config, full, sliding_window=None) if family == "mistral"
                   else variant(config, full, no_rope_layers=[1, 1, 1, 1]))
        print(family, "moves by", most_difference(model, changed), "deviation of logits", logits(model, PROMPTS[3]["ids"]).std())
        assert most_difference(model, changed) > 1
        if family == "mistral":  # a window off by one would show
            assert most_difference(model, variant(config, full, sliding_window=17)) > 0.1
        folder = HERE / f"{family}-bf16"
        folder.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
            shutil.copy(SOURCE / name, folder / name)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file({k: v.to(torch.bfloat16).contiguous() for k, v in state.items()}, folder / "model.safetensors",
                  metadata={"format": "pt"})
        hashes = {k: hashlib.sha256(np.ascontiguousarray(v.numpy(), np.float32).tobytes()).hexdigest()
                  for k, v in state.items() if v.dim() == 2}
        write_golden(folder / "golden.json", folder.name, model, {}, logprobs=True)
        packed = HERE / f"gguf-{family}"
        packed.mkdir(exist_ok=True)
        file = packed / f"gguf-{family}.BF16.gguf"
        write_gguf(file, "llama" if family == "mistral" else family, config, state)
        write_golden(file.with_suffix(".golden.json"), file.name, model, hashes, logprobs=False)
        print(sum(f.stat().st_size for f in folder.iterdir()), sum(f.stat().st_size for f in packed.iterdir()), "bytes")


main()
