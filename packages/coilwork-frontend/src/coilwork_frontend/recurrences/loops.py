"""One direction of a recurrent layer as a loop over its steps, with gradients.

The products with the inputs of all steps stand before the loop, as one product. A step has one product, of
the state before it, and what the cell does with it. The gradient is a loop from the last step to the first,
which gives the gradients of the gates; what is summed over steps, as the gradients of weights, are products
behind it, over all steps at once.

Sources: Hochreiter & Schmidhuber, "Long short-term memory" (1997), with forget gates (Gers et al., 1999); Cho
et al., "Learning phrase representations using RNN encoder-decoder" (2014), with the reset gate behind the
product, as in cuDNN and `torch.nn.GRU`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

# Tensors of one step, `[B, ...]` each, or of all, `[T, B, ...]`.
Tensors = tuple[Tensor, ...]


# ---- Cells ----


class StepGradient(NamedTuple):
    """Gradients of one step.

    `before` is of the state before it, `given` of what the input contributes, `product` of the product with
    the hidden state, if that is another one than `given`; `hidden` of the hidden state behind it, if the
    gradient of a weight needs it.
    """

    before: Tensors
    given: Tensor
    product: Tensor | None = None
    hidden: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The step of a recurrent layer, and its gradient. A state begins with the hidden state.

    Attributes:
        step: from the state before, what the input contributes `[B, G H]` and the weights, to the state
            behind and to further values that the gradient reads.
        gradient: from the gradients of the state behind, the state before, the state behind, the further
            values, and the weights.
    """

    step: Callable[[Tensors, Tensor, Tensors], tuple[Tensors, Tensors]]
    gradient: Callable[[Tensors, Tensors, Tensors, Tensors, Tensors], StepGradient]


def _step_plain(
    activate: Callable[[Tensor], Tensor], state: Tensors, given: Tensor, weights: Tensors
) -> tuple[Tensors, Tensors]:
    return (activate(given + linear(state[0], weights[0])),), ()


def _differentiate_plain(
    slope: Callable[[Tensor, Tensor], Tensor],
    grads: Tensors,
    before: Tensors,
    behind: Tensors,
    saved: Tensors,
    weights: Tensors,
) -> StepGradient:
    of_gates = slope(grads[0], behind[0])
    return StepGradient((of_gates @ weights[0],), of_gates)


def _step_gru(state: Tensors, given: Tensor, weights: Tensors) -> tuple[Tensors, Tensors]:
    (h,) = state
    reset_given, update_given, new_given = given.chunk(3, 1)
    reset_state, update_state, new_state = linear(h, *weights).chunk(3, 1)
    reset = torch.sigmoid(reset_given + reset_state)
    update = torch.sigmoid(update_given + update_state)
    new = torch.tanh(new_given + reset * new_state)
    return (new + update * (h - new),), (reset, update, new, new_state)


def _differentiate_gru(
    grads: Tensors, before: Tensors, behind: Tensors, saved: Tensors, weights: Tensors
) -> StepGradient:
    (dh,), (h,), (reset, update, new, new_state) = grads, before, saved
    d_update = dh * (h - new) * update * (1 - update)
    d_new = dh * (1 - update) * (1 - new * new)
    d_reset = d_new * new_state * reset * (1 - reset)
    of_product = torch.cat((d_reset, d_update, d_new * reset), 1)
    d_before = torch.addmm(dh * update, of_product, weights[0])
    return StepGradient((d_before,), torch.cat((d_reset, d_update, d_new), 1), of_product)


def _step_lstm(state: Tensors, given: Tensor, weights: Tensors) -> tuple[Tensors, Tensors]:
    """`weights` are of the product with the hidden state and, with projections, of the projection."""
    h, c = state
    enter, forget, candidate, leave = (given + linear(h, weights[0])).chunk(4, 1)
    enter, forget, leave = torch.sigmoid(enter), torch.sigmoid(forget), torch.sigmoid(leave)
    candidate = torch.tanh(candidate)
    c = forget * c + enter * candidate
    h = leave * torch.tanh(c)
    for projection in weights[1:]:
        h = linear(h, projection)
    return (h, c), (enter, forget, candidate, leave)


def _differentiate_lstm(
    grads: Tensors, before: Tensors, behind: Tensors, saved: Tensors, weights: Tensors
) -> StepGradient:
    (d_hidden, dc), (enter, forget, candidate, leave) = grads, saved
    dh = d_hidden @ weights[1] if len(weights) > 1 else d_hidden
    shown = torch.tanh(behind[1])
    dc = dc + dh * leave * (1 - shown * shown)
    of_gates = torch.cat(
        (
            dc * candidate * enter * (1 - enter),
            dc * before[1] * forget * (1 - forget),
            dc * enter * (1 - candidate * candidate),
            dh * shown * leave * (1 - leave),
        ),
        1,
    )
    hidden = d_hidden if len(weights) > 1 else None
    return StepGradient((of_gates @ weights[0], dc * forget), of_gates, None, hidden)


CELLS: Final[Mapping[str, Cell]] = MappingProxyType(
    {
        "lstm": Cell(step=_step_lstm, gradient=_differentiate_lstm),
        "gru": Cell(step=_step_gru, gradient=_differentiate_gru),
        "rnn_tanh": Cell(
            step=partial(_step_plain, torch.tanh),
            gradient=partial(_differentiate_plain, lambda grad, h: grad * (1 - h * h)),
        ),
        "rnn_relu": Cell(
            step=partial(_step_plain, torch.relu),
            gradient=partial(_differentiate_plain, lambda grad, h: torch.where(h > 0, grad, 0)),
        ),
    }
)


# ---- Loops over steps ----


def run_direction(
    kind: str,
    x: Tensor,
    state: Tensors,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    reverse: bool,
) -> tuple[Tensor, Tensors]:
    """Return the hidden states `[T, B, H]` of one direction of a layer, and the state behind the last step.

    Args:
        kind: a name in `CELLS`.
        x: `[T, B, I]`.
        state: before the first step, the hidden state `[B, H]` first.
        weights: of the product with the input, of that with the hidden state, and of a projection.
        biases: of the two products; or none.
        reverse: the steps are taken from the last to the first; results have the order of `x` all the same.
    """
    of_input, *of_state = weights
    if kind == "gru":
        given = linear(x, of_input, *biases[:1])
        of_state = [*of_state, *biases[1:]]
    else:
        given = linear(x, of_input, biases[0] + biases[1] if biases else None)
    if reverse:
        given = given.flip(0)
    run: Callable[..., Tensors] = _Direction.apply
    results = run(kind, len(state), given, *state, *of_state)
    hidden = results[0].flip(0) if reverse else results[0]
    return hidden, results[1 : 1 + len(state)]


def _scan(step: Callable[..., Tensors], carried: Tensors, rows: Tensors, others: Tensors) -> Tensors:
    scan: Any = torch.ops.higher_order.scan
    results: Tensors = tuple(scan(step, list(carried), list(rows), others))
    return results


class _Direction(Function):
    """The loop over steps: hidden states of all steps, the state behind the last, and what the gradient
    reads, from what the inputs contribute `[T, B, G H]`, the state before the first step, and weights.
    """

    @staticmethod
    def forward(ctx: Any, kind: str, count: int, given: Tensor, *others: Tensor) -> Tensors:
        cell, state, weights = CELLS[kind], others[:count], others[count:]
        trains = any(ctx.needs_input_grad)

        def step(*operands: Tensor) -> Tensors:
            before, (row, *rest) = operands[:count], operands[count:]
            behind, saved = cell.step(before, row, tuple(rest))
            kept = (*behind, *saved) if trains else behind[:1]
            # a scan returns no tensor twice
            return (*behind, *(one.clone() for one in kept))

        results = _scan(step, state, (given,), weights)
        last, rows = results[:count], results[count:]
        ctx.kind, ctx.count = kind, count
        ctx.set_materialize_grads(False)
        if trains:
            ctx.save_for_backward(*rows, *state, *weights)
        ctx.row_count = len(rows)
        return (rows[0], *last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        cell, count = CELLS[ctx.kind], ctx.count
        saved: Tensors = ctx.saved_tensors
        rows, state, weights = (
            saved[: ctx.row_count],
            saved[ctx.row_count : ctx.row_count + count],
            saved[ctx.row_count + count :],
        )
        behind, values = rows[:count], rows[count:]
        before = tuple(
            torch.cat((first.unsqueeze(0), row[:-1])) for first, row in zip(state, behind, strict=True)
        )
        hidden_grads = () if grads[0] is None else (grads[0],)
        last = tuple(
            torch.zeros_like(one) if grad is None else grad
            for one, grad in zip(state, grads[1:], strict=True)
        )
        has_hidden = bool(hidden_grads)
        names: list[str] = []

        def step(*operands: Tensor) -> Tensors:
            of_behind, rest = operands[:count], operands[count:]
            if has_hidden:
                of_behind, rest = (of_behind[0] + rest[0], *of_behind[1:]), rest[1:]
            one, rest = rest[:count], rest[count:]
            other, rest = rest[:count], rest[count:]
            found = cell.gradient(of_behind, one, other, rest[: len(values)], rest[len(values) :])
            kept = {name: value for name, value in found._asdict().items() if isinstance(value, Tensor)}
            names[:] = kept
            return (*found.before, *(value.clone() for value in kept.values()))

        turned = tuple(row.flip(0) for row in chain(hidden_grads, before, behind, values))
        results = _scan(step, last, turned, weights)
        of_state = results[:count]
        of_rows = {name: row.flip(0) for name, row in zip(names, results[count:], strict=True)}
        given = of_rows["given"]
        product = of_rows.get("product", given).flatten(0, 1)
        of_weights = [product.t() @ before[0].flatten(0, 1)]
        if "hidden" in of_rows:
            shown = (values[3] * torch.tanh(behind[1])).flatten(0, 1)
            of_weights.append(of_rows["hidden"].flatten(0, 1).t() @ shown)
        elif len(weights) > 1:
            of_weights.append(product.sum(0))
        return (None, None, given, *of_state, *of_weights)
