"""Cases for the op tables: scalar ops, conversions, reductions, scans, sorts and the modes of stores.

Each stands on every element type that it takes. Ops on one type and kinds of one sort share a kernel, so that
a generator whose sources take long to build needs few builds; those that a target may have no instruction for
stand apart, because a kernel is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from coilwork_ir.conformance.case import Case, Edge, Fill, count_edge_values
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels.nodes import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, SCAN_KINDS, STORE_MODES, ReduceKind, ScanKind, StoreMode
from coilwork_ir.scalar import Scalar, cast, combine, load, op, parameter, placeholder, reduce, scan, sort

# ---- Scalar ops ----


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


def make_op_case(dtype: DType, names: Iterable[str] = tuple(OPERANDS)) -> Case:
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
    return _case(f"ops-{dtype.text}", inputs, outputs, full=count_edge_values(dtype))


def make_conversion_case() -> Case:
    """Return every type to every type. Floats become integers only where the integer type holds them."""
    inputs: dict[Edge, Scalar] = {}
    outputs: list[tuple[str, Scalar]] = []
    loaded: dict[str, Fill] = {}
    for source in KIT_DTYPES:
        for result in KIT_DTYPES:
            edge: Edge = "left"
            if source.is_float and result.is_integer:
                edge = "signed-byte" if result.is_signed_integer else "byte"
            if source is not result:
                value = _load_edge(loaded, edge, source)
                outputs.append((f"cast {source.text} to {result.text}", cast(value, result)))
    for source, result in _SAME_SIZE:
        value = _load_edge(loaded, "left", source)
        outputs.append((f"bitcast {source.text} to {result.text}", op("bitcast", value, dtype=result)))
    return _case("conversions", inputs, outputs, full=count_edge_values(DType.F32), fills=loaded)


def _input(inputs: dict[Edge, Scalar], edge: Edge, dtype: DType) -> Scalar:
    if edge not in inputs:
        inputs[edge] = load(f"in{len(inputs)}", [_X], dtype)
    return inputs[edge]


def _load_edge(loaded: dict[str, Fill], edge: Edge, dtype: DType) -> Scalar:
    """Return a load of an argument named after its fill and type, which is noted in `loaded`."""
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


OP_CASES: Final[tuple[Case, ...]] = (*(make_op_case(dtype) for dtype in KIT_DTYPES), make_conversion_case())


# ---- Shared rows ----


SHARED_ROWS: Final = Case(
    name="shared-rows",
    text="""kernel @shared fast {
      range x0: `3` parallel
      range r0: `75` reduction
      arg in0: f32 in span `225`
      arg in1: f64 in span `225`
      arg io0: i64 inout span `61`
      arg out0: f32 out span `225`
      arg out1: f64 out span `225`
      arg out2: i64 out span `225`
      workspace io0
      body {
        t0 = load %in0[75*x0 + r0] : f32
        t1 = scan sum 0 (t0) along r0
        t2 = load %in1[75*x0 + r0] : f64
        t3 = scan max 0 (t2) along r0
        t4 = scan max 1 (t2) along r0
        store %out0[75*x0 + r0] = t1
        store %out1[75*x0 + r0] = t3
        store %out2[75*x0 + r0] = t4
      }
    }""",
    fills=(("in1", "ties"), ("io0", "zero")),
)


# ---- Reductions, scans, sorts and stores ----


_FLOATS: Final = tuple(d for d in KIT_DTYPES if d.is_float)
_WHOLE: Final = tuple(d for d in KIT_DTYPES if not d.is_float)
_ROWS: Final = 6


def list_reduce_types(kind: ReduceKind) -> tuple[DType, ...]:
    """Return the types that `kind` combines, among those of the kit."""
    match kind:
        case "any" | "all":
            return (DType.BOOL,)
        case "welford" | "online_softmax":
            return _FLOATS
        case "xor_sum":
            return tuple(d for d in KIT_DTYPES if d.is_integer)
        case "sum" | "prod":
            return tuple(d for d in KIT_DTYPES if not d.is_bool)
        case "min" | "max" | "argmin" | "argmax":
            return KIT_DTYPES


def list_scan_types(kind: ScanKind) -> tuple[DType, ...]:
    """Return the types that `kind` runs over, among those of the kit."""
    if kind == "logcumsumexp":
        return _FLOATS
    return tuple(d for d in KIT_DTYPES if not d.is_bool)


def _fill_of(kind: str, dtype: DType) -> Fill:
    """Return the values that `kind` combines: numbers whose sums and products stay in range, or edges where
    any will do.
    """
    if dtype.is_bool:
        return "bool"
    if kind in ("min", "max", "argmin", "argmax"):
        return "ties" if dtype.is_float else "left"
    if not dtype.is_float:
        return "range"
    if kind in ("online_softmax", "logcumsumexp"):
        return "lows"
    return "near-one" if kind == "prod" else "normal"


def _make_scan_fill(kind: ScanKind, dtype: DType) -> Fill:
    """Return the fill of a scan's inputs: as for reductions, but with ties for extremes.

    Sums of floats are of numbers near 1: a running sum near 0 would lose all its digits.
    """
    if kind in ("min", "max", "argmin", "argmax"):
        return "ties"
    return "near-one" if kind == "sum" and dtype.is_float else _fill_of(kind, dtype)


class _Rows:
    """A kernel over rows, under construction."""

    def __init__(self, length: int | None) -> None:
        self.size = symbol("n0", lo=0) if length is None else as_expr(length)
        self.x = symbol("x0", extent=_ROWS)
        self.r = symbol("r0", extent=self.size)
        self.flat = self.size * self.x + self.r
        self.inputs: dict[tuple[Fill, DType], str] = {}
        self.outputs: list[tuple[str, Scalar, Expr]] = []

    def value(self, fill: Fill, dtype: DType) -> Scalar:
        """Return an element of the row, of the type that arithmetic on `dtype` is carried out in."""
        name = self.inputs.setdefault((fill, dtype), f"in{len(self.inputs)}")
        return cast(load(name, [self.flat], dtype), dtype.compute)

    def add(self, label: str, value: Scalar, dtype: DType, at: Expr) -> None:
        """Store `value`, rounded to `dtype` if that is a narrow float."""
        rounded = cast(value, dtype) if dtype.is_low_precision and value.dtype.is_float else value
        self.outputs.append((label, rounded, at))

    def case(self, name: str, lengths: Iterable[int]) -> Case:
        args = [
            TensorArg(name=buffer, dtype=dtype, role="in", span=self.size * _ROWS)
            for (_, dtype), buffer in self.inputs.items()
        ]
        for k, (_, value, at) in enumerate(self.outputs):
            span = as_expr(_ROWS) if at is self.x else self.size * _ROWS
            args.append(TensorArg(name=f"out{k}", dtype=value.dtype, role="out", span=span))
        kernel = Kernel(
            name=name.replace("-", "_"),
            ranges=(
                Range(symbol=self.x, kind="parallel"),
                Range(symbol=self.r, kind="reduction"),
            ),
            args=tuple(args),
            sizes=() if self.size.is_const else (self.size,),
            stores=tuple(
                Store(buffer=f"out{k}", index=at, value=v) for k, (_, v, at) in enumerate(self.outputs)
            ),
        )
        return Case(
            name=name,
            text=format_kernel(kernel),
            sizes=({},) if self.size.is_const else tuple({"n0": length} for length in lengths),
            fills=tuple((buffer, fill) for (fill, _), buffer in self.inputs.items()),
            labels=tuple((f"out{k}", label) for k, (label, _, _) in enumerate(self.outputs)),
        )


def reduce_case(
    name: str, dtypes: Sequence[DType], *, masked: bool = False, length: int | None = None
) -> Case:
    """Return every kind of reduction on each of `dtypes`: of rows of unknown length, or of `length` in
    registers.
    """
    rows = _Rows(length)
    for row in REDUCE_OPS.values():
        for dtype in list_reduce_types(row.name):
            if dtype not in dtypes:
                continue
            element = rows.value(_fill_of(row.name, dtype), dtype)
            mask = (rows.value("choice", DType.BOOL),) if masked else ()
            for output, result in enumerate(row.output_names):
                value = reduce(row.name, (element, *mask), (rows.r,), output=output)
                rows.add(f"reduce {row.name} {result} {dtype.text}", value, dtype, rows.x)
    return rows.case(name, (5, 1000))


def scan_case(name: str, dtypes: Sequence[DType], *, reverse: bool) -> Case:
    """Return every kind of scan on each of `dtypes`."""
    rows = _Rows(None)
    for kind in SCAN_KINDS:
        for dtype in list_scan_types(kind):
            if dtype not in dtypes:
                continue
            element = rows.value(_make_scan_fill(kind, dtype), dtype)
            for output in (0, 1) if kind in ("min", "max") else (0,):
                value = scan(kind, element, rows.r, output=output, reverse=reverse)
                rows.add(f"scan {kind} {output} {dtype.text}", value, dtype, rows.flat)
    return rows.case(name, (5, 1100))


def scan_by_function_case(name: str, dtypes: Sequence[DType], *, reverse: bool) -> Case:
    """Scans by a function of two values, `h = a * h + b` in steps, on each of `dtypes`."""
    rows = _Rows(None)
    for dtype in dtypes:
        element = rows.value("near-one" if dtype.is_float else "range", dtype)
        a, b, later_a, later_b = (parameter(k, element.dtype) for k in range(4))
        function = combine([op("mul", a, later_a), op("add", op("mul", later_a, b), later_b)])
        for output in range(2):
            value = scan(function, element, rows.r, others=[element], output=output, reverse=reverse)
            rows.add(f"scan by a function {output} {dtype.text}", value, dtype, rows.flat)
    return rows.case(name, (5, 1100))


def sort_case(name: str, dtypes: Sequence[DType], *, length: int) -> Case:
    """Values and positions of rows of `length` on each of `dtypes`, in both directions."""
    rows = _Rows(length)
    for dtype in dtypes:
        fill: Fill = "bool" if dtype.is_bool else "ties" if dtype.is_float else "left"
        rows.value(fill, dtype)
        element = load(rows.inputs[fill, dtype], [rows.flat], dtype)
        for descending in (False, True):
            for output in (0, 1):
                results = sort(element, rows.r, output=output, descending=descending)
                label = f"sort {'down' if descending else 'up'} {output} {dtype.text}"
                rows.outputs.append((label, results, rows.flat))
    return rows.case(name, ())


def store_case(name: str, modes: Sequence[StoreMode], dtypes: Sequence[DType]) -> Case:
    """Stores in each of `modes` to elements that several points hit, on each of `dtypes`."""
    size = symbol("n0", lo=0)
    x = symbol("x0", extent=size)
    where = load("in0", [x], DType.I64)
    args = [TensorArg(name="in0", dtype=DType.I64, role="in", span=size)]
    fills: list[tuple[str, Fill]] = [("in0", "index")]
    stores: list[Store] = []
    labels: list[tuple[str, str]] = []
    for number, dtype in enumerate(dtypes, 1):
        source = f"in{number}"
        # of both signs, and NaN, where that is no matter of rounding
        numbers: Fill = "ties" if set(modes) <= {"min", "max"} else "near-one"
        fills.append((source, "bool" if dtype.is_bool else numbers if dtype.is_float else "left"))
        args.append(TensorArg(name=source, dtype=dtype, role="in", span=size))
        for mode in modes:
            target = f"io{len(stores)}"
            args.append(TensorArg(name=target, dtype=dtype, role="inout", span=as_expr(7)))
            stores.append(
                Store(
                    buffer=target,
                    index=placeholder(0),
                    indirect=(where,),
                    value=load(source, [x], dtype),
                    mode=mode,
                )
            )
            labels.append((target, f"store {mode} {dtype.text}"))
            fills.append((target, "bool" if dtype.is_bool else "near-one" if dtype.is_float else "byte"))
    kernel = Kernel(
        name=name.replace("-", "_"),
        ranges=(Range(symbol=x, kind="parallel"),),
        args=tuple(args),
        sizes=(size,),
        stores=tuple(stores),
    )
    return Case(
        name=name,
        text=format_kernel(kernel),
        sizes=({"n0": 0}, {"n0": 1}, {"n0": 40}),
        fills=tuple(fills),
        limit=7,
        labels=tuple(labels),
    )


# Every point of the ranges adds, also along ranges that neither place nor number depend on: counts, of which
# a capture knows that all are of one kind.
_EVERY_POINT: Final = Case(
    name="store-add-every-point",
    text="""kernel @every_point fast {
      size n0 in [0, inf]
      range x0: `n0` parallel
      range x1: `3` parallel
      arg in0: f32 in span `n0`
      arg in1: f32 in span `3`
      arg io0: f32 inout span `3`
      arg io1: i64 inout span `3`
      arg io2: f32 inout span `1`
      arg io3: f32 inout span `3`
      body {
        t0 = const 0 : i64
        t1 = const 1.0 : f32
        t2 = const 1 : i64
        t3 = load %in0[x0] : f32
        t4 = load %in1[x1] : f32
        store %io0[@0 + 2] using (t0) add = t1
        store %io1[x1] add = t2
        store %io2[0] add = t3
        store %io3[x1] add = t4
      }
    }""",
    sizes=({"n0": 0}, {"n0": 1}, {"n0": 70}),
    fills=(
        ("in0", "near-one"),
        ("in1", "near-one"),
        ("io0", "near-one"),
        ("io2", "near-one"),
        ("io3", "near-one"),
    ),
)

# What lies around the box is memory of others: an argument that is written may be written in part.
_BOX: Final = Case(
    name="store-box",
    text="""kernel @store_box fast {
      size n0 in [0, 20]
      range x0: `5` parallel
      range x1: `13` parallel
      arg in0: f32 in span `65`
      arg in1: bf16 in span `65`
      arg out0: f32 out span `180`
      arg out1: bf16 out span `260`
      body {
        t0 = load %in0[13*x0 + x1] : f32
        t1 = load %in1[13*x0 + x1] : bf16
        store %out0[4*n0 + 21*x0 + x1] = t0
        store %out1[8*n0 + 21*x0 + x1] = t1
      }
    }""",
    sizes=({"n0": 0}, {"n0": 3}, {"n0": 20}),
)

# Generators whose target does not say that it combines refuse this one.
_TOGETHER: Final = Case(
    name="several-in-one-launch",
    text="""kernel @several fast {
      size m_n0 in [0, 100]
      arg m0_in0: f32 in span `1`
      arg m0_io0: f32 inout span `48`
      arg m1_io0: f32 inout span `16*m_n0`
      arg m2_io0: f32 inout span `0`
      arg m3_io0: f32 inout span `2064`
      combined {
        kernel @member fast {
          size n0 in [0, 1000]
          range x0: `16*n0` parallel
          arg in0: f32 in span `1`
          arg io0: f32 inout span `16*n0`
          body {
            t0 = load %in0[0] : f32
            t1 = load %io0[x0] : f32
            t2 = mul(t0, t1)
            store %io0[x0] = t2
          }
        }
        member (m0_in0, m0_io0) sizes [3]
        member (m0_in0, m1_io0) sizes [m_n0]
        member (m0_in0, m2_io0) sizes [0]
        member (m0_in0, m3_io0) sizes [129]
      }
    }""",
    sizes=({"m_n0": 0}, {"m_n0": 1}, {"m_n0": 70}),
)

# Sums of products for matrix units, with a factor that is computed, and something added behind them.
_PRODUCT: Final = Case(
    name="product",
    text="""kernel @product fast {
      size n0 in [0, 100]
      size n1 in [0, 100]
      size n2 in [0, 100]
      range x0: `n0` parallel
      range x1: `n1` parallel
      range r0: `n2` reduction
      arg in0: f16 in span `n0*n2`
      arg in1: f16 in span `n1*n2`
      arg in2: f32 in span `n1`
      arg out0: f32 out span `n0*n1`
      body {
        t0 = load %in0[n2*x0 + r0] : f16
        t1 = cast(t0) : f32
        t2 = cos(t1)
        t3 = cast(t2) : f16
        t4 = load %in1[n1*r0 + x1] : f16
        t5 = contract (t3, t4) over (r0) : f32
        t6 = load %in2[x1] : f32
        t7 = add(t5, t6)
        store %out0[n1*x0 + x1] = t7
      }
    }""",
    sizes=({"n0": 5, "n1": 37, "n2": 19}, {"n0": 33, "n1": 16, "n2": 64}, {"n0": 3, "n1": 4, "n2": 0}),
)

# The same for each of several pairs of matrices, the right ones by columns, added over what is there.
_PRODUCTS: Final = Case(
    name="products",
    text="""kernel @products fast {
      size n0 in [0, 100]
      size n1 in [0, 100]
      range x0: `3` parallel
      range x1: `n0` parallel
      range x2: `17` parallel
      range r0: `n1` reduction
      arg in0: f32 in span `3*n0*n1`
      arg in1: f32 in span `51*n1`
      arg io0: f32 inout span `51*n0`
      body {
        t0 = load %in0[n0*n1*x0 + n1*x1 + r0] : f32
        t1 = load %in1[17*n1*x0 + n1*x2 + r0] : f32
        t2 = contract (t0, t1) over (r0) : f32
        t3 = load %io0[17*n0*x0 + 17*x1 + x2] : f32
        t4 = add(t2, t3)
        store %io0[17*n0*x0 + 17*x1 + x2] = t4
      }
    }""",
    sizes=({"n0": 20, "n1": 33}, {"n0": 2, "n1": 1}),
)

# Types with atomic instructions on today's GPUs, and the others.
_ATOMIC: Final = (DType.F64, DType.F32, DType.I64, DType.I32)
_OTHERS: Final = tuple(d for d in KIT_DTYPES if d not in _ATOMIC)
_NARROW: Final = tuple(d for d in KIT_DTYPES if d.itemsize <= 4)
_NUMBERS: Final = tuple(d for d in KIT_DTYPES if not d.is_bool)
_ORDERED: Final[tuple[StoreMode, ...]] = tuple(m for m in STORE_MODES if m in ("min", "max"))

COMBINING_CASES: Final[tuple[Case, ...]] = (
    reduce_case("reduce-floats", _FLOATS),
    reduce_case("reduce-whole", _WHOLE),
    reduce_case("reduce-floats-masked", _FLOATS, masked=True),
    reduce_case("reduce-whole-masked", _WHOLE, masked=True),
    reduce_case("reduce-in-registers", (DType.F32, DType.I64, DType.BOOL), length=100),
    scan_case("scan-floats", _FLOATS, reverse=False),
    scan_case("scan-whole", _WHOLE, reverse=False),
    scan_case("scan-floats-reverse", _FLOATS, reverse=True),
    scan_case("scan-whole-reverse", _WHOLE, reverse=True),
    scan_by_function_case("scan-function", _NUMBERS, reverse=False),
    scan_by_function_case("scan-function-reverse", _NUMBERS, reverse=True),
    sort_case("sort", _NARROW, length=50),
    sort_case("sort-wide", tuple(d for d in KIT_DTYPES if d not in _NARROW), length=20),
    store_case("store-add", ("add",), _ATOMIC),
    store_case("store-add-other-types", ("add",), _OTHERS),
    store_case("store-extremes", _ORDERED, _ATOMIC),
    store_case("store-extremes-other-types", _ORDERED, _OTHERS),
    store_case("store-mul", ("mul",), KIT_DTYPES),
    _BOX,
    _EVERY_POINT,
    _TOGETHER,
    _PRODUCT,
    _PRODUCTS,
    SHARED_ROWS,
)
