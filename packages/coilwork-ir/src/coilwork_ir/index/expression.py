"""The index expression: one immutable, hash-consed node per polynomial.

Every expression is `sum(coeff * monomial) + constant` with integer coefficients. A monomial is a product of
atoms; an atom is a symbol, a floor division, a modulo, a minimum or a maximum. A monomial is itself an
expression (an atom, or a PRODUCT of at least two), which makes monomials interned and hashed by identity as
well.

Invariants (kept by the constructors in this package, assumed everywhere):
- `_monos` is sorted by `_key`, without repetition; `_coeffs` are the matching non-zero coefficients;
- an expression with one monomial, coefficient 1 and constant 0 *is* that monomial;
- two live expressions with equal structure are the same object.

Symbols are ordered by their names as a reader would count them: `i2` before `i10`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, ClassVar, Final, NoReturn
from weakref import ref

from coilwork_ir.intern_table import InternTable, MemoTable

# ---- Errors ----


class IndexArithmeticError(ValueError):
    """A meaningless operation on index expressions: division by the constant zero, the name of a sum, ..."""


class IndexSyntaxError(IndexArithmeticError):
    """Text that is not an index expression.

    `position` counts characters from 0 in `text`.
    """

    def __init__(self, reason: str, *, text: str, position: int) -> None:
        super().__init__(f"{reason} at column {position + 1}\n  {text}\n  {' ' * position}^")
        self.reason = reason
        self.text = text
        self.position = position


# ---- Expressions ----


_DIGITS: Final = re.compile(r"\d+")


def make_natural_key(name: str) -> str:
    """Return a text that sorts as `name` does when digit runs compare as numbers: i2 before i10."""
    stem = name.rstrip("0123456789")
    if stem.isalpha():  # the common case, without the regular expression
        return f"{stem}{chr(0x30 + len(name) - len(stem))}{name[len(stem) :]}"
    return _DIGITS.sub(lambda run: chr(0x30 + len(run[0])) + run[0], name)


CONST: Final = 0
SYMBOL: Final = 1
FLOORDIV: Final = 2
MOD: Final = 3
MIN: Final = 4
MAX: Final = 5
PRODUCT: Final = 6
SUM: Final = 7

SymbolData = tuple[str, int | None, int | None, "Expr | None"]

Operator = Callable[["Expr", "Expr | int"], "Expr"]


class Expr:
    """An integer-valued index expression. Immutable; `is` (and `==`) means structural equality.

    Build with `const`, `symbol`, the operators `+ - * // %` (ints mix in; `//` and `%` floor, as in Python),
    and the functions of `coilwork_ir.index`. Raises IndexArithmeticError when divided by the constant zero.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_bounds",
        "_coeffs",
        "_constant",
        "_data",
        "_free",
        "_has_mod",
        "_key",
        "_monos",
        "_nonneg",
        "_tag",
        "_tree_size",
    )
    _tag: int
    _monos: tuple[Expr, ...]
    _coeffs: tuple[int, ...]
    _constant: int
    _has_mod: bool  # some monomial has a MOD factor, so that sums may recombine
    _args: tuple[Expr, ...]  # of FLOORDIV, MOD, MIN, MAX: operands; of PRODUCT: its atoms
    _data: SymbolData  # of SYMBOL
    # Caches, None or () until they are used (a slot without a value would cost an exception then). Two
    # threads may both fill one, with equal values. `_key`, see `sort_key`, is there from the start in symbols
    # and atoms.
    _key: tuple[Any, ...]  # heterogeneous
    _bounds: tuple[int | None, int | None] | None
    _free: frozenset[Expr] | None
    _nonneg: bool | None
    _tree_size: tuple[int, int] | None

    @property
    def is_const(self) -> bool:
        return self._tag == CONST

    @property
    def is_symbol(self) -> bool:
        return self._tag == SYMBOL

    @property
    def constant(self) -> int:
        """The constant term."""
        return self._constant

    @property
    def terms(self) -> tuple[tuple[int, tuple[Expr, ...]], ...]:
        """`(coefficient, atoms of the monomial)` in canonical order, without the constant term.

        An atom to the n-th power occurs n times.
        """
        return tuple([(c, list_atoms(m)) for c, m in zip(self._coeffs, self._monos)])

    @property
    def value(self) -> int:
        """The value of a constant. Raises IndexArithmeticError for anything else."""
        if self._tag != CONST:
            raise IndexArithmeticError(f"not a constant: {self!r}")
        return self._constant

    @property
    def name(self) -> str:
        """The name of a symbol. As `lo`, `hi` and `extent`, raises IndexArithmeticError for anything else."""
        return self._symbol()[0]

    @property
    def lo(self) -> int | None:
        """Inclusive lower bound of a symbol; None: unbounded."""
        return self._symbol()[1]

    @property
    def hi(self) -> int | None:
        """Inclusive upper bound of a symbol, as given; None: none was given."""
        return self._symbol()[2]

    @property
    def extent(self) -> Expr | None:
        """Exclusive upper bound of a range symbol, whose lower bound then is 0."""
        return self._symbol()[3]

    def _symbol(self) -> SymbolData:
        if self._tag != SYMBOL:
            raise IndexArithmeticError(f"not a symbol: {self!r}")
        return self._data

    @property
    def free_symbols(self) -> frozenset[Expr]:
        """The symbols that occur. Those which occur only in the extent of a symbol don't count."""
        known = self._free
        if known is not None:
            return known
        parts = self._args if FLOORDIV <= self._tag <= PRODUCT else self._monos
        free = parts[0].free_symbols if parts else _NO_SYMBOLS
        for part in parts[1:]:
            free = free | part.free_symbols
        self._free = free
        return free

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """A total order on expressions that depends on structure only, hence is the same in every process.

        Comparable with other expressions' keys; its content is not part of the interface.
        """
        if self._key:
            return self._key
        if self._tag == CONST:
            key: tuple[Any, ...] = (2, self._constant)
        else:
            key = (1, tuple([m._key for m in self._monos]), self._coeffs, self._constant)
        self._key = key
        return key

    # The operators are the rules themselves, which their modules put here (see `Rules`): no call lies in
    # between.
    __add__: ClassVar[Operator]
    __radd__: ClassVar[Operator]
    __sub__: ClassVar[Operator]
    __rsub__: ClassVar[Operator]
    __mul__: ClassVar[Operator]
    __rmul__: ClassVar[Operator]
    __floordiv__: ClassVar[Operator]
    __rfloordiv__: ClassVar[Operator]
    __mod__: ClassVar[Operator]
    __rmod__: ClassVar[Operator]

    def __neg__(self) -> Expr:
        return self * -1

    def __pos__(self) -> Expr:
        return self

    def __repr__(self) -> str:
        return RULES.describe(self)

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Expr:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "index expressions are interned and can't be pickled: send format_expr(e), read parse_expr"
        )

    def __bool__(self) -> NoReturn:
        raise TypeError("an index expression has no truth value; use as_int, `is`, or a provably_* function")


class Rules:
    """The knot between sums and divisions.

    `x + y` must recombine `8*(x//8) + x%8`, which takes division; division takes sums. Modules import
    downwards only, so sums reach the rules of division through this table, which importing the package fills
    once.
    """

    __slots__ = ("describe", "floordiv", "mod", "recombine")
    floordiv: Callable[[Expr, Expr], Expr]
    mod: Callable[[Expr, Expr], Expr]
    recombine: Callable[[tuple[Expr, ...], tuple[int, ...], int], Expr]
    describe: Callable[[Expr], str]


RULES: Final = Rules()
_NO_SYMBOLS: Final[frozenset[Expr]] = frozenset()
_CONSTS: Final[InternTable[int, Expr]] = InternTable()
_SYMBOLS: Final[InternTable[SymbolData, Expr]] = InternTable()
_ATOMS: Final[InternTable[tuple[int, tuple[Expr, ...]], Expr]] = InternTable()
_SUMS: Final[InternTable[tuple[tuple[Expr, ...], tuple[int, ...], int], Expr]] = InternTable()
_RECENT_CONSTS: Final[MemoTable[int, Expr]] = MemoTable(1 << 13)
_find_const = _CONSTS.lookup
_find_symbol = _SYMBOLS.lookup
_find_atom = _ATOMS.lookup
_find_sum = _SUMS.lookup
_insert_atom, _atom_refs = _ATOMS.insert, _ATOMS.refs
_insert_sum, _sum_refs = _SUMS.insert, _SUMS.refs
_new = object.__new__
_key_of = attrgetter("_key")


def list_atoms(mono: Expr) -> tuple[Expr, ...]:
    """Return the factors of a monomial."""
    return mono._args if mono._tag == PRODUCT else (mono,)


def const(n: int) -> Expr:
    """Return the constant `n`."""
    recent = _RECENT_CONSTS.get(n)
    if recent is not None:
        return recent
    reference = _find_const(n)
    if reference is not None:
        e = reference()
        if e is not None:
            return _RECENT_CONSTS.put(e._constant, e)
    e = _new(Expr)
    e._tag = CONST
    e._monos = e._coeffs = ()
    e._constant = int(n)
    e._has_mod = False
    e._bounds = (e._constant, e._constant)
    e._key = ()
    e._free = e._nonneg = e._tree_size = None
    return _RECENT_CONSTS.put(e._constant, _CONSTS.add(e._constant, e))


ZERO: Final = const(0)
ONE: Final = const(1)
MINUS_ONE: Final = const(-1)


def as_expr(x: int | Expr) -> Expr:
    """`x`, with an int turned into a constant. Raises IndexArithmeticError for other types."""
    if type(x) is Expr:
        return x
    if isinstance(x, int):
        return const(x)
    raise IndexArithmeticError(f"neither an int nor an index expression: {x!r}")


def symbol(
    name: str, *, lo: int | None = None, hi: int | None = None, extent: Expr | int | None = None
) -> Expr:
    """Return the symbol `name`, promised to lie in `lo..hi` (inclusive, None: unbounded) or in `0 <= name <
    extent`.

    Symbols with the same name and different promises are different symbols.
    Raises IndexArithmeticError for an empty `lo..hi`, and for `lo` or `hi` next to `extent` (lo=0 is fine).
    """
    if extent is not None:
        extent = as_expr(extent)
        if lo not in (None, 0) or hi is not None:
            raise IndexArithmeticError(f"symbol {name!r}: lo and hi follow from the extent")
        lo = 0
    if lo is not None and hi is not None and lo > hi:
        raise IndexArithmeticError(f"symbol {name!r}: empty range {lo}..{hi}")
    data: SymbolData = (name, lo, hi, extent)
    reference = _find_symbol(data)
    if reference is not None:
        e = reference()
        if e is not None:
            return e
    e = _new(Expr)
    e._tag = SYMBOL
    e._monos = (e,)
    e._coeffs = (1,)
    e._constant = 0
    e._has_mod = False
    e._data = data
    e._key = (
        -1,
        0,
        make_natural_key(name),
        name,
        (lo is not None, lo or 0, hi is not None, hi or 0, () if extent is None else extent.sort_key),
    )
    e._free = frozenset((e,))
    e._bounds = e._nonneg = e._tree_size = None
    return _SYMBOLS.add(data, e)


def make_atom(tag: int, args: tuple[Expr, ...]) -> Expr:
    """Return a FLOORDIV, MOD, MIN, MAX or PRODUCT that no rule simplifies. `args` must be in canonical
    order.
    """
    key = (tag, args)
    reference = _find_atom(key)
    if reference is not None:
        e = reference()
        if e is not None:
            return e
    e = _new(Expr)
    e._tag = tag
    e._monos = (e,)
    e._coeffs = (1,)
    e._constant = 0
    e._args = args
    e._bounds = e._free = e._nonneg = e._tree_size = None
    if tag == PRODUCT:
        e._has_mod = False
        for a in args:
            if a._tag == MOD:
                e._has_mod = True
                break
        e._key = (-len(args), *map(_key_of, args))
    elif tag <= MOD:
        e._has_mod = tag == MOD
        e._key = (-1, tag, args[0].sort_key, args[1].sort_key)
    else:
        e._has_mod = False
        e._key = (-1, tag, tuple([a.sort_key for a in args]))
    mine = ref(e)
    if reference is None and _insert_atom(key, mine) is mine and len(_atom_refs) <= _ATOMS.sweep_at:
        return e
    return _ATOMS.add(key, e)


def make_sum(monos: tuple[Expr, ...], coeffs: tuple[int, ...], constant: int, has_mod: bool) -> Expr:
    """Return the expression with these parts, which must be in canonical order and not recombine."""
    if not monos:
        return const(constant)
    if constant == 0 and len(monos) == 1 and coeffs[0] == 1:
        return monos[0]
    key = (monos, coeffs, constant)
    reference = _find_sum(key)
    if reference is not None:
        e = reference()
        if e is not None:
            return e
    e = _new(Expr)
    e._tag = SUM
    e._monos = monos
    e._coeffs = coeffs
    e._constant = constant
    e._has_mod = has_mod
    e._key = ()
    e._bounds = e._free = e._nonneg = e._tree_size = None
    mine = ref(e)
    if reference is None and _insert_sum(key, mine) is mine and len(_sum_refs) <= _SUMS.sweep_at:
        return e
    return _SUMS.add(key, e)


def as_int(e: Expr) -> int | None:
    """Return the value of a constant, None for anything else."""
    return e._constant if e._tag == CONST else None


def get_extent(symbol: Expr) -> Expr:
    """Return the number of points of a range symbol.

    Raises:
        IndexArithmeticError: `symbol` has no extent, as size symbols have none.
    """
    extent = symbol.extent
    if extent is None:
        raise IndexArithmeticError(f"{symbol!r} is not a range symbol")
    return extent


def get_extents(symbols: Iterable[Expr]) -> tuple[Expr, ...]:
    """Return the number of points of each of several range symbols."""
    return tuple([get_extent(symbol) for symbol in symbols])


# ---- Sums and products ----


_PRODUCTS: MemoTable[tuple[Expr, Expr], Expr] = MemoTable(1 << 12)


def finish(monos: tuple[Expr, ...], coeffs: tuple[int, ...], constant: int, has_mod: bool) -> Expr:
    """Return the expression with these parts, in canonical order, after recombination."""
    if has_mod and len(monos) > 1:
        return RULES.recombine(monos, coeffs, constant)
    return make_sum(monos, coeffs, constant, has_mod)


def sum_terms(terms: dict[Expr, int], constant: int) -> Expr:
    """`sum(coeff * mono) + constant`; zero coefficients are allowed."""
    if len(terms) == 1:
        ((m, c),) = terms.items()
        return make_sum((m,), (c,), constant, m._has_mod) if c else const(constant)
    if 0 in terms.values():
        terms = {m: c for m, c in terms.items() if c}
    monos = sorted(terms, key=_key_of)
    has_mod = False
    for m in monos:
        if m._has_mod:
            has_mod = True
            break
    return finish(tuple(monos), tuple(map(terms.__getitem__, monos)), constant, has_mod)


def add_int(a: Expr, n: int) -> Expr:
    """`a + n`. Can't recombine: the monomials stay."""
    return make_sum(a._monos, a._coeffs, a._constant + n, a._has_mod) if n else a


def scale(a: Expr, n: int) -> Expr:
    """`a * n`. Can't recombine: coefficients keep their ratios."""
    if n == 1:
        return a
    if n == 0:
        return const(0)
    coeffs = a._coeffs
    scaled = (coeffs[0] * n,) if len(coeffs) == 1 else tuple(map(n.__mul__, coeffs))
    return make_sum(a._monos, scaled, a._constant * n, a._has_mod)


def add(a: Expr, b: Expr | int) -> Expr:
    """`a + b`."""
    if type(b) is not Expr:
        return add_int(a, b) if type(b) is int else add(a, as_expr(b))
    ma, mb = a._monos, b._monos
    if not mb:
        n = b._constant
        return make_sum(ma, a._coeffs, a._constant + n, a._has_mod) if n else a
    if not ma:
        n = a._constant
        return make_sum(mb, b._coeffs, b._constant + n, b._has_mod) if n else b
    constant = a._constant + b._constant
    has_mod = a._has_mod or b._has_mod
    if ma[-1]._key < mb[0]._key:
        monos, coeffs = ma + mb, a._coeffs + b._coeffs
    elif mb[-1]._key < ma[0]._key:
        monos, coeffs = mb + ma, b._coeffs + a._coeffs
    else:
        terms = dict(zip(ma, a._coeffs))
        for m, c in zip(mb, b._coeffs):
            terms[m] = terms.get(m, 0) + c
        return sum_terms(terms, constant)
    if has_mod:
        return RULES.recombine(monos, coeffs, constant)
    return make_sum(monos, coeffs, constant, False)


def subtract(a: Expr, b: Expr | int) -> Expr:
    """`a - b`."""
    if type(b) is not Expr:
        return add_int(a, -b) if type(b) is int else subtract(a, as_expr(b))
    if a is b:
        return const(0)
    if not b._monos:
        return add_int(a, -b._constant)
    terms = dict(zip(a._monos, a._coeffs))
    for m, c in zip(b._monos, b._coeffs):
        terms[m] = terms.get(m, 0) - c
    return sum_terms(terms, a._constant - b._constant)


def multiply_monos(x: Expr, y: Expr) -> Expr:
    """Return the product of two monomials."""
    if x._tag != PRODUCT != y._tag:
        return make_atom(PRODUCT, (x, y) if x._key <= y._key else (y, x))
    key = (x, y)
    known = _PRODUCTS.get(key)
    if known is not None:
        return known
    factors = sorted(list_atoms(x) + list_atoms(y), key=_key_of)
    return _PRODUCTS.put(key, make_atom(PRODUCT, tuple(factors)))


def make_monomial(atoms: tuple[Expr, ...]) -> Expr:
    """Return the product of sorted atoms, as an expression; none: 1."""
    if not atoms:
        return ONE
    return atoms[0] if len(atoms) == 1 else make_atom(PRODUCT, atoms)


def accumulate(terms: dict[Expr, int], a: Expr, factor: int) -> int:
    """Add `factor * a` to `terms`; return what it adds to the constant."""
    for m, c in zip(a._monos, a._coeffs):
        terms[m] = terms.get(m, 0) + c * factor
    return a._constant * factor


def multiply(a: Expr, b: Expr | int) -> Expr:
    """`a * b`, expanded."""
    if type(b) is not Expr:
        return scale(a, b) if type(b) is int else multiply(a, as_expr(b))
    if CONST < a._tag < SUM and CONST < b._tag < SUM:
        return multiply_monos(a, b)
    if not b._monos:
        return scale(a, b._constant)
    if not a._monos:
        return scale(b, a._constant)
    if len(a._monos) == 1 == len(b._monos) and not a._constant and not b._constant:
        m = multiply_monos(a._monos[0], b._monos[0])
        c = a._coeffs[0] * b._coeffs[0]
        return m if c == 1 else make_sum((m,), (c,), 0, m._has_mod)
    terms: dict[Expr, int] = {}
    for ma, ca in zip(a._monos, a._coeffs):
        for mb, cb in zip(b._monos, b._coeffs):
            m = multiply_monos(ma, mb)
            terms[m] = terms.get(m, 0) + ca * cb
    if b._constant:
        for m, c in zip(a._monos, a._coeffs):
            terms[m] = terms.get(m, 0) + c * b._constant
    if a._constant:
        for m, c in zip(b._monos, b._coeffs):
            terms[m] = terms.get(m, 0) + c * a._constant
    return sum_terms(terms, a._constant * b._constant)


def add_all(xs: Iterable[Expr | int]) -> Expr:
    """Return the sum; of nothing: 0."""
    terms: dict[Expr, int] = {}
    constant = 0
    for x in xs:
        constant += x if type(x) is int else accumulate(terms, as_expr(x), 1)
    return sum_terms(terms, constant)


def multiply_all(xs: Iterable[Expr | int]) -> Expr:
    """Return the product; of nothing: 1."""
    result = ONE
    for x in xs:
        result = multiply(result, as_expr(x))
    return result


def _subtract_from(b: Expr, a: Expr | int) -> Expr:
    return subtract(as_expr(a), b)


Expr.__add__ = Expr.__radd__ = add
Expr.__sub__ = subtract
Expr.__rsub__ = _subtract_from
Expr.__mul__ = Expr.__rmul__ = multiply
