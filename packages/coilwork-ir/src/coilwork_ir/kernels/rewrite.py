"""Rebuild a kernel with other scalar graphs, for generators that write it in another way.

`list_kernel_roots` takes the graphs out in a fixed order and `replace_roots` puts others back;
`replace_sizes` gives the kernel over other size symbols. The rewrites themselves keep what the kernel
computes:

- Strict numerics compute functions that no processor computes exactly in f64 and round once. Where f64
  functions are right to a few units in their last place, all but some in a million f32 results are the
  nearest numbers. Operations that IEEE 754 rounds once are left as they are.
- Constants beyond an integer type are converted as a device does. A compiler that folds them may take any
  number, and of a choice between such a constant and something else always the latter.
- 8-bit floats become their bits where the target has no instructions for them, to the bit as torch converts;
  `coilwork_ir.dtypes.FORMATS` has a row per type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType, FloatFormat, get_float_bits, read_float_bits, round_to_dtype
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, substitute, symbol
from coilwork_ir.kernels.nodes import Kernel, Store
from coilwork_ir.scalar import (
    Combine,
    Const,
    Load,
    Op,
    Reduce,
    Scalar,
    Scan,
    cast,
    combine,
    const,
    iterate_postorder,
    load,
    op,
    reduce,
    replace_operands,
    rewrite,
    scan,
    scan_again,
    substitute_ranges,
    where,
)

# ---- Scalar graphs ----


def list_store_roots(store: Store) -> tuple[Scalar, ...]:
    """Return the value, index operands and mask of `store`."""
    mask = () if store.mask is None else (store.mask,)
    return (store.value, *store.indirect, *mask)


def list_kernel_roots(kernel: Kernel) -> tuple[Scalar, ...]:
    """Return every scalar graph of `kernel`: its stores', the conditions of its checks, the bodies of its
    core.
    """
    stored = tuple(root for store in kernel.stores for root in list_store_roots(store))
    bodies = () if kernel.core is None else kernel.core.bodies
    return (*stored, *(check.condition for check in kernel.checks), *bodies)


def replace_roots(kernel: Kernel, roots: Sequence[Scalar]) -> Kernel:
    """`kernel` with `roots`, which are in the order of `list_kernel_roots`, in place of its own."""
    rest = iter(roots)
    stores = []
    for store in kernel.stores:
        value = next(rest)
        indirect = tuple(next(rest) for _ in store.indirect)
        mask = None if store.mask is None else next(rest)
        stores.append(replace(store, value=value, indirect=indirect, mask=mask))
    checks = tuple(replace(check, condition=next(rest)) for check in kernel.checks)
    core = None if kernel.core is None else kernel.core.replace_bodies(tuple(rest))
    return replace(kernel, stores=tuple(stores), checks=checks, core=core)


# ---- Names of values ----


def list_printed_roots(kernel: Kernel) -> tuple[Scalar, ...]:
    """Values that the statements of the body of `kernel` compute, in the order in which they are printed."""
    roots: list[Scalar] = []
    for store in kernel.stores:
        roots += [*store.indirect, store.value, *(() if store.mask is None else (store.mask,))]
    return (*roots, *(check.condition for check in kernel.checks))


def index_values(kernel: Kernel) -> dict[str, Scalar]:
    """Each value of `kernel` by its name."""
    return {f"t{number}": value for number, value in enumerate(iterate_postorder(list_printed_roots(kernel)))}


# ---- Sizes ----


def replace_sizes(kernel: Kernel, values: Mapping[Expr, Expr], sizes: tuple[Expr, ...]) -> Kernel:
    """`kernel`, which is no combined one, over `sizes`, in terms of which `values` are its own. Ranges keep
    their names.
    """
    mapping = dict(values)
    ranges = []
    for entry in kernel.ranges:
        if entry.symbol.extent is not None:
            extent = substitute(entry.symbol.extent, values)
            renewed = symbol(entry.symbol.name, extent=extent)
            mapping[entry.symbol] = renewed
            entry = replace(entry, symbol=renewed)
        ranges.append(entry)
    roots = [root for store in kernel.stores for root in _list_printed_store_roots(store)]
    roots += [check.condition for check in kernel.checks]
    rest = iter(substitute_ranges(roots, mapping))
    stores = []
    for store in kernel.stores:
        indirect = tuple(next(rest) for _ in store.indirect)
        value = next(rest)
        mask = None if store.mask is None else next(rest)
        index = substitute(store.index, mapping)
        stores.append(replace(store, index=index, indirect=indirect, value=value, mask=mask))
    return replace(
        kernel,
        ranges=tuple(ranges),
        args=tuple(replace(arg, span=substitute(arg.span, values)) for arg in kernel.args),
        sizes=sizes,
        stores=tuple(stores),
        checks=tuple(replace(check, condition=next(rest)) for check in kernel.checks),
    )


def _list_printed_store_roots(store: Store) -> tuple[Scalar, ...]:
    return (*store.indirect, store.value, *(() if store.mask is None else (store.mask,)))


# ---- Strict numerics ----


FUNCTIONS: Final = frozenset(
    {
        *("pow", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("sigmoid", "erf", "erfc", "lgamma", "hypot"),
        *("zeta", "igamma", "igammac"),
    }
)


def make_functions_strict(kernel: Kernel) -> Kernel:
    """`kernel`, if it is `strict` with every function of f32 or narrower floats computed in f64.

    The same for reductions and scans that divide or take exponentials at each step. Types of stores and of
    all other values stay as they are.
    """
    if kernel.numerics != "strict":
        return kernel
    if kernel.combined is not None:
        body = make_functions_strict(replace(kernel.combined.body, numerics=kernel.numerics))
        return replace(kernel, combined=replace(kernel.combined, body=body))
    return replace_roots(kernel, rewrite(list_kernel_roots(kernel), _visit))


def _visit(node: Scalar) -> Scalar:
    if isinstance(node, Scan) and isinstance(node.kind, Combine):
        function = combine(rewrite(node.kind.results, _visit))
        first, *others = node.operands
        return scan(function, first, node.axis, others=others, output=node.output, reverse=node.reverse)
    if not node.operands or not node.operands[0].dtype.is_float or node.operands[0].dtype is DType.F64:
        return node
    match node:
        case Op() if node.op in FUNCTIONS:
            return cast(op(node.op, *(cast(value, DType.F64) for value in node.operands)), node.dtype)
        case Reduce() if node.kind in ("welford", "online_softmax"):
            wide = (cast(node.operands[0], DType.F64), *node.operands[1:])
            return cast(reduce(node.kind, wide, node.axes, output=node.output), node.dtype)
        case Scan() if node.kind == "logcumsumexp":
            running = scan_again(node, (cast(node.operands[0], DType.F64),), node.axis)
            return cast(running, node.dtype)
        case _:
            return node


# ---- Constants ----


# What a processor makes of a float of the first type on the way to an integer of the second, which is no
# `U64`.
Conversion = Callable[[float, DType, DType], int]

# Every conversion of a device goes through integers of 32 bits at least, and of most types with a sign.
_HELD: Final = float(1 << 31)
_UNSIGNED: Final = (DType.U16, DType.U32)


def convert_constants(kernel: Kernel, conversion: Conversion) -> Kernel:
    """Return `kernel` with the answers of `conversion` where it converts a constant to an integer type that
    may not hold it.

    This includes constants that are one side of a choice (`where`), and those that a masked load gives
    outside of its mask. Other conversions stay.
    """
    if kernel.combined is not None:
        body = convert_constants(kernel.combined.body, conversion)
        return replace(kernel, combined=replace(kernel.combined, body=body))
    roots = list_kernel_roots(kernel)
    if not any(_source(node) is not None for node in iterate_postorder(roots)):
        return kernel
    return replace_roots(kernel, rewrite(roots, _Conversions(conversion).visit))


def wrap_integer(value: int, dtype: DType) -> int:
    """Return the low bits of `value`, as many as `dtype` has, as a number of that type."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.is_signed_integer and value >> (bits - 1) else value


class _Conversions:
    """Rewrites the casts of one kernel; a choice within a choice is looked at once."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._found: dict[tuple[Scalar, DType], Scalar] = {}

    def visit(self, node: Scalar) -> Scalar:
        source = _source(node)
        return node if source is None else self._convert(source, node.dtype)

    def _convert(self, source: Scalar, dtype: DType) -> Scalar:
        key = (source, dtype)
        if key not in self._found:
            self._found[key] = self._write_conversion(source, dtype)
        return self._found[key]

    def _write_conversion(self, source: Scalar, dtype: DType) -> Scalar:
        match source:
            case Const(value=value):
                known = self._constant(float(value), source.dtype, dtype)
                return cast(source, dtype) if known is None else known
            case Op(op="where", operands=(condition, then, otherwise)):
                first, second = self._convert(then, dtype), self._convert(otherwise, dtype)
                if first is cast(then, dtype) and second is cast(otherwise, dtype):
                    return cast(source, dtype)
                return where(condition, first, second)
            case Op(op="cast", operands=(narrower,)) if (
                narrower.dtype.is_low_precision and source.dtype is DType.F32
            ):
                converted = self._convert(narrower, dtype)
                return cast(source, dtype) if converted is cast(narrower, dtype) else converted
            case Load(mask=Scalar() as mask, other=other):
                elsewhere = self._constant(float(other), source.dtype, dtype)
                if elsewhere is None:
                    return cast(source, dtype)
                inside = load(
                    source.buffer, source.index, source.dtype, indirect=source.indirect, mask=mask, other=0
                )
                return where(mask, cast(inside, dtype), elsewhere)
            case _:
                return cast(source, dtype)

    def _constant(self, value: float, source: DType, dtype: DType) -> Const | None:
        """Return the integer that `value` becomes; `None` if any compiler says the same."""
        value = round_to_dtype(value, source)
        if -_HELD <= value < _HELD and (dtype not in _UNSIGNED or value > -1):
            return None
        return const(self._conversion(value, source, dtype), dtype)


def _source(node: Scalar) -> Scalar | None:
    """Return the float that `node` converts to an integer."""
    if not (isinstance(node, Op) and node.op == "cast" and node.dtype.is_integer) or node.dtype is DType.U64:
        return None
    (source,) = node.operands
    return source if source.dtype.is_float else None


# ---- 8-bit floats ----


_F32_INFINITY: Final = 0x7F800000
_F32_NAN: Final = 0x7FC00000


def store_small_floats_as_bits(kernel: Kernel, *, kept: Collection[DType] = ()) -> Kernel:
    """`kernel` with `u8` in the place of each 8-bit float type that is not `kept`, in memory and in values.

    Raises:
        EmitError: it combines such floats other than by arithmetic on single elements.
    """
    if kernel.combined is not None:
        body = store_small_floats_as_bits(kernel.combined.body, kept=kept)
        args = tuple(replace(arg, dtype=_memory_type(arg.dtype, kept)) for arg in kernel.args)
        return replace(kernel, args=args, combined=replace(kernel.combined, body=body))
    roots = list_kernel_roots(kernel)
    types = {arg.dtype for arg in kernel.args} | {node.dtype for node in iterate_postorder(roots)}
    if all(_memory_type(dtype, kept) is dtype for dtype in types):
        return kernel
    for store in kernel.stores:
        if store.mode != "store" and _memory_type(store.value.dtype, kept) is not store.value.dtype:
            raise EmitError(
                "small-float", f"{store.value.dtype.text} combined in memory", origins=kernel.origins
            )
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder(roots):
        done[node] = _rewrite_as_bits(node, [done[operand] for operand in node.operands], kept)
    args = tuple(replace(arg, dtype=_memory_type(arg.dtype, kept)) for arg in kernel.args)
    return replace(replace_roots(kernel, [done[root] for root in roots]), args=args)


def encode(value: Scalar, dtype: DType) -> Scalar:
    """Return the bits, a `u8`, of a number rounded to the 8-bit float type `dtype`, by way of f32 as in
    torch.
    """
    form = _require_format(dtype)
    bits = op("bitcast", cast(value, DType.F32), dtype=DType.I32)
    magnitude = _keep_bits(bits, 0x7FFFFFFF)
    if not form.signed:
        exponent, fraction = _shift_right(magnitude, 23), _keep_bits(magnitude, 0x7FFFFF)
        # from a half on it is the next power of two; of a subnormal f32, from above it
        half = op("add", _number(0x400000), cast(op("eq", exponent, _number(0)), DType.I32))
        up = op("bitwise_and", op("ge", fraction, half), op("ne", exponent, _number(0xFF)))
        return cast(op("add", exponent, cast(up, DType.I32)), DType.U8)
    shift = 23 - form.fraction
    odd = _keep_bits(_shift_right(magnitude, shift), 1)
    offset = (1 << shift - 1) - 1 - (127 - form.bias << 23)
    normal = _shift_right(op("add", op("add", magnitude, _number(offset)), odd), shift)
    # adding the number whose last place is the type's least lets the addition round
    aligner = const(read_float_bits(form.aligner, DType.F32), DType.F32)
    aligned = op("add", op("bitcast", magnitude, dtype=DType.F32), aligner)
    subnormal = op("sub", op("bitcast", aligned, dtype=DType.I32), _number(form.aligner))
    code = where(op("lt", magnitude, _number(form.least_normal)), subnormal, normal)
    beyond = where(op("gt", magnitude, _number(_F32_INFINITY)), _number(form.nan), _number(form.beyond))
    code = where(op("ge", magnitude, _number(form.limit)), beyond, code)
    sign = _keep_bits(_shift_right(bits, 24), 0x80)
    if not form.signed_zero:
        signed = op("bitwise_and", op("gt", code, _number(0)), op("lt", code, _number(0x80)))
        sign = where(signed, sign, _number(0))
    return cast(op("bitwise_or", code, sign), DType.U8)


def decode(bits: Scalar, dtype: DType) -> Scalar:
    """Return the f32 that `bits`, a `u8`, are as a float of the 8-bit type `dtype`."""
    form = _require_format(dtype)
    code = cast(bits, DType.I32)
    if not form.signed:
        power = where(op("eq", code, _number(0)), _number(0x400000), _shift_left(code, 23))
        power = where(op("eq", code, _number(form.nan)), _number(_F32_NAN), power)
        return op("bitcast", power, dtype=DType.F32)
    magnitude = _keep_bits(code, 0x7F)
    normal = op("add", _shift_left(magnitude, 23 - form.fraction), _number(127 - form.bias << 23))
    least = const(2.0 ** (1 - form.bias - form.fraction), DType.F32)
    subnormal = op("bitcast", op("mul", cast(magnitude, DType.F32), least), dtype=DType.I32)
    found = where(op("lt", magnitude, _number(1 << form.fraction)), subnormal, normal)
    if form.infinite:
        found = where(op("eq", magnitude, _number(form.beyond)), _number(_F32_INFINITY), found)
        found = where(op("gt", magnitude, _number(form.beyond)), _number(_F32_NAN), found)
    elif form.signed_zero:
        found = where(op("eq", magnitude, _number(form.nan)), _number(_F32_NAN), found)
    found = op("bitwise_or", found, _shift_left(_keep_bits(code, 0x80), 24))
    if not form.signed_zero:
        found = where(op("eq", code, _number(form.nan)), _number(_F32_NAN), found)
    return op("bitcast", found, dtype=DType.F32)


def _rewrite_as_bits(node: Scalar, operands: list[Scalar], kept: Collection[DType]) -> Scalar:
    """`node` of `operands`, which are bits already where they were such floats."""
    memory = _memory_type(node.dtype, kept)
    small = [_memory_type(operand.dtype, kept) is not operand.dtype for operand in node.operands]
    if memory is node.dtype and not any(small):
        return replace_operands(node, operands)
    match node:
        case Const():
            return const(get_float_bits(float(node.value), node.dtype), DType.U8)
        case Load():
            count = len(node.indirect)
            mask = operands[count] if node.mask is not None else None
            other = get_float_bits(float(node.other), node.dtype)
            return load(node.buffer, node.index, DType.U8, indirect=operands[:count], mask=mask, other=other)
        case Op(op="where"):
            return where(*operands)
        case Op(op="bitcast"):
            return op("bitcast", operands[0], dtype=memory)
        case Op():
            wide = [
                decode(operand, old.dtype) if narrow else operand
                for operand, old, narrow in zip(operands, node.operands, small, strict=True)
            ]
            if node.op == "cast":
                return _narrow(wide[0], node.dtype, memory)
            computed = op(node.op, *wide)
            return computed if memory is node.dtype else encode(computed, node.dtype)
        case _:
            kind = type(node).__name__.lower()
            raise EmitError("small-float", f"a {kind} of {node.operands[0].dtype.text}")


def _narrow(value: Scalar, dtype: DType, memory: DType) -> Scalar:
    return cast(value, dtype) if memory is dtype else encode(value, dtype)


def _memory_type(dtype: DType, kept: Collection[DType]) -> DType:
    return dtype if dtype.format is None or dtype in kept else DType.U8


def _require_format(dtype: DType) -> FloatFormat:
    if dtype.format is None:
        raise ValueError(f"{dtype.text} is no 8-bit float")
    return dtype.format


def _number(value: int) -> Scalar:
    return const(value, DType.I32)


def _keep_bits(value: Scalar, bits: int) -> Scalar:
    return op("bitwise_and", value, _number(bits))


def _shift_left(value: Scalar, places: int) -> Scalar:
    return op("lshift", value, _number(places))


def _shift_right(value: Scalar, places: int) -> Scalar:
    return op("rshift", value, _number(places))
