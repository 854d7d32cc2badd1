"""Reading: gdb's values become Python's. What the printers and commands of nano.py are made of."""
import struct

import gdb

SHOWN = 8  # values of a long row


def vector(v):
    start, finish = v["_M_impl"]["_M_start"], v["_M_impl"]["_M_finish"]
    return [start[i] for i in range(int(finish - start))]


def ints(v):
    return [int(x) for x in vector(v)]


def text(s):
    size = int(s["_M_string_length"])
    return bytes(gdb.selected_inferior().read_memory(int(s["_M_dataplus"]["_M_p"]), size) if size else b"")


def first_pointer(value):
    kind = value.type.strip_typedefs()
    if kind.code == gdb.TYPE_CODE_PTR:
        return value
    inside = (first_pointer(value[field]) for field in kind.fields()) if kind.code == gdb.TYPE_CODE_STRUCT else ()
    return next((pointer for pointer in inside if pointer is not None), None)


def pointee(unique_ptr):
    """The object of a unique_ptr, whose pointer lies somewhere in a tuple."""
    return first_pointer(unique_ptr).dereference()


def hash_map(m):
    """(key, value) of an unordered_map: its nodes are one linked list."""
    table = m["_M_h"]
    node_type = gdb.lookup_type(str(table.type.strip_typedefs()) + "::__node_type").pointer()
    node = table["_M_before_begin"]["_M_nxt"]
    while int(node) != 0:
        pair_type = m.type.strip_typedefs().template_argument(0), m.type.strip_typedefs().template_argument(1)
        storage = node.cast(node_type).dereference()["_M_storage"]["_M_storage"].address
        pair = storage.cast(gdb.lookup_type(f"std::pair<{pair_type[0]} const, {pair_type[1]}>").pointer()).dereference()
        yield pair["first"], pair["second"]
        node = node["_M_nxt"]


def enum(value):
    return str(value).split("::")[-1]


WIDTH = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "i8": 1}


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return float("nan")
    magnitude = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0 ** -9
    return -magnitude if byte & 128 else magnitude


def floats(pointer, count, dtype="f32", first=0):
    """Elements [first, first + count) of an array of that type, decoded to float."""
    if dtype not in WIDTH:
        raise gdb.GdbError(f"no type {dtype}: it is one of {', '.join(WIDTH)}")
    width = WIDTH[dtype]
    data = bytes(gdb.selected_inferior().read_memory(int(pointer) + first * width, count * width))
    if dtype == "bf16":  # the upper half of a float32
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    if dtype == "e4m3":
        return [e4m3(byte) for byte in data]
    return list(struct.unpack(f"<{count}{ {'f32': 'f', 'f16': 'e', 'i8': 'b'}[dtype] }", data))


def row(numbers, length=None):
    """[a b c …]: `length` = how many there are in all."""
    shown = " ".join(f"{x:.5g}" if isinstance(x, float) else str(x) for x in numbers[:SHOWN])
    return "[" + shown + (" …]" if (length or len(numbers)) > SHOWN else "]")


def listing(numbers):
    return "[" + " ".join(str(x) for x in numbers) + "]"


# --- Finding: where in the backtrace is an object of this type? ---

def target(value):
    """What a reference or a pointer leads to."""
    while value.type.strip_typedefs().code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
        value = value.referenced_value()
    return value.dereference() if value.type.strip_typedefs().code == gdb.TYPE_CODE_PTR else value


def type_name(type_):
    type_ = type_.strip_typedefs()
    while type_.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF, gdb.TYPE_CODE_PTR):
        type_ = type_.target().strip_typedefs()
    return type_.unqualified().name


def find(wanted):
    """The nearest variable, argument or `this` of type `wanted` in the selected frame and its callers, or None."""
    frame = gdb.selected_frame() if gdb.selected_thread() else None
    while frame is not None:
        try:
            block = frame.block()
        except RuntimeError:
            block = None  # code without debug information
        while block is not None:
            for symbol in block:
                if (symbol.is_variable or symbol.is_argument) and type_name(symbol.type) == wanted \
                        and not (symbol.line and block.function is None and symbol.line >= frame.find_sal().line):
                    return target(symbol.value(frame))
            block = None if block.function else block.superblock
        frame = frame.older()
    return None


def need(wanted, hint):
    found = find(wanted)
    if found is None:
        raise gdb.GdbError(f"no {wanted} in this backtrace: stop inside {hint}")
    return found


def body_of(function):
    """(place, address) where the function's arguments have been stored. The line table says so: the second address of
    a function is behind its prologue. (gdb's own guess, which `break` takes, can be too early: arguments are garbage.)"""
    places = [place for place in gdb.decode_line(function)[1] or () if place.symtab.filename.endswith(".cpp")]
    if len(places) != 1:
        raise gdb.GdbError(f"{function}: {len(places)} places")
    block = gdb.block_for_pc(places[0].pc)
    while block.function is None:
        block = block.superblock
    lines = {line.pc: line.line for line in places[0].symtab.linetable() if block.start <= line.pc < block.end}
    address = sorted(lines)[1]
    return f"{places[0].symtab.filename}:{lines[address]}", address
