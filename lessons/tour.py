"""The path of one token, walked in the debugger: `make tour`.

gdb runs this file. It stops at each hop of the path, once while the prompt is computed and once for the next token,
shows the values there, and compares them with lessons/gdb/tour.json, which other programs computed
(tests/golden/make_tour.py). Read it beside the sources: each hop is the name of a function to open. A hop that is not
found or not reached in this order is a failure, and so is a value that is not as expected. At the end each expected
value is changed in turn, to see that the comparison finds it.
"""
import json
import sys

import gdb

sys.path.insert(0, "lessons/gdb")
import nano  # noqa: E402  the printers, and how to read what they read

TOLERANCE = 5e-5  # rounding to 5 digits in the file, and float32 against float64
PRINTED = "build/debug/tour.out"


class Tour:
    def __init__(self):
        self.facts = {}    # part of the tour → name → what was seen
        self.hops = 0
        self.part = "start"

    def see(self, name, value, show=True):
        if "0x" in str(value):
            raise gdb.GdbError(f"{name}: an address is no value: {value}")
        self.facts.setdefault(self.part, {})[name] = value
        if show:
            print("    " + f"{name}: {value if isinstance(value, str) else json.dumps(value)}".replace("\n", "\n    "))


def line_of(function, words):
    """The line of the function's file that holds these words."""
    symtab = gdb.decode_line(function)[1][0].symtab
    lines = [n for n, line in enumerate(open(symtab.fullname(), encoding="utf-8"), 1) if words in line]
    if len(lines) != 1:
        raise gdb.GdbError(f"{symtab.filename}: {len(lines)} lines with {words!r}")
    return f"{symtab.filename}:{lines[0]}"


def go(tour, function, meaning, line=None, condition=None, quiet=False):
    """Runs to the function (to the line with those words), past its prologue."""
    try:
        point = gdb.Breakpoint(line_of(function, line) if line else f"*{nano.body_of(function)[1]:#x}", internal=True)
    except (gdb.error, ValueError) as error:
        raise gdb.GdbError(f"{function}: not found ({error})")
    point.silent, point.condition = True, condition
    gdb.execute("continue", to_string=True)
    hits = point.hit_count if point.is_valid() else 0
    if point.is_valid():
        point.delete()
    if not gdb.selected_inferior().pid or hits == 0:
        raise gdb.GdbError(f"{function}: never reached")
    if not quiet:
        tour.hops += 1
        place = gdb.selected_frame().find_sal()
        print(f"\n{tour.hops:2}. {function}  ({place.symtab.filename}:{place.line})\n    {meaning}")


def command(line):
    return gdb.execute(line, to_string=True).rstrip("\n")


def shown(type_name, hint="this hop"):
    return nano.need(type_name, hint).format_string()


def argument(name):
    return gdb.selected_frame().read_var(name)


def decimals(numbers):
    return [round(x, 6) for x in numbers]


def act_row(act, row, count=4):
    return decimals(nano.floats(act["data"], count, "f32", row * int(act["cols"])))


# --- The hops ---

def start(tour):
    go(tour, "nano::load_engine", "the options: one struct of flags")
    tour.see("model", nano.text(nano.need("nano::EngineOptions", "load_engine")["model"]).decode())

    go(tour, "nano::Tokenizer::encode", "text becomes token ids")
    tokenizer = nano.need("nano::Tokenizer", "Tokenizer::encode")
    given, bos = argument("text"), int(tokenizer["bos_id"])
    token_text = lambda i: nano.text(nano.vector(tokenizer["tokens_"])[i]["bytes"]).decode()
    tour.see("text", bytes(gdb.selected_inferior().read_memory(int(given["_M_str"]), int(given["_M_len"]))).decode())
    tour.see("bos id", bos)
    tour.see("bos text", token_text(bos))

    go(tour, "nano::Engine::add_request", "the prompt, as the engine gets it: ids only")
    prompt = nano.ints(argument("prompt"))
    tour.see("prompt", prompt)
    tour.see("prompt texts", [token_text(i) for i in prompt])
    return token_text


def schedule(tour):
    go(tour, "nano::Engine::step", "one step: schedule, compute, sample, commit")
    tour.see("sequences", "\n".join(seq.format_string() for seq in nano.sequences()))
    go(tour, "nano::Scheduler::schedule", "who waits, who runs")
    scheduler = nano.find_scheduler()
    tour.see("waiting", int(scheduler["held_"]["_M_h"]["_M_element_count"]) - len(nano.vector(scheduler["running_"])))
    tour.see("running", len(nano.vector(scheduler["running_"])))
    if tour.part == "prefill":
        go(tour, "nano::PrefixCache::match_prefix", "blocks that already hold this prefix: the cache is empty")
        tour.see("blocks known", int(argument("this")["node_of_"]["_M_h"]["_M_element_count"]))
    go(tour, "nano::plan_chunk", "how many tokens this step may compute")
    tour.see("to compute", int(argument("to_compute")))
    tour.see("budget", int(argument("limits")["budget"]))
    go(tour, "nano::BlockManager::grow", "the block table grows to hold this many tokens")
    tour.see("to hold", int(argument("num_tokens")))
    tour.see("free before", nano.free_list(nano.need("nano::BlockManager", "BlockManager::grow"))[:4])


def batch(tour):
    go(tour, "nano::Runner::build_batch", "StepPlan: the step as a value")
    tour.see("plan", command("nano plan"))
    tour.see("blocks", command("nano blocks"))
    tour.see("tokens", command("nano tokens"))
    go(tour, "nano::Transformer::decoder_block", "Batch: the same as rows, positions and slots. Layer 0 begins")
    seen = nano.need("nano::Batch", "decoder_block")
    tour.see("batch", seen.format_string())
    for name in "TSR":
        tour.see(name, int(seen[name]), show=False)
    for name, count in (("token_ids", "T"), ("positions", "T"), ("slot_mapping", "T"), ("seq_len", "S"), ("logit_rows", "R")):
        tour.see(name, [int(seen[name][i]) for i in range(int(seen[count]))], show=False)
    tour.see("query_start", [int(seen["query_start"][i]) for i in range(int(seen["S"]) + 1)], show=False)


REF = "nano::(anonymous namespace)::RefBackend::"


def layer(tour):
    T, length = tour.facts[tour.part]["T"], tour.facts[tour.part]["seq_len"][0]
    model = argument("this").dereference()
    tour.see("x", model["x_"].format_string())
    go(tour, REF + "linear", "x · Wᵀ with W = q, k and v: a matrix has N outputs and K inputs")
    tour.see("callers", callers())
    x = argument("x")
    tour.see("h", act_row(x, 0))
    tour.see("h shape", [x["name"].string(), int(x["rows"]), int(x["cols"])])
    tour.see("matrix", nano.need("nano::PackedLinear", "linear").format_string())
    go(tour, REF + "rope_kv_write", "q and k are turned by their position, k and v go to the cache's slots")
    tour.see("q", act_row(argument("qkv"), 0))
    go(tour, REF + "attention", "the last row's q against K of every position so far")
    go(tour, REF + "attend_span", "… head 0: one score a position", line="float partial[16] = {};",
       condition=f"hi == {length} && kv_head == 0")
    scores = argument("score")
    tour.see("scores", decimals(nano.floats(scores["_M_impl"]["_M_start"], len(nano.vector(scores)))))
    kv, position = nano.need("nano::KvLayer", "attention"), length - 1
    shape = nano.need("nano::AttentionShape", "attention")
    at = tour.facts[tour.part]["slot_mapping"][-1] * int(shape["KVH"]) * int(shape["D"])
    for name in "kv":
        tour.see(f"{name.upper()} of the last position", decimals(nano.floats(kv[name], 4, nano.enum(kv["dtype"]), at)))
    tour.see("nano kv", command(f"nano kv {position}").splitlines()[0].rsplit(":", 1)[0])
    go(tour, REF + "linear", "softmax(scores) · V went to attn; it is the next matrix's input", quiet=True)
    tour.see("attn of the last row", act_row(argument("x"), T - 1))
    tour.see("attn shape", [argument("x")["name"].string(), int(argument("x")["rows"]), int(argument("x")["cols"])])


def callers():
    """The functions from this one up to Runner::run: nothing of the library is between the runner and the model."""
    names, frame = [], gdb.selected_frame()
    while frame is not None and names[-1:] != ["Runner::run"]:
        names.append(frame.name().replace("(anonymous namespace)::", "").replace("nano::", "").split("(")[0])
        frame = frame.older()
    return names


def sample(tour, token_text):
    go(tour, "nano::sample", "a row of logits becomes a token; these are the best five")
    span = argument("logits")
    row = nano.floats(span["_M_ptr"], int(span["_M_extent"]["_M_extent_value"]))
    best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:5]
    tour.see("best", best)
    tour.see("best texts", [token_text(i) for i in best])
    tour.see("best logits", decimals(row[i] for i in best))
    go(tour, "nano::Scheduler::commit", "StepResult: the token")
    result = nano.need("nano::StepResult", "Scheduler::commit")
    tour.see("result", result.format_string())
    tour.see("token", int(nano.vector(nano.vector(result["seqs"])[0]["sampled"])[0]["id"]))
    go(tour, "nano::StreamDecoder::add", "the token becomes text")
    decoder = argument("this")
    before = len(nano.text(decoder["text_"]))
    gdb.FinishBreakpoint(gdb.newest_frame(), internal=True).silent = True
    gdb.execute("continue", to_string=True)
    tour.see("text", nano.text(decoder["text_"])[before:].decode())


def walk(tour):
    gdb.Breakpoint("main", internal=True, temporary=True).silent = True
    arguments = gdb.execute("show args", to_string=True).split('"', 1)[1].rsplit('"', 1)[0]
    gdb.execute(f"run {arguments} > {PRINTED}", to_string=True)
    token_text = start(tour)
    for tour.part in ("prefill", "decode"):
        print(f"\n--- {tour.part} ---")
        schedule(tour)
        batch(tour)
        layer(tour)
        sample(tour, token_text)
    gdb.execute("continue", to_string=True)
    tour.part = "end"
    tour.see("exit code", int(gdb.parse_and_eval("$_exitcode")))
    tour.see("printed", open(PRINTED, encoding="utf-8").read())


# --- What must have been seen ---

def same(seen, expected):
    if isinstance(expected, list):
        return isinstance(seen, list) and len(seen) == len(expected) and all(map(same, seen, expected))
    if isinstance(expected, float):
        return isinstance(seen, (int, float)) and abs(seen - expected) <= TOLERANCE
    return type(seen) is type(expected) and seen == expected


def compare(seen, expected):
    """What differs, one line a value."""
    return [f"{part}: {name} is {json.dumps(seen.get(part, {}).get(name))}, expected {json.dumps(value)}"
            for part, values in expected.items() for name, value in values.items()
            if not same(seen.get(part, {}).get(name), value)]


def changed(value):
    """Every way to change one number or text of this value a little."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from (value[:i] + [other] + value[i + 1:] for other in changed(item))
        yield value + value[-1:] if value else [0]
    elif isinstance(value, str):
        yield value + " "
    else:
        yield value + (4 * TOLERANCE if isinstance(value, float) else 1)


def unnoticed(seen, expected):
    """Changes of one expected value that the comparison does not find; and how many were tried."""
    missed, tried = [], 0
    for part, values in expected.items():
        for name, value in values.items():
            for other in changed(value):
                tried += 1
                if not compare(seen, {**expected, part: {**values, name: other}}):
                    missed.append(f"{part}: {name} changed to {json.dumps(other)} is not noticed")
    return missed, tried


def side_by_side(facts):
    print(f"\n{'':24}{'prefill':56}decode")
    for name in ("T", "token_ids", "positions", "slot_mapping", "seq_len", "scores", "best", "best texts",
                 "best logits", "token", "text"):
        cells = [json.dumps(facts.get(part, {}).get(name), ensure_ascii=False) for part in ("prefill", "decode")]
        print(f"{name:24}{cells[0]:56}{cells[1]}")


def main():
    for setting in ("confirm off", "pagination off", "breakpoint pending off", "width 0", "style enabled off"):
        gdb.execute("set " + setting)
    expected = json.load(open("lessons/gdb/tour.json", encoding="utf-8"))
    del expected["provenance"], expected["formats"]  # formats: for check_printers.py
    tour, wrong = Tour(), []
    try:
        walk(tour)
    except (gdb.error, gdb.GdbError) as error:
        wrong.append(str(error))
    if not wrong:  # what was not reached need not be told value by value
        wrong += compare(tour.facts, expected)
    wrong += [f"{part}: {name} is not in the table of expected values" for part, values in tour.facts.items()
              for name in values if name not in expected.get(part, {})]
    passed = sum(map(len, expected.values())) - len(compare(tour.facts, expected))
    side_by_side(tour.facts)
    missed, tried = unnoticed(tour.facts, expected) if not wrong else ([], 0)
    print()
    for line in wrong + missed:
        print("tour: " + line)
    print(f"tour: {tour.hops} hops, {passed} values as expected; each changed in turn: {tried} changes, "
          f"{tried - len(missed)} of them noticed")
    failed = len(wrong) + len(missed)
    print(f"{passed} passed, {failed} failed")
    if gdb.selected_inferior().pid:
        gdb.execute("kill")
    gdb.execute(f"quit {1 if failed else 0}")


main()
