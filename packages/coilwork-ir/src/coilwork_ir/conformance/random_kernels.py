"""Random kernels: what no one would write down as a case, drawn alike for equal seeds.

Kernels with a core are random convolutions, attention and gradients, for generators that have templates. A
generator that declares a kind of core (`Capabilities.cores`) runs all of it like other kernels
(`check_cores`); what it does not declare it refuses by the kind's name.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from coilwork_ir.backend import Codegen
from coilwork_ir.conformance.case import Case
from coilwork_ir.conformance.check import Result, Runner, Status, check_codegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.nodes import RangeKind
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Load, Scalar, cast, const, index_value, iterate_postorder, load, op, reduce
from coilwork_ir.target import Target

# ---- Kernels ----


_F32: Final = DType.F32


def make_random_case(seed: int) -> Case:
    """Return the kernel of `make_random_kernel`, at sizes that are no multiples of one another."""
    kernel = make_random_kernel(seed)
    sizes = tuple({size.name: number for size in kernel.sizes} for number in (1, 4, 37))
    return Case(name=kernel.name, text=format_kernel(kernel), sizes=sizes if kernel.sizes else ({},))


def make_random_kernel(seed: int) -> Kernel:
    """Return a reduction or pointwise kernel over a permuted, broadcast, possibly dynamic space of three or
    four ranges.
    """
    rng = random.Random(seed)
    count = rng.randint(2, 4)
    size = symbol("n0", lo=0)
    extents: list[Expr | int] = [rng.choice([1, 2, 3, 5, 16, 33, 70]) for _ in range(count)]
    if rng.random() < 0.4:
        extents[rng.randrange(count)] = size
    reduced = rng.choice([0, 0, 1, 1, 2]) if count > 2 else rng.choice([0, 1])
    ranges = []
    for k, extent in enumerate(extents):
        kind: RangeKind = "reduction" if k >= count - reduced else "parallel"
        s = symbol(f"{'r' if kind == 'reduction' else 'x'}{k}", extent=extent)
        ranges.append(Range(symbol=s, kind=kind))
    symbols = [r.symbol for r in ranges]

    def offset(chosen: list[Expr]) -> Expr:
        at: Expr = as_expr(0)
        for s in chosen:
            assert s.extent is not None
            at = at * s.extent + s
        return at

    args: list[TensorArg] = []
    span = as_expr(1)
    for extent in extents:
        span = span * extent

    def read(name: str) -> Scalar:
        dtype = rng.choice([_F32, _F32, DType.BF16, DType.F16])
        chosen = [s for s in symbols if rng.random() < 0.8]
        rng.shuffle(chosen)
        args.append(TensorArg(name=name, dtype=dtype, role="in", span=span + 1))
        mask = None
        if rng.random() < 0.3:
            mask = op("lt", index_value(rng.choice(symbols)), const(rng.randint(0, 20), DType.I64))
        return cast(load(name, [offset(chosen)], dtype, mask=mask, other=1.5), _F32)

    values = [read(f"in{k}") for k in range(rng.randint(1, 3))]
    for _ in range(rng.randint(1, 4)):
        a, b = rng.choice(values), rng.choice(values)
        name = rng.choice(["add", "mul", "sub", "maximum", "tanh", "where", "exp"])
        if name == "exp":
            values.append(op("exp", op("minimum", a, const(2, _F32))))
        elif name == "tanh":
            values.append(op("tanh", a))
        elif name == "where":
            values.append(op("where", op("lt", a, b), a, b))
        else:
            values.append(op(name, a, b))
    value = values[-1]
    axes = [r.symbol for r in ranges if r.kind == "reduction"]
    outer = [r.symbol for r in ranges if r.kind == "parallel"]
    stores: list[tuple[str, Expr, Scalar]] = []
    if axes:
        kinds: list[ReduceKind] = ["sum", "max", "min", "argmax", "welford", "online_softmax"]
        result = reduce(rng.choice(kinds), [value], axes)
        permuted = list(outer)
        rng.shuffle(permuted)
        stores.append(("out0", offset(permuted), result))
        if rng.random() < 0.6 and result.dtype is _F32:
            inner = list(symbols)
            rng.shuffle(inner)
            stores.append(("out1", offset(inner), op("sub", value, result)))
    else:
        permuted = list(symbols)
        rng.shuffle(permuted)
        stores.append(("out0", offset(permuted), value))
    for name, _, stored in stores:
        args.append(TensorArg(name=name, dtype=stored.dtype, role="out", span=span))
    read_from = {
        node.buffer for node in iterate_postorder([v for _, _, v in stores]) if isinstance(node, Load)
    }
    return Kernel(
        name=f"random_{seed}",
        ranges=tuple(ranges),
        args=tuple(arg for arg in args if arg.role == "out" or arg.name in read_from),
        sizes=(size,) if size in extents else (),
        stores=tuple(Store(buffer=name, index=at, value=v) for name, at, v in stores),
    )


# ---- Kernels with a core ----


_PROLOGUES: Final = ("", "exp", "tanh", "neg")


def make_random_core_case(seed: int) -> Case:
    """Return a kernel with a core, of all kinds in turn: the same for equal seeds."""
    rng = random.Random(seed)
    make = (_make_convolution, _make_attention, _make_convolution, _make_gradient)[seed % 4]
    return make(f"core-{seed}", rng)


def _flat(names: Sequence[str], extents: Sequence[int | str]) -> str:
    """Return the offset of an element of a dense tensor."""
    terms = []
    for k, name in enumerate(names):
        inner = [str(extent) for extent in extents[k + 1 :]]
        terms.append("*".join([*inner, name]))
    return " + ".join(terms) or "0"


def _span(extents: Sequence[int | str]) -> str:
    return "*".join(str(extent) for extent in extents)


def _write(
    name: str,
    rng: random.Random,
    *,
    ranges: Sequence[tuple[str, int | str]],
    axes: Sequence[tuple[str, int | str]],
    args: Sequence[tuple[str, str, str, Sequence[int | str]]],
    core: Sequence[str],
    body: Sequence[str],
) -> Case:
    is_open = any(extent == "n0" for _, extent in (*ranges, *axes))
    lines = [f"kernel @{name.replace('-', '_')} {rng.choice(('fast', 'eager', 'strict'))} {{"]
    lines += ["size n0 in [0, inf]"] if is_open else []
    lines += [f"range {r}: `{extent}` parallel" for r, extent in ranges]
    lines += [f"range {r}: `{extent}` reduction" for r, extent in axes]
    lines += [f"arg {arg}: {dtype} {role} span `{_span(shape)}`" for arg, dtype, role, shape in args]
    lines += [*core, "body {", *body, "}", "}"]
    sizes = ({"n0": 3}, {"n0": 1}) if is_open else ({},)
    return Case(name=name, text="\n".join(lines), sizes=sizes)


def _load(arg: str, index: str, dtype: str, prologue: str, first: int) -> tuple[list[str], str]:
    """Statements that load an operand and compute its prologue, and the name of the value."""
    lines = [f"t{first} = load %{arg}[{index}] : {dtype}"]
    if prologue:
        lines.append(f"t{first + 1} = {prologue}(t{first})")
    return lines, f"t{first + bool(prologue)}"


def _make_convolution(name: str, rng: random.Random) -> Case:
    rank = rng.choice((1, 2))
    groups, channels, features = rng.choice((1, 2, 3)), rng.choice((1, 2)), rng.choice((1, 2, 3))
    windows, space, taps, counts = [], [], [], []
    for _ in range(rank):
        stride, padding, dilation = rng.choice((1, 2, 3)), rng.choice((0, 1, 2)), rng.choice((1, 2))
        tap = rng.choice((1, 2, 3))
        reach = dilation * (tap - 1) + 1 - 2 * padding
        count = max(rng.choice((1, 2, 4)), 1 + -(-(1 - reach) // stride))
        windows.append(f"stride {stride} padding {padding} dilation {dilation}")
        space.append((count - 1) * stride + reach + rng.randrange(stride))
        taps.append(tap)
        counts.append(count)
    batch: int | str = rng.choice((2, "n0"))
    shapes: dict[str, list[int | str]] = {
        "image": [batch, groups * channels, *space],
        "weight": [groups * features, channels, *taps],
        "features": [batch, groups * features, *counts],
    }
    summed: dict[str, list[int | str]] = {
        "features": [channels, *taps],
        "image": [features, *taps],
        "weight": [batch, *counts],
    }
    makes = rng.choice(tuple(shapes))
    dtype = rng.choice(("f32", "f32", "f16", "bf16", "f64"))
    wide = "f64" if dtype == "f64" else "f32"
    ranges = [(f"x{k}", extent) for k, extent in enumerate(shapes[makes])]
    axes = [(f"r{k}", extent) for k, extent in enumerate(summed[makes])]
    operands = [role for role in shapes if role != makes]
    result = ", ".join(r for r, _ in ranges)
    core = [f"convolve {wide} ({', '.join(windows)}) groups {groups} {{"]
    core.append(f"{makes} ({result}) over ({', '.join(a for a, _ in axes)})")
    statements, factors = list[str](), list[str]()
    for number, role in enumerate(operands):
        own = [f"{'ab'[number]}{k}" for k in range(rank + 2)]
        core.append(f"{role} [{', '.join(f'{r}: {e}' for r, e in zip(own, shapes[role], strict=True))}]")
        index = _flat(own, shapes[role])
        lines, factor = _load(f"in{number}", index, dtype, rng.choice(_PROLOGUES), 2 * number)
        statements += lines
        factors.append(factor)
    core += [*statements, f"multiply {', '.join(factors)}", "}"]
    args: list[tuple[str, str, str, Sequence[int | str]]] = [
        (f"in{k}", dtype, "in", shapes[role]) for k, role in enumerate(operands)
    ]
    body = [f"t0 = parameter 0 : {wide}"]
    value = "t0"
    if rng.random() < 0.6:
        args.append(("in2", wide, "in", shapes[makes][1:2]))
        body += [f"t1 = load %in2[x1] : {wide}", "t2 = add(t0, t1)", "t3 = tanh(t2)"]
        value = "t3"
    at = _flat([r for r, _ in ranges], shapes[makes])
    stored = value
    if dtype != wide:
        body.append(f"t4 = cast({value}) : {dtype}")
        stored = "t4"
    args.append(("out0", dtype, "out", shapes[makes]))
    stores = [f"store %out0[{at}] = {stored}"]
    if rng.random() < 0.3:
        args.append(("out1", wide, "out", shapes[makes]))
        stores.append(f"store %out1[{at}] = t0")
    return _write(name, rng, ranges=ranges, axes=axes, args=args, core=core, body=[*body, *stores])


def _write_weights(
    rng: random.Random, dtype: str, wide: str
) -> tuple[list[tuple[str, int | str]], list[tuple[str, int | str]], dict[str, list[int | str]], list[str]]:
    """Ranges, axes, shapes of operands, and statements of the weights of an attention, up to `t19`."""
    heads, rows = 4, rng.choice((1, 5))
    keys: int | str = rng.choice((1, 6, "n0"))
    length, columns = rng.choice((4, 8)), rng.choice((3, 8))
    shared = rng.choice((4, 2, 1))
    ranges: list[tuple[str, int | str]] = [("x0", 2), ("x1", heads), ("x2", rows), ("x3", columns)]
    axes: list[tuple[str, int | str]] = [("r0", keys), ("r1", length)]
    shapes: dict[str, list[int | str]] = {
        "query": [2, heads, rows, length],
        "key": [2, shared, keys, length],
        "value": [2, shared, keys, columns],
        "bias": [heads, keys],
        "output": [2, heads, rows, columns],
        "logsumexp": [2, heads, rows],
    }
    head = {4: "x1", 2: "(x1 // 2)", 1: "0"}[shared]
    statements = [
        f"t0 = load %in0[{_flat(['x0', 'x1', 'x2', 'r1'], shapes['query'])}] : {dtype}",
        f"t1 = load %in1[{_flat(['x0', head, 'r0', 'r1'], shapes['key'])}] : {dtype}",
        f"t2 = load %in2[{_flat(['x0', head, 'r0', 'x3'], shapes['value'])}] : {dtype}",
        f"t3 = parameter 0 : {wide}",
        f"t4 = const 0.25 : {wide}",
        "t5 = mul(t3, t4)",
        f"t6 = load %in3[{_flat(['x1', 'r0'], shapes['bias'])}] : {wide}",
        "t7 = add(t5, t6)",
        "t8 = index [r0]",
        "t9 = index [x2 + 1]",
        "t10 = le(t8, t9)",
    ]
    return ranges, axes, shapes, statements


def _make_attention(name: str, rng: random.Random) -> Case:
    dtype = rng.choice(("f32", "f32", "f16", "bf16", "f64"))
    wide = "f64" if dtype == "f64" else "f32"
    ranges, axes, shapes, statements = _write_weights(rng, dtype, wide)
    prologue = rng.choice(("", "tanh", "neg"))
    query = "t11" if prologue else "t0"
    core = [f"attention {wide} (x0, x1, x2, x3) over (r0, r1) {{", *statements]
    core += [f"t11 = {prologue}(t0)"] if prologue else []
    core += [f"query {query}, key t1, value t2", "score t7"]
    core += ["mask t10"] if rng.random() < 0.6 else []
    core.append("}")
    args: list[tuple[str, str, str, Sequence[int | str]]] = [
        ("in0", dtype, "in", shapes["query"]),
        ("in1", dtype, "in", shapes["key"]),
        ("in2", dtype, "in", shapes["value"]),
        ("in3", wide, "in", shapes["bias"]),
    ]
    body, value = [f"t0 = parameter 0 : {wide}"], "t0"
    if rng.random() < 0.5:
        args.append(("in4", wide, "in", [shapes["output"][1]]))
        body += [f"t1 = load %in4[x1] : {wide}", "t2 = mul(t0, t1)"]
        value = "t2"
    at = _flat(["x0", "x1", "x2", "x3"], shapes["output"])
    if dtype != wide:
        body.append(f"t3 = cast({value}) : {dtype}")
        value = "t3"
    args.append(("out0", dtype, "out", shapes["output"]))
    stores = [f"store %out0[{at}] = {value}"]
    if rng.random() < 0.7:
        args.append(("out1", wide, "out", shapes["logsumexp"]))
        body.append(f"t4 = parameter 1 : {wide}")
        stores.append(f"store %out1[{_flat(['x0', 'x1', 'x2'], shapes['logsumexp'])}] = t4")
    return _write(name, rng, ranges=ranges, axes=axes, args=args, core=core, body=[*body, *stores])


def _make_gradient(name: str, rng: random.Random) -> Case:
    dtype = rng.choice(("f32", "f32", "bf16", "f64"))
    wide = "f64" if dtype == "f64" else "f32"
    ranges, axes, shapes, statements = _write_weights(rng, dtype, wide)
    at = _flat(["x0", "x1", "x2", "x3"], shapes["output"])
    core = [f"attention_gradient {wide} (x0, x1, x2, x3) over (r0, r1) {{", *statements]
    core += [
        f"t11 = load %in4[{at}] : {dtype}",
        f"t12 = load %in5[{_flat(['x0', 'x1', 'x2'], shapes['logsumexp'])}] : {wide}",
        f"t13 = load %in6[{at}] : {dtype}",
        f"t14 = parameter 1 : {wide}",
        "t15 = mul(t14, t4)",
        "query t0, key t1, value t2",
        "score t7",
    ]
    core += ["mask t10"] if rng.random() < 0.6 else []
    core += ["output t11, logsumexp t12, gradient t13", "slope t15"]
    has_bias = rng.random() < 0.6
    core += ["bias t14", "}"] if has_bias else ["}"]
    of_key, of_value = (line[line.index("[") + 1 : line.rindex("]")] for line in statements[1:3])
    operands = (
        ("query", _flat(["x0", "x1", "x2", "r1"], shapes["query"]), dtype),
        ("key", of_key, dtype),
        ("value", of_value, dtype),
        *((("bias", _flat(["x1", "r0"], shapes["bias"]), wide),) if has_bias else ()),
    )
    args: list[tuple[str, str, str, Sequence[int | str]]] = [
        ("in0", dtype, "in", shapes["query"]),
        ("in1", dtype, "in", shapes["key"]),
        ("in2", dtype, "in", shapes["value"]),
        ("in3", wide, "in", shapes["bias"]),
        ("in4", dtype, "in", shapes["output"]),
        ("in5", wide, "in", shapes["logsumexp"]),
        ("in6", dtype, "in", shapes["output"]),
    ]
    body: list[str] = []
    stores: list[str] = []
    for number, (what, index, kind) in enumerate(operands):
        body.append(f"t{2 * number} = parameter {number} : {wide}")
        body += [f"t{2 * number + 1} = cast(t{2 * number}) : {kind}"] if kind != wide else []
        stored = f"t{2 * number + (kind != wide)}"
        stores.append(f"store %out{number}[{index}] = {stored}")
        args.append((f"out{number}", kind, "out", shapes[what]))
    return _write(name, rng, ranges=ranges, axes=axes, args=args, core=core, body=[*body, *stores])


CORE_CASES: Final[tuple[Case, ...]] = tuple(make_random_core_case(seed) for seed in range(48))
"""Kernels with cores of every kind."""


def check_cores(
    codegen: Codegen, target: Target, run: Runner, cases: Iterable[Case] = CORE_CASES
) -> list[Result]:
    """Run each case and return the outcomes: declared cores are run, others refused under their name."""
    declared = codegen.capabilities(target).cores
    results: list[Result] = []
    for case in cases:
        core = parse_kernel(case.text).core
        assert core is not None, case.name
        if core.kind in declared:
            results += check_codegen(codegen, target, run, cases=(case,))
            continue
        fault = _find_fault(codegen, target, case, core.kind)
        status: Status = "failed" if fault else "refused"
        results.append(Result(case=case.name, sizes=(), status=status, reason=fault or core.kind))
    return results


def _find_fault(codegen: Codegen, target: Target, case: Case, kind: str) -> str:
    """Find a fault in the way `codegen` refuses `case`; "" if it refuses it under the name `kind`."""
    try:
        codegen.emit(parse_kernel(case.text), target, {})
    except EmitError as error:
        return "" if error.code == kind else f"refused as {error.code}, not as {kind}: {error}"
    return f"{kind} is written, and not declared"
