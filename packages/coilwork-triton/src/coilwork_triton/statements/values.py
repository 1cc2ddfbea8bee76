"""Write scalar graphs as Triton statements: one line per value, trivial expressions inlined.

`Values` writes the values of one kernel into scopes. `find_shortcuts` says which of them have a shorter form
than one operation after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, as_int
from coilwork_ir.kernels import Kernel
from coilwork_ir.loops import Check
from coilwork_ir.scalar import (
    Const,
    Contraction,
    IndexValue,
    Load,
    Op,
    Reduce,
    Scalar,
    Scan,
    Sort,
    iterate_postorder,
    placeholder,
)
from coilwork_ir.syntax.python import (
    Binary,
    Expression,
    List,
    Name,
    Number,
    Text,
    Unary,
    method,
    print_expression,
)
from coilwork_triton.facts.kernel_analysis import Levels, index_users
from coilwork_triton.facts.precision_analysis import (
    find_denormal_tolerant_exps,
    find_functions_of_normals,
    find_narrow_positions,
    find_one_plus,
    find_redundant_bounds,
    find_rounded_factors,
    find_rounded_values,
    find_short_casts,
    find_softmax_numerators,
)
from coilwork_triton.facts.vectorization import Access, Run, can_overread, find_load_runs, split_constant
from coilwork_triton.iteration.shape import Shape, Tile
from coilwork_triton.iteration.space import Space
from coilwork_triton.statements.loads import (
    ConcatLoad,
    emit_concat_load,
    emit_load_run,
    find_absorbed,
    find_concat_loads,
    find_irregular_buffers,
    find_load_guards,
    find_windows,
    load_straddled_value,
    make_column_address,
    make_element_pointer,
    make_row_address,
)
from coilwork_triton.statements.row_operations import emit_reduce, emit_scan, emit_sort, emit_sums
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.index_printer import is_within_32_bits
from coilwork_triton.text.language import (
    Writer,
    coerce_constant,
    conjunction,
    exact_constant,
    find_reciprocal,
    free_constant,
    get_triton_type,
    operand_constant,
    plain_constant,
    tl,
    tl_name,
)
from coilwork_triton.text.ops import NEEDS_NAMED, OPERATORS, SCALAR_BUILDERS, OpContext

# Values


# Operations that may stand inside another line when nothing else uses their result.
_INLINE: Final = frozenset({"cast", "eq", "ne", "lt", "le", "gt", "ge", "neg", "isnan", "bitwise_not"})
_INLINE_WIDTH: Final = 72


class Values:
    """Writes the values of one kernel into scopes."""

    def __init__(
        self,
        kernel: Kernel,
        shape: Shape,
        levels: Levels,
        space: Space,
        roots: Sequence[Scalar],
        library: set[str],
    ) -> None:
        self.kernel = kernel
        self.shape = shape
        self.levels = levels
        self.space = space
        self.order = tuple(iterate_postorder(roots))
        self._library = library
        self._uses = Counter(operand for node in self.order for operand in node.operands)
        self._uses.update(roots)
        self._short = find_shortcuts(kernel, shape, self.order, roots)
        self._guards = find_load_guards(kernel, levels, self.order)
        self._uses.update(check.condition for checks in self._guards.values() for check in checks)
        self._cast_only = frozenset(
            node.operands[0] for node in self.order if isinstance(node, Op) and node.op == "cast"
        )
        self.reduced_symbols = frozenset(r.symbol for r in kernel.ranges if r.kind == "reduction")
        self.sequential_symbols = frozenset(r.symbol for r in kernel.ranges if r.kind == "sequential")
        self._aligned = frozenset(a.name for a in kernel.args if a.aligned)
        self._above_reduction: set[Scalar] = set()
        for node in self.order:
            if isinstance(node, Reduce | Contraction) or not self._above_reduction.isdisjoint(node.operands):
                self._above_reduction.add(node)
        self._passes_of: dict[Load, list[int]] = {}
        taken = (
            {a.name for a in kernel.args}
            | {s.name for s in kernel.sizes}
            | {r.symbol.name for r in kernel.ranges}
        )
        self.top = Scope(writer=Writer(FreshNames(taken), library))

    def varies_along_reduction(self, node: Scalar) -> bool:
        """`node` varies along the reduction."""
        return bool(self.levels.varies[node] & self.reduced_symbols)

    def varies_along_walk(self, node: Scalar) -> bool:
        """`node` varies along the walk."""
        return bool(self.levels.varies[node] & self.sequential_symbols)

    def reduces_along_walk(self, node: Reduce) -> bool:
        """`node` reduces along the walk."""
        return not self.sequential_symbols.isdisjoint(node.axes)

    def find_pending(self, scope: Scope, roots: Iterable[Scalar]) -> list[Scalar]:
        """Return the values that must be computed before `roots` are known in `scope`, operands first."""
        order: list[Scalar] = []
        seen: set[Scalar] = set()
        stack = [(root, False) for root in reversed(list(roots))]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order.append(node)
            elif node not in seen and scope.find(node) is None:
                seen.add(node)
                stack.append((node, True))
                stack.extend((operand, False) for operand in reversed(node.operands))
                stack.extend((check.condition, False) for check in self._guards.get(node, ()))
        return order

    def note_passes(self, passes: Sequence[Sequence[Scalar]]) -> None:
        """Remember which loads recur in which of the loops over the reduction."""
        for position, roots in enumerate(passes):
            barrier = Scope(
                writer=self.top.writer, bound={n: Number(0) for n in self.order if isinstance(n, Reduce)}
            )
            for node in self.find_pending(barrier, roots):
                if isinstance(node, Load) and self.varies_along_reduction(node):
                    self._passes_of.setdefault(node, []).append(position)

    def compute(self, scope: Scope, nodes: Iterable[Scalar]) -> None:
        """Write `nodes`, which are in order, into `scope`."""
        wanted = tuple(nodes)
        for place, node in enumerate(wanted):
            if scope.find(node) is not None:
                continue
            sums = self._find_joint_sums(scope, node, wanted[place + 1 :])
            if not sums:
                self._compute(scope, node)
                continue
            self.compute(
                scope, self.find_pending(scope, [operand for each in sums for operand in each.operands])
            )
            emit_sums(self, scope, sums)

    def _find_joint_sums(self, scope: Scope, node: Scalar, later: Sequence[Scalar]) -> list[Reduce]:
        """`node`, if it is a sum of a row in registers, and such sums among `later` that need no other
        reduction's result.

        Threads then exchange them at once, and what all of them load is asked for before any thread waits.
        None if there are no others.
        """
        if self.shape.walk != "persistent" or not self._is_row_sum(node):
            return []
        found = [node]
        for other in later:
            if not self._is_row_sum(other) or scope.find(other) is not None:
                continue
            if all(other.operands != one.operands for one in found) and not any(
                isinstance(below, Reduce) for below in self.find_pending(scope, other.operands)
            ):
                found.append(other)
        return found if len(found) > 1 else []

    def _is_row_sum(self, node: Scalar) -> TypeGuard[Reduce]:
        return (
            isinstance(node, Reduce)
            and node.kind == "sum"
            and node.operands[0].dtype.is_float
            and not self.reduces_along_walk(node)
        )

    def expression(self, scope: Scope, node: Scalar) -> Expression:
        """Return the expression for a value that has been computed; constants get their exact type."""
        if isinstance(node, Const):
            return exact_constant(node.value, node.dtype)
        found = scope.find(node)
        if found is None:
            raise EmitError("order", f"{type(node).__name__} is used before it is computed")
        return found

    def block(self, *nodes: Scalar, symbols: Iterable[Expr] = ()) -> tuple[str, ...]:
        """Extents of the block in which `nodes` and an index over `symbols` meet; empty for a scalar."""
        letters = self.space.letters(frozenset(symbols).union(*(self.levels.varies[n] for n in nodes)))
        found = self.space.block(letters)
        if not found and self.shape.rank > 1 and not self._above_reduction.isdisjoint(nodes):
            # a reduction's result keeps all axes, though each has extent 1
            return ("1",) * self.shape.rank
        return found

    def offset(
        self, scope: Scope, expr: Expr, indirect: Sequence[Scalar], block: tuple[str, ...]
    ) -> Expression:
        """Return the flat offset `expr`, as a block of extents `block`."""
        narrow = self.shape.index_dtype is DType.I32
        values = []
        for value in indirect:
            found = self.expression(scope, value)
            values.append(
                method(found, "to", tl_name("int32")) if narrow and value.dtype.itemsize == 8 else found
            )
        text = self.space.index(expr, values)
        # a value that the index does not use gives the block no extent
        used = [value for k, value in enumerate(indirect) if placeholder(k) in expr.free_symbols]
        own = self.block(*used, symbols=self.space.simplify(expr).free_symbols)
        if own != block:
            extents = List(tuple(Number(1) if s == "1" else Name(s) for s in block))
            text = Binary("+", tl("full", extents, Number(0), get_triton_type(self.shape.index_dtype)), text)
        return text

    def _compute(self, scope: Scope, node: Scalar) -> None:
        match node:
            case Const():
                return
            case _ if node in self._short.absorbed:
                return
            case IndexValue():
                scope.bound[node] = self._index_value(scope, node)
            case Load() if node in self._short.runs:
                emit_load_run(self, scope, self._short.runs[node])
            case Load():
                self._load(scope, node)
            case Op() if node in self._short.idle_bounds:
                scope.bound[node] = self.expression(scope, self._short.idle_bounds[node])
            case Op() if node in self._short.concat_loads:
                emit_concat_load(self, scope, node, self._short.concat_loads[node])
            case Op():
                self._op(scope, node)
            case Reduce():
                emit_reduce(self, scope, node)
            case Scan():
                emit_scan(self, scope, node)
            case Sort():
                emit_sort(self, scope, node)
            case _:
                raise EmitError("node", f"no Triton for a scalar node of kind {type(node).__name__}")

    def _index_value(self, scope: Scope, node: IndexValue) -> Expression:
        values = [self.expression(scope, operand) for operand in node.operands]
        simple = self.space.simplify(node.expr)
        exact = as_int(simple)
        if exact is not None:
            return exact_constant(exact, DType.I64)
        if self.shape.index_dtype is DType.I64:
            return tl("cast", self.space.index(node.expr, values), tl_name("int64"))
        if is_within_32_bits(simple) or (self.shape.short_values and not node.operands):
            if node in self._short.narrow:
                return self.space.index(node.expr, values)
            return scope.writer.bind(
                "index", tl("cast", self.space.index(node.expr, values), tl_name("int64"))
            )
        return scope.writer.bind("index", self.space.index(node.expr, values, widen=True))

    def require(self, scope: Scope, check: Check) -> None:
        """Assert `check`, whose condition is known in `scope`, once: there, or in front of the loops around
        it whose steps it does not hang on.
        """
        if scope.has_asserted(check):
            return
        while scope.parent is not None and scope.parent.find(check.condition) is not None:
            scope = scope.parent
        scope.asserted.add(check)
        condition = self.expression(scope, check.condition)
        mask = self.space.mask(self.space.letters(self.levels.varies[check.condition]))
        if mask is not None:
            condition = Binary("|", condition, Unary("~", mask))
        scope.writer.do(tl("device_assert", condition, Text(check.text)))

    def _load(self, scope: Scope, node: Load) -> None:
        for check in self._guards.get(node, ()):
            self.require(scope, check)
        chosen = load_straddled_value(self.space, node)
        if chosen is not None:
            scope.bound[node] = scope.writer.bind(f"{node.buffer}_", chosen)
            return
        symbols = self.space.simplify(node.index[0]).free_symbols
        block = self.block(node, symbols=symbols)
        conditions: list[Expression] = []
        # a load that does not move along a tile needs none of the tile's mask
        letters = self.space.letters(self.levels.varies[node])
        row = None if node.indirect else self.space.row((node.buffer, node.index[0]))
        pointer = None if row is None else row.pointer
        if pointer is None:
            pointer = self.address(scope, node, block)
        tile = self._find_overread_tile(node)
        if row is not None:
            letters -= {row.letter}
            conditions.append(row.near_mask)
        elif tile is not None:
            letters -= {tile.letter}
            lanes = 16 // node.dtype.itemsize
            conditions.append(self.space.mask_of_vectors(tile, self.space.numel(tile), lanes))
        bounds = self.space.mask(letters)
        if bounds is not None:
            conditions.append(bounds)
        options: dict[str, Expression] = {}
        if node.mask is not None:
            conditions.append(self.expression(scope, node.mask))
            options["other"] = coerce_constant(node.other, node.dtype)
        elif self.shape.zeros and conditions:
            options["other"] = plain_constant(False if node.dtype.is_bool else 0, node.dtype)
        policy = self._eviction(scope, node)
        if policy:
            options["eviction_policy"] = Text(policy)
        mask = conjunction(tuple(conditions))
        loaded = tl("load", pointer, *(() if mask is None else (mask,)), **options)
        if self._uses[node] == 1 and node in self._cast_only:
            scope.bound[node] = loaded
        else:
            scope.bound[node] = scope.writer.bind(f"{node.buffer}_", loaded)

    def address(self, scope: Scope, node: Load, block: tuple[str, ...]) -> Expression:
        """Return the pointers that `node` loads from, as a block of extents `block`."""
        if node in self._short.windows:
            start, distance = split_constant(node.index[0])
            # a load of one element may have the mask of a block, and then has its shape
            key = (node.buffer, start, block)
            if key not in scope.starts:
                pointer = make_row_address(
                    self.shape, self.space, node, start, self._short.irregular
                ) or make_element_pointer(node, self.offset(scope, start, (), block))
                scope.starts[key] = scope.writer.bind(f"{node.buffer}_at", pointer)
            return scope.starts[key] if distance == 0 else Binary("+", scope.starts[key], Number(distance))
        found = make_row_address(
            self.shape, self.space, node, node.index[0], self._short.irregular
        ) or make_column_address(self.shape, self.space, node)
        return found or make_element_pointer(node, self.offset(scope, node.index[0], node.indirect, block))

    def _find_overread_tile(self, node: Load) -> Tile | None:
        """Return the tile along which `node` may read on to the end of 16 bytes, which lets it be that wide
        everywhere.
        """
        if (
            self.shape.scalar_access
            or self.shape.zeros
            or node.indirect
            or node.mask is not None
            or node.buffer not in self._aligned
        ):
            return None
        index = self.space.simplify(node.index[0])
        access = Access(index=index, itemsize=node.dtype.itemsize)
        for tile in self.shape.tiles:
            known = as_int(tile.numel)
            if len(self.shape.tiles) > 1 and tile.masked and tile.axis is not None and known is not None:
                if known >= self.shape.grids.least_row and can_overread(access, tile.index, tile.numel):
                    return tile
        return None

    def _eviction(self, scope: Scope, node: Load) -> str:
        passes = self._passes_of.get(node, [])
        if scope.parent is None or len(passes) < 2:
            return "evict_first" if node.buffer in self.shape.streamed else ""
        return "evict_first" if scope.number == passes[-1] else "evict_last"

    def _op(self, scope: Scope, node: Op) -> None:
        row = SCALAR_BUILDERS.get(node.op)
        if row is None:
            raise EmitError(
                "scalar-op", f"no Triton for the scalar op {node.op!r}", origins=self.kernel.origins
            )
        operand = node.operands[-1]
        context = OpContext(
            operand=operand.dtype,
            result=DType.I32 if node in self._short.short_casts else node.dtype,
            numerics=self.kernel.numerics,
            rounded=node in self._short.rounded,
            factor=node in self._short.factors,
            normal=node in self._short.normal,
            library=self._library,
            inside=lambda: self.space.mask(self.space.letters(self.levels.varies[node])),
        )
        function = self._short.sums.get(node)
        if function is not None:
            argument = self.expression(scope, function.operands[0])
            found = context.device(f"one_plus_{function.op}_rounded", argument)
        elif node in self._short.denormal_tolerant:
            found = context.device("exp_beside_one", *self._operands(scope, node))
        elif (factor := self._short.factor(node)) is not None:
            value = self.expression(scope, node.operands[0])
            found = Binary("*", value, plain_constant(factor, DType.F32))
        else:
            found = row(context, self._operands(scope, node))
        stem = f"{node.op}_" if node.op[-1].isdigit() else node.op
        if node.op == "cast" and isinstance(operand, Load):
            stem = f"{operand.buffer}_"
        elif node.op in _INLINE and self._uses[node] == 1 and len(print_expression(found)) <= _INLINE_WIDTH:
            scope.bound[node] = found
            return
        scope.bound[node] = scope.writer.bind(stem, found)

    def _constant_position(self, node: Scalar) -> int | None:
        """Return the number that `node` is, if it is a position of which any width will do."""
        if not isinstance(node, IndexValue) or node not in self._short.narrow:
            return None
        return as_int(self.space.simplify(node.expr))

    def _operands(self, scope: Scope, node: Op) -> tuple[Expression, ...]:
        bare = node.op in OPERATORS or (
            node.op == "div" and (self.kernel.numerics == "fast" or node.dtype is DType.F64)
        )
        exact = all(isinstance(o, Const) for o in node.operands)
        known = [self._constant_position(o) for o in node.operands]
        found: list[Expression] = []
        for operand, position in zip(node.operands, known, strict=True):
            if (
                position is not None
                and not exact
                and known.count(None) > sum(isinstance(o, Const) for o in node.operands)
            ):
                # beside a position of 32 bits a number of no type keeps the comparison to these
                found.append(Number(position))
            elif not isinstance(operand, Const):
                value = self.expression(scope, operand)
                if node.op in NEEDS_NAMED and not isinstance(value, Name):
                    value = scope.writer.bind("value", value)
                    scope.bound[operand] = value
                found.append(value)
            elif bare and not exact and not operand.dtype.is_bool:
                found.append(operand_constant(node.op, operand.value, operand.dtype))
            elif node.op in ("where", "minimum", "maximum") and not exact:
                found.append(free_constant(operand.value, operand.dtype))
            else:
                found.append(exact_constant(operand.value, operand.dtype))
        return tuple(found)


# Shortcuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcuts:
    """Attributes:

    narrow: positions for which 32 bits do.
    short_casts: casts to 64 bit integers for which 32 bits do.
    idle_bounds: minima and maxima that are their first operand.
    rounded: f32 values that only reach memory rounded to 16 bits or fewer.
    factors: those of them that are rounded, or multiplied with others, at once.
    denormal_tolerant: exponentials that only sums of at least 1 see.
    normal: functions of no denormal number, or only added to what is far greater.
    sums: values that are 1 plus a function, and that function.
    concat_loads: selections between loads that are one load.
    windows: loads from a common address.
    runs: loads that come together with others, in order.
    irregular: buffers of which loads start from the address of their row, also those at fixed distances.
    absorbed: values that are written as part of others alone.
    """

    narrow: frozenset[IndexValue]
    short_casts: frozenset[Scalar]
    idle_bounds: Mapping[Scalar, Scalar]
    rounded: frozenset[Scalar]
    factors: frozenset[Scalar]
    denormal_tolerant: frozenset[Scalar]
    normal: frozenset[Scalar]
    sums: Mapping[Scalar, Op]
    concat_loads: Mapping[Scalar, ConcatLoad]
    windows: frozenset[Load]
    runs: Mapping[Load, Run]
    irregular: frozenset[str]
    absorbed: frozenset[Scalar]

    def factor(self, node: Op) -> float | None:
        """Return the factor that replaces the division `node` by a constant, where that is as good; else
        None.
        """
        if node.op != "div" or node not in self.rounded:
            return None
        value, divisor = node.operands
        if isinstance(value, Const) or not isinstance(divisor, Const):
            return None
        return find_reciprocal(float(divisor.value))


def find_shortcuts(
    kernel: Kernel, shape: Shape, order: Sequence[Scalar], roots: Sequence[Scalar]
) -> Shortcuts:
    """Return the shortcuts of `kernel`, whose scalars are `order`, operands first, and which stores and
    checks `roots`.
    """
    users = index_users(order)
    rounded = find_rounded_values(order, roots, users) if kernel.numerics == "fast" else frozenset()
    if shape.walk == "persistent":
        # one exponential serves the sum and the quotient, as long as both are written alike
        rounded -= find_softmax_numerators(rounded)
    sums = find_one_plus(rounded, users)
    joined = {} if shape.scalar_access else find_concat_loads(kernel, order, users)
    return Shortcuts(
        narrow=find_narrow_positions(order, roots),
        short_casts=find_short_casts(order, roots, users),
        idle_bounds=find_redundant_bounds(order),
        rounded=rounded,
        factors=find_rounded_factors(rounded, users),
        denormal_tolerant=find_denormal_tolerant_exps(order, roots, users)
        if kernel.numerics == "fast"
        else frozenset(),
        normal=find_functions_of_normals(order, roots, users),
        sums=sums,
        concat_loads=joined,
        windows=find_windows(order),
        runs={} if shape.step == 1 else find_load_runs(order, kernel.ranges[-1].symbol),
        irregular=frozenset() if shape.step == 1 else find_irregular_buffers(order, kernel.ranges[-1].symbol),
        absorbed=find_absorbed(joined, order, users).union(sums.values()),
    )
