"""Find attention that is written out: products, a softmax and products again, as one node.

    raw     = contract(query, key)
    score   = any pointwise function of raw scores, positions and other tensors
    weight  = exp(score - max of score) / sum of exp(score - max of score)
    output  = contract(weight, value)

What counts is what the loops compute, not how that was spelled. Starting from the second product, bodies of
pointwise nodes are substituted, through views, as far as they depend on the first. The weight that this gives
is compared with the softmax above, whose reductions are substituted in the same way. Scores that become minus
infinity under a condition are a mask.

The node takes the place of the loops only if nothing else reads a matrix of scores, and a template claims it:
then no scores are in memory. Scores are not rounded to 16 bits in between, which is for `fast` numerics.

A row that masks hide entirely is NaN in the written form, and zero in an attention node. Where no comparison
of positions shows that every row has a key, the mask is reduced along the keys, which costs a read of it, and
rows without any get NaN as their scores.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import Final, TypeAlias

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, get_extent, get_extents, provably_le, provably_nonneg, symbol
from coilwork_ir.loc import merge_origins
from coilwork_ir.loops import Attention, Contraction, Graph, Node, Pointwise, Reduce, View
from coilwork_ir.loops.nodes import Weights
from coilwork_ir.loops.verify_attention import find_operand
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    cast,
    const,
    find_index_symbols,
    iterate_postorder,
    list_loads,
    load,
    op,
    parameter,
    rewrite,
    substitute_ranges,
    where,
)
from coilwork_scheduler.choose_implementations import make_context
from coilwork_scheduler.contractions.implementations import ImplementationContext
from coilwork_scheduler.contractions.registry import get_core_kind
from coilwork_scheduler.contractions.sum_of_products import load_element
from coilwork_scheduler.dependence import Dependence, analyse, index_readers, remove_dead
from coilwork_scheduler.settings import Settings

_WIDE: Final = DType.F32
_FACTORS: Final = frozenset({DType.BF16, DType.F16})
# On CPUs there are no units that multiply f32 slower than what libraries have.
_CPU_FACTORS: Final = frozenset({*_FACTORS, DType.F32})
# With fewer rows a block of them is mostly empty, and keys are not shared among programs.
_LEAST_ROWS: Final = 32
# Products that a score may be computed from: its own, and those that biases are made of.
_MOST_PRODUCTS: Final = 4
_Split: TypeAlias = tuple[tuple[Scalar, ...], Scalar]
"""Conditions under which a key counts, and the score of those that do."""


def find_written_attention(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Return `graph` with attention nodes in the place of products around a softmax. Each is recorded."""
    products = [node for node in graph.nodes if isinstance(node, Contraction)]
    if settings.options.numerics != "fast" or len(products) < 2:
        return graph
    context = make_context(graph, facts, settings)
    finder = _Finder(context=context, settings=settings, readers=index_readers(graph, facts))
    changed: dict[int, tuple[Node, ...]] = {}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Contraction):
            made = finder.find(node)
            if made is not None:
                changed[position] = made
    if not changed:
        return graph
    nodes = [one for at, node in enumerate(graph.nodes) for one in changed.get(at, (node,))]
    found = replace(graph, nodes=tuple(nodes))
    return remove_dead(found, analyse(found))


@dataclass(slots=True, kw_only=True)
class _Finder:
    """Looks for attention that ends in a product.

    `readers` are the nodes that read each buffer, by position.
    """

    context: ImplementationContext
    settings: Settings
    readers: dict[str, list[int]]
    _reached: dict[str, frozenset[str] | None] = field(init=False, default_factory=dict)

    def find(self, second: Contraction) -> tuple[Node, ...] | None:
        """Return the nodes that compute `second`, if it ends an attention that a template computes."""
        if not _is_plain(second) or len(second.ranges) < 2:
            return None
        for weight, value in ((second.left, second.right), (second.right, second.left)):
            columns = second.ranges[-1]
            if columns in find_index_symbols((weight,)) or columns not in find_index_symbols((value,)):
                continue
            for name in sorted(self._reach(weight) or ()):
                made = self._find_between(name, second, weight, value)
                if made is not None:
                    return made
        return None

    # what depends on products

    def _reach(self, body: Scalar) -> frozenset[str] | None:
        """Return names of products that `body` is computed from by pointwise nodes.

        None if there are many, as behind a residual stream.
        """
        return self._join_reached(frozenset(), [self._reach_name(one.buffer) for one in list_loads((body,))])

    def _join_reached(
        self, own: frozenset[str], parts: Sequence[frozenset[str] | None]
    ) -> frozenset[str] | None:
        for part in parts:
            if part is None:
                return None
            own |= part
            if len(own) > _MOST_PRODUCTS:
                return None
        return own

    def _reach_name(self, name: str) -> frozenset[str] | None:
        pending = [name]
        while pending:
            at = pending[-1]
            if at in self._reached:
                pending.pop()
                continue
            sources = self._sources(at)
            unknown = [one for one in sources if one not in self._reached]
            if unknown:
                pending += unknown
                continue
            own = frozenset((at,)) if isinstance(self._maker(at), Contraction) else frozenset[str]()
            self._reached[at] = self._join_reached(own, [self._reached[one] for one in sources])
            pending.pop()
        return self._reached[name]

    def _maker(self, name: str) -> Node | None:
        position = self.context.facts.definer.get(name)
        return None if position is None else self.context.graph.nodes[position]

    def _sources(self, name: str) -> tuple[str, ...]:
        match self._maker(name):
            case View() as view:
                return (view.source,)
            case Pointwise() as made if made.into is None and not made.checks:
                return tuple(dict.fromkeys(access.buffer for access in list_loads((made.body,))))
        return ()

    def _is_overwritten(self, name: str) -> bool:
        facts = self.context.facts
        return bool(facts.overwriters.get(facts.root[name]))

    # substitution

    def _inline(self, body: Scalar, first: str) -> Scalar:
        """Return `body` with what it is computed from down to the product `first`, and with functions of
        positions.

        Loads through views become loads of what these show.
        """
        facts, views = self.context.facts, self.context.views

        def visit(value: Scalar) -> Scalar:
            if not isinstance(value, Load) or value.indirect or value.mask is not None:
                return value
            if value.buffer in views:
                value = load_element(facts.buffers[value.buffer], value.index, facts.buffers, views)
            if value.buffer == first:
                return value
            made = self._maker(value.buffer)
            if not isinstance(made, Pointwise) or made.into is not None or made.checks:
                return value
            if first not in (self._reach_name(value.buffer) or ()) and not self._is_of_positions(made):
                return value
            (moved,) = substitute_ranges((made.body,), dict(zip(made.ranges, value.index, strict=True)))
            return self._inline(moved, first)

        (found,) = rewrite((body,), visit)
        return _drop_roundings(found)

    def _is_of_positions(self, made: Pointwise) -> bool:
        """Tell if `made` is computed from positions and constants alone."""
        pending, known = [made], {made.output.name}
        while pending:
            for access in list_loads((pending.pop().body,)):
                source = self._maker(access.buffer)
                while isinstance(source, View):
                    source = self._maker(source.source)
                if not isinstance(source, Pointwise) or source.into is not None or source.checks:
                    return False
                if source.output.name not in known:
                    known.add(source.output.name)
                    pending.append(source)
        return True

    # recognition

    def _find_between(
        self, name: str, second: Contraction, weight: Scalar, value: Scalar
    ) -> tuple[Node, ...] | None:
        """Return the attention between the product that defines `name` and `second`, if it is one."""
        first = self._maker(name)
        if not isinstance(first, Contraction) or not _is_plain(first) or not self._is_private(name, second):
            return None
        (keys,) = second.axes
        body, emptiness = _read_emptiness(_convert_to_f32(self._inline(weight, name)))
        softmax = _read_softmax(body)
        if softmax is None or not self._is_softmax(softmax, keys, name):
            return None
        if emptiness is not None and not self._is_emptiness(emptiness, softmax, keys, name):
            return None
        raws = {one for one in list_loads((softmax.score,)) if one.buffer == name}
        if len(raws) != 1:
            return None
        (raw,) = raws
        made = self._build(first, second, raw, softmax.score, value, is_safe=emptiness is not None)
        if made is None:
            return None
        node = made[-1]
        assert isinstance(node, Attention)
        known = self.context.facts.root
        if any(self._is_overwritten(one.buffer) for one in list_loads(node.bodies) if one.buffer in known):
            return None
        device = node.output.device
        targets, templates = self.settings.targets, self.settings.registry.templates
        capabilities, target = targets.capabilities_of(device), targets.of(device)
        if get_core_kind(node) not in capabilities.cores:
            return None
        if all(make(self.context).claims(node, target) is not None for make in templates):
            return None
        reason = "products around a softmax need no scores in memory"
        self.settings.remarks.note("written-attention", (node.output.name,), True, reason)
        return made

    def _is_private(self, name: str, second: Contraction) -> bool:
        """Tell if only `second` needs what is computed from `name`, and no node writes over it."""
        graph, done = self.context.graph, {name}
        pending = [name]
        while pending:
            one = pending.pop()
            if self._is_overwritten(one):
                return False
            for position in self.readers.get(one, ()):
                if position >= len(graph.nodes):
                    return False
                reader = graph.nodes[position]
                if reader is second:
                    continue
                match reader:
                    case Pointwise() | View():
                        made = [reader.output.name]
                    case Reduce():
                        made = [output.name for output in reader.outputs if output is not None]
                    case _:
                        return False
                pending += [new for new in made if new not in done]
                done |= {*made}
        return True

    def _is_softmax(self, softmax: _Softmax, keys: Expr, name: str) -> bool:
        """Tell if the statistics of `softmax` are those of its own scores along `keys`."""
        most, total = (
            self._read_reduced(access, kind, keys, name)
            for access, kind in ((softmax.most, "max"), (softmax.total, "sum"))
        )
        return (
            most is not None
            and total is not None
            and _convert_to_f32(most) is softmax.score
            and _convert_to_f32(total) is softmax.power
        )

    def _is_emptiness(self, access: Load, softmax: _Softmax, keys: Expr, name: str) -> bool:
        """Tell if `access` says whether all scores of a row are minus infinity."""
        match self._read_reduced(access, "all", keys, name):
            case Op(op="eq", operands=(score, Const(value=value))):
                return _convert_to_f32(score) is softmax.score and value == -inf
        return False

    def _read_reduced(self, access: Load, kind: str, keys: Expr, name: str) -> Scalar | None:
        """Return what is reduced by `kind` along `keys` to the element that `access` loads."""
        access = self._see_through(access)
        node = self._maker(access.buffer)
        if not isinstance(node, Reduce) or node.kind != kind or len(node.axes) != 1 or node.checks:
            return None
        if get_extent(node.axes[0]) is not get_extent(keys) or keys in find_index_symbols((access,)):
            return None
        mapping = {**dict(zip(node.ranges, access.index, strict=True)), node.axes[0]: keys}
        (body,) = substitute_ranges((node.body,), mapping)
        return self._inline(body, name)

    def _see_through(self, access: Load) -> Load:
        facts, views = self.context.facts, self.context.views
        if access.buffer not in views:
            return access
        return load_element(facts.buffers[access.buffer], access.index, facts.buffers, views)

    # the node

    def _narrow(self, factor: Scalar) -> tuple[Scalar, float] | None:
        """Return the load of 16 bits that `factor`, in f32, is made of by constant factors, and their
        product; None if it is made otherwise.
        """
        scale = 1.0
        while factor.dtype not in _FACTORS:
            match factor:
                case Op(op="cast", operands=(source,)) if factor.dtype is _WIDE:
                    factor = source
                case Op(op="mul", operands=(source, Const(value=value))):
                    factor, scale = source, scale * float(value)
                case Op(op="mul", operands=(Const(value=value), source)):
                    factor, scale = source, scale * float(value)
                case Load(indirect=(), mask=None):
                    access = self._see_through(factor)
                    made = self._maker(access.buffer)
                    if not isinstance(made, Pointwise) or made.into is not None or made.checks:
                        return None
                    if self._is_overwritten(access.buffer):
                        return None
                    mapping = dict(zip(made.ranges, access.index, strict=True))
                    (factor,) = substitute_ranges((made.body,), mapping)
                case _:
                    return None
        return (factor, scale) if isinstance(factor, Load) else None

    def _is_rounded(self, name: str) -> bool:
        """Tell if all that reads `name` rounds it to 16 bits first."""
        graph = self.context.graph
        for position in self.readers.get(name, ()):
            reader = graph.nodes[position] if position < len(graph.nodes) else None
            if isinstance(reader, View):
                if not self._is_rounded(reader.output.name):
                    return False
            elif not isinstance(reader, Pointwise) or not _rounds(reader.body, name):
                return False
        return True

    def _build(
        self,
        first: Contraction,
        second: Contraction,
        raw: Load,
        score: Scalar,
        value: Scalar,
        *,
        is_safe: bool,
    ) -> tuple[Node, ...] | None:
        """Return the attention node, behind what tells which rows have no keys. `is_safe`: these are zero."""
        *_, row, _ = second.ranges if len(second.ranges) > 2 else (None, *second.ranges)
        (keys,), (along,) = second.axes, first.axes
        assert row is not None
        length = symbol("r1" if keys.name != "r1" else "r2", extent=get_extent(along))
        mapping = {**dict(zip(first.ranges, raw.index, strict=True)), along: length}
        left, right, epilogue = substitute_ranges((first.left, first.right, first.epilogue), mapping)
        query, key = (left, right) if keys in find_index_symbols((right,)) else (right, left)
        if not (
            row in find_index_symbols((query,))
            and keys not in find_index_symbols((query,))
            and keys in find_index_symbols((key,))
            and row not in find_index_symbols((key,))
            and row not in find_index_symbols((value,))
            and self.context.sizes.value(get_extent(row)) >= _LEAST_ROWS
        ):
            return None
        target = self.settings.targets.of(second.output.device)
        if target.is_gpu and query.dtype is _WIDE and self._is_rounded(second.output.name):
            # widened only for a product that is rounded again: units for 16 bits multiply as exactly
            narrow = [self._narrow(body) for body in (query, key, value)]
            known = [one for one in narrow if one is not None]
            if len(known) < len(narrow) or known[2][1] != 1.0:
                return None
            (query, first_scale), (key, second_scale), (value, _) = known
            product = parameter(0, first.accumulate)
            scaled = op("mul", product, const(first_scale * second_scale, first.accumulate))
            (epilogue,) = rewrite((epilogue,), lambda one: scaled if one is product else one)
        factors = [find_operand(body) for body in (query, key, value)]
        types = {None if one is None else one.dtype for one in factors}
        if len(types) != 1 or not types <= (_FACTORS if target.is_gpu else _CPU_FACTORS):
            return None
        # of what the first product's epilogue makes, less its rounding
        made = _convert_to_f32(epilogue)
        (score,) = rewrite((score,), lambda one: made if one is cast(raw, _WIDE) else one)
        if any(one.buffer == raw.buffer for one in list_loads((score,))):
            return None
        conditions, score = _split_score(_simplify(score))
        mask = _join(conditions)
        before: tuple[Node, ...] = ()
        if mask is not None and not is_safe and not _has_key_in_each_row(mask, row, keys):
            nowhere, found = self._find_hidden_rows(second, mask, keys)
            before = (nowhere,)
            score = where(found, const(nan, _WIDE), score)
            mask = op("bitwise_or", mask, found)
        wide = parameter(0, second.accumulate)
        plain = second.epilogue is cast(wide, second.output.dtype)
        node = Attention(
            weights=Weights(
                ranges=second.ranges,
                axes=(keys, length),
                query=query,
                key=key,
                value=value,
                accumulate=_WIDE,
                score=score,
                mask=mask,
            ),
            output=second.output,
            epilogue=None if plain else second.epilogue,
            origins=merge_origins(first.origins, second.origins),
        )
        return (*before, node)

    def _find_hidden_rows(self, second: Contraction, mask: Scalar, keys: Expr) -> tuple[Reduce, Scalar]:
        """Return a reduction that tells which rows `mask` hides entirely, and its element at a row."""
        known = find_index_symbols((mask,))
        ranges = tuple(r for r in second.ranges[:-1] if r in known)
        shape = get_extents(ranges)
        output = Buffer(
            name=self.context.name(f"{second.output.name}_has_keys"),
            dtype=DType.BOOL,
            shape=shape,
            strides=make_contiguous_strides(shape),
            device=second.output.device,
        )
        node = Reduce(
            outputs=(output,), kind="any", ranges=ranges, axes=(keys,), body=mask, origins=second.origins
        )
        return node, op("bitwise_not", load(output.name, ranges, output.dtype))


def _is_plain(node: Contraction) -> bool:
    return node.groups is None and node.accumulate is _WIDE and len(node.axes) == 1


# ---- Softmax ----


@dataclass(frozen=True, slots=True, kw_only=True)
class _Softmax:
    """`power / total`, where power is `exp(score - most)`: all in f32, with loads of both statistics."""

    score: Scalar
    power: Scalar
    most: Load
    total: Load


def _read_emptiness(weight: Scalar) -> tuple[Scalar, Load | None]:
    """Return what `weight` is where a row has keys, and the load that tells that it has none: such rows weigh
    nothing, as those of `scaled_dot_product_attention`.
    """
    match weight:
        case Op(op="where", operands=(Load(dtype=DType.BOOL) as empty, Const(value=0), rest)):
            return rest, empty
    return weight, None


def _rounds(body: Scalar, name: str) -> bool:
    """Tell if `body` uses what it loads from `name` in 16 bits alone."""
    return not any(
        isinstance(operand, Load) and operand.buffer == name
        for value in iterate_postorder((body,))
        if not (isinstance(value, Op) and value.op == "cast" and value.dtype in _FACTORS)
        for operand in (*value.operands, *((body,) if value is body else ()))
    )


def _read_softmax(weight: Scalar) -> _Softmax | None:
    """Return the softmax that `weight` is, by its form."""
    match _convert_to_f32(weight):
        case Op(op="div", operands=(power, Load() as total)):
            pass
        case Op(op="mul", operands=(power, Op(op="reciprocal", operands=(Load() as total,)))):
            pass
        case _:
            return None
    match power:
        case Op(op="exp", operands=(Op(op="sub", operands=(score, Load() as most)),)):
            return _Softmax(score=score, power=power, most=most, total=total)
    return None


# ---- Scores ----


def _drop_roundings(body: Scalar) -> Scalar:
    """Return `body` without roundings of f32 to 16 bits and back."""

    def visit(value: Scalar) -> Scalar:
        if isinstance(value, Op) and value.op == "cast" and value.dtype is _WIDE:
            return _convert_to_f32(value.operands[0])
        return value

    (found,) = rewrite((body,), visit)
    return found


def _convert_to_f32(value: Scalar) -> Scalar:
    """Return `value` in f32, as it was before rounding to 16 bits; `value` itself, if it is no float."""
    if not value.dtype.is_float:
        return cast(value, _WIDE)
    if value.dtype is _WIDE:
        return value
    match value:
        case Op(op="cast", operands=(source,)) if source.dtype is _WIDE:
            return source
        case Op(op="where", operands=(condition, first, second)):
            return where(condition, _convert_to_f32(first), _convert_to_f32(second))
        case Const():
            return const(float(value.value), _WIDE)
    return cast(value, _WIDE)


def _split_score(score: Scalar) -> _Split:
    """Return the conditions under which `score` is not minus infinity by itself, and the rest."""
    conditions: list[Scalar] = []
    while True:
        match score:
            case Op(op="where", operands=(hidden, Const() as fill, rest)) if float(fill.value) == -inf:
                conditions.append(_negate(hidden))
                score = rest
            case Op(op="where", operands=(shown, rest, Const() as fill)) if float(fill.value) == -inf:
                conditions.append(shown)
                score = rest
            case Op(op="add", operands=(first, second)):
                added = [(_read_added_mask(one), other) for one, other in ((second, first), (first, second))]
                found = next(((mask, other) for mask, other in added if mask is not None), None)
                if found is None:
                    return tuple(conditions), score
                conditions.append(found[0])
                score = found[1]
            case _:
                return tuple(conditions), score


def _read_added_mask(value: Scalar) -> Scalar | None:
    """Return the condition for `value`, which is 0 or minus infinity, to be 0."""
    match value:
        case Op(op="where", operands=(condition, Const() as first, Const() as second)):
            both = (float(first.value), float(second.value))
            if both == (0.0, -inf):
                return condition
            if both == (-inf, 0.0):
                return _negate(condition)
    return None


def _join(conditions: Collection[Scalar]) -> Scalar | None:
    found: Scalar | None = None
    for one in conditions:
        if not (isinstance(one, Const) and one.value):
            found = one if found is None else op("bitwise_and", found, one)
    return found


_NEGATED: Final = (("le", "gt"), ("lt", "ge"), ("gt", "le"), ("ge", "lt"), ("eq", "ne"), ("ne", "eq"))


def _negate(condition: Scalar) -> Scalar:
    """Return `condition`, of integers, the other way round."""
    match condition:
        case Const():
            return const(not condition.value, DType.BOOL)
        case Op(op="bitwise_not", operands=(inner,)):
            return inner
        case Op() if condition.operands and condition.operands[0].dtype.is_integer:
            for name, other in _NEGATED:
                if condition.op == name:
                    return op(other, *condition.operands)
    return op("bitwise_not", condition)


def _simplify(body: Scalar) -> Scalar:
    """Return `body` with truth values that are selected or joined with constants in a shorter form."""

    def visit(value: Scalar) -> Scalar:
        match value:
            case Op(op="where", operands=(condition, first, Const() as second)) if value.dtype.is_bool:
                return _combine_masks(condition, first) if not second.value else value
            case Op(op="where", operands=(condition, Const() as first, second)) if value.dtype.is_bool:
                return _combine_masks(_negate(condition), second) if not first.value else value
            case Op(op="bitwise_not", operands=(inner,)):
                return _negate(inner)
            case Op(op="bitwise_and", operands=(first, second)):
                return _combine_masks(first, second)
            case Op(op="ne", operands=(Op(op="cast", operands=(inner,)), Const() as zero)):
                return inner if inner.dtype.is_bool and not zero.value else value
            case Op(op="eq", operands=(Op(op="cast", operands=(inner,)), Const() as zero)):
                return _negate(inner) if inner.dtype.is_bool and not zero.value else value
            case Op(op="cast", operands=(inner,)) if value.dtype is inner.dtype:
                return inner
        return value

    (found,) = rewrite((body,), visit)
    return found


def _combine_masks(first: Scalar, second: Scalar) -> Scalar:
    for one, other in ((first, second), (second, first)):
        if isinstance(one, Const):
            return other if one.value else one
    return op("bitwise_and", first, second)


# ---- Rows that have a key ----


def _has_key_in_each_row(mask: Scalar, row: Expr, keys: Expr) -> bool:
    """Tell if the first key counts for each row, or that of the row's own number, or the last one."""
    last = get_extent(keys) - 1
    places = [as_expr(0), last]
    if provably_le(get_extent(row), get_extent(keys)):
        places += [row, row + (get_extent(keys) - get_extent(row))]
    return any(_is_held(substitute_ranges((mask,), {keys: place})[0]) for place in places)


def _is_held(condition: Scalar) -> bool:
    match condition:
        case Const():
            return bool(condition.value)
        case Op(op="bitwise_and"):
            return all(_is_held(one) for one in condition.operands)
        case Op(op="bitwise_or"):
            return any(_is_held(one) for one in condition.operands)
        case Op(op="le" | "lt" | "ge" | "gt", operands=(first, second)):
            left, right = _read_position(first), _read_position(second)
            if left is None or right is None:
                return False
            distance = right - left if condition.op in ("le", "lt") else left - right
            return provably_nonneg(distance - (1 if condition.op in ("lt", "gt") else 0))
    return False


def _read_position(value: Scalar) -> Expr | None:
    match value:
        case IndexValue() if not value.operands:
            return value.expr
        case Const() if value.dtype.is_integer:
            return as_expr(int(value.value))
        case Op(op="cast", operands=(source,)) if value.dtype.is_integer and value.dtype.itemsize >= 4:
            return _read_position(source)
        case Op(op="add" | "sub", operands=(first, second)):
            left, right = _read_position(first), _read_position(second)
            if left is None or right is None:
                return None
            return left + right if value.op == "add" else left - right
    return None
