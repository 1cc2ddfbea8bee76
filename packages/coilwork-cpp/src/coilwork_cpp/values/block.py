"""Scalar graphs as C++ statements: a `Block` declares each value once, in the loop where it belongs.

Index expressions become `i64` arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from coilwork_cpp.facts import Facts, is_made_of_comparisons, is_made_of_positions
from coilwork_cpp.values.element_types import convert, get_memory_type, get_value_type, make_literal
from coilwork_cpp.values.ops import apply
from coilwork_cpp.values.reductions import start_value
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import (
    Add,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    as_int,
    get_node,
    is_subtracted,
    provably_nonneg,
    provably_positive,
)
from coilwork_ir.index import (
    Const as IndexConst,
)
from coilwork_ir.kernels import Store, TensorArg
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Reduce, Scalar, Scan, Sort, placeholder
from coilwork_ir.syntax.cpp import (
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    Element,
    If,
    Literal,
    Name,
    Select,
    Statement,
    Unary,
    is_atomic,
)

# ---- index arithmetic ----


def index_code(expr: Expr, symbols: Mapping[Expr, Code]) -> Code:
    """`expr` as code; `symbols` says what each symbol is called.

    Divisions are plain `/` and `%` where both operands are provably not negative, else functions that floor.

    Raises:
        EmitError: a symbol that is neither a range nor a size of the kernel.
    """
    match get_node(expr):
        case IndexConst(value):
            return Literal(str(value) if abs(value) < 1 << 31 else f"{value}ll")
        case Sym(name, symbol):
            if symbol not in symbols:
                raise EmitError(
                    "unbound-symbol", f"index symbol {name} is neither a range nor a size of the kernel"
                )
            return symbols[symbol]
        case Add(operands):
            return _sum(operands, symbols)
        case Mul(operands):
            return _product(operands, symbols)
        case FloorDiv(numerator, denominator):
            return _division("/", "floor_div<i64>", numerator, denominator, symbols)
        case Mod(numerator, denominator):
            return _division("%", "floor_mod<i64>", numerator, denominator, symbols)
        case Min(operands):
            codes = [index_code(operand, symbols) for operand in operands]
            return reduce(lambda a, b: Call("min_i64", (a, b)), codes)
        case Max(operands):
            codes = [index_code(operand, symbols) for operand in operands]
            return reduce(lambda a, b: Call("max_i64", (a, b)), codes)


def _division(
    operator: str, function: str, numerator: Expr, denominator: Expr, symbols: Mapping[Expr, Code]
) -> Code:
    parts = index_code(numerator, symbols), index_code(denominator, symbols)
    if provably_nonneg(numerator) and provably_positive(denominator):
        return Binary(operator, *parts)
    return Call(function, parts)


def _sum(operands: tuple[Expr, ...], symbols: Mapping[Expr, Code]) -> Code:
    # Symbols that are i64 come first, so that products of plain literals never overflow an int.
    subtracted = [op for op in operands if is_subtracted(op)]
    code: Code | None = None
    for operand in (op for op in operands if not is_subtracted(op)):
        part = index_code(operand, symbols)
        code = part if code is None else Binary("+", code, part)
    for operand in subtracted:
        part = index_code(-operand, symbols)
        code = Unary("-", part) if code is None else Binary("-", code, part)
    assert code is not None
    return code


def _product(operands: tuple[Expr, ...], symbols: Mapping[Expr, Code]) -> Code:
    # The canonical form puts the coefficient first; readers expect it last: `row * 768`.
    rest = [index_code(operand, symbols) for operand in operands[1:]]
    first = operands[0]
    if as_int(first) == -1:
        return Unary("-", _multiply(rest))
    return _multiply([*rest, index_code(first, symbols)])


def _multiply(factors: list[Code]) -> Code:
    return reduce(lambda a, b: Binary("*", a, b), factors)


# ---- statements ----


# An expression with more operators than this is given a name.
_INLINE_OPERATORS: Final = 4
_COMBINE: Final[Mapping[str, str]] = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}


class Block:
    """A sequence of statements under construction, and the values known at its end.

    `open_nested()` starts a nested block (a loop's body): it sees what is known here, and keeps what it adds
    to itself. `opaque` names a constant that is true, which the compiler does not know: see `_guard`.
    """

    def __init__(
        self,
        *,
        args: Mapping[str, TensorArg],
        symbols: Mapping[Expr, Code],
        facts: Facts,
        names: FreshNames,
        known: Mapping[Scalar, Code] | None = None,
        opaque: Name | None = None,
    ) -> None:
        self.args = args
        self.symbols = dict(symbols)
        self.facts = facts
        self.names = names
        self.opaque = opaque
        self.known: dict[Scalar, Code] = dict(known or {})
        self.statements: list[Statement] = []
        self._size: dict[Scalar, int] = {}

    def open_nested(self) -> Block:
        """Return an empty block nested in this one."""
        return Block(
            args=self.args,
            symbols=self.symbols,
            facts=self.facts,
            names=self.names,
            known=self.known,
            opaque=self.opaque,
        )

    def add(self, *statements: Statement) -> None:
        """Append statements."""
        self.statements.extend(statements)

    def body(self) -> tuple[Statement, ...]:
        """Return the statements so far."""
        return tuple(self.statements)

    def index(self, expr: Expr) -> Code:
        """Code of an index expression."""
        return index_code(expr, self.symbols)

    def value(self, root: Scalar) -> Code:
        """Code of `root`, after declaring what it needs."""
        for value in _list_unknown(root, self.known):
            code, named = self._define(value)
            if not is_atomic(code) and (named or (value is root and self.facts.uses.get(value, 1) > 1)):
                code = self.declare(value.dtype, _name_stem(value), code)
                self._size[value] = 0
            self.known[value] = code
        return self.known[root]

    def name_value(self, root: Scalar) -> Code:
        """Return the code of `root` as a name or literal, after declaring it if necessary."""
        code = self.value(root)
        if not is_atomic(code):
            code = self.known[root] = self.declare(root.dtype, _name_stem(root), code)
            self._size[root] = 0
        return code

    def declare(self, dtype: DType, stem: str, code: Code) -> Name:
        """Return a new constant of `dtype`'s value type that holds `code`."""
        name = self.names.make_suffixed(stem)
        self.add(Declare(f"const {get_value_type(dtype)}", name, code))
        return Name(name)

    def declare_index(self, stem: str, code: Code) -> Name:
        """Return a new `i64` constant that holds `code`."""
        name = self.names.make_suffixed(stem)
        self.add(Declare("const i64", name, code))
        return Name(name)

    def hoist(self, roots: Iterable[Scalar], inner: frozenset[Expr]) -> None:
        """Declare here whatever `roots` need that does not vary along `inner`."""
        for root in roots:
            for value in _list_unknown(root, self.known):
                if self.facts.varies[value] & inner:
                    for operand in value.operands:
                        if operand in self.facts.varies and not self.facts.varies[operand] & inner:
                            if not isinstance(operand, Const):
                                self.name_value(operand)
                elif value is root and not isinstance(value, Const):
                    self.name_value(value)

    def store_all(self, stores: Iterable[Store]) -> None:
        """Perform `stores` at this point. Values come first: a store may overwrite what another one reads."""
        kept = tuple(stores)
        for root in (root for store in kept for root in list_store_roots(store)):
            self.value(root)
        for store in kept:
            self.store(store)

    def store(self, store: Store) -> None:
        """Perform `store` at this point."""
        arg = self.args[store.buffer]
        value = self.value(store.value)
        symbols = dict(self.symbols)
        for position, operand in enumerate(store.indirect):
            symbols[placeholder(position)] = self._position_operand(operand)
        target = Element(Name(store.buffer), index_code(store.index, symbols))
        action: tuple[Statement, ...]
        wide = convert(value, store.value.dtype, arg.dtype)
        if store.mode == "store":
            action = (Assign(target, _encode_element(wide, arg.dtype)),)
        else:
            where = self.names.make_suffixed("at")
            target = Element(Name(store.buffer), Name(where))
            index = Declare("const i64", where, index_code(store.index, symbols))
            old = decode_element(target, arg.dtype)
            name = _COMBINE[store.mode]
            if arg.dtype.is_bool:
                combined: Code = Binary("&" if store.mode in ("mul", "min") else "|", old, wide)
            else:
                combined = apply(name, (arg.dtype, arg.dtype), arg.dtype, (old, wide))
            action = (index, Assign(target, _encode_element(combined, arg.dtype)))
        if store.mask is not None:
            action = (If(self._guard(store.mask, self.value(store.mask)), action),)
        self.add(*action)

    def _integer_operand(self, operand: Scalar) -> Code:
        code = self.value(operand)
        return code if operand.dtype is DType.I64 else Call("i64", (code,))

    def _position_operand(self, operand: Scalar) -> Code:
        code = self._integer_operand(operand)
        return Call("hidden_i64", (code,)) if is_made_of_comparisons(operand) else code

    def _define(self, value: Scalar) -> tuple[Code, bool]:
        """Code of `value`, whose operands are known, and whether it should be given a name."""
        match value:
            case Const():
                code = make_literal(value.value, value.dtype)
                self._size[value] = 0
                return code, not is_atomic(code) and value.dtype.is_low_precision
            case IndexValue():
                symbols = dict(self.symbols)
                for position, operand in enumerate(value.operands):
                    symbols[placeholder(position)] = self._integer_operand(operand)
                return Call("i64", (index_code(value.expr, symbols),)), True
            case Load():
                return self._load(value), True
            case Op():
                return self._op(value)
            case Reduce() | Scan() | Sort():
                raise EmitError("unplaced-value", f"{type(value).__name__.lower()} outside a pass")
        raise TypeError(f"not a scalar node: {value!r}")

    def _load(self, value: Load) -> Code:
        arg = self.args.get(value.buffer)
        if arg is None:
            raise EmitError("unknown-buffer", f"load of {value.buffer!r}, which is no argument of the kernel")
        symbols = dict(self.symbols)
        for position, operand in enumerate(value.indirect):
            symbols[placeholder(position)] = self._position_operand(operand)
        element = Element(Name(value.buffer), index_code(value.index[0], symbols))
        loaded = decode_element(element, value.dtype)
        if value.mask is None:
            return loaded
        # The mask guards the access itself, which may lie outside of the buffer.
        guard = self._guard(value.mask, self.known[value.mask])
        return Select(guard, loaded, make_literal(value.other, value.dtype))

    def _guard(self, mask: Scalar, code: Code) -> Code:
        """Return the condition of an access, which g++ vectorises as a masked one.

        G++ 12 makes a whole access of it where it knows the mask, and that may end behind the buffer, where
        no memory is: `opaque` keeps it from knowing.
        """
        if self.opaque is None or not is_made_of_positions(mask):
            return code
        return Binary("&", code, self.opaque)

    def _op(self, value: Op) -> tuple[Code, bool]:
        operands = [self.known[operand] for operand in value.operands]
        if value.op == "where":
            # Both branches are computed anyway; a conditional computation would not vectorise.
            operands = [self._name_operand(o) for o in value.operands]
        elif value.op in ("isnan", "sign", "abs", "signbit") or value.dtype.is_low_precision:
            operands = [self._name_operand(o) for o in value.operands]
        code = apply(value.op, [o.dtype for o in value.operands], value.dtype, operands)
        size = 1 + sum(self._size.get(o, 0) for o in value.operands)
        self._size[value] = size
        named = self.facts.uses.get(value, 1) > 1 or size >= _INLINE_OPERATORS
        return code, named

    def _name_operand(self, value: Scalar) -> Code:
        code = self.known[value]
        if isinstance(value, Const) or is_atomic(code):
            return code
        return self.name_value(value)


def _list_unknown(root: Scalar, known: Mapping[Scalar, Code]) -> list[Scalar]:
    """Values below `root` that are not in `known`, operands first."""
    order: list[Scalar] = []
    seen: set[Scalar] = set()
    stack: list[tuple[Scalar, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in seen and node not in known:
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.operands))
    return order


def _name_stem(node: Scalar) -> str:
    match node:
        case Load():
            return f"{node.buffer}_value"
        case IndexValue():
            return "index"
        case Op():
            return (
                node.op if node.op not in ("cast", "where") else {"cast": "wide", "where": "chosen"}[node.op]
            )
        case _:
            return "value"


def decode_element(element: Code, dtype: DType) -> Code:
    """Return a value from an element in memory: bools are bytes there."""
    return Binary("!=", element, start_value("sum", DType.I32)) if dtype.is_bool else element


def _encode_element(code: Code, dtype: DType) -> Code:
    return Call(get_memory_type(dtype), (code,)) if dtype.is_bool else code
