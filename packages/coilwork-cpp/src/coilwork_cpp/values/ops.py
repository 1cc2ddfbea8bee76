"""The C++ of each scalar op of the op table: one row per op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_cpp.values.element_types import convert, get_value_type, get_word_type, make_literal
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.syntax.cpp import ONE, ZERO, Binary, Call, Code, Literal, Select, Unary

Rule: TypeAlias = Callable[[DType, Sequence[Code]], Code]
"""The type that the op computes in (never a low precision one) and its operands' code; the result's code."""


def apply(name: str, operand_types: Sequence[DType], result: DType, operands: Sequence[Code]) -> Code:
    """Code of op `name`. Low precision operands are computed in f32 and the result is rounded back.

    Raises:
        EmitError: the op table has grown a row that this one lacks.
    """
    if name == "cast":
        return convert(operands[0], operand_types[0], result)
    if name == "bitcast":
        return _bitcast(operands[0], operand_types[0], result)
    if name == "where":
        return Select(operands[0], operands[1], operands[2])
    rule = RULES.get(name)
    if rule is None:
        raise EmitError(
            "unknown-op", f"no C++ for scalar op {name!r}", remedy="add a row to coilwork_cpp.values.ops"
        )
    compute = operand_types[0].compute
    wide = [convert(code, dtype, dtype.compute) for code, dtype in zip(operands, operand_types, strict=True)]
    code = rule(compute, wide)
    return convert(code, compute, result) if result.is_low_precision else code


def _bitcast(operand: Code, source: DType, result: DType) -> Code:
    if result.is_bool:
        return Binary("!=", operand, ZERO)
    if isinstance(operand, Literal) and source.is_integer:
        # a number in C++ is an `int`, however many bits the constant has
        operand = Call(get_value_type(source), (operand,))
    return Call("__builtin_bit_cast", (Literal(get_value_type(result)), operand))


def _arithmetic(operator: str) -> Rule:
    def rule(dtype: DType, args: Sequence[Code]) -> Code:
        left, right = args
        if dtype.is_float:
            return Binary(operator, left, right)
        # Signed overflow and u16 * u16 (promoted to int) are undefined in C++; unsigned arithmetic wraps
        # around.
        wide = "u64" if dtype.itemsize == 8 else "u32"
        return Call(get_value_type(dtype), (Binary(operator, Call(wide, (left,)), Call(wide, (right,))),))

    return rule


def _libm(name: str) -> Rule:
    return lambda dtype, args: Call(name + ("f" if dtype is DType.F32 else ""), tuple(args))


def _builtin(name: str) -> Rule:
    return lambda dtype, args: Call(f"__builtin_{name}" + ("f" if dtype is DType.F32 else ""), tuple(args))


def _double_function(function: str) -> Rule:
    """Return a function of doubles of the prelude, rounded at the end."""
    return lambda dtype, args: Call(get_value_type(dtype), (Call(function, tuple(args)),))


def _compare(operator: str) -> Rule:
    return lambda dtype, args: Binary(operator, args[0], args[1])


def _bits(operator: str) -> Rule:
    def rule(dtype: DType, args: Sequence[Code]) -> Code:
        return Call(get_value_type(dtype), (Binary(operator, args[0], args[1]),))

    return rule


def _template(function: str, float_function: str = "") -> Rule:
    """Return a function template of the prelude; `float_function` where floats take another one."""

    def rule(dtype: DType, args: Sequence[Code]) -> Code:
        if dtype.is_float and float_function:
            return Call(float_function, tuple(args))
        return Call(f"{function}<{get_value_type(dtype)}>", tuple(args))

    return rule


def _div(dtype: DType, args: Sequence[Code]) -> Code:
    return Binary("/", args[0], args[1])


def _truncdiv(dtype: DType, args: Sequence[Code]) -> Code:
    if dtype.is_float:
        return _builtin("trunc")(dtype, (Binary("/", args[0], args[1]),))
    return _template("trunc_div")(dtype, args)


def _fmod(dtype: DType, args: Sequence[Code]) -> Code:
    if not dtype.is_float:
        return _template("trunc_mod")(dtype, args)
    return Call("fmod_f32" if dtype is DType.F32 else "fmod_f64", tuple(args))


def _lgamma(dtype: DType, args: Sequence[Code]) -> Code:
    # the library's has no vector form
    return Call("lgamma_f32", tuple(args)) if dtype is DType.F32 else _libm("lgamma")(dtype, args)


def _pow(dtype: DType, args: Sequence[Code]) -> Code:
    return _libm("pow")(dtype, args) if dtype.is_float else _template("power")(dtype, args)


def _neg(dtype: DType, args: Sequence[Code]) -> Code:
    return Unary("-", args[0]) if dtype.is_float else _arithmetic("-")(dtype, (ZERO, args[0]))


def _abs(dtype: DType, args: Sequence[Code]) -> Code:
    if dtype.is_float:
        return _builtin("fabs")(dtype, args)
    if not dtype.is_signed_integer:
        return args[0]
    return Select(Binary("<", args[0], ZERO), _neg(dtype, args), args[0])


def _sign(dtype: DType, args: Sequence[Code]) -> Code:
    positive = Binary(">", args[0], ZERO)
    if dtype.is_integer and not dtype.is_signed_integer:
        return Call(get_value_type(dtype), (positive,))
    return Call(get_value_type(dtype), (Binary("-", positive, Binary("<", args[0], ZERO)),))


def _minmax(name: str) -> Rule:
    def rule(dtype: DType, args: Sequence[Code]) -> Code:
        if dtype.is_bool:
            return Binary("&" if name == "min" else "|", args[0], args[1])
        return Call(f"{name}_nan<{get_value_type(dtype)}>", tuple(args))

    return rule


def _rsqrt(dtype: DType, args: Sequence[Code]) -> Code:
    return Binary("/", make_literal(1, dtype), _builtin("sqrt")(dtype, args))


def _sigmoid(dtype: DType, args: Sequence[Code]) -> Code:
    one = make_literal(1, dtype)
    return Binary("/", one, Binary("+", one, _exp(dtype, (Unary("-", args[0]),))))


def _exp(dtype: DType, args: Sequence[Code]) -> Code:
    # More exact than libmvec's expf (2 ulp), as fast, and there on every target.
    return Call("exp_f32", tuple(args)) if dtype is DType.F32 else _libm("exp")(dtype, args)


def _erf(dtype: DType, args: Sequence[Code]) -> Code:
    # libmvec's erff looks up a table: three times as slow as eager's.
    return Call("erf_f32", tuple(args)) if dtype is DType.F32 else _libm("erf")(dtype, args)


def _bitwise_not(dtype: DType, args: Sequence[Code]) -> Code:
    if dtype.is_bool:
        return Unary("!", args[0])
    return Call(get_value_type(dtype), (Unary("~", args[0]),))


def _isnan(dtype: DType, args: Sequence[Code]) -> Code:
    return Binary("!=", args[0], args[0])


def _isinf(dtype: DType, args: Sequence[Code]) -> Code:
    return Binary("==", _builtin("fabs")(dtype, args), make_literal(float("inf"), dtype))


def _signbit(dtype: DType, args: Sequence[Code]) -> Code:
    word = get_word_type(dtype)
    shift = Literal(str(8 * dtype.itemsize - 1))
    return Binary("==", Binary(">>", Call("__builtin_bit_cast", (Literal(word), args[0])), shift), ONE)


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "add": _arithmetic("+"),
        "sub": _arithmetic("-"),
        "mul": _arithmetic("*"),
        "div": _div,
        "floordiv": _template("floor_div", "floor_div_float"),
        "truncdiv": _truncdiv,
        "mod": _template("floor_mod", "floor_mod_float"),
        "fmod": _fmod,
        "fma": _builtin("fma"),
        "neg": _neg,
        "abs": _abs,
        "sign": _sign,
        "minimum": _minmax("min"),
        "maximum": _minmax("max"),
        "pow": _pow,
        "sqrt": _builtin("sqrt"),
        "rsqrt": _rsqrt,
        "floor": _builtin("floor"),
        "ceil": _builtin("ceil"),
        "trunc": _builtin("trunc"),
        "round": _builtin("rint"),
        **{
            name: _libm(name)
            for name in (
                *("exp2", "expm1", "log", "log2", "log10", "log1p"),
                *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
                *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
                *("erfc", "hypot"),
            )
        },
        "exp": _exp,
        "erf": _erf,
        "lgamma": _lgamma,
        "sigmoid": _sigmoid,
        "copysign": _builtin("copysign"),
        "zeta": _double_function("zeta"),
        "igamma": _double_function("igamma"),
        "igammac": _double_function("igammac"),
        **{name: _template(name) for name in ("gcd", "hermite_h", "hermite_he", "laguerre", "legendre")},
        "eq": _compare("=="),
        "ne": _compare("!="),
        "lt": _compare("<"),
        "le": _compare("<="),
        "gt": _compare(">"),
        "ge": _compare(">="),
        "bitwise_and": _bits("&"),
        "bitwise_or": _bits("|"),
        "bitwise_xor": _bits("^"),
        "bitwise_not": _bitwise_not,
        "lshift": _template("shift_left"),
        "rshift": _template("shift_right"),
        "isnan": _isnan,
        "isinf": _isinf,
        "signbit": _signbit,
    }
)

# `apply` writes these without a row.
STRUCTURAL: Final = frozenset({"cast", "bitcast", "where"})
