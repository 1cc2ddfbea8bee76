"""The reference interpreter of loop IR: what a graph means, in plain torch ops.

Every node is evaluated over its whole domain with index tensors, and attention with all its scores in memory.
Slow, and made to be obviously right. Needs torch (`pip install coilwork-ir[interpreter]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log

import torch
from torch import Tensor

from coilwork_ir.buffers import Argument, Buffer, Ref, SymbolOutput
from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr, as_expr, get_extent
from coilwork_ir.interpretation.memory import Memory, Value, argument_value, call, take_results, view_as_line
from coilwork_ir.interpretation.ops import reduce_last, scan_all, sort_last, torch_dtype
from coilwork_ir.interpretation.scalars import Access, Domain, Evaluator, combine
from coilwork_ir.loops.access import list_read_buffers
from coilwork_ir.loops.convolutions import list_contractions, make_bias_gradient
from coilwork_ir.loops.nodes import (
    STATE_LAYOUTS,
    AssertSize,
    Attention,
    AttentionGradient,
    Check,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Loop,
    Node,
    Pointwise,
    Reduce,
    Saved,
    Scan,
    Scatter,
    Sort,
    View,
    Weights,
)
from coilwork_ir.loops.verify_attention import find_operand
from coilwork_ir.scalar import Scalar, list_loads, substitute_ranges

# ---- Graphs ----


def interpret_graph(
    graph: Graph, inputs: Sequence[Tensor | int], constants: Mapping[str, Tensor] | None = None
) -> list[Value]:
    """Run `graph` on `inputs`, in their declared layouts; `constants` holds the graph's constants by key.

    Inputs that the graph overwrites are overwritten. Results may share memory with inputs, as the graph says.

    Raises:
        InterpretError: inputs that do not fit the declarations, an access outside of a buffer.
        IndexError, RuntimeError: a run-time check of the graph failed.
    """
    return _run(graph, inputs, constants or {}, Memory())


def _run(
    graph: Graph, inputs: Sequence[object], constants: Mapping[str, Tensor], memory: Memory
) -> list[Value]:
    memory.enter(graph.inputs, inputs, graph.constants, constants)
    for node in graph.nodes:
        step(node, memory, constants)
    return [memory.output(output) for output in graph.outputs]


def step(node: Node, memory: Memory, constants: Mapping[str, Tensor]) -> None:
    """Do what `node` says."""
    match node:
        case Pointwise():
            values = _evaluator(node, node.ranges, node.checks, memory).full(node.body)
            if node.into is None:
                memory.allocate(node.output).copy_(values)
            else:
                # the value is complete before memory changes
                memory.view(node.output, memory.tensors[node.into], 0).copy_(values.clone())
        case Reduce():
            _reduce(node, memory)
        case Scan():
            evaluator = _evaluator(node, node.ranges, node.checks, memory)
            dim = node.ranges.index(node.axis)
            elements = [evaluator.full(value).movedim(dim, -1) for value in (node.body, *node.others)]
            results = scan_all(node.kind, elements, reverse=node.reverse)
            _store(node.outputs, [r.movedim(-1, dim) for r in results], memory)
        case Sort():
            body = _evaluator(node, node.ranges, node.checks, memory).full(node.body)
            dim = node.ranges.index(node.axis)
            results = sort_last(body.movedim(dim, -1), descending=node.descending, topk=node.topk)
            count = body.shape[dim] if node.count is None else memory.size(node.count)
            _store(node.outputs, [r[..., :count].movedim(-1, dim) for r in results], memory)
        case Scatter():
            _scatter(node, memory)
        case Contraction():
            _contract(node, memory)
        case Attention():
            attend(node, memory, memory.access(list_read_buffers(node)))
        case AttentionGradient():
            derive_attention(node, memory)
        case Convolution():
            for part in list_contractions(node):
                _contract(part, memory)
            if (bias := make_bias_gradient(node)) is not None:
                _reduce(bias, memory)
        case View():
            memory.view(node.output, memory.tensors[node.source], memory.size(node.offset))
        case Extern() if node.out_overload == node.target:
            # it has no other form
            given = {name: Ref(output.name) for name, output in _list_given(node)}
            for _, output in _list_given(node):
                memory.allocate(output)
            call(node.target, node.args, {**dict(node.kwargs), **given}, memory, node.single, node.paths)
            for mutation in node.mutates:
                memory.view(mutation.output, memory.tensors[mutation.source], 0)
        case Extern():
            returned = call(node.target, node.args, dict(node.kwargs), memory, node.single, node.paths)
            take_results(node.outputs, node.binds, returned, memory)
            for mutation in node.mutates:
                memory.view(mutation.output, memory.tensors[mutation.source], 0)
        case Cond():
            chosen = node.then if bool(memory.tensors[node.predicate].item()) else node.otherwise
            _settle_all(
                node.outputs, _run_nested(chosen, _values(node.operands, memory), memory, constants), memory
            )
        case Loop():
            _loop(node, memory, constants)
        case AssertSize():
            check_size(memory.size(node.lhs), node.relation, memory.size(node.rhs), node.message)


def _list_given(node: Extern) -> tuple[tuple[str, Buffer], ...]:
    """Return the results that `node` writes into given memory, by the keywords that take it."""
    pairs = zip(node.out_names, node.outputs, strict=True)
    return tuple((name, output) for name, output in pairs if isinstance(output, Buffer))


def check_size(lhs: int, relation: str, rhs: int, message: str) -> None:
    """Raise RuntimeError with `message` unless `lhs relation rhs`."""
    holds = {"eq": lhs == rhs, "ne": lhs != rhs, "lt": lhs < rhs, "le": lhs <= rhs}
    if not holds[relation]:
        raise RuntimeError(message)


# Computed nodes


def _evaluator(node: Node, ranges: Sequence[Expr], checks: Sequence[Check], memory: Memory) -> Evaluator:
    evaluator = Evaluator(Domain(ranges, memory.sizes), memory.access(list_read_buffers(node)))
    evaluator.check(checks)
    return evaluator


def _reduce(node: Reduce, memory: Memory) -> None:
    evaluator = _evaluator(node, (*node.ranges, *node.axes), node.checks, memory)
    body = evaluator.full(node.body)
    kept = body.shape[: len(node.ranges)]
    count = 1
    for size in body.shape[len(node.ranges) :]:
        count *= size
    _store(node.outputs, reduce_last(node.kind, body.reshape((*kept, count))), memory)


def _contract(node: Contraction, memory: Memory) -> None:
    if node.groups is None:
        memory.allocate(node.output).copy_(_sum_products(node, memory, None))
        return
    groups, dims = node.groups, (*node.ranges, *node.axes)
    ends = memory.tensors[groups.ends].to(torch.int64)
    starts = torch.cat([ends.new_zeros(1), ends])[:-1]
    points = torch.arange(memory.size(get_extent(groups.along)), device=ends.device)
    # [group, point]
    member = (points >= starts[:, None]) & (points < ends[:, None])
    if groups.along in node.axes:
        inside = _expand_value(member, (dims.index(groups.index), dims.index(groups.along)), len(dims))
        memory.allocate(node.output).copy_(_sum_products(node, memory, inside))
        return
    output = memory.allocate(node.output)
    for number in range(len(ends)):
        known = {groups.index: as_expr(number)}
        left, right, epilogue = substitute_ranges((node.left, node.right, node.epilogue), known)
        product = replace(node, left=left, right=right, epilogue=epilogue)
        mine = _expand_value(member[number], (node.ranges.index(groups.along),), len(node.ranges))
        output.copy_(torch.where(mine, _sum_products(product, memory, None), output))


def _expand_value(value: Tensor, places: Sequence[int], dims: int) -> Tensor:
    """`value`, whose dimensions are those at `places` among `dims`, with size 1 along the others."""
    if list(places) != sorted(places):
        value, places = value.t(), sorted(places)
    shape = [1] * dims
    for place, size in zip(places, value.shape, strict=True):
        shape[place] = size
    return value.reshape(shape)


def _sum_products(node: Contraction, memory: Memory, inside: Tensor | None) -> Tensor:
    """Return the results of `node`, whose sums are over those of the points that are `inside`."""
    access = memory.access(list_read_buffers(node))
    domain, results = Domain((*node.ranges, *node.axes), memory.sizes), Domain(node.ranges, memory.sizes)
    dtype = torch_dtype(node.accumulate)
    if domain.empty:
        total = torch.zeros(results.shape, dtype=dtype)
    else:
        evaluator = Evaluator(domain, access)
        # size 1 along the ranges of the other factor
        factors = [evaluator.value(factor).to(dtype) for factor in (node.left, node.right)]
        left, right = (f.reshape((1,) * (len(domain.shape) - f.dim()) + f.shape) for f in factors)
        if inside is not None:
            left, right = (torch.where(inside, f, f.new_zeros(())) for f in (left, right))
        every = list(range(len(domain.shape)))
        total = torch.einsum(left, every, right, every, every[: len(node.ranges)]).expand(results.shape)
    return Evaluator(results, access, (total,)).full(node.epilogue)


def _store(outputs: Sequence[Buffer | None], values: Sequence[Tensor], memory: Memory) -> None:
    for output, value in zip(outputs, values, strict=False):
        if output is not None:
            memory.allocate(output).copy_(value)


def _scatter(node: Scatter, memory: Memory) -> None:
    if node.into is None:
        # nothing that the node reads
        memory.allocate(node.output)
    old = node.output.name if node.into is None else node.into
    evaluator = Evaluator(Domain(node.ranges, memory.sizes), memory.access((*list_read_buffers(node), old)))
    evaluator.check(node.checks)
    if evaluator.domain.empty:
        memory.view(node.output, memory.tensors[old], 0)
        return
    value = evaluator.full(node.value).clone()
    mask = None if node.mask is None else evaluator.full(node.mask)
    offsets = evaluator.offsets(old, node.index, node.indirect, mask)
    if node.covers:
        _check_covered(node, evaluator.offsets(old, node.index, node.indirect, None))
    target = memory.view(node.output, memory.tensors[old], 0)
    combine(view_as_line(target), offsets, value, node.mode, mask)


def _check_covered(node: Scatter, offsets: Tensor) -> None:
    """The points of a scatter that covers its output, which is dense, store each element once."""
    positions = offsets.reshape(-1).sort().values
    if not positions.equal(torch.arange(positions.numel())):
        raise InterpretError("covers", f"the scatter to %{node.output.name} leaves elements out")


# Regions


def _values(operands: Sequence[Argument], memory: Memory) -> list[object]:
    return [argument_value(operand, memory) for operand in operands]


def _run_nested(
    graph: Graph, inputs: Sequence[object], memory: Memory, constants: Mapping[str, Tensor]
) -> list[Value]:
    return _run(graph, inputs, constants, Memory(memory.sizes, memory.device))


def _settle_all(outputs: Sequence[Buffer], values: Sequence[Value], memory: Memory) -> None:
    for output, value in zip(outputs, values, strict=True):
        if not isinstance(value, Tensor):
            raise InterpretError("result", f"%{output.name} is {value!r}, not a tensor")
        # a branch may return its operand; the result of the region is memory of its own
        memory.settle(output, value.clone())


def _loop(node: Loop, memory: Memory, constants: Mapping[str, Tensor]) -> None:
    carried = _values(node.carried, memory)
    extra = _values(node.extra, memory)
    if node.rounds is not None:
        for number in range(memory.size(node.rounds)):
            carried = list(_run_nested(node.body, [*carried, *extra, number], memory, constants))
    while node.condition is not None:
        (go_on,) = _run_nested(node.condition, [*carried, *extra], memory, constants)
        if not isinstance(go_on, Tensor):
            raise InterpretError("result", f"the condition of a loop is {go_on!r}, not a tensor")
        if not bool(go_on.item()):
            break
        carried = list(_run_nested(node.body, [*carried, *extra], memory, constants))
    finals = [value if isinstance(value, Tensor | int) else None for value in carried]
    _settle_all(node.outputs, finals, memory)
    for mutation in node.mutates:
        memory.view(mutation.output, memory.tensors[mutation.source], 0)


# ---- Attention ----


_NOWHERE = float("-inf")


@dataclass(frozen=True, slots=True)
class Bodies:
    """Evaluates the bodies of one node, over some of its ranges and axes.

    Attributes:
        weights: the node's.
        sizes: values of size symbols.
        access: what loads lead to.
    """

    weights: Weights
    sizes: Mapping[str, int]
    access: Mapping[str, Access]

    def evaluate(self, body: Scalar, ranges: Sequence[Expr], given: Sequence[Tensor] = ()) -> Tensor:
        """`body` at every point of `ranges`, in the type of sums if it is a number."""
        value = Evaluator(Domain(ranges, self.sizes), self.access, given).full(body)
        return value if body.dtype.is_bool else value.to(torch_dtype(self.weights.accumulate))

    def contract(
        self, left: Tensor, over: Sequence[Expr], right: Tensor, beside: Sequence[Expr], kept: Sequence[Expr]
    ) -> Tensor:
        """Sums of products of `left`, over `over`, and `right`, over `beside`, along all but `kept`."""
        numbers = {value: number for number, value in enumerate(dict.fromkeys((*over, *beside)))}
        return torch.einsum(
            left, [numbers[r] for r in over], right, [numbers[r] for r in beside], [numbers[r] for r in kept]
        )

    def raw_scores(self) -> Tensor:
        """Sums of products of queries and keys, over rows and keys."""
        weights, (keys, length) = self.weights, self.weights.axes
        by_query, by_key = (*weights.rows, length), (*weights.rows, keys, length)
        query, key = self.evaluate(weights.query, by_query), self.evaluate(weights.key, by_key)
        return self.contract(query, by_query, key, by_key, (*weights.rows, keys))

    def scores(self, raw: Tensor) -> Tensor:
        """Return the operand of the softmax, minus infinity where keys do not count."""
        over = (*self.weights.rows, self.weights.keys)
        scores = self.evaluate(self.weights.score, over, (raw,))
        if self.weights.mask is not None:
            scores = torch.where(self.evaluate(self.weights.mask, over), scores, _NOWHERE)
        return scores


def attend(node: Attention, memory: Memory, access: Mapping[str, Access]) -> None:
    """Store what `node` computes of what `access` leads to."""
    weights = node.weights
    bodies = Bodies(weights, memory.sizes, access)
    _store_state(node, memory)
    seed = _read_seed(weights, [None if o is None else o.name for o in map(_buffer, node.state)], memory)
    result, logsumexp = sum_values(bodies, seed)
    if node.epilogue is not None:
        result = Evaluator(Domain(weights.ranges, memory.sizes), access, (result,)).full(node.epilogue)
    memory.allocate(node.output).copy_(result)
    if node.logsumexp is not None:
        stored = memory.allocate(node.logsumexp)
        if node.logsumexp_at is not None:
            _add_at(node.logsumexp_at, weights.rows, logsumexp, stored.zero_(), memory)


def sum_values(bodies: Bodies, seed: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of values, over ranges, and the logsumexp of each row."""
    weights = bodies.weights
    scores = bodies.scores(bodies.raw_scores())
    logsumexp = _reduce_scores(scores)
    result = _weigh_values(bodies, scores, logsumexp, seed)
    if weights.logsumexp == "binary":
        has_keys = (scores != _NOWHERE).any(-1)
        logsumexp = torch.where(has_keys, logsumexp / log(2), _NOWHERE)
    return result, logsumexp


def _weigh_values(bodies: Bodies, scores: Tensor, logsumexp: Tensor, seed: int | None) -> Tensor:
    weights = bodies.weights
    kept = _draw_factors(weights, scores, seed)
    over, beside = (*weights.rows, weights.keys), (*weights.ranges, weights.keys)
    values = bodies.evaluate(weights.value, beside)
    return bodies.contract(_exponentiate(scores, logsumexp) * kept, over, values, beside, weights.ranges)


def derive_attention(node: AttentionGradient, memory: Memory) -> None:
    """Store the gradients that `node` computes."""
    weights = node.weights
    bodies = Bodies(weights, memory.sizes, memory.access(_list_operands(node)))
    terms = GradientTerms(bodies, node, _read_seed(weights, [_name(a) for a in node.state], memory))
    for number, (body, output) in enumerate(
        ((weights.query, node.of_query), (weights.key, node.of_key), (weights.value, node.of_value))
    ):
        operand = find_operand(body)
        if operand is None:
            raise InterpretError("attention-operands", "the gradient of what is computed")
        _sum_into(output, operand.index, *terms.sum_along(number, operand.index), memory)
    if node.of_bias is not None:
        _sum_into(node.of_bias, node.bias_at, *terms.sum_along(3, node.bias_at), memory)


@dataclass(slots=True)
class GradientTerms:
    """Terms that each point adds to the gradients of query, key, value and bias, numbered 0 to 3."""

    bodies: Bodies
    saved: Saved
    seed: int | None = None
    _factors: list[tuple[Tensor, tuple[Expr, ...], Tensor, tuple[Expr, ...]]] = field(
        init=False, default_factory=list
    )

    def __post_init__(self) -> None:
        bodies, saved, weights = self.bodies, self.saved, self.bodies.weights
        rows, ranges, (keys, length) = weights.rows, weights.ranges, weights.axes
        over = (*rows, keys)
        raw = bodies.raw_scores()
        scores = bodies.scores(raw)
        logsumexp = bodies.evaluate(saved.logsumexp, rows)
        weight = _exponentiate(scores, logsumexp * log(2) if weights.logsumexp == "binary" else logsumexp)
        kept = _draw_factors(weights, scores, self.seed)
        gradient = bodies.evaluate(saved.gradient, ranges)
        values = bodies.evaluate(weights.value, (*ranges, keys))
        of_weight = bodies.contract(gradient, ranges, values, (*ranges, keys), over) * kept
        if saved.inner is not None:
            inner = bodies.evaluate(saved.inner, rows)
        else:
            assert saved.output is not None
            inner = (gradient * bodies.evaluate(saved.output, ranges)).sum(-1)
        passed = weight * (of_weight - inner.unsqueeze(-1))
        of_raw = bodies.evaluate(saved.slope, over, (raw, passed))
        # scores that are minus infinity have no slope
        of_raw = torch.where(weight == 0, 0, of_raw)
        query, key = (
            bodies.evaluate(weights.query, (*rows, length)),
            bodies.evaluate(weights.key, (*over, length)),
        )
        self._factors += [
            (of_raw, over, key, (*over, length)),
            (of_raw, over, query, (*rows, length)),
            (weight * kept, over, gradient, ranges),
        ]
        if saved.bias is not None:
            of_bias = bodies.evaluate(saved.bias, over, (raw, passed))
            self._factors.append((of_bias, over, torch.ones((), dtype=of_bias.dtype), ()))

    def sum_along(self, number: int, index: Sequence[Expr]) -> tuple[tuple[Expr, ...], Tensor]:
        """Return the ranges that `index` runs along, and sums over them of what points add to gradient
        `number`.
        """
        left, by_left, right, by_right = self._factors[number]
        known = {s for expr in index for s in expr.free_symbols}
        along = tuple(r for r in dict.fromkeys((*by_left, *by_right)) if r in known)
        return along, self.bodies.contract(left, by_left, right, by_right, along)


def _reduce_scores(scores: Tensor) -> Tensor:
    """Return the logsumexp of each row; 0 where nothing is left."""
    if scores.shape[-1] == 0:
        return scores.new_zeros(scores.shape[:-1])
    logsumexp = scores.logsumexp(-1)
    return torch.where(logsumexp == _NOWHERE, 0, logsumexp)


def _exponentiate(scores: Tensor, logsumexp: Tensor) -> Tensor:
    return torch.where(scores == _NOWHERE, 0, (scores - logsumexp.unsqueeze(-1)).exp())


def _draw_factors(weights: Weights, scores: Tensor, seed: int | None) -> Tensor:
    """Return the factors of dropout, by which weights are multiplied: 0 for those that are dropped."""
    if seed is None:
        return torch.ones((), dtype=scores.dtype)
    drawn = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed))
    return (drawn >= weights.dropout).to(scores.dtype) / (1.0 - weights.dropout)


def _read_seed(weights: Weights, names: Sequence[str | None], memory: Memory) -> int | None:
    place = STATE_LAYOUTS[weights.form].seed
    name = None if place is None or not weights.dropout else names[place]
    return None if name is None else int(memory.tensors[name].view(torch.int64).reshape(-1)[0].item())


def _store_state(node: Attention, memory: Memory) -> None:
    """Store sizes of rows and keys, a seed that is drawn where weights are dropped, and zeros elsewhere."""
    weights, places = node.weights, STATE_LAYOUTS[node.weights.form]
    sizes = {places.rows: weights.rows[-1], places.keys: weights.keys}
    for number, entry in enumerate(node.state):
        if isinstance(entry, SymbolOutput):
            memory.bind(entry.symbol, memory.size(get_extent(sizes[number])))
        elif entry is not None:
            tensor = memory.allocate(entry).zero_()
            if number == places.seed and weights.dropout:
                view_as_line(tensor).view(torch.int64)[0] = torch.randint(1 << 62, ())


def _sum_into(
    output: Buffer, index: Sequence[Expr], ranges: Sequence[Expr], values: Tensor, memory: Memory
) -> None:
    """Store in `output` the sums of `values`, over `ranges`, of all points that have one `index`."""
    target = memory.allocate(output)
    sums = torch.zeros(target.shape, dtype=values.dtype)
    _add_at(index, ranges, values, sums, memory)
    target.copy_(sums)


def _add_at(
    index: Sequence[Expr], ranges: Sequence[Expr], values: Tensor, sums: Tensor, memory: Memory
) -> None:
    domain = Domain(ranges, memory.sizes)
    if domain.empty:
        return
    evaluator = Evaluator(
        domain, {"sums": Access(view_as_line(sums), tuple(sums.shape), tuple(sums.stride()))}
    )
    combine(
        view_as_line(sums),
        evaluator.offsets("sums", index, (), None),
        values.reshape(domain.shape),
        "add",
        None,
    )


def _list_operands(node: AttentionGradient) -> tuple[str, ...]:
    return tuple(dict.fromkeys(access.buffer for access in list_loads(node.bodies)))


def _buffer(entry: Buffer | SymbolOutput | None) -> Buffer | None:
    return entry if isinstance(entry, Buffer) else None


def _name(argument: Argument) -> str | None:
    return argument.name if isinstance(argument, Ref) else None
