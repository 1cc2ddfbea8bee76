"""The op table: the single list of scalar operations.

The verifier, the interpreter, the conformance kit and the Triton and C++ printers are tables over
`SCALAR_OPS`; a test shows that none of them has a hole. To add an op: one row here, one row in each of those
tables.

Dtype rules:
    same     all operands and the result have one type.
    compare  operands have one type, the result is `bool`.
    select   `where(bool, T, T) -> T`.
    cast     one operand of any type; the node's own dtype is the result (value conversion, C semantics).
    bitcast  as `cast`, but the bits are kept; both types have the same size.
    test     one floating point operand, the result is `bool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from coilwork_ir.dtypes import DType

DTypeRule = Literal["same", "compare", "select", "cast", "bitcast", "test"]
Accepts = Literal["any", "number", "float", "integer", "bits", "bool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarOp:
    """One scalar operation.

    Attributes:
        name: the name in text forms.
        arity: number of operands.
        rule: how the result type follows from the operands' types.
        accepts: classes of operand types: `number` is float or integer, `bits` is integer or bool.
        doc: the meaning, in terms of the torch function that is the reference.
        cost: estimated arithmetic instructions per element; the scheduler weighs recomputation by it.
    """

    name: str
    arity: int
    rule: DTypeRule
    accepts: Accepts
    doc: str
    cost: int = 1

    def takes(self, dtype: DType) -> bool:
        """Tell if operands (of a select: those that are chosen from) may be of `dtype`."""
        if dtype.is_opaque:
            return False
        match self.accepts:
            case "any":
                return True
            case "number":
                return dtype.is_float or dtype.is_integer
            case "float":
                return dtype.is_float
            case "integer":
                return dtype.is_integer
            case "bits":
                return dtype.is_integer or dtype.is_bool
            case "bool":
                return dtype.is_bool


def _op(name: str, arity: int, rule: DTypeRule, accepts: Accepts, doc: str, cost: int = 1) -> ScalarOp:
    return ScalarOp(name=name, arity=arity, rule=rule, accepts=accepts, doc=doc, cost=cost)


_DEGREE: Final = (
    " of a degree that is cut to an integer; 0 where that is below 0, infinite or NaN, else NaN of NaN "
    "from degree 1 on"
)
_ROWS: Final[tuple[ScalarOp, ...]] = (
    # conversion and choice
    _op("cast", 1, "cast", "any", "Tensor.to(dtype)"),
    _op("bitcast", 1, "bitcast", "any", "Tensor.view(dtype) for types of one size"),
    _op("where", 3, "select", "any", "torch.where"),
    # arithmetic; integers wrap around
    _op("add", 2, "same", "number", "torch.add"),
    _op("sub", 2, "same", "number", "torch.sub"),
    _op("mul", 2, "same", "number", "torch.mul"),
    _op("div", 2, "same", "float", "torch.true_divide on floats", 4),
    _op("floordiv", 2, "same", "number", "torch.div(rounding_mode='floor')", 6),
    _op("truncdiv", 2, "same", "number", "torch.div(rounding_mode='trunc')", 6),
    _op("mod", 2, "same", "number", "torch.remainder: the sign of the divisor", 8),
    _op("fmod", 2, "same", "number", "torch.fmod: the sign of the dividend", 8),
    _op("fma", 3, "same", "float", "a * b + c, rounded once"),
    _op("neg", 1, "same", "number", "torch.neg"),
    _op("abs", 1, "same", "number", "torch.abs"),
    _op("sign", 1, "same", "number", "torch.sign; sign(nan) is 0 as in torch.sgn's kernel"),
    _op("minimum", 2, "same", "any", "torch.minimum: nan if either is nan"),
    _op("maximum", 2, "same", "any", "torch.maximum: nan if either is nan"),
    _op("pow", 2, "same", "number", "torch.pow; integer exponents are non-negative", 20),
    _op("sqrt", 1, "same", "float", "torch.sqrt", 4),
    _op("rsqrt", 1, "same", "float", "torch.rsqrt", 4),
    # rounding
    _op("floor", 1, "same", "float", "torch.floor"),
    _op("ceil", 1, "same", "float", "torch.ceil"),
    _op("trunc", 1, "same", "float", "torch.trunc"),
    _op("round", 1, "same", "float", "torch.round: halves to even"),
    # exponentials and logarithms
    _op("exp", 1, "same", "float", "torch.exp", 10),
    _op("exp2", 1, "same", "float", "torch.exp2", 8),
    _op("expm1", 1, "same", "float", "torch.expm1", 14),
    _op("log", 1, "same", "float", "torch.log", 12),
    _op("log2", 1, "same", "float", "torch.log2", 12),
    _op("log10", 1, "same", "float", "torch.log10", 14),
    _op("log1p", 1, "same", "float", "torch.log1p", 14),
    # trigonometric and hyperbolic
    _op("sin", 1, "same", "float", "torch.sin", 16),
    _op("cos", 1, "same", "float", "torch.cos", 16),
    _op("tan", 1, "same", "float", "torch.tan", 24),
    _op("asin", 1, "same", "float", "torch.asin", 20),
    _op("acos", 1, "same", "float", "torch.acos", 20),
    _op("atan", 1, "same", "float", "torch.atan", 20),
    _op("atan2", 2, "same", "float", "torch.atan2", 24),
    _op("sinh", 1, "same", "float", "torch.sinh", 20),
    _op("cosh", 1, "same", "float", "torch.cosh", 20),
    _op("tanh", 1, "same", "float", "torch.tanh", 14),
    _op("asinh", 1, "same", "float", "torch.asinh", 24),
    _op("acosh", 1, "same", "float", "torch.acosh", 24),
    _op("atanh", 1, "same", "float", "torch.atanh", 24),
    # special functions
    _op("sigmoid", 1, "same", "float", "torch.sigmoid", 14),
    _op("erf", 1, "same", "float", "torch.erf", 20),
    _op("erfc", 1, "same", "float", "torch.erfc", 24),
    _op("lgamma", 1, "same", "float", "torch.lgamma", 40),
    _op("hypot", 2, "same", "float", "torch.hypot", 10),
    _op("copysign", 2, "same", "float", "torch.copysign"),
    # loops as long as their operands say
    _op(
        "gcd",
        2,
        "same",
        "integer",
        "torch.gcd; the least number of a type has no size, its remainders have its sign",
        60,
    ),
    _op("zeta", 2, "same", "float", "torch.special.zeta: Hurwitz' zeta function", 400),
    _op("igamma", 2, "same", "float", "torch.igamma: the lower incomplete gamma function, regularized", 400),
    _op("igammac", 2, "same", "float", "torch.igammac: the upper one", 400),
    _op("hermite_h", 2, "same", "float", f"torch.special.hermite_polynomial_h{_DEGREE}", 100),
    _op("hermite_he", 2, "same", "float", f"torch.special.hermite_polynomial_he{_DEGREE}", 100),
    _op("laguerre", 2, "same", "float", f"torch.special.laguerre_polynomial_l{_DEGREE}", 100),
    _op("legendre", 2, "same", "float", f"torch.special.legendre_polynomial_p{_DEGREE}", 100),
    # comparisons
    _op("eq", 2, "compare", "any", "torch.eq"),
    _op("ne", 2, "compare", "any", "torch.ne"),
    _op("lt", 2, "compare", "any", "torch.lt"),
    _op("le", 2, "compare", "any", "torch.le"),
    _op("gt", 2, "compare", "any", "torch.gt"),
    _op("ge", 2, "compare", "any", "torch.ge"),
    # bits and booleans
    _op("bitwise_and", 2, "same", "bits", "torch.bitwise_and; logical on bool"),
    _op("bitwise_or", 2, "same", "bits", "torch.bitwise_or; logical on bool"),
    _op("bitwise_xor", 2, "same", "bits", "torch.bitwise_xor; logical on bool"),
    _op("bitwise_not", 1, "same", "bits", "torch.bitwise_not; logical on bool"),
    _op("lshift", 2, "same", "integer", "torch.bitwise_left_shift"),
    _op("rshift", 2, "same", "integer", "torch.bitwise_right_shift: arithmetic on signed types"),
    # tests
    _op("isnan", 1, "test", "float", "torch.isnan"),
    _op("isinf", 1, "test", "float", "torch.isinf"),
    _op("signbit", 1, "test", "float", "torch.signbit"),
)

SCALAR_OPS: Final[Mapping[str, ScalarOp]] = MappingProxyType({row.name: row for row in _ROWS})

ReduceKind = Literal[
    "sum", "prod", "min", "max", "argmin", "argmax", "any", "all", "xor_sum", "welford", "online_softmax"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceOp:
    """One way to combine values along axes.

    Attributes:
        name: the name in text forms.
        inputs: number of value operands.
        outputs: number of results, in the order `output_names`.
        output_names: what each result is.
        doc: the meaning. NaN propagates through min, max, argmin and argmax, as in torch.
    """

    name: ReduceKind
    inputs: int
    outputs: int
    output_names: tuple[str, ...]
    doc: str


def _reduction(name: ReduceKind, names: tuple[str, ...], doc: str) -> ReduceOp:
    return ReduceOp(name=name, inputs=1, outputs=len(names), output_names=names, doc=doc)


REDUCE_OPS: Final[Mapping[str, ReduceOp]] = MappingProxyType(
    {
        row.name: row
        for row in (
            _reduction("sum", ("sum",), "sum; empty: 0"),
            _reduction("prod", ("prod",), "product; empty: 1"),
            _reduction("min", ("min",), "smallest; empty is refused by lowering"),
            _reduction("max", ("max",), "largest; empty is refused by lowering"),
            _reduction("argmin", ("index",), "i64 position of the first smallest, row-major over the axes"),
            _reduction("argmax", ("index",), "i64 position of the first largest, row-major over the axes"),
            _reduction("any", ("any",), "logical or of bools; empty: False"),
            _reduction("all", ("all",), "logical and of bools; empty: True"),
            _reduction("xor_sum", ("xor_sum",), "exclusive or of integers; empty: 0"),
            _reduction(
                "welford",
                ("mean", "m2"),
                "mean and sum of squared differences from it (Welford 1962, combined as in Chan et al. 1979)",
            ),
            _reduction(
                "online_softmax",
                ("max", "sum"),
                "max and sum of exp(x - max) in one pass (Milakov and Gimelshein 2018)",
            ),
        )
    }
)
# Kinds whose results combine, by the same kind, into the result of all values.
SELF_COMBINING: Final[frozenset[ReduceKind]] = frozenset(
    {"sum", "prod", "min", "max", "any", "all", "xor_sum"}
)

ScanKind = Literal["sum", "prod", "min", "max", "argmin", "argmax", "logcumsumexp"]
SCAN_KINDS: Final[tuple[ScanKind, ...]] = ("sum", "prod", "min", "max", "argmin", "argmax", "logcumsumexp")

StoreMode = Literal["store", "add", "mul", "min", "max"]
STORE_MODES: Final[tuple[StoreMode, ...]] = ("store", "add", "mul", "min", "max")
