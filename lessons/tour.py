"""The path of one token, walked in the debugger: `make tour`.

gdb runs this file. It stops once at each hop, prints one struct there, and ends with an error if a hop is not found
or never reached. Read it beside the sources: each hop is the name of a function to open.
"""
import gdb

# (function, what to look at there, what it is)
HOPS = [
    ("nano::load_engine", "options.model", "options: one struct of flags"),
    ("nano::Tokenizer::encode", "this->bos_id", "text becomes token ids, after this one if the file asks"),
    ("nano::Engine::add_request", "prompt", "the prompt as token ids"),
    ("nano::Engine::step", "this->scheduler_.config_", "one step: schedule, compute, sample, commit"),
    ("nano::Scheduler::schedule", "this->waiting_", "who waits"),
    ("nano::PrefixCache::match_prefix", "*this", "blocks that already hold this prefix"),
    ("nano::plan_chunk", "limits", "how many tokens this step may compute"),
    ("nano::BlockManager::grow", "num_tokens", "the block table grows to hold this many tokens"),
    ("nano::Runner::build_batch", "plan.seqs", "StepPlan: the step as a value"),
    ("nano::Transformer::decoder_block", "batch", "Batch: the same as rows, positions and slots"),
    ("nano::(anonymous namespace)::RefBackend::linear", "packed", "a matrix: N outputs, K inputs"),
    ("nano::(anonymous namespace)::RefBackend::rope_kv_write", "kv", "where K and V of a layer go"),
    ("nano::(anonymous namespace)::RefBackend::attention", "shape", "heads, head dim, scale, window"),
    ("nano::sample", "context.key", "the random numbers of this row: seed and position"),
    ("nano::Scheduler::commit", "result.seqs", "StepResult: the token"),
    ("nano::StreamDecoder::add", "id", "the token becomes text"),
]


def look_at(expression):
    """A stop may lie before the arguments are in their places; one line further they are."""
    try:
        return gdb.execute(f"print {expression}", to_string=True)
    except gdb.error:
        gdb.execute("next", to_string=True)
        return gdb.execute(f"print {expression}", to_string=True)


def main():
    for setting in ("confirm off", "pagination off", "print pretty on", "print elements 12", "breakpoint pending off",
                    "print frame-arguments none", "width 0", "style enabled off"):
        gdb.execute("set " + setting)
    missing = []
    stops = {}
    for function, expression, meaning in HOPS:
        try:
            point = gdb.Breakpoint(function, temporary=True)
        except gdb.error as error:
            missing.append(f"{function}: not found ({error})")
            continue
        point.silent = True
        stops[point.number] = (function, expression, meaning)
    reached, hits = [], []
    gdb.events.stop.connect(lambda event: hits.extend(point.number for point in getattr(event, "breakpoints", [])))
    gdb.execute("run")
    while gdb.selected_inferior().pid != 0:
        while hits:
            function, expression, meaning = stops.pop(hits.pop(0))
            reached.append(function)
            place = gdb.selected_frame().find_sal()
            print(f"\n{len(reached):2}. {function}  ({place.symtab.filename}:{place.line})\n    {meaning}")
            try:
                text = look_at(expression)
                print("    " + expression + " " + text.strip().split(" ", 1)[1].replace("\n", "\n    "))
            except gdb.error as error:
                missing.append(f"{function}: cannot print {expression} ({error})")
        gdb.execute("continue")
    missing += [f"{function}: never reached" for function, _, _ in stops.values()]
    for line in missing:
        print("tour: " + line)
    print(f"tour: {len(reached)} of {len(HOPS)} hops reached")
    print(f"{len(HOPS) - len(missing)} passed, {len(missing)} failed")
    gdb.execute(f"quit {1 if missing else 0}")


main()
