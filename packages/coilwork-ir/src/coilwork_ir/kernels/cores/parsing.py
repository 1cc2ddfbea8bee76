"""DOC"""

from __future__ import annotations

from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore, ConvolutionCore, Core
from coilwork_ir.loops.convolutions import Role
from coilwork_ir.loops.nodes import Body
from coilwork_ir.loops.parser import read_domain, read_saved, read_weights, read_window
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import Symbols, parse_list, parse_type
from coilwork_ir.text.reader import Reader
from coilwork_ir.text.scalars import parse_statements, parse_value

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
