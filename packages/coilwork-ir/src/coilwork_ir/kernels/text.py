"""The text form of kernels and schedules: `parse_kernel(format_kernel(k)) == k`, and so for schedules.

kernel @sum_1f2e3d4c fast {
  size n0 in [2, inf]
  range x0: `n0` parallel x 0.0
  range r0: `1024` reduction r 1.0
  arg in0: f32 in span `1024*n0` aligned
  arg out0: f32 out span `n0`
  hints persistent split 1
  body {
    t0 = load %in0[1024*x0 + r0] : f32
    t1 = reduce sum 0 (t0) over (r0)
    store %out0[x0] = t1
  }
}
"""

from __future__ import annotations

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, format_expr, symbol
from coilwork_ir.kernels.nodes import (
    ArgRole,
    Combined,
    Decision,
    Hints,
    Kernel,
    KernelCall,
    Member,
    Numerics,
    Range,
    RangeKind,
    ReductionStrategy,
    Schedule,
    Step,
    Store,
    TensorArg,
)
from coilwork_ir.loops.nodes import AssertSize, Check, Cond, Extern, View, While
from coilwork_ir.loops.parsing import read_checks, read_header, read_node
from coilwork_ir.loops.printing import format_checks, format_header, format_node
from coilwork_ir.ops import STORE_MODES, StoreMode
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import (
    Symbols,
    format_buffer,
    format_list,
    format_origins,
    format_output,
    format_symbol,
    parse_buffer,
    parse_indices,
    parse_list,
    parse_origins,
    parse_output,
    parse_ref,
    parse_symbol,
    parse_type,
)
from coilwork_ir.text.reader import Reader, quoted
from coilwork_ir.text.scalars import (
    Names,
    Values,
    format_scalars,
    parse_statements,
    parse_value,
    with_placeholders,
)

RANGE_KINDS: tuple[RangeKind, ...] = ("parallel", "walked", "reduction")
ROLES: tuple[ArgRole, ...] = ("inout", "in", "out")
STRATEGIES: tuple[ReductionStrategy, ...] = ("none", "persistent", "looped", "split", "contracted")
NUMERICS: tuple[Numerics, ...] = ("fast", "eager", "strict")


# Kernels


def format_kernel(kernel: Kernel, *, origins: bool = True, name: bool = True, indent: str = "") -> str:
    """Canonical text of `kernel`; without `name` and `origins` it is what a cache key should contain."""
    inner = indent + "  "
    lines = [f"{indent}kernel @{kernel.name if name else '_'} {kernel.numerics} {{"]
    lines += [f"{inner}size {format_symbol(s)}" for s in kernel.sizes]
    lines += [
        f"{inner}range {r.symbol.name}: `{_extent(r)}` {r.kind} {r.tile} {r.coalescing!r}"
        for r in kernel.ranges
    ]
    for arg in kernel.args:
        aligned = " aligned" if arg.aligned else ""
        lines.append(
            f"{inner}arg {arg.name}: {arg.dtype.text} {arg.role} span `{format_expr(arg.span)}`{aligned}"
        )
    lines.append(f"{inner}hints {_hints(kernel.hints)}")
    if kernel.combined is not None:
        lines.append(f"{inner}combined {{")
        lines.append(format_kernel(kernel.combined.body, origins=False, indent=inner + "  "))
        lines += [f"{inner}  {_member(member)}" for member in kernel.combined.members]
    else:
        lines.append(f"{inner}body {{")
        lines += _body_lines(kernel, inner + "  ")
    lines += [f"{inner}}}", f"{indent}}}" + (format_origins(kernel.origins) if origins else "")]
    return "\n".join(lines) + ("" if indent else "\n")


def _member(member: Member) -> str:
    text = f"member {format_list(member.args)}"
    return text + (f" sizes [{', '.join(format_expr(s) for s in member.sizes)}]" if member.sizes else "")


def _extent(item: Range) -> str:
    if item.symbol.extent is None:
        raise ValueError(f"range {item.symbol.name} has no extent")
    return format_expr(item.symbol.extent)


def _hints(hints: Hints) -> str:
    parts = [f"{hints.reduction} split {hints.split}"]
    if hints.inplace:
        parts.append(f"inplace {format_list(f'{out} of {source}' for out, source in hints.inplace)}")
    if hints.atomic:
        parts.append("atomic")
    return " ".join(parts)


def _body_lines(kernel: Kernel, indent: str) -> list[str]:
    roots: list[Scalar] = []
    for store in kernel.stores:
        roots += [*store.indirect, store.value, *(() if store.mask is None else (store.mask,))]
    roots += [check.condition for check in kernel.checks]
    lines, names = format_scalars(roots, indent)
    lines += format_checks(kernel.checks, names, indent)
    return lines + [indent + _store(store, names) for store in kernel.stores]


def _store(store: Store, names: Names) -> str:
    text = f"store %{store.buffer}[{format_expr(store.index)}]"
    if store.indirect:
        text += f" using {format_list(names[v] for v in store.indirect)}"
    if store.mode != "store":
        text += f" {store.mode}"
    text += f" = {names[store.value]}"
    return text if store.mask is None else f"{text} mask {names[store.mask]}"


def parse_kernel(text: str) -> Kernel:
    """The kernel that `text` spells.

    Raises:
        ParseError: with line, reason and a caret.
    """
    reader = Reader(text)
    kernel = read_kernel(reader)
    reader.finish()
    return kernel


def read_kernel(reader: Reader) -> Kernel:
    """Read one kernel."""
    reader.expect("kernel")
    reader.expect("@")
    name = reader.name()
    word = reader.choice(NUMERICS, "a numerics mode")
    numerics = next(known for known in NUMERICS if known == word)
    reader.expect("{")
    symbols: Symbols = {}
    sizes: list[Expr] = []
    while reader.accept("size"):
        sizes.append(parse_symbol(reader, symbols))
    ranges: list[Range] = []
    while reader.accept("range"):
        ranges.append(_read_range(reader, symbols))
    args: list[TensorArg] = []
    while reader.accept("arg"):
        args.append(_read_arg(reader, symbols))
    reader.expect("hints")
    hints = _read_hints(reader)
    combined: Combined | None = None
    stores: list[Store] = []
    checks: tuple[Check, ...] = ()
    if reader.accept("combined"):
        combined = _read_combined(reader, symbols)
    else:
        reader.expect("body")
        reader.expect("{")
        values = parse_statements(reader, symbols)
        checks = read_checks(reader, values)
        while reader.accept("store"):
            stores.append(_read_store(reader, symbols, values))
        reader.expect("}")
    reader.expect("}")
    return Kernel(
        name=name,
        ranges=tuple(ranges),
        args=tuple(args),
        sizes=tuple(sizes),
        stores=tuple(stores),
        checks=checks,
        hints=hints,
        combined=combined,
        numerics=numerics,
        origins=parse_origins(reader),
    )


def _read_combined(reader: Reader, symbols: Symbols) -> Combined:
    reader.expect("{")
    body = read_kernel(reader)
    members: list[Member] = []
    while reader.accept("member"):
        args = parse_list(reader, reader.name)
        sizes = parse_indices(reader, symbols, "[", "]") if reader.accept("sizes") else ()
        members.append(Member(args=args, sizes=sizes))
    reader.expect("}")
    return Combined(body=body, members=tuple(members))


def _read_range(reader: Reader, symbols: Symbols) -> Range:
    name = reader.name()
    reader.expect(":")
    reader.expect("`")
    extent = reader.index(symbols, "`")
    reader.expect("`")
    value = symbol(name, extent=extent)
    symbols[name] = value
    word = reader.choice(RANGE_KINDS, "a range kind")
    kind = next(known for known in RANGE_KINDS if known == word)
    tile = reader.choice(("x", "y", "z", "w", "r"), "a tile")
    share = float(reader.number())
    match tile:
        case "x" | "y" | "z" | "w" | "r":
            return Range(symbol=value, kind=kind, tile=tile, coalescing=share)
    raise AssertionError(tile)


def _read_arg(reader: Reader, symbols: Symbols) -> TensorArg:
    name = reader.name()
    reader.expect(":")
    dtype = parse_type(reader)
    word = reader.choice(ROLES, "a role")
    role = next(known for known in ROLES if known == word)
    reader.expect("span")
    reader.expect("`")
    span = reader.index(symbols, "`")
    reader.expect("`")
    return TensorArg(name=name, dtype=dtype, role=role, span=span, aligned=reader.accept("aligned"))


def _read_hints(reader: Reader) -> Hints:
    word = reader.choice(STRATEGIES, "a reduction strategy")
    strategy = next(known for known in STRATEGIES if known == word)
    reader.expect("split")
    split = reader.integer()
    inplace: tuple[tuple[str, str], ...] = ()
    if reader.accept("inplace"):
        inplace = parse_list(reader, lambda: _read_pair(reader))
    return Hints(reduction=strategy, split=split, inplace=inplace, atomic=reader.accept("atomic"))


def _read_pair(reader: Reader) -> tuple[str, str]:
    first = reader.name()
    reader.expect("of")
    return first, reader.name()


def _read_store(reader: Reader, symbols: Symbols, values: Values) -> Store:
    buffer = parse_ref(reader)
    (index,) = parse_indices(reader, with_placeholders(symbols), "[", "]")
    indirect: tuple[Scalar, ...] = ()
    if reader.accept("using"):
        indirect = parse_list(reader, lambda: parse_value(reader, values))
    mode: StoreMode = next((known for known in STORE_MODES if reader.accept(known)), "store")
    reader.expect("=")
    value = parse_value(reader, values)
    mask = parse_value(reader, values) if reader.accept("mask") else None
    return Store(buffer=buffer, index=index, value=value, indirect=indirect, mode=mode, mask=mask)


# Schedules


def format_schedule(schedule: Schedule, *, origins: bool = True, decisions: bool = True) -> str:
    """Canonical text of `schedule`; without `origins` and `decisions` it depends only on what is computed."""
    lines = [f"schedule @{schedule.name} {{"]
    lines += format_header(schedule.symbols, schedule.inputs, schedule.constants, "  ")
    lines += [format_kernel(kernel, origins=origins, indent="  ") for kernel in schedule.kernels]
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            lines += _call_lines(step, schedule, buffers, origins)
        else:
            lines.append(format_node(step, "  ", origins=origins))
    lines.append(f"  return {format_list(format_output(o) for o in schedule.outputs)}")
    if decisions:
        lines += [f"  decision {_decision(d)}" for d in schedule.decisions]
    return "\n".join([*lines, "}"]) + "\n"


def _call_lines(call: KernelCall, schedule: Schedule, buffers: dict[str, Buffer], origins: bool) -> list[str]:
    text = f"  call @{call.kernel} {format_list(f'%{a}' for a in call.args)}"
    if call.sizes:
        text += f" sizes [{', '.join(format_expr(s) for s in call.sizes)}]"
    if call.into:
        text += f" into {format_list(f'%{new} of %{old}' for new, old in call.into)}"
    defined = [buffers[n] for n in call_defines(call, schedule)]
    text += f" defines {format_list(format_buffer(b) for b in defined)}"
    return [text + (format_origins(call.origins) if origins else "")]


def call_defines(call: KernelCall, schedule: Schedule) -> tuple[str, ...]:
    """Names of the buffers that `call` defines, in argument order, then those that take over older memory."""
    kernel = next(k for k in schedule.kernels if k.name == call.kernel)
    old = {source for _, source in call.into}
    written = [a for a, arg in zip(call.args, kernel.args, strict=True) if arg.role != "in" and a not in old]
    return tuple(dict.fromkeys((*written, *(new for new, _ in call.into))))


def _decision(decision: Decision) -> str:
    verdict = "accepted" if decision.accepted else "rejected"
    subjects = format_list(quoted(s) for s in decision.subjects)
    numbers = format_list(f"{quoted(name)} {float(value)!r}" for name, value in decision.numbers)
    return f"{quoted(decision.rule)} {verdict} {subjects} {quoted(decision.reason)} {numbers}"


def parse_schedule(text: str) -> Schedule:
    """The schedule that `text` spells.

    Raises:
        ParseError: with line, reason and a caret.
    """
    reader = Reader(text)
    reader.expect("schedule")
    reader.expect("@")
    name = reader.name()
    reader.expect("{")
    symbols: Symbols = {}
    declared, inputs, constants = read_header(reader, symbols)
    kernels: list[Kernel] = []
    while reader.peek("kernel"):
        kernels.append(read_kernel(reader))
    steps: list[Step] = []
    buffers: list[Buffer] = []
    while not reader.accept("return"):
        steps.append(_read_step(reader, symbols, buffers))
    outputs = parse_list(reader, lambda: parse_output(reader, symbols))
    decisions: list[Decision] = []
    while reader.accept("decision"):
        decisions.append(_read_decision(reader))
    reader.expect("}")
    return Schedule(
        name=name,
        symbols=declared,
        inputs=inputs,
        constants=constants,
        kernels=tuple(kernels),
        buffers=tuple(buffers),
        steps=tuple(steps),
        outputs=outputs,
        decisions=tuple(decisions),
    )


def _read_step(reader: Reader, symbols: Symbols, buffers: list[Buffer]) -> Step:
    if not reader.accept("call"):
        at = reader.at
        node = read_node(reader, symbols)
        match node:
            case View():
                buffers.append(node.output)
            case Extern():
                buffers.extend(o for o in node.outputs if isinstance(o, Buffer))
                buffers.extend(m.output for m in node.mutates)
            case Cond():
                buffers.extend(node.outputs)
            case While():
                buffers.extend(node.outputs)
                buffers.extend(m.output for m in node.mutates)
            case AssertSize():
                pass
            case _:
                raise reader.error("a schedule holds calls, not loop nodes", at)
        return node
    reader.expect("@")
    kernel = reader.name()
    args = parse_list(reader, lambda: parse_ref(reader))
    sizes = parse_indices(reader, symbols, "[", "]") if reader.accept("sizes") else ()
    into: tuple[tuple[str, str], ...] = ()
    if reader.accept("into"):
        into = parse_list(reader, lambda: _read_ref_pair(reader))
    reader.expect("defines")
    buffers.extend(parse_list(reader, lambda: parse_buffer(reader, symbols)))
    return KernelCall(kernel=kernel, args=args, sizes=sizes, into=into, origins=parse_origins(reader))


def _read_ref_pair(reader: Reader) -> tuple[str, str]:
    new = parse_ref(reader)
    reader.expect("of")
    return new, parse_ref(reader)


def _read_decision(reader: Reader) -> Decision:
    rule = reader.string()
    accepted = reader.choice(("accepted", "rejected"), "a verdict") == "accepted"
    subjects = parse_list(reader, reader.string)
    reason = reader.string()
    numbers = parse_list(reader, lambda: (reader.string(), float(reader.number())))
    return Decision(rule=rule, subjects=subjects, accepted=accepted, reason=reason, numbers=numbers)
