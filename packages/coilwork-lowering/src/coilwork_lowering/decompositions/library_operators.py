"""Operators of CPU libraries, where their calls need help, and products that use no library.

- LSTM layers of oneDNN. Torch's decomposition calls oneDNN without asking whether it has the type on this
  processor, and without the workspace that oneDNN's gradient reads. So the layer is unrolled in steps where
  oneDNN lacks it, and its gradient always is, from the layer's operands (Hochreiter & Schmidhuber, "Long
  short-term memory", 1997; with forget gates, as `torch.nn.LSTM` has it).
- Fourier transforms of real numbers on CPUs. MKL lays results out in the order of the dimensions it is given,
  the transformed ones innermost; torch 2.11's meta function says contiguous. The dimensions are put in that
  order first.
- Products of `f64` as sums of products. A generated kernel adds every row in one order whatever the batch,
  where library kernels choose blocks by sizes. Products of narrower types have generated kernels already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from coilwork_ir.device_traits import CPU_LIBRARIES, has_trait
from coilwork_lowering.torch_compat.sizes import is_surely

# ---- LSTM layers ----


# `ideep::rnn_kind::LSTM`.
_LSTM: Final = 2


def recurrent_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of oneDNN's LSTM layer and its gradient, by overload."""
    return {
        torch.ops.aten.mkldnn_rnn_layer.default: _layer,
        torch.ops.aten.mkldnn_rnn_layer_backward.default: _layer_backward,
    }


def has_16_bit_layers() -> bool:
    """Tell if oneDNN has recurrent layers of `bfloat16` for this processor. Eager asks before it calls them,
    torch's decompositions do not.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _Step(NamedTuple):
    """The result of one step of a layer from `x` and of the state before it, `[B, H]` each."""

    h_before: Tensor
    c_before: Tensor
    input_gate: Tensor
    forget_gate: Tensor
    cell_gate: Tensor
    output_gate: Tensor
    c: Tensor
    h: Tensor


def _steps(
    x: Tensor, weights: Sequence[Tensor], h: Tensor, c: Tensor, reverse: bool, has_biases: bool
) -> list[_Step]:
    """Return the steps of one layer in the order of `x: [T, B, I]`, from a state `[B, H]`."""
    of_input, of_hidden, *biases = weights
    input_bias, hidden_bias = biases if has_biases else (None, None)
    results = []
    from_input = list(linear(x, of_input, input_bias).unbind(0))
    for gates in reversed(from_input) if reverse else from_input:
        i, f, g, o = (gates + linear(h, of_hidden, hidden_bias)).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        new_c = f * c + i * g
        new_h = o * new_c.tanh()
        results.append(_Step(h, c, i, f, g, o, new_c, new_h))
        h, c = new_h, new_c
    return results[::-1] if reverse else results


def _is_plain_lstm(
    mode: int, num_layers: int, bidirectional: bool, batch_first: bool, batch_sizes: Sequence[int]
) -> bool:
    """Tell if this is a layer as torch's decomposition calls it."""
    return mode == _LSTM and num_layers == 1 and not (bidirectional or batch_first or batch_sizes)


def _layer(
    x: Tensor,
    input_weight: Tensor,
    hidden_weight: Tensor,
    input_bias: Tensor,
    hidden_bias: Tensor,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Any:
    """Return where oneDNN would refuse the layer: its results `[T, B, H]`, the last of them and the last cell
    `[1, B, H]`, and no workspace.
    """
    plain = _is_plain_lstm(mode, num_layers, bidirectional, batch_first, batch_sizes)
    if x.dtype is not torch.bfloat16 or not plain or has_16_bit_layers():
        return NotImplemented
    weights = (input_weight, hidden_weight, input_bias, hidden_bias)
    steps = _steps(x, weights, h[0], c[0], reverse, has_biases)
    last = steps[0 if reverse else -1]
    results = torch.stack([step.h for step in steps])
    return results, last.h.unsqueeze(0), last.c.unsqueeze(0), x.new_empty(0, dtype=torch.uint8)


def _layer_backward(
    x: Tensor,
    input_weight: Tensor,
    hidden_weight: Tensor,
    input_bias: Tensor,
    hidden_bias: Tensor,
    h: Tensor,
    c: Tensor,
    results: Tensor,
    last_h: Tensor,
    last_c: Tensor,
    results_grad: Tensor | None,
    h_grad: Tensor | None,
    c_grad: Tensor | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    batch_first: bool,
    workspace: Tensor,
) -> Any:
    """Return the gradients of `x`, of the two weights `[4 H, ...]` and biases `[4 H]`, and of the state
    before the first step.
    """
    if not _is_plain_lstm(mode, num_layers, bidirectional, batch_first, batch_sizes):
        return NotImplemented
    weights = (input_weight, hidden_weight, input_bias, hidden_bias)
    steps = _steps(x, weights, h[0], c[0], reverse, has_biases)
    dh = torch.zeros_like(h[0]) if h_grad is None else h_grad[0]
    dc = torch.zeros_like(c[0]) if c_grad is None else c_grad[0]
    gates_grad: list[Tensor] = []
    order = range(len(steps)) if reverse else reversed(range(len(steps)))
    for t in order:
        step = steps[t]
        i, f, g, o = step.input_gate, step.forget_gate, step.cell_gate, step.output_gate
        if results_grad is not None:
            dh = dh + results_grad[t]
        shown = step.c.tanh()
        dc = dc + dh * o * (1 - shown * shown)
        of_gates = (
            dc * g * i * (1 - i),
            dc * step.c_before * f * (1 - f),
            dc * i * (1 - g * g),
            dh * shown * o * (1 - o),
        )
        gates_grad.append(torch.cat(of_gates, 1))
        dh, dc = gates_grad[-1] @ hidden_weight, dc * f
    if not reverse:
        gates_grad.reverse()
    d_gates = torch.stack(gates_grad).flatten(0, 1)
    before = torch.stack([step.h_before for step in steps]).flatten(0, 1)
    bias_grad = d_gates.sum(0)
    return (
        (d_gates @ input_weight).view(x.shape),
        d_gates.t() @ x.reshape(-1, x.shape[2]),
        d_gates.t() @ before,
        bias_grad,
        bias_grad.clone(),
        dh.unsqueeze(0),
        dc.unsqueeze(0),
    )


# ---- Fourier transforms ----


def fourier_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of Fourier transforms of real numbers, by overload."""
    return {torch.ops.aten._fft_r2c.default: _transform}


def _transform(value: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    # other libraries than MKL fill a contiguous tensor
    if not has_trait(value.device.type, CPU_LIBRARIES) or not torch.backends.mkl.is_available():
        return NotImplemented
    wrapped = [k % value.dim() for k in dims]
    batch = _sort_descending(value, [k for k in range(value.dim()) if k not in wrapped])
    outer = _sort_descending(value, wrapped[:-1])
    if batch is None or outer is None:
        return NotImplemented
    order = [*batch, *outer, wrapped[-1]]
    if order == list(range(value.dim())):
        return NotImplemented
    inner = list(range(len(batch), value.dim()))
    result = torch.ops.aten._fft_r2c.default(value.permute(order), inner, normalization, onesided)
    return result.permute([order.index(k) for k in range(value.dim())])


def _sort_descending(value: torch.Tensor, dims: Sequence[int]) -> list[int] | None:
    """`dims` by their strides, the largest first, those of one stride as they are; None where these are not
    known well enough.
    """
    strides = value.stride()
    ordered: list[int] = []
    for dim in dims:
        larger = [is_surely(strides[other] >= strides[dim]) for other in ordered]
        smaller = [is_surely(strides[other] < strides[dim]) for other in ordered]
        if not all(a or b for a, b in zip(larger, smaller, strict=True)):
            return None
        ordered.insert(larger.count(True), dim)
    return ordered


# ---- Products of f64 ----


aten: Final = torch.ops.aten


def product_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of `f64` products of matrices, batches and vectors. Other types stay."""
    return {
        aten.mm.default: _mm,
        aten.bmm.default: _bmm,
        aten.mv.default: _mv,
        aten.addmm.default: _decompose_addition(_mm),
        aten.baddbmm.default: _decompose_addition(_bmm),
        aten.addmv.default: _decompose_addition(_mv),
    }


def _mm(a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype is not torch.float64:
        return NotImplemented
    return (a.unsqueeze(2) * b.unsqueeze(0)).sum(1).contiguous()


def _bmm(a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype is not torch.float64:
        return NotImplemented
    return (a.unsqueeze(3) * b.unsqueeze(1)).sum(2).contiguous()


def _mv(a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype is not torch.float64:
        return NotImplemented
    return (a * b).sum(1)


def _decompose_addition(product: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[..., Any]:
    def decompose(
        bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
    ) -> Any:
        result = product(a, b)
        if result is NotImplemented:
            return NotImplemented
        scaled = result if alpha == 1 else result * alpha
        # a factor of 0 keeps NaN out
        if beta == 0:
            return scaled
        return scaled + (bias if beta == 1 else bias * beta)

    return decompose
