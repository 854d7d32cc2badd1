#!/usr/bin/env python3
"""Train the two models that ship in lessons/models: `tiny` and its draft model `tiny-draft`.

    apt-get install bible-kjv                           # the text, public domain
    bible -f "Gen1:1-Rev22:21" > kjv.txt
    pip install torch transformers tokenizers safetensors gguf numpy
    python notebooks/train_tiny.py --device cuda --text kjv.txt --work /tmp/tiny --out lessons/models
    python tests/golden/make_tiny.py --models lessons/models --out tests/golden/tiny.json

The defaults are the steps, batches, dropout and weight decay of the shipped models. On one data-centre GPU these took
3 minutes: target 1.1 (beside four other runs), generate 0.8, draft 1.0, with --minutes as a limit. --device cpu works too
(4 GB of memory) but needs hours; for a weaker pair in an hour on two cores: --target-steps 1060 --batch-tokens 4096 --dropout 0.05
--weight-decay 0.1 --generate-batches 4 --draft-steps 2250 --draft-batch-tokens 2048.
The text is small, so `tiny` memorises it: strong dropout and weight decay are what lowers its held-out loss.
`--work` holds checkpoints, so single stages can be rerun:
    text      verses -> one document per chapter -> held-out split -> byte-level BPE tokenizer -> ids
    target    train tiny (4 layers, 256 wide) on the chapters
    generate  let tiny write text: greedy and sampled continuations of training passages
    draft     distil tiny-draft (1 layer, 128 wide) from tiny, on the chapters and on what tiny wrote
    export    Hugging Face directories (bf16) and Q8_0 GGUF files
    measure   held-out loss, loss by position, greedy agreement of draft and target -> measurements.json
The seed fixes the data, the split and the batches. Weights still differ a little from run to run: the order of floating-point sums
depends on the machine, and with --minutes the schedule depends on the clock (the learning rate then follows the later of steps and time).
"""
import argparse, hashlib, inspect, json, math, os, re, shutil, time
from pathlib import Path
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM

BOS, EOS, VOCAB, CONTEXT = 0, 1, 2048, 2048
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
EDGES = [0, 128, 256, 512, 1024, 1536, 2047]               # held-out loss is also reported between these positions
SHAPES = {"tiny": dict(hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2),
          "tiny-draft": dict(hidden_size=128, intermediate_size=384, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)}

def config_json(name):
    """config.json; also what LlamaConfig is built from, so that file and model cannot disagree."""
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCAB, **SHAPES[name], head_dim=32,
                max_position_embeddings=CONTEXT, rope_theta=10000.0, rope_scaling=None, rms_norm_eps=1e-5, hidden_act="silu",
                attention_bias=False, mlp_bias=False, attention_dropout=0.0, tie_word_embeddings=True, initializer_range=0.02,
                bos_token_id=BOS, eos_token_id=EOS, torch_dtype="bfloat16", use_cache=True)


# ---- text ------------------------------------------------------------------------------------------------------------------------
def read_chapters(path):
    """`Ge1:1 In the beginning ...` lines -> {(book, chapter): text}: one verse a line, no references."""
    chapters = {}
    for line in Path(path).read_text().splitlines():
        book, chapter, text = re.match(r"(\d?[A-Za-z]+)(\d+):\d+ (.*)$", line).groups()
        chapters.setdefault((book, int(chapter)), []).append(text.strip())
    return {k: "\n".join(v) for k, v in chapters.items()}

def train_tokenizer(texts):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|bos|>", "<|eos|>"], show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.post_processor = processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B", special_tokens=[("<|bos|>", BOS)])
    assert tok.get_vocab_size() == VOCAB and tok.token_to_id("<|bos|>") == BOS and tok.token_to_id("<|eos|>") == EOS
    return tok

def stage_text(a):
    chapters = read_chapters(a.text)
    keys = list(chapters)
    held = set(np.random.default_rng(a.seed).choice(len(keys), size=round(len(keys) * 0.03), replace=False).tolist())
    train, test = [k for i, k in enumerate(keys) if i not in held], [k for i, k in enumerate(keys) if i in held]
    tok = train_tokenizer([chapters[k] for k in train])
    tok.save(str(a.work / "tokenizer.json"))
    for name, part in (("train", train), ("test", test)):
        ids = [i for k in part for i in [BOS, *tok.encode(chapters[k], add_special_tokens=False).ids, EOS]]
        np.save(a.work / f"{name}.npy", np.array(ids, dtype=np.int64))
        print(f"{name}: {len(part)} chapters, {sum(len(chapters[k]) for k in part)} bytes, {len(ids)} tokens")
    (a.work / "held_out.json").write_text(json.dumps([f"{b} {c}" for b, c in test]))
    sample = ""                                           # ~20 kB of held-out text: whole chapters, spread over all held-out ones
    for k in test[::2] + test[1::2]:
        if len(sample) + len(chapters[k]) < 21_000:
            sample += chapters[k] + "\n\n"
    (a.work / "sample.txt").write_text(sample)


# ---- model and training ----------------------------------------------------------------------------------------------------------
def new_model(name, dropout=0.0):
    model = LlamaForCausalLM(LlamaConfig(**{**config_json(name), "torch_dtype": "float32"})).float()
    drop = lambda module, args, out: F.dropout(out, dropout, module.training)   # residual dropout, which Llama does not have
    if dropout:
        for m in [model.model.embed_tokens, *(x for l in model.model.layers for x in (l.self_attn.o_proj, l.mlp.down_proj))]:
            m.register_forward_hook(drop)
    return model

def logits_of(model, ids, bf16=True):
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=bf16):
        return model(ids, use_cache=False).logits.float()

def batch(ids, tokens, length, rng, starts):
    """Windows of length+1 ids; half of them begin with a chapter (so position 0 is <|bos|>), the others anywhere."""
    n = tokens // length
    at = np.where(rng.random(n) < 0.5, rng.choice(starts[starts < len(ids) - length - 1], n), rng.integers(0, len(ids) - length - 1, n))
    return torch.from_numpy(np.stack([ids[s:s + length + 1] for s in at]))

def pick_length(rng):                                     # mostly short windows; enough long ones that context 2048 works
    return int(rng.choice([256, 1024, 2048], p=[0.75, 0.15, 0.1]))

def compiled(loss):
    """torch.compile for the frequent window length only: each length is a compilation, and long windows gain little."""
    fast = torch.compile(loss, dynamic=False)
    return lambda w: fast(w) if w.shape[1] == 257 else loss(w)

@torch.no_grad()
def held_out_loss(model, ids, length=256, bf16=True):
    """Loss of every predicted token, [chunks, length - 1]: consecutive chunks, nothing put in front."""
    training = model.training
    model.eval()
    x = torch.from_numpy(ids[:len(ids) // length * length].reshape(-1, length)).to(model.device)
    nll = [F.cross_entropy(logits_of(model, c, bf16)[:, :-1].transpose(1, 2), c[:, 1:], reduction="none") for c in x.split(4096 // length)]
    model.train(training)
    return torch.cat(nll)

def train(model, name, steps, lr, weight_decay, loss_of_step, test, a):
    """AdamW, warm-up and cosine; keeps the checkpoint that is best on the held-out chapters."""
    groups = [dict(params=[p for p in model.parameters() if p.dim() == 2], weight_decay=weight_decay),
              dict(params=[p for p in model.parameters() if p.dim() == 1], weight_decay=0.0)]
    opt = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)
    best, start, done, step = 1e9, time.time(), 0.0, 0
    while done < 1:
        done = max(step / steps, (time.time() - start) / 60 / a.minutes if a.minutes else 0)
        for g in opt.param_groups:
            g["lr"] = lr * min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1, done))))
        loss = loss_of_step(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step(), opt.zero_grad()
        step += 1
        if step % 250 == 0 or done >= 1:
            h = held_out_loss(model, test).mean().item()
            print(f"{name} step {step} {(time.time() - start) / 60:.1f} min loss {loss.item():.3f} held-out {h:.4f}", flush=True)
            if h < best:
                best = h
                save_file({k: v.bfloat16().contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}, a.work / f"{name}.tmp")
                os.replace(a.work / f"{name}.tmp", a.work / f"{name}.safetensors")

def load(name, a):
    model = new_model(name)
    model.load_state_dict({k: v.float() for k, v in load_file(a.work / f"{name}.safetensors").items()}, strict=False)
    return model.to(a.device).eval()

def load_ids(a):
    return np.load(a.work / "train.npy"), np.load(a.work / "test.npy")

def stage_target(a):
    ids, test = load_ids(a)
    starts, rng = np.flatnonzero(ids == BOS), np.random.default_rng(a.seed + 1)

    model = new_model("tiny", a.dropout).to(a.device).train()
    loss = compiled(lambda w: F.cross_entropy(logits_of(model, w[:, :-1]).reshape(-1, VOCAB), w[:, 1:].reshape(-1)))
    windows = lambda: batch(ids, a.batch_tokens, pick_length(rng), rng, starts).to(a.device)
    train(model, "tiny", a.target_steps, 3e-3, a.weight_decay, lambda step: loss(windows()), test, a)

@torch.no_grad()
def continue_text(model, prompts, n, temperature, bf16=True):
    """n more tokens for each prompt ([S, P] ids), with a KV cache; temperature [S, 1], 0 is greedy."""
    out, cache, x = prompts, DynamicCache(config=model.config), prompts
    for _ in range(n):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            logits = model(x, **{CACHE: cache}, use_cache=True, logits_to_keep=1).logits[:, -1].float()
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_min(1e-20)))       # Gumbel: argmax(logits + T*noise) samples at T
        x = (logits + temperature * noise).argmax(-1, keepdim=True)
        out = torch.cat([out, x], 1)
    return out

def stage_generate(a):
    ids, _ = load_ids(a)
    model, starts, rng, rows = load("tiny", a), np.flatnonzero(ids == BOS), np.random.default_rng(a.seed + 2), []
    start = time.time()
    for i in range(a.generate_batches):
        if a.minutes and (time.time() - start) / 60 > a.minutes * 0.25:
            break
        prompt = int(rng.integers(2, 48))
        w = batch(ids, 256 * prompt, prompt, rng, starts)[:, :prompt].to(a.device)
        temperature = torch.from_numpy(rng.choice([0.0, 0.0, 0.5, 1.0], (len(w), 1)).astype(np.float32))
        rows.append(continue_text(model, w, 257 - prompt, temperature.to(a.device)).cpu())
    np.save(a.work / "generated.npy", torch.cat(rows).numpy())
    print(f"generated {len(rows) * 256} sequences of 257 tokens in {(time.time() - start) / 60:.1f} min")

def stage_draft(a):
    """Distillation: 0.8 KL(target || draft) + 0.2 cross-entropy, half on chapters and half on tiny's own text."""
    (ids, test), own = load_ids(a), np.load(a.work / "generated.npy")
    starts, rng, target = np.flatnonzero(ids == BOS), np.random.default_rng(a.seed + 3), load("tiny", a)

    def windows(step):
        if step % 2:
            return torch.from_numpy(own[rng.integers(0, len(own), a.draft_batch_tokens // 256)])
        return batch(ids, a.draft_batch_tokens, pick_length(rng), rng, starts)

    def loss(w):
        with torch.no_grad():
            want = logits_of(target, w[:, :-1]).log_softmax(-1)
        got = logits_of(draft, w[:, :-1]).log_softmax(-1)
        kl = F.kl_div(got.reshape(-1, VOCAB), want.reshape(-1, VOCAB), log_target=True, reduction="batchmean")
        return 0.8 * kl + 0.2 * F.nll_loss(got.reshape(-1, VOCAB), w[:, 1:].reshape(-1))
    draft = new_model("tiny-draft").train()
    with torch.no_grad():                                 # head start: tiny's embeddings in their 128 main directions, turned at random
        wide, narrow = target.model.embed_tokens.weight.cpu(), draft.model.embed_tokens.weight
        main_directions = torch.linalg.svd(wide, full_matrices=False).Vh[:narrow.shape[1]].T
        narrow.copy_(wide @ main_directions @ torch.linalg.qr(torch.randn(narrow.shape[1], narrow.shape[1])).Q)
    draft, loss = draft.to(a.device), compiled(loss)
    train(draft, "tiny-draft", a.draft_steps, 5e-3, 0.02, lambda step: loss(windows(step).to(a.device)), test, a)


# ---- export ----------------------------------------------------------------------------------------------------------------------
def export_hf(name, a):
    tmp, final = a.out / f".{name}.tmp", a.out / name
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    dump = lambda file, value: (tmp / file).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    dump("config.json", config_json(name))
    dump("generation_config.json", dict(bos_token_id=BOS, eos_token_id=EOS, do_sample=False))
    special = lambda text: dict(content=text, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
    dump("tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|bos|>", eos_token="<|eos|>", bos_token_id=BOS,
         eos_token_id=EOS, add_bos_token=True, add_eos_token=False, model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
         added_tokens_decoder={str(BOS): special("<|bos|>"), str(EOS): special("<|eos|>")}))
    shutil.copy(a.work / "tokenizer.json", tmp / "tokenizer.json")
    weights = load_file(a.work / f"{name}.safetensors")
    assert all(v.dtype == torch.bfloat16 for v in weights.values()) and "lm_head.weight" not in weights
    save_file(weights, tmp / "model.safetensors", metadata={"format": "pt"})
    final.mkdir(exist_ok=True)
    for f in sorted(tmp.iterdir()):                       # file by file, so that a reader never meets half a file
        f.chmod(0o644)
        os.replace(f, final / f.name)
    tmp.rmdir()

def interleave_rope(w, heads):
    """HF rotates (i, i + D/2), llama.cpp rotates (2i, 2i + 1): reorder the rows of each head of q and k."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

GGUF_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down", "model.embed_tokens": "token_embd", "model.norm": "output_norm"}

def gguf_tensors(name, a):
    for key, w in load_file(a.work / f"{name}.safetensors").items():
        key, w = key.removesuffix(".weight"), w.float().numpy()
        for proj, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            w = interleave_rope(w, config_json(name)[heads]) if key.endswith(proj) else w
        layer, _, part = key.removeprefix("model.layers.").partition(".") if ".layers." in key else ("", "", key)
        yield (f"blk.{layer}." if layer else "") + GGUF_NAMES[part] + ".weight", w

def export_gguf(name, a):
    import gguf
    q8, c, tok = gguf.GGMLQuantizationType.Q8_0, config_json(name), json.loads((a.work / "tokenizer.json").read_text())
    tmp, final = a.out / f".{name}.gguf.tmp", a.out / f"{name}-Q8_0.gguf"
    g = gguf.GGUFWriter(tmp, "llama")
    g.add_type("model"), g.add_name(name), g.add_license("apache-2.0"), g.add_languages(["en"])
    g.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0), g.add_quantization_version(gguf.GGML_QUANT_VERSION)
    g.add_vocab_size(VOCAB), g.add_context_length(CONTEXT), g.add_embedding_length(c["hidden_size"]), g.add_block_count(c["num_hidden_layers"])
    g.add_feed_forward_length(c["intermediate_size"]), g.add_head_count(c["num_attention_heads"]), g.add_head_count_kv(c["num_key_value_heads"])
    g.add_key_length(32), g.add_value_length(32), g.add_rope_dimension_count(32), g.add_rope_freq_base(c["rope_theta"]), g.add_layer_norm_rms_eps(c["rms_norm_eps"])
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
    g.add_tokenizer_model("gpt2"), g.add_tokenizer_pre("gpt-2"), g.add_token_merges(merges)
    g.add_token_list([t for t, _ in sorted(tok["model"]["vocab"].items(), key=lambda x: x[1])])
    g.add_token_types([gguf.TokenType.CONTROL if i in (BOS, EOS) else gguf.TokenType.NORMAL for i in range(VOCAB)])
    g.add_bos_token_id(BOS), g.add_eos_token_id(EOS), g.add_add_bos_token(True), g.add_add_eos_token(False)
    for key, w in gguf_tensors(name, a):
        g.add_tensor(key, gguf.quants.quantize(w, q8), raw_dtype=q8) if w.ndim == 2 else g.add_tensor(key, w)
    g.write_header_to_file(), g.write_kv_data_to_file(), g.write_tensors_to_file(), g.close()
    want = dict(gguf_tensors(name, a))                    # read back and compare with the weights it was made from
    for t in gguf.GGUFReader(tmp).tensors:
        w = want.pop(t.name)
        got = gguf.quants.dequantize(t.data, t.tensor_type).reshape(w.shape)
        largest = np.abs(w.reshape(-1, 32)).max(1, keepdims=True)     # half a step, and the float16 rounding of the step times q <= 127
        assert (np.abs(got - w).reshape(-1, 32) <= largest / 127 * (0.5 + 127 * 2**-11) * 1.001 + 127 * 2**-25).all(), t.name
    assert not want
    os.replace(tmp, final)

def stage_export(a):
    a.out.mkdir(parents=True, exist_ok=True)
    for name in SHAPES:
        export_hf(name, a), export_gguf(name, a)
    shutil.copy(a.work / "sample.txt", a.out / ".sample.tmp")
    os.replace(a.out / ".sample.tmp", a.out / "sample.txt")


# ---- measurements ----------------------------------------------------------------------------------------------------------------
@torch.no_grad()
def stage_measure(a):
    """All on the exported (bf16-rounded) weights, in float32."""
    _, test = load_ids(a)
    target, draft = (AutoModelForCausalLM.from_pretrained(a.out / n, dtype=torch.float32).eval() for n in SHAPES)
    tok, raw, probe = AutoTokenizer.from_pretrained(a.out / "tiny"), Tokenizer.from_file(str(a.out / "tiny" / "tokenizer.json")), "In the\n\n 起 👍🏽<|eos|> x "
    assert tok(probe)["input_ids"] == raw.encode(probe).ids and tok.decode(tok(probe, add_special_tokens=False)["input_ids"]) == probe
    m = {"parameters": {n: sum(p.numel() for p in x.parameters()) for n, x in (("tiny", target), ("tiny-draft", draft))}}
    for name, model in (("tiny", target), ("tiny-draft", draft)):
        m[name] = {"held_out_nats_per_token_256": held_out_loss(model, test, 256, bf16=False).mean().item()}
        by = held_out_loss(model, test, CONTEXT, bf16=False).mean(0)
        m[name]["held_out_nats_by_position_2048"] = {f"{p}-{q - 1}": round(by[p:q].mean().item(), 4) for p, q in zip(EDGES, EDGES[1:])}
    # Agreement: 32-token held-out prompts (half begin a chapter), 128 tokens of tiny, then both models read the same prefixes.
    prompts = batch(test, 64 * 32, 32, np.random.default_rng(a.seed + 4), np.flatnonzero(test == BOS))[:, :32]
    for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        text = continue_text(target, prompts, 128, torch.full((len(prompts), 1), temperature), bf16=False)
        p, q = (x(text[:, :-1]).logits[:, 31:].argmax(-1) for x in (target, draft))
        same = (p == q).float()
        m[f"agreement_{kind}_text"] = {"all": same.mean().item(), "positions": same.numel(), "first_16": same[:, :16].mean().item()}
        if kind == "greedy":                              # small models loop: also count only where the last 8 tokens are new in their row
            assert (p == text[:, 32:]).float().mean() > 0.999         # cached and uncached greedy agree but for ties
            new = torch.tensor([[tuple(r[j - 7:j + 1]) not in {tuple(r[i - 7:i + 1]) for i in range(7, j)} for j in range(32, len(r))] for r in text.tolist()])
            m["agreement_greedy_text"] |= {"not_repeating": same[new].mean().item(), "share_not_repeating": new.float().mean().item()}
    chunks = torch.from_numpy(test[:len(test) // 256 * 256].reshape(-1, 256))
    m["agreement_held_out_text"] = torch.cat([(target(c).logits.argmax(-1) == draft(c).logits.argmax(-1)).float() for c in chunks.split(16)]).mean().item()
    m["sha256"] = {str(f.relative_to(a.out)): hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(a.out.rglob("*")) if f.is_file() and f.name != "README.md"}
    (a.work / "measurements.json").write_text(json.dumps(m, indent=1))
    print(json.dumps(m, indent=1))

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=Path, help="output of bible -f 'Gen1:1-Rev22:21'")
    p.add_argument("--work", type=Path, required=True, help="folder for checkpoints (created)")
    p.add_argument("--out", type=Path, help="where the models go, e.g. lessons/models")
    p.add_argument("--stages", default="text,target,generate,draft,export,measure")
    p.add_argument("--target-steps", type=int, default=4000)
    p.add_argument("--draft-steps", type=int, default=6000)
    p.add_argument("--generate-batches", type=int, default=20)
    p.add_argument("--batch-tokens", type=int, default=8192)
    p.add_argument("--draft-batch-tokens", type=int, default=8192)
    p.add_argument("--dropout", type=float, default=0.3)
    p.add_argument("--weight-decay", type=float, default=1.0, help="for tiny; tiny-draft has 0.02")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="for target, generate and draft")
    p.add_argument("--minutes", type=float, default=0, help="limit of one training stage; the schedule then ends by the clock")
    p.add_argument("--seed", type=int, default=1611)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(a.threads)
    for stage in a.stages.split(","):
        torch.manual_seed(a.seed)
        print(f"== {stage}", flush=True)
        globals()[f"stage_{stage}"](a)


if __name__ == "__main__":
    main()
