"""What lessons/gdb/nano.py prints where the tour does not go: `make printers`. gdb runs this file.

Weights of every block format against gguf-py's (tests/golden/ggml_blocks.json); bfloat16 weights; a float16 KV cache
against the K that the tour expects; two answers to one prompt that share a block; and what the commands say where there
is nothing to show.
"""
import json
import struct
import sys

import gdb

sys.path.insert(0, "lessons/gdb")
import nano  # noqa: E402

wrong, checks = [], 0


def check(name, seen, expected, equal=None):
    global checks
    checks += 1
    if not (equal(seen, expected) if equal else seen == expected):
        wrong.append(f"{name}: {seen!r}, expected {expected!r}")


def near(tolerance):
    return lambda a, b: len(a) == len(b) and all(abs(x - y) <= tolerance * max(abs(y), 1e-12) for x, y in zip(a, b))


def formats():
    golden = json.load(open("tests/golden/ggml_blocks.json", encoding="utf-8"))["formats"]
    check("formats", sorted(name.lower() for name in golden), sorted(nano.BLOCK_BYTES))
    for name, data in golden.items():
        blocks, size, bits = bytes.fromhex(data["bytes"]), nano.BLOCK_BYTES[name.lower()], bytes.fromhex(data["bits"])
        count = len(blocks) // size
        for i in range(count):
            expected = struct.unpack_from(f"<{nano.SHOWN}f", bits, i * len(bits) // count)
            seen = nano.decode_block(name.lower(), blocks[i * size:(i + 1) * size])
            # float32 rounds each product and the difference: 3 roundings of what may cancel
            largest = max(map(abs, expected))
            check(f"{name} block {i}", seen, list(expected),
                  lambda a, b: all(abs(x - y) <= 4e-7 * largest for x, y in zip(a, b)))
    check("e4m3", [nano.e4m3(b) for b in (0x00, 0x01, 0x08, 0x38, 0x7e, 0xb8)], [0, 2 ** -9, 2 ** -6, 1, 448, -1])


def said(command):
    try:
        return gdb.execute(command, to_string=True).rstrip("\n")
    except gdb.error as error:
        return f"error: {error}"


def nothing_to_show():
    for command, wanted, where in (("plan", "nano::StepPlan", "Engine::step"), ("tokens", "nano::Scheduler", "Engine::step"),
                                   ("blocks", "nano::BlockManager", "Engine::step"), ("kv 0", "nano::Runner", "Runner::run")):
        check(command, said("nano " + command), f"error: no {wanted} in this backtrace: stop inside {where}")
    check("floats", said("nano floats 1"), "error: nano floats POINTER N [f32|f16|bf16|e4m3|i8]")
    check("break", said("nano break nano::Missing").split(":")[0], "error")


def stop(function, condition=None):
    place, address = nano.body_of(function)
    point = gdb.Breakpoint(f"*{address:#x}", internal=True)
    point.silent, point.condition = True, condition
    gdb.execute("continue", to_string=True)
    point.delete()


def two_answers():
    tour = json.load(open("lessons/gdb/tour.json", encoding="utf-8"))
    gdb.Breakpoint("main", internal=True, temporary=True).silent = True
    gdb.execute("run", to_string=True)
    said("nano break nano::Runner::build_batch")
    gdb.execute("continue", to_string=True)
    check("nano break", len(nano.vector(gdb.selected_frame().read_var("plan")["seqs"])), 1)
    gdb.execute("delete")
    stop("nano::(anonymous namespace)::RefBackend::linear")
    printed = nano.need("nano::PackedLinear", "linear").format_string().splitlines()
    check("bf16", printed[1].strip(), tour["formats"]["bf16"])
    stop("nano::Runner::build_batch", "plan.seqs._M_impl._M_finish - plan.seqs._M_impl._M_start == 2")
    check("blocks", said("nano blocks").splitlines()[1:], [
        "  block 0: seq 0 positions 0..3, seq 1 positions 0..3 (findable by its prefix)",
        "  block 1: seq 0 positions 4..7", "  block 2: seq 1 positions 4..7"])
    check("free", said("nano blocks all").splitlines()[0],
          "16 blocks of 4: 3 used, 13 free, reused in this order: [3 4 5 6 7 8 9 10 11 12 13 14 15]")
    plan = said("nano plan").splitlines()
    check("plan", [plan[0], plan[2]], [
        "step 1: 2 tokens, 2 running, 0 waiting, 13 blocks free admitted [1]",
        "  seq 1: positions 4..4 tokens [1219] blocks [0 2] (2 new), 1 logit rows, samples"])
    check("f16", nano.floats(*kv_of(4)), tour["formats"]["f16 K of position 4"], near(2 ** -10))
    check("nano kv", said("nano kv 99"), "error: layers 0..3, positions 0..7")
    pointer = int(nano.vector(nano.target(nano.need("nano::Runner", "run")["kv_"])["layers"])[0]["k"])
    check("nano floats", said(f"nano floats {pointer} 2 f16"),
          nano.listing(f"{x:.6g}" for x in nano.floats(pointer, 2, "f16")))
    stop("nano::Transformer::decoder_block")
    batch = nano.need("nano::Batch", "decoder_block").format_string().splitlines()
    check("batch", batch[0::1][2:], ["  positions [5 4]", "  slot_mapping [5 8]", "  query_start [0 1 2]",
                                     "  seq_len [6 5]", "  block_table [0 1] [0 2]", "  logit_rows [0 1]"])


def kv_of(position):
    """K of layer 0, head 0, as the first sequence's table says where it lies: arguments of nano.floats."""
    runner = nano.need("nano::Runner", "Runner::run")
    config, kv = nano.target(runner["model_"])["config"], nano.target(runner["kv_"])
    layer, table = nano.vector(kv["layers"])[0], nano.ints(nano.vector(nano.need("nano::StepPlan", "run")["seqs"])[0]["block_table"])
    B = int(kv["B"])
    at = (table[position // B] * B + position % B) * int(config["KVH"]) * int(config["D"])
    return layer["k"], 4, nano.enum(layer["dtype"]), at


def main():
    for setting in ("confirm off", "pagination off", "breakpoint pending off", "width 0", "style enabled off"):
        gdb.execute("set " + setting)
    try:
        formats()
        nothing_to_show()
        two_answers()
    except (gdb.error, gdb.GdbError) as error:
        wrong.append(str(error))
    for line in wrong:
        print("printers: " + line)
    print(f"printers: {checks} checks, {len(wrong)} wrong")
    print(f"{checks - len(wrong)} passed, {len(wrong)} failed")
    if gdb.selected_inferior().pid:
        gdb.execute("kill", to_string=True)
    gdb.execute(f"quit {1 if wrong else 0}")


main()
