"""Sizes: torch's symbolic integers as index expressions with torch's bounds, and without new guards.

`SizeTable` is the table of one graph. The parts before it deal with sizes that are more than a symbol:

- Divisibility: `x.unflatten(0, (3, -1))` demands that a size is a multiple of 3. Index arithmetic knows
  only bounds, so the size is written `3*(s//3)` everywhere and equals the product of its parts by form.
- Symbols that no input shows. Torch names a number from data anew each time that a graph reads it, so a
  backward graph may get sizes `u0 + 3` and the number as `u1`. Such a size gets a symbol of its own, `t`, and
  `u0` is written `t - 3`. The same is done for a term, as `u0 % 4` in `6 - u0 % 4`.
- Floating point, `int(0.7 * n)`: no integer expression says how torch rounds, so the program computes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import gcd
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, substitute, symbol
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.scalar_math import index, round_decimals
from coilwork_lowering.torch_compat.sizes import (
    find_expression_bounds,
    find_integer_bounds,
    find_plain_symbol,
    get_shape_env,
    get_sympy,
    hint_of,
    is_surely,
    list_multiples,
    make_floor_division,
    make_integer_symbol,
)

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


# divisibility


# Each step of joining two facts tries as many remainders as the modulus is large.
LARGEST_MODULUS = 1 << 16


def find_residue(name: sympy.Symbol, multiples: Iterable[tuple[sympy.Basic, sympy.Basic]]) -> tuple[int, int]:
    """`(m, r)`, such that the value of `name` is `r` modulo `m`, `0 <= r < m`; `(1, 0)` if nothing is known.

    `multiples` are pairs of an expression and what divides it; those that are not linear in `name` alone say
    nothing.
    """
    modulus, remainder = 1, 0
    for base, divisor in multiples:
        residue = _solve_residue(name, base, divisor)
        if residue is None or modulus * residue[0] > LARGEST_MODULUS:
            continue
        fitting = (
            value
            for value in range(remainder, modulus * residue[0], modulus)
            if value % residue[0] == residue[1]
        )
        value = next(fitting, None)
        if value is not None:
            modulus = modulus * residue[0] // gcd(modulus, residue[0])
            remainder = value % modulus
    return modulus, remainder


def _solve_residue(name: sympy.Symbol, base: sympy.Basic, divisor: sympy.Basic) -> tuple[int, int] | None:
    """Return the residue of `name` for which `base`, `factor * name + rest`, is a multiple of `divisor`."""
    if base.free_symbols != {name} or not divisor.is_Integer or not 1 < int(divisor) <= LARGEST_MODULUS:
        return None
    # what is rounded, `n // (n // 3)`, may have no value at the numbers below
    if not base.is_polynomial(name):
        return None
    rest = base.xreplace({name: name * 0})
    factor = base.xreplace({name: name**0}) - rest
    if not (rest.is_Integer and factor.is_Integer) or (factor * name + rest - base).expand() != 0:
        return None
    m, a, b = int(divisor), int(factor), int(rest)
    common = gcd(a, m)
    if b % common:
        return None
    m, a, b = m // common, a // common, b // common
    return (m, -b * pow(a, -1, m) % m) if m > 1 else None


def make_bounded_symbol(name: str, lo: int | None, hi: int | None, modulus: int, remainder: int) -> Expr:
    """Return the symbol `name` in `lo..hi`, the bounds moved to the nearest numbers that it can be."""
    low = None if lo is None else lo + (remainder - lo) % modulus
    high = None if hi is None else hi - (hi - remainder) % modulus
    return symbol(name, lo=lo, hi=hi) if _is_empty(low, high) else symbol(name, lo=low, hi=high)


def _is_empty(low: int | None, high: int | None) -> bool:
    return low is not None and high is not None and low > high


def write_as_multiple(size: Expr, modulus: int, remainder: int) -> Expr:
    """`size` in the form that shows what it is modulo `modulus`."""
    return size if modulus == 1 else modulus * ((size - remainder) // modulus) + remainder


# solved symbols


def solve_terms(gm: torch.fx.GraphModule) -> dict[sympy.Basic, sympy.Basic]:
    """Terms of sizes that no input shows, each with its value over new symbols that are sizes of inputs."""
    sizes = list(_list_input_sizes(gm))
    shown = {size for _, size in sizes if size.is_Symbol}
    solutions: dict[sympy.Basic, sympy.Basic] = {}
    for name, size in sizes:
        reduced = size.xreplace(solutions)
        if not reduced.free_symbols <= shown:
            whole = make_integer_symbol(name)
            shown.add(whole)
            solutions.update({size: whole, **solve_term(reduced, whole, reduced.free_symbols - shown)})
    return solutions


def solve_term(
    size: sympy.Basic, whole: sympy.Symbol, unknown: Collection[sympy.Basic]
) -> dict[sympy.Basic, sympy.Basic]:
    """Solve a size, known as `whole`, for a term with `unknown` symbols: terms and their values."""
    carrying = [term for term in size.as_ordered_terms() if not term.free_symbols.isdisjoint(unknown)]
    factor, term = min((addend.as_coeff_Mul() for addend in carrying), key=_rank_by_simplicity)
    multiple = whole - (size - factor * term)
    if factor in (1, -1):
        return {term: factor * multiple}
    # the quotient leaves no rest, which nothing knows that sees it
    return {size: whole, term: make_floor_division(multiple, factor)}


def _rank_by_simplicity(product: tuple[sympy.Basic, sympy.Basic]) -> tuple[bool, bool, str]:
    factor, term = product
    return (factor not in (1, -1), not term.is_Symbol, str(term))


def _list_input_sizes(gm: torch.fx.GraphModule) -> Iterator[tuple[str, sympy.Basic]]:
    """Yield the symbolic integers among the inputs of `gm`, and in the shapes and strides of its tensors,
    each with a name for it.
    """
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            yield node.name, get_sympy(value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        layout: tuple[tuple[str, tuple[Any, ...]], ...] = (("size", value.shape), ("stride", value.stride()))
        for what, numbers in layout:
            for dim, number in enumerate(numbers):
                if isinstance(number, torch.SymInt):
                    yield f"{what}{dim}_of_{node.name}", get_sympy(number)


# floating point


# What makes an integer of a number, by the class's name.
_ROUNDING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TruncToInt": "trunc",
        "FloorToInt": "floor",
        "floor": "floor",
        "CeilToInt": "ceil",
        "ceiling": "ceil",
        "RoundToInt": "round",
    }
)
_POWER: Final = "PowByNatural"
_BITS: Final[Mapping[str, str]] = MappingProxyType(
    {f"BitwiseFn_{name}": name for name in ("bitwise_and", "bitwise_or", "bitwise_xor")}
)
_BINARY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "IntTrueDiv": "div",
        "FloatTrueDiv": "div",
        "FloatPow": "pow",
        _POWER: "pow",
        "Max": "maximum",
        "Min": "minimum",
    }
)
# Python's functions of one float that torch keeps in expressions, which are rows of the op table.
UNARY_FUNCTIONS: Final = (
    *("sqrt", "log2", "exp", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh"),
)
_UNARY: Final[Mapping[str, str]] = MappingProxyType(
    {f"OpaqueUnaryFn_{function}": function for function in UNARY_FUNCTIONS}
)

Integer = Callable[["sympy.Basic"], Expr | None]


def is_rounded(expression: sympy.Basic) -> bool:
    """Tell whether `expression` is a number rounded to an integer, an integer to the power of one, or made of
    integers' bits.
    """
    return type(expression).__name__ in (*_ROUNDING, *_BITS, _POWER)


def compute_rounded(
    expression: sympy.Basic, integer: Integer, floats: Mapping[sympy.Basic, Scalar]
) -> Scalar:
    """Return the integer, of type i64, that `expression`, for which `is_rounded`, is; in double precision, as
    Python computes it.

    `integer` gives index expressions of what has an integer form, None of everything else; `floats` are
    numbers that tensors hold.

    Raises:
        ValueError: a function that has no row in the op table.
    """
    name = type(expression).__name__
    if name in _BITS:
        return op(_BITS[name], *(_compute_integer(operand, integer, floats) for operand in expression.args))
    number = _compute_number(expression if name == _POWER else expression.args[0], integer, floats)
    return cast(op(_ROUNDING.get(name, "round"), number), DType.I64)


def _compute_integer(
    expression: sympy.Basic, integer: Integer, floats: Mapping[sympy.Basic, Scalar]
) -> Scalar:
    expr = integer(expression)
    return index(expr) if expr is not None else cast(_compute_number(expression, integer, floats), DType.I64)


def _compute_number(
    expression: sympy.Basic, integer: Integer, floats: Mapping[sympy.Basic, Scalar]
) -> Scalar:
    if expression in floats:
        return cast(floats[expression], DType.F64)
    whole = integer(expression)
    if whole is not None:
        return cast(index(whole), DType.F64)
    if expression.is_number:
        return const(float(str(expression)), DType.F64)
    name = type(expression).__name__
    if name == "RoundDecimal":
        return round_decimals(
            _compute_number(expression.args[0], integer, floats), int(str(expression.args[1]))
        )
    if name in _BITS:
        return cast(compute_rounded(expression, integer, floats), DType.F64)
    operands = [_compute_number(operand, integer, floats) for operand in expression.args]
    if name in ("ToFloat", "Identity"):
        return operands[0]
    if name in ("Add", "Mul"):
        return functools.reduce(functools.partial(op, name.lower()), operands)
    if name in _BINARY and len(operands) == 2:
        return op(_BINARY[name], *operands)
    if name in _UNARY:
        return op(_UNARY[name], *operands)
    if name in _ROUNDING:
        return op(_ROUNDING[name], *operands)
    raise ValueError(f"no way to compute {expression}")


# the table


class SizeTable:
    """The size symbols of one graph: sympy symbol -> IR symbol, filled as sizes are met.

    Sizes without an integer form, `int(0.7 * n)`, get symbols of their own. The program computes them before
    the first node that mentions them: code that appends nodes asks `take_undefined` for the missing ones.
    """

    def __init__(
        self, passed: Iterable[sympy.Symbol] = (), solved: Mapping[sympy.Basic, sympy.Basic] | None = None
    ) -> None:
        """`passed` are those that the graph is given as integers: others are read off shapes, where they must
        stand alone.

        Terms of sizes that are keys of `solved` are written as its values.
        """
        self._passed = frozenset(passed)
        self._solved = dict(solved or {})
        self._known: dict[sympy.Symbol, Expr] = {}
        # the same as what they are multiples of
        self._written: dict[sympy.Symbol, Expr] = {}
        # of those that data decides: symbols of the same names without bounds
        self._without_bounds: dict[Expr, Expr] = {}
        self._computed: dict[sympy.Basic, tuple[sympy.Symbol, Expr]] = {}
        self._undefined: dict[Expr, Scalar] = {}
        self._floats: dict[sympy.Basic, Scalar] = {}
        # of the sizes that are more than a symbol, those that are 1
        self._asked: set[sympy.Basic] = set()
        self._ones: dict[sympy.Basic, sympy.Basic] = {}
        self._loops = 0

    @property
    def pairs(self) -> tuple[tuple[Expr, sympy.Symbol], ...]:
        """Every symbol met so far, in order of first use."""
        return tuple((ours, theirs) for theirs, ours in self._known.items())

    def knows(self, name: sympy.Symbol) -> bool:
        """Tell if `name` was met before."""
        return name in self._written

    def name_of(self, size: torch.SymInt) -> sympy.Symbol | None:
        """Return the symbol that `size` is, if it is no more than one."""
        expression = self._substitute_told(get_sympy(size))
        return expression if expression.is_Symbol else None

    def tells(self, size: torch.SymInt, name: str) -> bool:
        """Tell whether `size`, which a result shows, is told by nothing before it: it, or a symbol called
        `name`, is a new one.
        """
        expression = self._substitute_told(get_sympy(size))
        unknown = expression.free_symbols - self._written.keys()
        if unknown and not expression.is_Symbol:
            self._solved |= {get_sympy(size): make_integer_symbol(name)}
            self._solved |= solve_term(expression, make_integer_symbol(name), unknown)
        return bool(unknown)

    def _substitute_told(self, expression: sympy.Basic) -> sympy.Basic:
        """`expression` over symbols that inputs tell."""
        return expression.xreplace(self._solved) if self._solved else expression

    def find_unmet(self, numbers: Iterable[object]) -> frozenset[sympy.Basic]:
        """Torch's symbols in the integers among `numbers` that were not met before."""
        sizes = (
            self._substitute_told(get_sympy(number)) for number in numbers if isinstance(number, torch.SymInt)
        )
        symbols = (size.free_symbols for size in sizes)
        return frozenset(name for names in symbols for name in names if name not in self._written)

    def expr(self, size: int | torch.SymInt | Expr) -> Expr:
        """`size` as an index expression.

        Raises:
            LoweringError[symbol]: the expression has no integer form (it divides exactly), and cannot be
                computed.
        """
        if isinstance(size, Expr):
            return size
        if isinstance(size, int):
            return as_expr(size)
        return self.convert(self._substitute_ones(size), get_shape_env(size))

    def _substitute_ones(self, size: torch.SymInt) -> sympy.Basic:
        """Return the expression of `size` with 1 in the place of what torch knows to be 1: what broadcasts is
        seen by that.
        """
        expression = get_sympy(size)
        if expression.args and expression not in self._asked:
            self._asked.add(expression)
            if hint_of(size) in (1, None) and is_surely(size == 1):
                self._ones[expression] = expression**0
        return expression.xreplace(self._ones) if self._ones else expression

    def exprs(self, sizes: Iterable[int | torch.SymInt]) -> tuple[Expr, ...]:
        """`expr` of each."""
        return tuple(self.expr(size) for size in sizes)

    def symbol(self, name: sympy.Symbol, env: ShapeEnv) -> Expr:
        """Return the IR symbol for torch's `name`. In sizes it stands as `from_sympy` writes it."""
        if name not in self._known:
            lo, hi = find_integer_bounds(env, name)
            modulus, remainder = find_residue(name, list_multiples(env)) if name in self._passed else (1, 0)
            self._known[name] = make_bounded_symbol(name.name, lo, hi, modulus, remainder)
            self._written[name] = write_as_multiple(self._known[name], modulus, remainder)
        return self._known[name]

    def number_rounds(self, rounds: int | torch.SymInt) -> Expr:
        """Return a new symbol for the number of a round of a loop, one of `rounds`."""
        count = as_int(self.expr(rounds))
        self._loops += 1
        return symbol(f"round{self._loops}", lo=0, hi=None if count is None else max(count - 1, 0))

    def note_data_dependent(self, ours: Expr) -> None:
        """The program finds the value of the symbol `ours` in a result."""
        self._without_bounds[ours] = symbol(str(ours))

    def depends_on_data(self, size: Expr) -> bool:
        """Tell if `size` mentions a symbol whose value the program finds in a result."""
        return not size.free_symbols.isdisjoint(self._without_bounds)

    def strip_asserted_bounds(self, size: Expr) -> Expr:
        """`size` without what the graph's own assertions promise of the numbers that data decides."""
        return substitute(size, self._without_bounds) if self._without_bounds else size

    def equate(self, size: int | torch.SymInt, value: Expr) -> None:
        """A size that data decides is `value`, if it is a symbol that was not met before: it is written as
        that from now on.
        """
        name = find_plain_symbol(size) if isinstance(size, torch.SymInt) else None
        if name is not None and not self.knows(name):
            self._written.setdefault(name, value)

    def _canonical_form(self, name: sympy.Symbol, env: ShapeEnv) -> Expr:
        if name not in self._written:
            self.symbol(name, env)
        return self._written[name]

    def convert(self, expression: sympy.Basic, env: ShapeEnv) -> Expr:
        """`expression` over torch's symbols as an index expression."""
        expression = self._substitute_told(expression)
        # what is a float has an integer form once it is rounded
        integers = (name for name in expression.free_symbols if name.is_integer)
        free = sorted(integers, key=lambda s: s.name)
        mapping = {s.name: self._canonical_form(s, env) for s in free}
        try:
            return _convert_sympy(expression, mapping)
        except (TypeError, ValueError):
            pass
        try:
            named = self._name_rounded(expression, mapping, env)
            mapping |= {theirs.name: ours for theirs, ours in self._computed.values()}
            return _convert_sympy(named, mapping)
        except (TypeError, ValueError) as cause:
            raise LoweringError(
                "symbol",
                f"size {expression} has no integer form",
                reason=str(cause),
                remedy="mark fewer dimensions dynamic, or keep this part out of the compiled region",
            ) from cause

    def compute(self, expression: sympy.Basic, env: ShapeEnv) -> Scalar:
        """`expression` over torch's symbols as a number in `f64`, for what is no integer.

        Raises:
            LoweringError[symbol]: there is no way to compute it.
        """
        expression = self._substitute_told(expression)
        integers = (name for name in expression.free_symbols if name.is_integer)
        mapping = {name.name: self._canonical_form(name, env) for name in integers}
        try:
            return _compute_number(expression, lambda part: _integer_form(part, mapping), self._floats)
        except (TypeError, ValueError) as cause:
            raise LoweringError(
                "symbol",
                f"{expression} cannot be computed when the program runs",
                reason=str(cause),
                remedy="mark fewer dimensions dynamic, or keep this part out of the compiled region",
            ) from cause

    def _name_rounded(
        self, expression: sympy.Basic, mapping: Mapping[str, Expr], env: ShapeEnv
    ) -> sympy.Basic:
        """`expression` with symbols in place of what is rounded and has no integer form."""
        if _integer_form(expression, mapping) is not None or not expression.args:
            return expression
        if not is_rounded(expression):
            return expression.func(
                *(self._name_rounded(operand, mapping, env) for operand in expression.args)
            )
        if expression not in self._computed:
            number = compute_rounded(expression, lambda part: _integer_form(part, mapping), self._floats)
            theirs = make_integer_symbol(f"computed{len(self._computed)}")
            lo, hi = find_expression_bounds(env, expression)
            ours = symbol(theirs.name, lo=lo, hi=hi)
            self._computed[expression] = (theirs, ours)
            self._undefined[ours] = number
        return self._computed[expression][0]

    # symbols that the program computes

    def float(self, number: torch.SymFloat, value: Scalar) -> None:
        """Sizes may be made of `number`, which is `value` when the program runs."""
        self._floats[get_sympy(number)] = value

    def note_input_sizes(self, sizes: Iterable[Expr]) -> None:
        """An input has these sizes: a symbol among them is known from the start."""
        for size in sizes:
            self._undefined.pop(size, None)

    def take_undefined(self) -> tuple[tuple[Expr, Scalar], ...]:
        """Symbols that the next node may mention and no node has defined, each with the number it is. The
        caller defines them.
        """
        undefined = tuple(self._undefined.items())
        self._undefined.clear()
        return undefined

    def undefine(self, ours: Expr, number: Scalar) -> None:
        """Note that the symbol `ours`, which is `number`, has lost its definition."""
        self._undefined[ours] = number


def _convert_sympy(expression: sympy.Basic, mapping: Mapping[str, Expr]) -> Expr:
    # sympy takes longer to load than this package; whoever has symbolic sizes has loaded it
    from coilwork_ir.index.sympy_bridge import from_sympy

    return from_sympy(expression, mapping)


def _integer_form(expression: sympy.Basic, mapping: Mapping[str, Expr]) -> Expr | None:
    try:
        return _convert_sympy(expression, mapping)
    except (TypeError, ValueError):
        return None
