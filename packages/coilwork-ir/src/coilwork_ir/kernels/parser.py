"""The parser of kernels and schedules; `text.py` shows the form."""

from __future__ import annotations

from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.kernels.nodes import (
    ArgRole,
    AttentionCore,
    AttentionGradientCore,
    Candidate,
    ComboKernel,
    ConvolutionCore,
    Core,
    Decision,
    Kernel,
    KernelCall,
    Member,
    Numerics,
    Proposal,
    Range,
    RangeKind,
    Schedule,
    Step,
    Store,
    TensorArg,
)
from coilwork_ir.loops.attention_parser import read_saved, read_weights
from coilwork_ir.loops.convolutions import Role
from coilwork_ir.loops.nodes import AssertSize, Body, Check, Cond, Extern, Loop, View
from coilwork_ir.loops.parser import (
    read_checks,
    read_domain,
    read_header,
    read_node,
    read_window,
)
from coilwork_ir.ops import STORE_MODES, StoreMode
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import (
    STREAM_STEPS,
    Symbols,
    parse_buffer,
    parse_indices,
    parse_list,
    parse_origins,
    parse_output,
    parse_ref,
    parse_symbol,
    parse_type,
    read_on,
)
from coilwork_ir.text.reader import Reader
from coilwork_ir.text.scalars import (
    Values,
    add_placeholders,
    parse_statements,
    parse_value,
)

# ---- Kernels and schedules ----


RANGE_KINDS: tuple[RangeKind, ...] = ("parallel", "sequential", "reduction")
ROLES: tuple[ArgRole, ...] = ("inout", "in", "out")
NUMERICS: tuple[Numerics, ...] = ("fast", "eager", "strict")


def parse_kernel(text: str) -> Kernel:
    """Return the kernel that `text` spells.

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
    aliasing = parse_list(reader, lambda: _read_pair(reader)) if reader.accept("aliasing") else ()
    workspace = reader.name() if reader.accept("workspace") else ""
    core = read_core(reader, symbols)
    combined: ComboKernel | None = None
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
        aliasing=aliasing,
        core=core,
        stores=tuple(stores),
        checks=checks,
        workspace=workspace,
        combined=combined,
        numerics=numerics,
        origins=parse_origins(reader),
    )


def _read_combined(reader: Reader, symbols: Symbols) -> ComboKernel:
    reader.expect("{")
    body = read_kernel(reader)
    members: list[Member] = []
    while reader.accept("member"):
        args = parse_list(reader, reader.name)
        sizes = parse_indices(reader, symbols, "[", "]") if reader.accept("sizes") else ()
        members.append(Member(args=args, sizes=sizes))
    reader.expect("}")
    return ComboKernel(body=body, members=tuple(members))


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
    return Range(symbol=value, kind=kind)


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


def _read_pair(reader: Reader) -> tuple[str, str]:
    first = reader.name()
    reader.expect("of")
    return first, reader.name()


def _read_store(reader: Reader, symbols: Symbols, values: Values) -> Store:
    buffer = parse_ref(reader)
    (index,) = parse_indices(reader, add_placeholders(symbols), "[", "]")
    indirect: tuple[Scalar, ...] = ()
    if reader.accept("using"):
        indirect = parse_list(reader, lambda: parse_value(reader, values))
    mode: StoreMode = next((known for known in STORE_MODES if reader.accept(known)), "store")
    reader.expect("=")
    value = parse_value(reader, values)
    mask = parse_value(reader, values) if reader.accept("mask") else None
    return Store(buffer=buffer, index=index, value=value, indirect=indirect, mode=mode, mask=mask)


def read_proposals(reader: Reader) -> tuple[Proposal, ...]:
    """Read the proposals of templates that stand next."""
    proposals: list[Proposal] = []
    while reader.accept("propose"):
        reader.expect("@")
        kernel = reader.name()
        reader.expect("{")
        candidates: list[Candidate] = []
        while not reader.accept("}"):
            reader.expect("candidate")
            candidates.append(Candidate(directives=reader.string(), reason=reader.string()))
        proposals.append(Proposal(kernel=kernel, candidates=tuple(candidates)))
    return tuple(proposals)


def parse_schedule(text: str) -> Schedule:
    """Return the schedule that `text` spells.

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
    proposals = read_proposals(reader)
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
        proposals=proposals,
        buffers=tuple(buffers),
        steps=tuple(steps),
        outputs=outputs,
        decisions=tuple(decisions),
    )


def _read_step(reader: Reader, symbols: Symbols, buffers: list[Buffer]) -> Step:
    for word, read in STREAM_STEPS.items():
        if reader.accept(word):
            return read(reader)
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
            case Loop():
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
    stream = read_on(reader)
    return KernelCall(
        kernel=kernel, args=args, sizes=sizes, into=into, stream=stream, origins=parse_origins(reader)
    )


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


# ---- Cores ----


_ROLES: Final[tuple[Role, ...]] = ("image", "weight", "features")


def read_core(reader: Reader, symbols: Symbols) -> Core | None:
    """Read a core, if one begins; `symbols` are the kernel's sizes and ranges."""
    if reader.accept("convolve"):
        return _read_convolution(reader, symbols)
    for word in ("attention_gradient", "attention"):
        if reader.accept(word):
            accumulate = parse_type(reader)
            return _read_attention(reader, symbols, accumulate, is_gradient=word != "attention")
    return None


def _read_convolution(reader: Reader, symbols: Symbols) -> ConvolutionCore:
    accumulate = parse_type(reader)
    windows = parse_list(reader, lambda: read_window(reader))
    reader.expect("groups")
    groups = reader.integer()
    reader.expect("{")
    makes = _read_role(reader)
    ranges, axes = _read_ranges(reader, symbols)
    scope, domains = symbols, list[tuple[Role, tuple[Expr, ...]]]()
    for _ in range(2):
        role = _read_role(reader)
        own, _, scope = read_domain(reader, scope)
        domains.append((role, own))
    values = parse_statements(reader, scope)
    reader.expect("multiply")
    left = parse_value(reader, values)
    reader.expect(",")
    right = parse_value(reader, values)
    reader.expect("}")
    (first, own), (second, others) = domains
    return ConvolutionCore(
        makes=makes,
        ranges=ranges,
        axes=axes,
        operands=((first, Body(ranges=own, value=left)), (second, Body(ranges=others, value=right))),
        windows=windows,
        groups=groups,
        accumulate=accumulate,
    )


def _read_attention(
    reader: Reader, symbols: Symbols, accumulate: DType, *, is_gradient: bool
) -> AttentionCore | AttentionGradientCore:
    ranges, axes = _read_ranges(reader, symbols)
    reader.expect("{")
    values = parse_statements(reader, symbols)
    weights = read_weights(reader, accumulate, (ranges, axes, symbols), values)
    if not is_gradient:
        reader.expect("}")
        return AttentionCore(weights=weights)
    saved = read_saved(reader, values)
    reader.expect("slope")
    slope = parse_value(reader, values)
    bias: Scalar | None = parse_value(reader, values) if reader.accept("bias") else None
    reader.expect("}")
    return AttentionGradientCore(weights=weights, **saved, slope=slope, bias=bias)


def _read_role(reader: Reader) -> Role:
    word = reader.choice(_ROLES, "a tensor of a convolution")
    return next(role for role in _ROLES if role == word)


def _read_ranges(reader: Reader, symbols: Symbols) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    ranges = parse_list(reader, lambda: _read_known_range(reader, symbols))
    reader.expect("over")
    return ranges, parse_list(reader, lambda: _read_known_range(reader, symbols))


def _read_known_range(reader: Reader, symbols: Symbols) -> Expr:
    at = reader.at
    name = reader.name()
    if name not in symbols:
        raise reader.error(f"{name} is not a range", at)
    return symbols[name]
