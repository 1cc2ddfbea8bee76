"""Operators that name whole recurrent layers in graphs: those of ATen, with facts that tracing asks for.

Torch takes `aten.lstm` apart into its steps wherever it is traced, and does not know that `_cudnn_rnn`
returns memory for its gradient of a size that cuDNN chooses, or what that gradient returns. The operators
`coilwork::NAME` have the schemas of `aten::NAME` and call it. Lowering calls ATen's in their stead where
programs can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import BuiltinFunctionType, MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._library.fake_impl import allocate_size

from coilwork_frontend.torch_compat.operators import disable_modes
from coilwork_ir.device_traits import CUDNN as HAS_CUDNN
from coilwork_ir.device_traits import has_trait

_LIBRARY: Final = torch.library.Library("coilwork", "FRAGMENT")


def _define(native: Any, fake: Callable[..., Any], run: Callable[..., Any] | None = None) -> None:
    """Define an operator with the schema of `native`, which it calls, or `run`."""
    schema = str(native._schema).replace("aten::", "", 1)
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, run or native, "CompositeExplicitAutograd")
    torch.library.register_fake(f"coilwork::{name}", fake, lib=_LIBRARY)


def _describe_layers(
    x: Tensor, states: Sequence[Tensor], bidirectional: bool, batch_first: bool
) -> tuple[Tensor, ...]:
    """Return the results of layers whose states `[L D, B, H]` are `states`; eager makes them time first."""
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    hidden = x.new_empty((steps, batch, states[0].shape[2] * (1 + bidirectional)))
    last = tuple(one.new_empty(one.shape) for one in states)
    return (hidden.transpose(0, 1) if batch_first else hidden, *last)


def _describe_memory(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a row of elements of which the library tells at run time how many there are.

    Torch's own way to such a size is closed unless the whole process captures sizes from data.
    """
    mode = detect_fake_mode(x)
    sizes = None if mode is None else mode.shape_env
    size = torch.library.get_ctx().new_dynamic_size() if sizes is None else allocate_size(sizes)
    return x.new_empty((size,), dtype=dtype)


def _fake_lstm(x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *numbers: Any) -> Any:
    return _describe_layers(x, states, *numbers[4:])


def _fake_others(x: Tensor, state: Tensor, weights: Sequence[Tensor], *numbers: Any) -> Any:
    return _describe_layers(x, (state,), *numbers[4:])


def _fake_cudnn(
    x: Tensor,
    weights: Sequence[Tensor],
    stride: int,
    packed: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    *numbers: Any,
) -> tuple[Tensor, ...]:
    batch_first, bidirectional = numbers[4], numbers[7]
    (hidden, last) = _describe_layers(x, (hx,), bidirectional, batch_first)
    cell = x.new_empty(0) if cx is None else cx.new_empty(cx.shape)
    return hidden, last, cell, _describe_memory(x, torch.uint8), _describe_memory(x, x.dtype)


def _fake_cudnn_gradient(
    x: Tensor,
    weights: Sequence[Tensor],
    stride: int,
    packed: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    *others: object,
) -> tuple[Any, ...]:
    like = partial(torch.empty_like, memory_format=torch.contiguous_format)
    cell = x.new_empty(0) if cx is None else like(cx)
    return like(x), like(hx), cell, [like(one) for one in weights]


def _fake_onednn(*arguments: Any) -> tuple[Tensor, ...]:
    x, states = arguments[0], arguments[5:7]
    return (*_describe_layers(x, states, False, False), _describe_memory(x, torch.uint8))


def _run_onednn(*arguments: Any) -> Any:
    """Run a layer that trains. oneDNN's operator gives what the gradient reads only in grad mode, which
    compiled programs run without.
    """
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return torch.ops.aten.mkldnn_rnn_layer.default(*arguments)


def _fake_onednn_gradient(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(one.new_empty(one.shape, dtype=torch.float32) for one in arguments[:7])


_define(torch.ops.aten.lstm.input, _fake_lstm)
_define(torch.ops.aten.gru.input, _fake_others)
_define(torch.ops.aten.rnn_tanh.input, _fake_others)
_define(torch.ops.aten.rnn_relu.input, _fake_others)
_define(torch.ops.aten._cudnn_rnn.default, _fake_cudnn)
_define(torch.ops.aten._cudnn_rnn_backward.default, _fake_cudnn_gradient)
_define(torch.ops.aten.mkldnn_rnn_layer.default, _fake_onednn, _run_onednn)
_define(torch.ops.aten.mkldnn_rnn_layer_backward.default, _fake_onednn_gradient)

CUDNN: Final[Callable[..., tuple[Tensor, ...]]] = torch.ops.coilwork._cudnn_rnn.default
CUDNN_GRADIENT: Final[Callable[..., tuple[Any, ...]]] = torch.ops.coilwork._cudnn_rnn_backward.default

ONEDNN: Final[Callable[..., tuple[Tensor, ...]]] = torch.ops.coilwork.mkldnn_rnn_layer.default
ONEDNN_GRADIENT: Final[Callable[..., tuple[Tensor, ...]]] = (
    torch.ops.coilwork.mkldnn_rnn_layer_backward.default
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnShape:
    """The facts about layers that cuDNN is told beside tensors.

    `mode` is a `cudnnRNNMode_t`, `weights` how many weights a layer has in each direction.
    """

    mode: int
    weights: int
    hidden_size: int
    projected_size: int
    layers: int
    bidirectional: bool

    def list_numbers(self, *, train: bool) -> tuple[Any, ...]:
        """Return the arguments from the mode to the state of dropout."""
        sizes = (self.hidden_size, self.projected_size, self.layers)
        return (self.mode, *sizes, False, 0.0, train, self.bidirectional, [], None)


def find_weight_order(shape: CudnnShape, x: Tensor, weights: Sequence[Tensor]) -> list[int]:
    """Return the places of `weights`, which cuDNN takes as one row, in the order of this row.

    cuDNN tells its own layout. Without a device it is the one that cuDNN documents: matrices by layers and
    directions, and behind them all biases. A row with gaps, which cuDNN was never seen to have, is an error.
    """
    usual = sorted(range(len(weights)), key=lambda place: weights[place].dim() == 1)
    if not torch.cuda.is_available():
        return usual
    with disable_modes(), torch.no_grad():
        probes = [torch.empty(tuple(map(int, one.shape)), dtype=x.dtype, device=x.device) for one in weights]
        row = torch._cudnn_rnn_flatten_weight(
            probes,
            *(shape.weights, int(x.shape[2]), shape.mode, shape.hidden_size, shape.projected_size),
            *(shape.layers, False, shape.bidirectional),
        )
        order = sorted(range(len(probes)), key=lambda place: probes[place].storage_offset())
        starts = [probes[place].storage_offset() for place in order]
        ends = accumulate(probes[place].numel() for place in order)
        if [0, *ends] != [*starts, row.numel()]:
            raise RuntimeError("cuDNN's row of weights has gaps")
    return order


def has_layers_of(dtype: torch.dtype) -> bool:
    """Tell if oneDNN has recurrent layers of `dtype` for this processor, and may be used.

    Those of `float16` have no gradient, in eager mode too.
    """
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    if dtype is torch.float16:
        return not torch.is_grad_enabled() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def get_whole_operator(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    """Return the operator of whole layers of `kind`: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`."""
    operator: Callable[..., tuple[Tensor, ...]] = getattr(torch.ops.coilwork, kind).input
    return operator


_FUNCTIONS: Final[Mapping[object, str]] = MappingProxyType(
    {
        torch.lstm: "lstm",
        torch.gru: "gru",
        torch.rnn_tanh: "rnn_tanh",
        torch.rnn_relu: "rnn_relu",
    }
)


def describe_recurrent_call(function: object, arguments: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """Return fake results of `function` as eager has them; None if it is no layer, or of mixed or packed
    operands.
    """
    kind = _FUNCTIONS.get(function) if isinstance(function, BuiltinFunctionType) else None
    if kind is None or len(arguments) != 9 or not isinstance(arguments[3], bool):
        return None
    x, states, weights, *numbers = arguments
    given = tuple(states) if kind == "lstm" else (states,)
    if not all(one.dtype is x.dtype for one in (*given, *weights)):
        return None
    if torch.is_autocast_enabled(x.device.type):
        if not has_trait(x.device.type, HAS_CUDNN) or x.dtype is torch.float64:
            return None
        x, given = x.half(), tuple(one.half() for one in given)
        weights = [one.half() for one in weights]
    return get_whole_operator(kind)(x, given if kind == "lstm" else given[0], weights, *numbers)
