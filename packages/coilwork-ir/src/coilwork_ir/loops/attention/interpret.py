"""What attention and its gradient mean, in plain torch ops: all scores at once, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coilwork_ir.buffers import Argument, Buffer, Ref, SymbolOutput
from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr, extent_of
from coilwork_ir.interpretation.memory import Memory, flat
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.interpretation.scalars import Access, Domain, Evaluator, combine
from coilwork_ir.loops.attention.verify import Saved, operand_of
from coilwork_ir.loops.nodes import STATE_LAYOUTS, Attention, AttentionGradient, Weights
from coilwork_ir.scalar import Scalar, loads

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
        """Return what a softmax is taken of, minus infinity where keys do not count."""
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
    """The weighted sums of values, over ranges, and the logsumexp of each row."""
    weights = bodies.weights
    scores = bodies.scores(bodies.raw_scores())
    logsumexp = _reduce_scores(scores)
    kept = _draw_factors(weights, scores, seed)
    over, beside = (*weights.rows, weights.keys), (*weights.ranges, weights.keys)
    values = bodies.evaluate(weights.value, beside)
    result = bodies.contract(_exponentiate(scores, logsumexp) * kept, over, values, beside, weights.ranges)
    return result, logsumexp


def derive_attention(node: AttentionGradient, memory: Memory) -> None:
    """Store the gradients that `node` computes."""
    weights = node.weights
    bodies = Bodies(weights, memory.sizes, memory.access(_list_operands(node)))
    terms = GradientTerms(bodies, node, _read_seed(weights, [_name(a) for a in node.state], memory))
    for number, (body, output) in enumerate(
        ((weights.query, node.of_query), (weights.key, node.of_key), (weights.value, node.of_value))
    ):
        operand = operand_of(body)
        if operand is None:
            raise InterpretError("attention-operands", "the gradient of what is computed")
        _sum_into(output, operand.index, *terms.sum_along(number, operand.index), memory)
    if node.of_bias is not None:
        _sum_into(node.of_bias, node.bias_at, *terms.sum_along(3, node.bias_at), memory)


@dataclass(slots=True)
class GradientTerms:
    """What each point adds to the gradients of query, key, value and bias, which have the numbers 0 to 3."""

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
        weight = _exponentiate(scores, bodies.evaluate(saved.logsumexp, rows))
        kept = _draw_factors(weights, scores, self.seed)
        gradient, output = (bodies.evaluate(body, ranges) for body in (saved.gradient, saved.output))
        values = bodies.evaluate(weights.value, (*ranges, keys))
        of_weight = bodies.contract(gradient, ranges, values, (*ranges, keys), over) * kept
        passed = weight * (of_weight - (gradient * output).sum(-1, keepdim=True))
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
        """The ranges that `index` runs along, and sums over them of what points add to gradient `number`."""
        left, by_left, right, by_right = self._factors[number]
        known = {s for expr in index for s in expr.free_symbols}
        along = tuple(r for r in dict.fromkeys((*by_left, *by_right)) if r in known)
        return along, self.bodies.contract(left, by_left, right, by_right, along)


def _reduce_scores(scores: Tensor) -> Tensor:
    """The logsumexp of each row; 0 where nothing is left."""
    if scores.shape[-1] == 0:
        return scores.new_zeros(scores.shape[:-1])
    found = scores.logsumexp(-1)
    return torch.where(found == _NOWHERE, 0, found)


def _exponentiate(scores: Tensor, logsumexp: Tensor) -> Tensor:
    return torch.where(scores == _NOWHERE, 0, (scores - logsumexp.unsqueeze(-1)).exp())


def _draw_factors(weights: Weights, scores: Tensor, seed: int | None) -> Tensor:
    """Return what weights are multiplied with: 0 for those that are dropped."""
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
            memory.bind(entry.symbol, memory.size(extent_of(sizes[number])))
        elif entry is not None:
            made = memory.allocate(entry).zero_()
            if number == places.seed and weights.dropout:
                flat(made).view(torch.int64)[0] = torch.randint(1 << 62, ())


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
    evaluator = Evaluator(domain, {"sums": Access(flat(sums), tuple(sums.shape), tuple(sums.stride()))})
    combine(flat(sums), evaluator.offsets("sums", index, (), None), values.reshape(domain.shape), "add", None)


def _list_operands(node: AttentionGradient) -> tuple[str, ...]:
    return tuple(dict.fromkeys(access.buffer for access in loads(node.bodies)))


def _buffer(entry: Buffer | SymbolOutput | None) -> Buffer | None:
    return entry if isinstance(entry, Buffer) else None


def _name(argument: Argument) -> str | None:
    return argument.name if isinstance(argument, Ref) else None
