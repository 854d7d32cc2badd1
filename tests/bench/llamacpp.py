#!/usr/bin/env python3
"""nano beside llama.cpp: the same file, the same threads, alternating runs, medians and their ratio.

    python3 tests/bench/llamacpp.py --scratch DIR build            # llama.cpp, out of llama-cpp-python's source package
    python3 tests/bench/llamacpp.py --scratch DIR formats          # the demo model in other formats, and a wider one
    python3 tests/bench/llamacpp.py --scratch DIR measure [--formats Q4_1,Q8_0] [--threads 2] [--runs 5]

Needs `make models` first; for `build` cmake, ninja, a C++ compiler and a network (about 15 minutes on two cores), for
`formats` the Python packages gguf and numpy. A requantised file has the speed of its format, not the quality. SmolLM2's
rows of 576 are no multiple of 256, so its "Q4_K_M" is mostly Q5_0 and Q8_0: "wide-Q4_K" and the like are a Llama with
rows of 1024 and 2816 and random weights, every matrix of one type. Machines are shared and noisy: compare only what one
run has measured.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile

PACKAGE = "llama-cpp-python==0.3.36"  # vendors llama.cpp 0c1e57098
SOURCE_SHA = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FORMATS = ["Q4_0", "Q8_0", "Q4_K_M", "F16", "BF16"]
WIDE_FORMATS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1"]


def run(command, **options):
    done = subprocess.run([str(word) for word in command], text=True, **options)
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stderr or ''}")
    return done.stdout


def output(command, environment=None):
    return run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def bin_folder(scratch, avx512):
    return scratch / ("build" if avx512 else "build-avx2") / "bin"


def build(scratch, avx512):
    scratch.mkdir(parents=True, exist_ok=True)
    if not list(scratch.glob("llama_cpp_python-*.tar.gz")):
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", "-d", scratch,
             PACKAGE])
    archive = next(scratch.glob("llama_cpp_python-*.tar.gz"))
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SOURCE_SHA:
        sys.exit(f"{archive} has the wrong SHA-256")
    with tarfile.open(archive) as tar:
        tar.extractall(scratch)
    source = next(scratch.glob("llama_cpp_python-*/vendor/llama.cpp"))
    # GCC 12 drops the stores to an AMX tile configuration, because the intrinsic's asm names a part of it as its input;
    # llama.cpp then dies of an illegal instruction on CPUs with AMX.
    amx = source / "ggml/src/ggml-cpu/amx/mmq.cpp"
    text = amx.read_text()
    if "asm volatile" not in text:
        amx.write_text(text.replace("_tile_loadconfig(&tc);",
                                    'asm volatile("" : : "r"(&tc) : "memory"); _tile_loadconfig(&tc);'))
    folder = bin_folder(scratch, avx512).parent
    isa = ["-DGGML_NATIVE=ON"] if avx512 else ["-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON"]
    run(["cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *isa, "-DLLAMA_CURL=OFF",
         "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF"])
    run(["ninja", "-C", folder, "llama-bench", "llama-quantize", "llama-batched-bench"])


def quantize(scratch, avx512, source, name, kind, *flags):
    output([bin_folder(scratch, avx512) / "llama-quantize", *flags, source, scratch / f"{name}.gguf", kind, "2"])


def formats(scratch, avx512):
    for name in FORMATS:
        quantize(scratch, avx512, DEMO, name, name, "--allow-requantize")
    wide = scratch / "wide-F16.gguf"
    write_wide(wide)
    for name in WIDE_FORMATS:
        kind = name + "_S" if name in ("Q3_K", "Q4_K", "Q5_K") else name
        quantize(scratch, avx512, wide, f"wide-{name}", kind, "--pure")


def write_wide(path, C=1024, H=16, KVH=4, D=64, F=2816, L=12):
    """Random weights (seeded) with the demo model's vocabulary."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "llama")
    for field in gguf.GGUFReader(DEMO).fields.values():
        if field.name.startswith("tokenizer."):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
            if field.name == "tokenizer.ggml.tokens":
                V = len(field.contents())
    writer.add_context_length(8192)
    writer.add_embedding_length(C)
    writer.add_block_count(L)
    writer.add_feed_forward_length(F)
    writer.add_head_count(H)
    writer.add_head_count_kv(KVH)
    writer.add_rope_dimension_count(D)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    random = numpy.random.default_rng(1)

    def matrix(name, N, K):
        writer.add_tensor(name + ".weight", random.normal(0, 0.02, (N, K)).astype(numpy.float16))

    def norm(name):
        writer.add_tensor(name + ".weight", numpy.ones(C, numpy.float32))

    matrix("token_embd", V, C)
    norm("output_norm")
    for i in range(L):
        layer = f"blk.{i}."
        norm(layer + "attn_norm")
        norm(layer + "ffn_norm")
        for name, N, K in [("attn_q", H * D, C), ("attn_k", KVH * D, C), ("attn_v", KVH * D, C),
                           ("attn_output", C, H * D), ("ffn_gate", F, C), ("ffn_up", F, C), ("ffn_down", C, F)]:
            matrix(layer + name, N, K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Peers:
    def __init__(self, scratch, model, threads, avx512):
        self.bin = bin_folder(scratch, avx512)
        self.nano_binary = ROOT / "build" / ("release" if avx512 else "portable") / "nano"
        self.model, self.threads = model, threads
        self.bound = dict(os.environ, OMP_PROC_BIND="close", OMP_PLACES="cores")
        self.read = []  # GB/s, measured by nano before each of its runs

    def llama(self, prompt, answer, depth=0):
        text = output([self.bin / "llama-bench", "-m", self.model, "-t", self.threads, "-p", prompt, "-n", answer,
                       "-d", depth, "-r", 1, "-o", "json"], self.bound)
        return json.loads(text)[0]["avg_ts"]

    def llama_streams(self, streams, prompt=128, answer=64):
        text = output([self.bin / "llama-batched-bench", "-m", self.model, "-t", self.threads, "-b", 2048, "-c",
                       streams * (prompt + answer) + 64, "-npp", prompt, "-ntg", answer, "-npl", streams,
                       "--output-format", "jsonl"], self.bound)
        return json.loads(next(line for line in text.splitlines() if line.startswith("{")))["speed_tg"]

    def nano(self, key, streams, prompt, answer):
        text = output([self.nano_binary, "bench", "latency", self.model, "--threads", self.threads, "--batch-size",
                       streams, "--input-len", prompt, "--output-len", answer, "--num-iters-warmup", 0, "--num-iters", 1,
                       "--activation-dtype", "int8", "--json"])
        result = json.loads(text)
        self.read.append(result["read_gb_per_second"])
        return result[key]

    def cases(self):
        decode, prefill = "decode_tokens_per_second", "prefill_tokens_per_second"
        yield "decode, 1 stream", lambda: self.llama(0, 128), lambda: self.nano(decode, 1, 1, 129)
        for streams in (4, 8, 16, 32):
            yield (f"decode, {streams} streams", lambda s=streams: self.llama_streams(s),
                   lambda s=streams: self.nano(decode, s, 128, 65))
        for length in (512, 2048):
            yield (f"prefill {length}", lambda n=length: self.llama(n, 0), lambda n=length: self.nano(prefill, 1, n, 1))
        yield "decode at 4096", lambda: self.llama(0, 32, 4096), lambda: self.nano(decode, 1, 4096, 33)


def measure(scratch, options):
    print("| file | | llama.cpp | nano | ratio |\n|---|---|---|---|---|")
    for name in options.formats.split(","):
        model = DEMO if name == "Q4_1" else scratch / f"{name}.gguf"
        peers = Peers(scratch, model, options.threads, not options.avx2)
        cases = [case for case in peers.cases() if re.search(options.only, case[0])]
        if not cases:
            sys.exit(f"no case matches '{options.only}'")
        for label, theirs, ours in cases:
            pairs = [(theirs(), ours()) for _ in range(options.runs)]
            a, b = (statistics.median(side) for side in zip(*pairs))
            print(f"| {name} | {label} | {a:.1f} | {b:.1f} | {b / a:.2f} |", flush=True)
        print(f"| {name} | read GB/s, {options.threads} threads | | {statistics.median(peers.read):.1f} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "formats", "measure"])
    parser.add_argument("--scratch", type=pathlib.Path, required=True, help="a folder for llama.cpp and the files")
    parser.add_argument("--formats", default="Q4_1,Q4_0,Q8_0,Q4_K_M,F16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases that match this, e.g. '1 stream$|prefill'")
    parser.add_argument("--avx2", action="store_true", help="both sides without AVX-512 (build, and make PORTABLE=1)")
    options = parser.parse_args()
    if options.runs < 1 or options.threads < 1:
        parser.error("--runs and --threads are at least 1")
    if options.what == "build":
        build(options.scratch, not options.avx2)
    elif options.what == "formats":
        formats(options.scratch, not options.avx2)
    else:
        measure(options.scratch, options)


main()
