"""Cases for the op table: every scalar op on every element type that it takes, and every conversion.

Ops on one type share a kernel, so that a generator whose sources take long to build needs few builds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from coilwork_ir.conformance.case import Case, Edge, Fill, edge_count
from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernels.nodes import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Scalar, cast, load, op

KIT_DTYPES: Final = (
    *(DType.F64, DType.F32, DType.F16, DType.BF16),
    *(DType.I64, DType.I32, DType.U8, DType.BOOL),
)

_ONE: Final[tuple[Edge, ...]] = ("left",)
_TWO: Final[tuple[Edge, ...]] = ("left", "right")
_QUOTIENT: Final[tuple[Edge, ...]] = ("dividend", "divisor")
# not the ends of the types' ranges, where torch's own series fail
_MODERATE: Final[tuple[Edge, ...]] = ("third", "degree")
_COUNTED: Final[tuple[Edge, ...]] = ("left", "count")

# What each op is tried on. An op that is added to the table needs a row here; a test says so.
OPERANDS: Final[Mapping[str, tuple[Edge, ...]]] = MappingProxyType(
    {
        "where": ("choice", "left", "right"),
        **dict.fromkeys(("add", "sub", "mul", "div", "minimum", "maximum"), _TWO),
        **dict.fromkeys(("floordiv", "truncdiv", "mod", "fmod"), _QUOTIENT),
        "fma": ("left", "right", "third"),
        **dict.fromkeys(("neg", "abs", "sign", "sqrt", "rsqrt", "floor", "ceil", "trunc", "round"), _ONE),
        "pow": _TWO,
        **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"), _ONE),
        **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), _ONE),
        **dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), _ONE),
        **dict.fromkeys(("sigmoid", "erf", "erfc", "lgamma"), _ONE),
        **dict.fromkeys(("atan2", "hypot", "copysign"), _TWO),
        "gcd": _TWO,
        **dict.fromkeys(("zeta", "igamma", "igammac"), _MODERATE),
        **dict.fromkeys(("hermite_h", "hermite_he", "laguerre", "legendre"), _MODERATE),
        **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _TWO),
        **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), _TWO),
        "bitwise_not": _ONE,
        **dict.fromkeys(("lshift", "rshift"), _COUNTED),
        **dict.fromkeys(("isnan", "isinf", "signbit"), _ONE),
    }
)
# Results that are differences of larger intermediate ones, and so have an absolute error.
_CANCELLING: Final = frozenset(
    {"lgamma", "fma", "sub", "add", "igammac", "hermite_h", "hermite_he", "laguerre", "legendre"}
)
# What `cast` and `bitcast` are tried on: to bits of the same size.
_SAME_SIZE: Final[tuple[tuple[DType, DType], ...]] = (
    *((DType.F64, DType.I64), (DType.I64, DType.F64), (DType.F32, DType.I32), (DType.I32, DType.F32)),
    *((DType.F16, DType.I16), (DType.BF16, DType.I16), (DType.U8, DType.I8)),
)

_N: Final = symbol("n0", lo=0)
_X: Final = symbol("x0", extent=_N)


def op_case(dtype: DType, names: Iterable[str] = tuple(OPERANDS)) -> Case:
    """One kernel that applies those of `names` that take `dtype`, each to an output of its own.

    16 bit floats are computed in f32 and rounded at the end, as lowering has it.
    """
    inputs: dict[Edge, Scalar] = {}
    outputs: list[tuple[str, Scalar]] = []
    for name in names:
        row = SCALAR_OPS[name]
        if not row.takes(dtype):
            continue
        edges = _COUNTED if name == "pow" and dtype.is_integer else OPERANDS[name]
        values = [_input(inputs, edge, DType.BOOL if edge == "choice" else dtype) for edge in edges]
        if dtype.is_low_precision and row.rule != "select":
            values = [cast(value, DType.F32) for value in values]
        result = op(name, *values)
        if dtype.is_low_precision and not result.dtype.is_bool:
            result = cast(result, dtype)
        outputs.append((f"{name} {dtype.text}", result))
    return _case(f"ops-{dtype.text}", inputs, outputs, full=edge_count(dtype))


def conversion_case() -> Case:
    """Every type to every type. Floats become integers only where the integer type holds them."""
    inputs: dict[Edge, Scalar] = {}
    outputs: list[tuple[str, Scalar]] = []
    loaded: dict[str, Fill] = {}
    for source in KIT_DTYPES:
        for result in KIT_DTYPES:
            edge: Edge = "left"
            if source.is_float and result.is_integer:
                edge = "signed-byte" if result.is_signed_integer else "byte"
            if source is not result:
                value = _named_input(loaded, edge, source)
                outputs.append((f"cast {source.text} to {result.text}", cast(value, result)))
    for source, result in _SAME_SIZE:
        value = _named_input(loaded, "left", source)
        outputs.append((f"bitcast {source.text} to {result.text}", op("bitcast", value, dtype=result)))
    return _case("conversions", inputs, outputs, full=edge_count(DType.F32), fills=loaded)


def _input(inputs: dict[Edge, Scalar], edge: Edge, dtype: DType) -> Scalar:
    if edge not in inputs:
        inputs[edge] = load(f"in{len(inputs)}", [_X], dtype)
    return inputs[edge]


def _named_input(loaded: dict[str, Fill], edge: Edge, dtype: DType) -> Scalar:
    """A load of an argument named after its fill and type, which is noted in `loaded`."""
    name = f"{edge.replace('-', '_')}_{dtype.text}"
    loaded[name] = edge
    return load(name, [_X], dtype)


def _case(
    name: str,
    inputs: Mapping[Edge, Scalar],
    outputs: Sequence[tuple[str, Scalar]],
    *,
    full: int,
    fills: Mapping[str, Fill] = MappingProxyType({}),
) -> Case:
    filled: dict[str, Fill] = dict(fills)
    args = []
    for k, (edge, value) in enumerate(inputs.items()):
        filled[f"in{k}"] = edge
        args.append(TensorArg(name=f"in{k}", dtype=value.dtype, role="in", span=_N))
    for argument in fills:
        dtype = next(d for d in KIT_DTYPES if argument.endswith(f"_{d.text}"))
        args.append(TensorArg(name=argument, dtype=dtype, role="in", span=_N))
    for k, (_, value) in enumerate(outputs):
        args.append(TensorArg(name=f"out{k}", dtype=value.dtype, role="out", span=_N))
    kernel = Kernel(
        name=name.replace("-", "_"),
        ranges=(Range(symbol=_X, kind="parallel"),),
        args=tuple(args),
        sizes=(_N,),
        stores=tuple(Store(buffer=f"out{k}", index=_X, value=v) for k, (_, v) in enumerate(outputs)),
    )
    labels = tuple((f"out{k}", label) for k, (label, _) in enumerate(outputs))
    return Case(
        name=name,
        text=format_kernel(kernel),
        sizes=({"n0": 1}, {"n0": full}),
        fills=tuple(filled.items()),
        labels=labels,
        relative=True,
        cancelling=tuple(out for out, label in labels if label.split()[0] in _CANCELLING),
    )


OP_CASES: Final[tuple[Case, ...]] = (*(op_case(dtype) for dtype in KIT_DTYPES), conversion_case())
