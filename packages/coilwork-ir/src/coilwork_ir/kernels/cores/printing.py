"""Text of cores, which stands before the body of a kernel. The kernel's ranges go by their names.

    convolve f32 (stride 2 padding 1 dilation 1) groups 2 {
      features (x0, x1, x2) over (r0, r1)
      image [a0: 2, a1: 4, a2: 9]
      weight [b0: 6, b1: 2, b2: 3]
      t0 = load %in0[36*a0 + 9*a1 + a2] : bf16
      t1 = load %in1[6*b0 + 3*b1 + b2] : bf16
      multiply t0, t1
    }

The first line says what is made, the others of what. `attention f32 (x0, x1) over (r0, r1) { ... }` and
`attention_gradient` have the lines that they have in graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore, ConvolutionCore, Core
from coilwork_ir.loops.attention.printing import format_weights, read_saved, read_weights
from coilwork_ir.loops.convolutions import Role
from coilwork_ir.loops.nodes import Body
from coilwork_ir.loops.parsing import read_domain, read_window
from coilwork_ir.loops.printing import format_domain, format_window
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import Symbols, format_list, parse_list, parse_type
from coilwork_ir.text.reader import Reader
from coilwork_ir.text.scalars import format_scalars, parse_statements, parse_value

_ROLES: Final[tuple[Role, ...]] = ("image", "weight", "features")


def format_core(core: Core, indent: str) -> list[str]:
    """Lines of text of `core`."""
    inner = indent + "  "
    statements, names = format_scalars(core.bodies, inner)
    if isinstance(core, ConvolutionCore):
        windows = format_list(format_window(window) for window in core.windows)
        head = f"convolve {core.accumulate.text} {windows} groups {core.groups}"
        made = f"{core.makes} {_format_ranges(core.ranges, core.axes)}"
        operands = [f"{role} {format_domain(body.ranges)}" for role, body in core.operands]
        domains = [inner + line for line in (made, *operands)]
        factors = ", ".join(names[value] for value in core.bodies)
        return [f"{indent}{head} {{", *domains, *statements, f"{inner}multiply {factors}", f"{indent}}}"]
    weights = core.weights
    word = "attention" if isinstance(core, AttentionCore) else "attention_gradient"
    head = f"{word} {weights.accumulate.text} {_format_ranges(weights.ranges, weights.axes)}"
    lines = format_weights(weights, names, inner)
    if isinstance(core, AttentionGradientCore):
        saved = [
            f"{what} {names[value]}"
            for what, value in (
                ("output", core.output),
                ("logsumexp", core.logsumexp),
                ("gradient", core.gradient),
            )
        ]
        lines += [f"{inner}{', '.join(saved)}", f"{inner}slope {names[core.slope]}"]
        lines += [] if core.bias is None else [f"{inner}bias {names[core.bias]}"]
    return [f"{indent}{head} {{", *statements, *lines, f"{indent}}}"]


def _format_ranges(ranges: Sequence[Expr], axes: Sequence[Expr]) -> str:
    return f"{format_list(r.name for r in ranges)} over {format_list(a.name for a in axes)}"


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
    output, logsumexp, gradient = read_saved(reader, values)
    reader.expect("slope")
    slope = parse_value(reader, values)
    bias: Scalar | None = parse_value(reader, values) if reader.accept("bias") else None
    reader.expect("}")
    return AttentionGradientCore(
        weights=weights, output=output, logsumexp=logsumexp, gradient=gradient, slope=slope, bias=bias
    )


def _read_role(reader: Reader) -> Role:
    word = reader.choice(_ROLES, "a tensor of a convolution")
    return next(role for role in _ROLES if role == word)


def _read_ranges(reader: Reader, symbols: Symbols) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    ranges = parse_list(reader, lambda: _read_range(reader, symbols))
    reader.expect("over")
    return ranges, parse_list(reader, lambda: _read_range(reader, symbols))


def _read_range(reader: Reader, symbols: Symbols) -> Expr:
    at = reader.at
    name = reader.name()
    if name not in symbols:
        raise reader.error(f"{name} is not a range", at)
    return symbols[name]
