"""`flex_attention` and its backward as attention nodes: the user's functions become their score and mask.

The functions are traced over all scores, as torch defines them, and lowered like any graph. Where each score
comes from one raw score and from elements that its position says, the function is a body over rows and keys:
captured tensors are loads, at indices of positions or of other loads. A function that is none, or that has a
captured tensor with a gradient, is expanded to products (`wrapper_expansion.py`).

A block mask gives its lists of blocks to the node, as a promise about the mask. The mask remains the
definition. Torch writes the logarithm of a row's sum to the base 2.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.device_traits import HOST_MEMORY, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    floordiv,
    get_extent,
    provably_le,
    provably_lt,
    provably_nonneg,
    substitute,
    symbol,
)
from coilwork_ir.loops import Attention, AttentionGradient, Extern, Node, Pointwise
from coilwork_ir.loops.nodes import BlockList, BlockLists, BlockSide, Weights
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    cast,
    const,
    index_value,
    list_loads,
    load,
    op,
    parameter,
    placeholder,
    rewrite,
    substitute_ranges,
)
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue, Value, format_device, get_dtype, make_whole_value
from coilwork_lowering.errors import make_refusal
from coilwork_lowering.facts.fx_nodes import get_operator_name, get_packet_name
from coilwork_lowering.higher_order.associative_scan import Trace, Traced
from coilwork_lowering.rules import NotLowered
from coilwork_lowering.torch_compat.flex_attention import (
    CAPTURED,
    FULL_KEY_LISTS,
    FULL_ROW_LISTS,
    KEY_BLOCK,
    KEY_LISTS,
    MASK,
    ROW_BLOCK,
    ROW_LISTS,
    UnbatchedOperatorError,
    is_sum_of_terms,
    trace_over_scores,
)
from coilwork_lowering.torch_compat.graphs import find_mode_among

_FORWARD: Final = "flex_attention"
_BACKWARD: Final = "flex_attention_backward"
_WIDE: Final = DType.F32
# Blocks that are no shorter than this stand for a mask that has no blocks.
_NO_BLOCKS: Final = 1 << 30


def is_flex_attention(node: torch.fx.Node) -> bool:
    """Tell if `node` is attention with the user's functions, or its gradient."""
    return node.op == "call_function" and get_operator_name(node) in (_FORWARD, _BACKWARD)


def is_expressible(node: torch.fx.Node, module: torch.fx.GraphModule, traced: Trace) -> bool:
    """Tell if a node of the loop IR says what `node`, of `module`, computes."""
    try:
        _read_call(node, module, traced)
    except NotLowered:
        return False
    return True


# ---- Calls ----


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of scores: a body over rows and keys, whose loads from `given` are named after the graph's
    inputs.
    """

    body: Scalar
    given: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The parts of a call: its arguments by name as FX arguments, and its functions.

    `score` and `mask` are those of the user, `slope` is the derivative of `score`, if that is asked for, and
    `captured` that of a tensor that `score` reads.
    """

    arguments: Mapping[str, Any]
    point: tuple[Expr, ...]
    score: _Function
    mask: _Function
    slope: _Function | None
    captured: _Captured | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    """The gradient of a captured tensor, the one at `position` among those of scores.

    Each score adds `term` to the element at `index`, which are ranges of rows: those along which the others
    are summed.
    """

    position: int
    term: _Function
    index: tuple[Expr, ...]


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    _FORWARD: (
        "query", "key", "value", "score_mod", "block_mask", "scale", "options", "score_buffers",
        "mask_buffers",
    ),
    _BACKWARD: (
        "query", "key", "value", "out", "logsumexp", "grad_out", "grad_logsumexp", "score_mod", "joint",
        "block_mask", "scale", "options", "score_buffers", "mask_buffers",
    ),
}  # fmt: skip


def _read_call(node: torch.fx.Node, module: torch.fx.GraphModule, traced: Trace) -> _Call:
    names = _NAMES[str(get_operator_name(node))]
    if node.kwargs or len(node.args) != len(names):
        raise NotLowered("arguments of another form")
    arguments: dict[str, Any] = dict(zip(names, node.args, strict=True))
    if not isinstance(arguments["scale"], int | float):
        raise NotLowered("a scale that is not known")
    query, key, value = (_fake(arguments[name]) for name in ("query", "key", "value"))
    _require_operands(query, key, value)
    if "joint" not in arguments:
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        if not used <= {0, 1}:
            raise NotLowered("the greatest scores are asked for")
    else:
        _require_gradient(node, arguments)
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    mode = find_mode_among((query,))
    point: list[Expr] = []

    def trace(
        function: Any, given: Any, numbers: int, results: Sequence[int] = (0,)
    ) -> tuple[torch.fx.GraphModule, list[Any]]:
        submodule = module.get_submodule(str(function.target))
        if not isinstance(submodule, torch.fx.GraphModule):
            raise NotLowered("a function that is no graph")
        values = [_fake(one) if isinstance(one, torch.fx.Node) else one for one in given]
        try:
            graph = trace_over_scores(
                submodule,
                shape,
                values,
                numbers=numbers,
                device=query.device,
                mode=mode,
                results=results,
            )
        except UnbatchedOperatorError as cause:
            raise NotLowered(str(cause)) from cause
        return graph, values

    def read(function: Any, given: Any, numbers: int) -> _Function:
        graph, values = trace(function, given, numbers)
        return _extract(traced(graph), numbers, values, point)[0]

    score = read(arguments["score_mod"], arguments["score_buffers"], 1)
    mask = read(arguments["block_mask"][MASK], arguments["mask_buffers"], 0)
    slope, captured = None, None
    if "joint" in arguments:
        wanted = _list_captured(node)
        results = (0, *(CAPTURED + position for position in wanted))
        graph, values = trace(arguments["joint"], arguments["score_buffers"], 2, results)
        if wanted:
            _expose_terms(graph)
        slope, *terms = _extract(traced(graph), 2, values, point)
        if wanted:
            captured = _read_captured(wanted[0], terms, point, values[wanted[0]])
    for function in (score, *(() if slope is None else (slope,))):
        if not function.body.dtype.is_float or function.body.dtype.itemsize > _WIDE.itemsize:
            raise NotLowered("a score that is no float")
    if not mask.body.dtype.is_bool:
        raise NotLowered("a mask that is no truth value")
    return _Call(
        arguments=arguments, point=tuple(point), score=score, mask=mask, slope=slope, captured=captured
    )


def _fake(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def _require_operands(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if not (query.dim() == key.dim() == value.dim() == 4) or len({query.dtype, key.dtype, value.dtype}) != 1:
        raise NotLowered("operands of several types")
    if query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise NotLowered(f"scores that are not computed in f32, but of {query.dtype}")
    sizes: tuple[Any, Any] = (query.shape[1], key.shape[1])
    heads, fewer = sizes
    if not all(isinstance(size, int) for size in sizes):
        raise NotLowered("a number of heads that is not known")
    if fewer == 0 or heads % fewer:
        raise NotLowered("heads that do not share keys evenly")
    # Of open sizes torch adds these as guards.
    if not (
        query.shape[3] == key.shape[3]
        and key.shape[2] == value.shape[2]
        and key.shape[:2] == value.shape[:2]
        and key.shape[0] in (1, query.shape[0])
    ):
        raise NotLowered("operands whose sizes do not fit each other")


def _require_gradient(node: torch.fx.Node, arguments: Mapping[str, Any]) -> None:
    if arguments["grad_out"] is None or not isinstance(arguments["joint"], torch.fx.Node):
        raise NotLowered("no gradient of the result")
    if len(_list_captured(node)) > 1:
        raise NotLowered("several captured tensors with a gradient")


def _list_captured(node: torch.fx.Node) -> list[int]:
    """Return the positions of the captured tensors whose gradients are used."""
    items = [user for user in node.users if user.target is operator.getitem and user.args[1] == 3]
    found = {one.args[1] for item in items for one in item.users if one.target is operator.getitem}
    if any(one.target is not operator.getitem for item in items for one in item.users):
        raise NotLowered("all gradients of captured tensors at once")
    return sorted(number for number in found if isinstance(number, int))


# ---- Functions ----


def _expose_terms(graph: torch.fx.GraphModule) -> None:
    """Make `graph` return terms, and the indices at which they are added, in place.

    Its second result adds up what scores say of a captured tensor.
    """
    output = graph.graph.output_node()
    results: Any = output.args[0]
    first, second = results
    while isinstance(second, torch.fx.Node) and get_packet_name(second.target) == "expand":
        second = second.args[0]
    if not isinstance(second, torch.fx.Node) or not is_sum_of_terms(second):
        raise NotLowered("a captured tensor that is not read by an index")
    arguments: tuple[Any, ...] = second.args
    _, indices, term = arguments
    output.args = ((first, term, *indices),)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _read_captured(
    position: int, terms: Sequence[_Function], point: Sequence[Expr], given: torch.Tensor
) -> _Captured:
    """Return the gradient that `terms`, a term and its indices, are of."""
    term, *indices = terms
    index = tuple(_read_position(one.body) for one in indices)
    rows = point[:3]
    found: list[Expr] = []
    for one, size in zip(index, given.shape, strict=True):
        if one is None or one not in rows or one in found or as_int(get_extent(one)) != size:
            raise NotLowered("a captured tensor with a gradient that is no sum of rows")
        found.append(one)
    return _Captured(position=position, term=term, index=tuple(found))


def _extract(traced: Traced, numbers: int, given: Sequence[Any], point: list[Expr]) -> list[_Function]:
    """Return the functions of one score that the results of `traced` are; `point` becomes their ranges."""
    result, *_ = traced.results
    if len(result.shape) != 4 or any(len(one.shape) > 4 for one in traced.results):
        raise NotLowered("a result that is not one per score")
    if not point:
        point += [symbol(f"i{k}", extent=size) for k, size in enumerate(result.shape[:3])]
        point.append(symbol("r0", extent=result.shape[3]))
    coordinates = _locate(result, point)
    inputs = [item for item in traced.inputs if isinstance(item, Buffer)]
    scores = {item.name: number for number, item in enumerate(inputs[:numbers])}
    places = {item.name for item in inputs[numbers : numbers + 4]}
    tensors = [place for place, one in enumerate(given) if isinstance(one, torch.Tensor)]
    others = {item.name: place for item, place in zip(inputs[numbers + 4 :], tensors, strict=False)}
    if len(inputs) != numbers + 4 + len(tensors):
        raise NotLowered("a function with tensors of its own")
    producers: dict[str, Pointwise] = {}
    for node in traced.nodes:
        number = _read_number(node, producers)
        if number is not None:
            producers[number.output.name] = number
            continue
        if not isinstance(node, Pointwise) or node.into is not None:
            # who needs its result loads from a buffer that nobody knows
            continue
        if has_trait(node.output.device, HOST_MEMORY) and not all(
            _is_certain(_inline(check.condition, producers), places) for check in node.checks
        ):
            # only loops report an index that is out of range
            raise NotLowered("an index that is checked")
        producers[node.output.name] = Pointwise(
            output=node.output, ranges=node.ranges, body=_inline(node.body, producers)
        )
    known = {*scores, *places, *others}

    def read_score(one: Scalar) -> Scalar:
        if not isinstance(one, Load) or one.buffer not in scores:
            return one
        if one.index != coordinates or one.indirect or one.mask is not None:
            raise NotLowered("a function of several scores")
        return parameter(scores[one.buffer], _WIDE)

    found: list[_Function] = []
    for made in traced.results:
        access = load(made.buffer.name, made.get_coordinates(_locate(made, point)), made.dtype)
        body = _inline(access, producers)
        if any(one.buffer not in known for one in list_loads((body,))):
            raise NotLowered("a function that does more than compute each score")
        (body,) = rewrite((_read_places(body, places),), read_score)
        found.append(_Function(_fold(body), others))
    return found


def _locate(result: TensorValue, point: Sequence[Expr]) -> tuple[Expr, ...]:
    """Coordinates of `result`, whose last dimensions are those of scores, at `point`."""
    behind = point[len(point) - len(result.shape) :]
    return tuple(as_expr(0) if as_int(size) == 1 else at for size, at in zip(result.shape, behind))


def _read_number(node: Node, producers: Mapping[str, Pointwise]) -> Pointwise | None:
    """Return a number that torch converts as if it was a tensor, where it traces with 16-bit scores, and
    moves.
    """
    if not isinstance(node, Extern) or node.target != "aten._to_copy.default" or len(node.args) != 1:
        return None
    (source,), (made,) = node.args, node.outputs
    if not isinstance(made, Buffer) or made.shape:
        return None
    match source:
        case bool() | int() | float():
            value = float(source) if made.dtype.is_float else source
            return Pointwise(output=made, ranges=(), body=const(value, made.dtype))
        case Ref(name) if name in producers:
            return Pointwise(output=made, ranges=(), body=cast(producers[name].body, made.dtype))
    return None


def _inline(body: Scalar, producers: Mapping[str, Pointwise]) -> Scalar:
    """`body` with what `producers` compute in the place of loads."""

    def visit(one: Scalar) -> Scalar:
        if not isinstance(one, Load) or one.buffer not in producers:
            return one
        if one.operands:
            raise NotLowered("a table that is computed")
        made = producers[one.buffer]
        (found,) = substitute_ranges((made.body,), dict(zip(made.ranges, one.index, strict=True)))
        return found

    (result,) = rewrite((body,), visit)
    return result


def _fold(body: Scalar) -> Scalar:
    """`body` with positions in indices instead of loads at positions that are computed."""

    def visit(one: Scalar) -> Scalar:
        if not isinstance(one, Load) or not one.indirect:
            return one
        mapping: dict[Expr, Expr] = {}
        kept: list[Scalar] = []
        for number, value in enumerate(one.indirect):
            position = _read_position(value)
            mapping[placeholder(number)] = placeholder(len(kept)) if position is None else position
            kept += [value] if position is None else []
        index = tuple(substitute(e, mapping) for e in one.index)
        return load(one.buffer, index, one.dtype, indirect=kept, mask=one.mask, other=one.other)

    (result,) = rewrite((simplify(body),), visit)
    return simplify(result)


def _read_position(value: Scalar) -> Expr | None:
    """Return the index expression that `value` computes; None if it computes anything else."""
    match value:
        case IndexValue():
            return None if value.operands else value.expr
        case Const():
            return as_expr(int(value.value)) if value.dtype.is_integer else None
        case Op(op="cast") if value.dtype.is_integer and value.dtype.itemsize >= 4:
            return _read_position(value.operands[0])
        case Op(op="where"):
            # an index that may count from the end
            condition, _, plain = value.operands
            position = _read_position(plain)
            if position is not None and _is_below_zero(condition, position) is False:
                return position
    return None


def _is_certain(condition: Scalar, places: Collection[str]) -> bool:
    """Tell if `condition`, of positions that the loads of `places` are, surely holds."""
    if isinstance(condition, Const):
        return bool(condition.value)
    if not isinstance(condition, Op) or len(condition.operands) != 2:
        return False
    if condition.op == "bitwise_and":
        return all(_is_certain(operand, places) for operand in condition.operands)
    left, right = (_read_position(_read_places(operand, places)) for operand in condition.operands)
    if left is None or right is None:
        return False
    match condition.op:
        case "lt":
            return provably_lt(left, right)
        case "le":
            return provably_le(left, right)
        case "gt":
            return provably_lt(right, left)
        case "ge":
            return provably_le(right, left)
    return False


def _read_places(body: Scalar, places: Collection[str]) -> Scalar:
    """`body` with positions for loads of `places`, which hold them."""

    def visit(one: Scalar) -> Scalar:
        if isinstance(one, Load) and one.buffer in places and not one.operands:
            return index_value(one.index[0])
        return one

    (found,) = rewrite((body,), visit)
    return found


def _is_below_zero(condition: Scalar, position: Expr) -> bool | None:
    if isinstance(condition, Op) and condition.op == "lt":
        left, right = (_read_position(operand) for operand in condition.operands)
        if left is position and right is not None and as_int(right) == 0 and provably_nonneg(position):
            return False
    return None


# ---- Nodes ----


def lower_flex_attention(
    builder: Builder,
    node: torch.fx.Node,
    module: torch.fx.GraphModule,
    value_of: Callable[[Any], Value],
    traced: Trace,
) -> Value:
    """Return the results of `node`, of `module`, as a node's.

    Raises:
        LoweringError[no-lowering]: no node says it.
    """
    origins, hint = builder.origins, builder.hint
    try:
        call = _read_call(node, module, traced)
        builder.origins, builder.hint = origins, hint
        writer = _Writer(builder, node, call, value_of)
        return writer.derive() if call.slope is not None else writer.attend()
    except NotLowered as cause:
        what = f"{get_operator_name(node)} has no lowering"
        raise make_refusal(node, "no-lowering", what, origins=origins, reason=str(cause)) from cause


@dataclass(frozen=True, slots=True)
class _Writer:
    builder: Builder
    node: torch.fx.Node
    call: _Call
    value_of: Callable[[Any], Value]

    def attend(self) -> Value:
        builder, fakes = self.builder, self.node.meta["val"]
        output = builder.declare_like(fakes[0])
        logsumexp = builder.declare_like(fakes[1])
        weights = self._weights()
        builder.add(
            Attention(
                weights=weights,
                output=output,
                logsumexp=logsumexp,
                logsumexp_at=weights.rows,
                origins=builder.origins,
            )
        )
        return make_whole_value(output), make_whole_value(logsumexp), None

    def derive(self) -> Value:
        builder, fakes, call = self.builder, self.node.meta["val"], self.call
        assert call.slope is not None
        weights = self._weights()
        grads = tuple(builder.declare_like(fake) for fake in fakes[:3])
        gradient = self._tensor("grad_out")
        scale = const(float(call.arguments["scale"]), _WIDE)
        slope = cast(self._load_given(call.slope, "score_buffers"), _WIDE)
        slope = simplify(op("mul", self._rewrite_for_raw_score(slope, scale), scale))
        of_query, of_key, of_value = grads
        captured, of_rows, term = call.captured, None, None
        if captured is not None:
            term = self._rewrite_for_raw_score(
                cast(self._load_given(captured.term, "score_buffers"), _WIDE), scale
            )
            of_rows = builder.declare(
                tuple(get_extent(r) for r in weights.rows), _WIDE, format_device(fakes[0].device)
            )
        builder.add(
            AttentionGradient(
                weights=weights,
                of_query=of_query,
                of_key=of_key,
                of_value=of_value,
                of_bias=of_rows,
                inner=self._sum_passed(weights, gradient),
                logsumexp=builder.read(self._tensor("logsumexp"), self._get_point(weights.rows)),
                gradient=builder.read(gradient, self._get_point(weights.ranges)),
                slope=slope,
                bias=term,
                bias_at=() if of_rows is None else weights.rows,
                origins=builder.origins,
            )
        )
        of_captured: list[Value] = [None for _ in fakes[3]]
        if captured is not None and of_rows is not None:
            of_captured[captured.position] = self._sum_rows(captured, make_whole_value(of_rows), weights)
        return (*(make_whole_value(made) for made in grads), tuple(of_captured))

    def _sum_rows(self, captured: _Captured, of_rows: TensorValue, weights: Weights) -> TensorValue:
        """Return the gradient of a captured tensor, of what its rows of scores add."""
        builder, fake = self.builder, self.node.meta["val"][3][captured.position]
        others = tuple(r for r in weights.rows if r not in captured.index)

        def element(point: tuple[Expr, ...], along: tuple[Expr, ...]) -> Scalar:
            places = dict(zip((*captured.index, *others), (*point, *along), strict=True))
            return builder.read(of_rows, self._get_point_at(weights.rows, places))

        shape = tuple(get_extent(r) for r in captured.index)
        (sums,) = builder.reduce(
            "sum", shape, tuple(get_extent(r) for r in others), of_rows.device, element, (_WIDE,)
        )
        assert sums is not None
        dtype = get_dtype(fake.dtype)
        return builder.pointwise(
            shape,
            dtype,
            of_rows.device,
            lambda point: cast(builder.read(sums, point), dtype),
            strides=builder.result_strides(fake),
        )

    def _get_point_at(self, ranges: Sequence[Expr], places: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
        """Coordinates at `places` of `ranges`, 0 along those of one point."""
        return tuple(as_expr(0) if as_int(get_extent(r)) == 1 else places[r] for r in ranges)

    def _sum_passed(self, weights: Weights, gradient: TensorValue) -> Scalar:
        """Build the sum over a row of output times its gradient, as a body over rows."""
        builder, output = self.builder, self._tensor("out")
        *outer, columns = gradient.shape

        def product(point: tuple[Expr, ...], along: tuple[Expr, ...]) -> Scalar:
            both = (builder.read(value, (*point, *along)) for value in (gradient, output))
            return op("mul", *(cast(value, _WIDE) for value in both))

        (sums,) = builder.reduce("sum", tuple(outer), (columns,), gradient.device, product, (_WIDE,))
        assert sums is not None
        found = builder.read(sums, self._get_point(weights.rows))
        argument = self.call.arguments["grad_logsumexp"]
        if argument is None:
            return found
        of_logs = self._tensor("grad_logsumexp")
        filled = builder.number_everywhere(of_logs)
        if filled is not None and filled.value == 0:
            return found
        share = cast(builder.read(of_logs, self._get_point(weights.rows)), _WIDE)
        return op("sub", found, op("mul", share, const(1 / math.log(2), _WIDE)))

    def _weights(self) -> Weights:
        builder, call = self.builder, self.call
        query, key, value = (
            builder.materialize(self._tensor(name), None).buffer for name in ("query", "key", "value")
        )
        batch, head, row, keys = call.point
        columns = symbol("i3", extent=value.shape[3])
        length = symbol("r1", extent=query.shape[3])
        shared_batch = as_expr(0) if as_int(key.shape[0]) == 1 else batch
        heads, fewer = as_int(query.shape[1]), as_int(key.shape[1])
        group = 1 if heads is None or not fewer else heads // fewer
        shared = as_expr(0) if fewer == 1 else floordiv(head, group)
        mask: Scalar | None = self._load_given(call.mask, "mask_buffers")
        if isinstance(mask, Const) and mask.value:
            mask = None
        scale = const(float(call.arguments["scale"]), _WIDE)
        score = cast(self._load_given(call.score, "score_buffers"), _WIDE)
        return Weights(
            ranges=(batch, head, row, columns),
            axes=(keys, length),
            query=load(query.name, (batch, head, row, length), query.dtype),
            key=load(key.name, (shared_batch, shared, keys, length), key.dtype),
            value=load(value.name, (shared_batch, shared, keys, columns), value.dtype),
            accumulate=_WIDE,
            score=self._rewrite_for_raw_score(score, scale),
            mask=mask,
            logsumexp="binary",
            blocks=None if mask is None else self._lists(),
        )

    def _rewrite_for_raw_score(self, body: Scalar, scale: Scalar) -> Scalar:
        """`body` given the raw score, of which its parameter 0 is a multiple."""
        raw = parameter(0, _WIDE)
        (found,) = rewrite((body,), lambda one: op("mul", raw, scale) if one is raw else one)
        return found

    def _lists(self) -> BlockLists | None:
        """Return the lists of the block mask, if it has blocks."""
        mask = self.call.arguments["block_mask"]
        batch, head, row, keys = self.call.point
        row_block, key_block = mask[ROW_BLOCK], mask[KEY_BLOCK]
        if not isinstance(row_block, int) or not isinstance(key_block, int):
            return None
        if max(row_block, key_block) >= _NO_BLOCKS:
            return None
        on_row, on_key = floordiv(row, row_block), floordiv(keys, key_block)
        sides: tuple[tuple[BlockSide, tuple[int, int], Expr, Expr], ...] = (
            ("keys", KEY_LISTS, on_row, on_key),
            ("full_keys", FULL_KEY_LISTS, on_row, on_key),
            ("rows", ROW_LISTS, on_key, on_row),
            ("full_rows", FULL_ROW_LISTS, on_key, on_row),
        )
        is_backward = self.call.slope is not None
        lists: list[tuple[BlockSide, BlockList]] = []
        for side, (count_at, index_at), outer, place in sides:
            count, index = mask[count_at], mask[index_at]
            if count is None or index is None or ("rows" in side and not is_backward):
                continue
            counts, indices = self._value(count), self._value(index)
            heads = [as_expr(0) if as_int(n) == 1 else at for n, at in zip(counts.shape, (batch, head))]
            lists.append(
                (
                    side,
                    BlockList(
                        self.builder.read(counts, (*heads, outer)),
                        self.builder.read(indices, (*heads, outer, place)),
                    ),
                )
            )
        return BlockLists(row_block=row_block, key_block=key_block, lists=tuple(lists)) if lists else None

    def _load_given(self, function: _Function, name: str) -> Scalar:
        """Return the body of `function`, with loads from the program's own tensors."""
        given = self.call.arguments[name]

        def visit(one: Scalar) -> Scalar:
            if not isinstance(one, Load) or one.buffer not in function.given:
                return one
            source = self._value(given[function.given[one.buffer]])
            return self.builder.read(source, one.index, indirect=one.indirect, mask=one.mask, other=one.other)

        (found,) = rewrite((function.body,), visit)
        return simplify(found)

    def _get_point(self, ranges: Sequence[Expr]) -> tuple[Expr, ...]:
        """Coordinates at `ranges`, 0 along those of one point."""
        return tuple(as_expr(0) if r.extent is not None and as_int(r.extent) == 1 else r for r in ranges)

    def _tensor(self, name: str) -> TensorValue:
        return self._value(self.call.arguments[name])

    def _value(self, argument: Any) -> TensorValue:
        found = self.value_of(argument)
        if not isinstance(found, TensorValue):
            raise NotLowered("an argument that is no tensor")
        return found
