"""nano's values in gdb, as a reader thinks of them: `source lessons/gdb/nano.py`.

print X       Sequence, ScheduledSeq, StepPlan, SeqResult, StepResult, Batch, BlockManager, Act, KvLayer, KvCache,
              QuantLinear and a backend's packed matrices show their numbers instead of pointers.
nano plan     the StepPlan of this step, wherever in its call you stand.
nano blocks   every block of the KV cache: free (in order of reuse), or whose it is and which positions it holds.
nano tokens   every sequence of the engine, token by token: id, text, block and offset, computed or still to do.
nano kv POSITION [LAYER]         K and V of one position of the step's first sequence, as they lie in the cache.
nano break FUNCTION              a breakpoint where the arguments of a function can be read.
nano floats POINTER N [TYPE]     N numbers of type f32, f16, bf16, e4m3 or i8 from POINTER on.

Nothing here calls a function of the program, so all of it works where gdb cannot make such calls.
"""
import os
import struct
import sys

import gdb
import gdb.printing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from values import *  # noqa: E402,F403


# --- Printers ---

class Printer:
    def __init__(self, value):
        self.value = value


def describe_scheduled(v):
    tokens, first = ints(v["tokens"]), int(v["first_pos"])
    logit_rows = len(tokens) - int(v["first_logit_row"])
    return (f"seq {int(v['id'])}: positions {first}..{first + len(tokens) - 1} tokens {listing(tokens)} blocks "
            f"{listing(ints(v['block_table']))} ({int(v['num_new_blocks'])} new), {logit_rows} logit rows"
            + (", samples" if v["samples"] else "") + (", discard" if v["discard"] else ""))


def describe_plan(v):
    lines = [f"step {int(v['step'])}: {int(v['num_tokens'])} tokens, {int(v['num_running'])} running, "
             f"{int(v['num_waiting'])} waiting, {int(v['num_free_blocks'])} blocks free"]
    admitted = [int(one["id"]) for one in vector(v["admitted"])]
    for name, ids in ("admitted", admitted), ("preempted", ints(v["preempted"])):
        lines[0] += f" {name} {listing(ids)}" if ids else ""
    return "\n  ".join(lines + [describe_scheduled(seq) for seq in vector(v["seqs"])])


def describe_sequence(v):
    tokens, prompt = ints(v["tokens"]), int(v["num_prompt_tokens"])
    end = enum(v["finish_reason"])
    return (f"seq {int(v['id'])}: {enum(v['status'])}{'' if end == 'none' else ' (' + end + ')'}, {prompt} prompt + "
            f"{len(tokens) - prompt} output tokens {listing(tokens)}, {int(v['num_computed_tokens'])} computed, "
            f"blocks {listing(ints(v['block_table']))}")


def describe_seq_result(v):
    end, error = enum(v["finish_reason"]), text(v["error"]).decode("utf-8", "replace")
    sampled = "".join(f", token {int(token['id'])}" for token in vector(v["sampled"]))
    return (f"seq {int(v['id'])}: computed {int(v['num_computed'])}{sampled}"
            + ("" if end == "none" else f", finished: {end}") + (f": {error}" if error else ""))


def describe_result(v):
    return "\n  ".join([f"step {int(v['step'])}:"] + [describe_seq_result(seq) for seq in vector(v["seqs"])])


def describe_batch(v):
    """The integers of a batch are in the backend's memory: on ref and cpu that is the program's own."""
    T, S, R, width = (int(v[name]) for name in ("T", "S", "R", "max_blocks"))
    take = lambda name, count: [int(v[name][i]) for i in range(count)]
    runner = find("nano::Runner")
    B = int(runner["kv_"].referenced_value()["B"]) if runner is not None else 0
    seq_len, tables = take("seq_len", S), []
    for s in range(S):
        used = (seq_len[s] + B - 1) // B if B else width  # entries beyond that say nothing
        tables.append(listing([int(v["block_table"][s * width + i]) for i in range(used)]))
    return (f"T={T} S={S} R={R}\n  token_ids {listing(take('token_ids', T))}\n  positions {listing(take('positions', T))}"
            f"\n  slot_mapping {listing(take('slot_mapping', T))}\n  query_start {listing(take('query_start', S + 1))}"
            f"\n  seq_len {listing(seq_len)}\n  block_table {' '.join(tables)}\n  logit_rows {listing(take('logit_rows', R))}")


def free_list(v):
    """In order of reuse: a list threaded through the blocks, entry num_blocks is its head and tail."""
    blocks, end = v["blocks_"]["_M_impl"]["_M_start"], int(v["num_blocks_"])
    order, at = [], int(blocks[end]["next"])
    while at != end and len(order) <= end:
        order.append(at)
        at = int(blocks[at]["next"])
    return order


def owners(block_manager):
    """{block: ["seq 0 positions 0..3"]} of the scheduler in this backtrace; None if there is none."""
    scheduler = find_scheduler()
    if scheduler is None:
        return None
    B, found = int(block_manager["block_size_"]), {}
    for seq in (target(pointer) for pointer in vector(scheduler["running_"])):
        for i, block in enumerate(ints(seq["block_table"])):
            found.setdefault(block, []).append(f"seq {int(seq['id'])} positions {i * B}..{i * B + B - 1}")
    return found


def find_scheduler():
    scheduler = find("nano::Scheduler")
    if scheduler is not None:
        return scheduler
    engine = find("nano::Engine")
    return engine["scheduler_"] if engine is not None else None


def describe_blocks(v, all_free=False):
    num_blocks, B, free = int(v["num_blocks_"]), int(v["block_size_"]), free_list(v)
    of, cached = owners(v), {int(block) for block, _ in hash_map(v["cache_"]["node_of_"])}
    free_text = listing(free) if all_free or len(free) <= SHOWN else row(free)
    lines = [f"{num_blocks} blocks of {B}: {num_blocks - len(free)} used, {len(free)} free, reused in this order: {free_text}"]
    for block in range(num_blocks):
        count = int(v["blocks_"]["_M_impl"]["_M_start"][block]["ref_count"])
        if count == 0 and block not in cached:
            continue
        whose = "free" if count == 0 else f"{count} owner{'s' if count > 1 else ''}"
        if of is not None and block in of:
            whose = ", ".join(of[block])
        lines.append(f"block {block}: {whose}" + (" (findable by its prefix)" if block in cached else ""))
    return "\n  ".join(lines)


def describe_act(v):
    rows, cols, data = int(v["rows"]), int(v["cols"]), v["data"]
    name = v["name"].string() or "Act"
    if int(data) == 0 or rows * cols == 0:
        return f"{name} [{rows}, {cols}]"
    return f"{name} [{rows}, {cols}] row 0: {row(floats(data, min(cols, SHOWN)), cols)}"


def describe_kv_layer(v):
    return f"K and V of a layer: {enum(v['dtype'])}, blocks of {int(v['B'])}"


def describe_kv_cache(v):
    layers = vector(v["layers"])
    return (f"{len(layers)} layers of K and V, {int(v['num_blocks'])} blocks of {int(v['B'])}, "
            f"{enum(layers[0]['dtype']) if layers else '-'}, {int(v['bytes'])} bytes")


BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "q2_k": 84, "q3_k": 110, "q4_k": 144,
               "q5_k": 176, "q6_k": 210}


def decode_block(source, b):
    """The first weights of a block in one of GGML's formats: its first group's scale and offset, its first codes."""
    half = lambda at: struct.unpack_from("<e", b, at)[0]
    low, some = (lambda at: [x & 15 for x in b[at:at + SHOWN]]), range(SHOWN)
    fifth = lambda at: [(int.from_bytes(b[at:at + 4], "little") >> i & 1) << 4 for i in some]
    scale, minus = half(0), 0.0  # w = scale · q − minus
    if source == "q8_0":
        q = struct.unpack_from(f"<{SHOWN}b", b, 2)
    elif source == "q4_0":
        q = [x - 8 for x in low(2)]
    elif source == "q4_1":
        q, minus = low(4), -half(2)
    elif source == "q5_0":
        q = [(x | high) - 16 for x, high in zip(low(6), fifth(2))]
    elif source == "q5_1":
        q, minus = [x | high for x, high in zip(low(8), fifth(4))], -half(2)
    elif source == "q2_k":
        q, scale, minus = [x & 3 for x in b[16:16 + SHOWN]], half(80) * (b[0] & 15), half(82) * (b[0] >> 4)
    elif source == "q3_k":
        q = [(b[32 + i] & 3) - (0 if b[i] & 1 else 4) for i in some]
        scale = half(108) * ((b[96] & 15 | (b[104] & 3) << 4) - 32)
    elif source in ("q4_k", "q5_k"):
        q = low(16) if source == "q4_k" else [x | (b[16 + i] & 1) << 4 for i, x in enumerate(low(48))]
        scale, minus = scale * (b[4] & 63), half(2) * (b[8] & 63)
    else:  # q6_k
        q = [(x | (b[128 + i] & 3) << 4) - 32 for i, x in enumerate(low(0))]
        scale = half(208) * struct.unpack_from("<b", b, 192)[0]
    return [scale * x - minus for x in q]


def first_weights(v):
    """Of row 0; None for what is not decoded here (a quantiser's arrays)."""
    source = enum(v["source"])
    if int(v["data"]) == 0:
        return None
    if source == "dense":
        return floats(v["data"], min(int(v["K"]), SHOWN), enum(v["dtype"]))
    if source not in BLOCK_BYTES:
        return None
    return decode_block(source, bytes(gdb.selected_inferior().read_memory(int(v["data"]), BLOCK_BYTES[source])))


def describe_linear(v):
    N, K, source = int(v["N"]), int(v["K"]), enum(v["source"])
    weights = first_weights(v)
    return (f"{text(v['name']).decode()} [{N}, {K}] {enum(v['dtype']) if source == 'dense' else source}"
            + (f" group {int(v['group'])}" if int(v["group"]) else "")
            + (" + bias" if vector(v["bias"]) else "")
            + (f" row 0: {row(weights, K)}" if weights else ""))


def describe_packed(v):
    """Only its backend knows the layout; ref keeps the files' matrices as they are."""
    lines = [f"{int(v['N'])} outputs of {int(v['K'])} inputs, {int(v['bytes'])} bytes"]
    if find("nano::(anonymous namespace)::RefBackend") is not None:
        parts = v.cast(gdb.lookup_type("nano::RefLinear"))["parts"]
        lines += [describe_linear(part) for part in vector(parts)]
    return "\n  ".join(lines)


DESCRIBED = {
    "nano::Sequence": describe_sequence, "nano::ScheduledSeq": describe_scheduled, "nano::StepPlan": describe_plan,
    "nano::SeqResult": describe_seq_result, "nano::StepResult": describe_result, "nano::Batch": describe_batch,
    "nano::BlockManager": describe_blocks, "nano::Act": describe_act, "nano::KvLayer": describe_kv_layer,
    "nano::KvCache": describe_kv_cache, "nano::QuantLinear": describe_linear,
    "nano::PackedLinear": describe_packed, "nano::RefLinear": describe_packed,
}


class Described(Printer):
    """Half-made objects are a debugger's daily bread: what cannot be read yet is said, not thrown."""

    def to_string(self):
        try:
            return DESCRIBED[type_name(self.value.type)](self.value)
        except (gdb.MemoryError, gdb.error, UnicodeDecodeError, OverflowError) as error:
            return f"<not readable (yet): {error}>"


def printers():
    collection = gdb.printing.RegexpCollectionPrettyPrinter("nano")
    for name in DESCRIBED:
        collection.add_printer(name, f"^{name}$", Described)
    return collection


# --- Commands ---

class NanoCommand(gdb.Command):
    """What nano's engine is doing: nano plan | blocks | tokens | kv | break | floats. See lessons/gdb/nano.py."""

    def __init__(self):
        super().__init__("nano", gdb.COMMAND_DATA, prefix=True)


class PlanCommand(gdb.Command):
    """The StepPlan of this step: who computes which tokens, in which blocks."""

    def __init__(self):
        super().__init__("nano plan", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        print(describe_plan(need("nano::StepPlan", "Engine::step")))


class BlocksCommand(gdb.Command):
    """Every block of the KV cache that is not empty: whose it is, which positions it holds; and the free list."""

    def __init__(self):
        super().__init__("nano blocks", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        blocks = find("nano::BlockManager")
        if blocks is None:
            scheduler = find_scheduler()
            if scheduler is None:
                raise gdb.GdbError("no nano::BlockManager in this backtrace: stop inside Engine::step")
            blocks = target(scheduler["blocks_"])
        print(describe_blocks(blocks, all_free=argument == "all"))


def token_texts():
    """id → its text in quotes, from the tokenizer of the nano::LLM in this backtrace; nothing without one."""
    llm = find("nano::LLM")
    tokens = vector(pointee(llm["tokenizer_"])["tokens_"]) if llm is not None else []
    return lambda i: repr(text(tokens[i]["bytes"]).decode("utf-8", "replace")) if 0 <= i < len(tokens) else ""


def sequences():
    engine = find("nano::Engine")
    if engine is not None:
        return sorted((live["seq"].dereference() for _, live in hash_map(engine["live_"])), key=lambda seq: int(seq["id"]))
    scheduler = need("nano::Scheduler", "Engine::step")
    return [target(pointer) for pointer in vector(scheduler["running_"])]


class TokensCommand(gdb.Command):
    """Every token of every sequence: position, id, text, where its K and V lie, and whether they are computed."""

    def __init__(self):
        super().__init__("nano tokens", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        show = token_texts()
        live = sequences()
        B = int(target(find_scheduler()["blocks_"])["block_size_"])
        for seq in live:
            tokens, table = ints(seq["tokens"]), ints(seq["block_table"])
            prompt, computed = int(seq["num_prompt_tokens"]), int(seq["num_computed_tokens"])
            print(f"seq {int(seq['id'])}: {enum(seq['status'])}")
            for p, token in enumerate(tokens):
                place = f"block {table[p // B]} + {p % B}" if p // B < len(table) else "no block"
                print(f"  {p:4}  {token:6}  {show(token):14} {'prompt' if p < prompt else 'output'}  {place:12} "
                      f"{'computed' if p < computed else 'to do'}")


class KvCommand(gdb.Command):
    """nano kv POSITION [LAYER]: K and V of the step's first sequence at that position, head by head."""

    def __init__(self):
        super().__init__("nano kv", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        arguments = gdb.string_to_argv(argument)
        if not arguments:
            raise gdb.GdbError("nano kv POSITION [LAYER]")
        position, layer = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
        for line in describe_kv(position, layer):
            print(line)


def describe_kv(position, layer):
    runner = need("nano::Runner", "Runner::run")
    plan, kv = need("nano::StepPlan", "Runner::run"), target(runner["kv_"])
    config, table = target(runner["model_"])["config"], ints(vector(plan["seqs"])[0]["block_table"])
    KVH, D, B = int(config["KVH"]), int(config["D"]), int(kv["B"])
    if not 0 <= layer < int(config["L"]) or not 0 <= position < len(table) * B:
        raise gdb.GdbError(f"layers 0..{int(config['L']) - 1}, positions 0..{len(table) * B - 1}")
    at, slot = vector(kv["layers"])[layer], table[position // B] * B + position % B
    for head in range(KVH):
        for name in ("k", "v"):
            numbers = floats(at[name], min(D, SHOWN), enum(at["dtype"]), (slot * KVH + head) * D)
            yield f"layer {layer} position {position} (slot {slot}) {name.upper()} head {head}: {row(numbers, D)}"


class BreakCommand(gdb.Command):
    """nano break FUNCTION: as break, but surely past the prologue, so that its arguments can be read."""

    def __init__(self):
        super().__init__("nano break", gdb.COMMAND_BREAKPOINTS, gdb.COMPLETE_SYMBOL)

    def invoke(self, argument, from_tty):
        place, address = body_of(argument)  # before the program runs addresses are not final, lines are
        gdb.Breakpoint(f"*{address:#x}" if gdb.selected_inferior().pid else place)


class FloatsCommand(gdb.Command):
    """nano floats POINTER N [f32|f16|bf16|e4m3|i8]: N numbers from POINTER on."""

    def __init__(self):
        super().__init__("nano floats", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        arguments = gdb.string_to_argv(argument)
        if len(arguments) not in (2, 3):
            raise gdb.GdbError("nano floats POINTER N [f32|f16|bf16|e4m3|i8]")
        pointer = gdb.parse_and_eval(arguments[0])
        count = int(gdb.parse_and_eval(arguments[1]))
        dtype = arguments[2] if len(arguments) == 3 else "f32"
        print(listing(f"{x:.6g}" for x in floats(pointer, count, dtype)))


gdb.printing.register_pretty_printer(gdb.current_objfile(), printers(), replace=True)
for command in (NanoCommand, PlanCommand, BlocksCommand, TokensCommand, KvCommand, BreakCommand, FloatsCommand):
    command()
