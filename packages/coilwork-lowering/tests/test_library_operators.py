"""LSTM layers and Fourier transforms where CPU libraries need help."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions
from coilwork_lowering.decompositions import library_operators

LAYERS = [
    pytest.param({"num_layers": 1, "bidirectional": False, "bias": True}, id="one"),
    pytest.param({"num_layers": 2, "bidirectional": True, "bias": True}, id="two, both ways"),
    pytest.param({"num_layers": 1, "bidirectional": False, "bias": False}, id="no biases"),
]
INPUTS, HIDDEN, BATCH, STEPS = 7, 9, 3, 4


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`nn.LSTM` is captured, and oneDNN has no layers in 16 bits."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(library_operators, "has_16_bit_layers", lambda: False)
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def layer(
    settings: dict[str, int], dtype: torch.dtype
) -> tuple[nn.LSTM, tuple[Tensor, tuple[Tensor, Tensor]]]:
    """A layer, with its input `[B, T, I]` and a state `[L * D, B, H]`."""
    model = nn.LSTM(INPUTS, HIDDEN, batch_first=True, **settings).to(dtype)
    states = settings["num_layers"] * (1 + settings["bidirectional"])
    h, c = torch.randn(2, states, BATCH, HIDDEN, dtype=dtype)
    return model, (torch.randn(BATCH, STEPS, INPUTS, dtype=dtype), (h, c))


def exact(model: nn.LSTM, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[nn.LSTM, tuple[Tensor, ...]]:
    """The model in `float64`, and its three results."""
    wide = deepcopy(model).double()
    result, (h, c) = wide(x.double(), (state[0].double(), state[1].double()))
    return wide, (result, h, c)


def targets(recorder: Recorder) -> set[str]:
    return {
        node.target for lowered in recorder.lowered for node in lowered.graph.nodes if hasattr(node, "target")
    }


@pytest.mark.parametrize("settings", LAYERS)
def test_layers_that_onednn_lacks_are_written_out(settings: dict[str, int]) -> None:
    model, (x, state) = layer(settings, torch.bfloat16)
    recorder = Recorder()
    with torch.no_grad():
        result, (h, c) = torch.compile(model, backend=recorder)(x, state)
        _, wanted = exact(model, x, state)
    assert not any("mkldnn_rnn" in target for target in targets(recorder))
    for one, other in zip((result, h, c), wanted, strict=True):
        assert one.dtype is torch.bfloat16 and one.stride() == other.stride()
        torch.testing.assert_close(one.double(), other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("settings", LAYERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
def test_gradients_of_recurrent_layers_are_near_the_exact_ones(
    settings: dict[str, int], dtype: torch.dtype, tolerance: float
) -> None:
    model, (x, state) = layer(settings, dtype)
    recorder = Recorder()
    result, (h, c) = torch.compile(model, backend=recorder)(x, state)
    weigh = [torch.randn_like(t) for t in (result, h, c)]
    torch.autograd.backward((result, h, c), weigh)
    wide, wanted = exact(model, x, state)
    torch.autograd.backward(wanted, [w.double() for w in weigh])
    assert not any("mkldnn_rnn_layer_backward" in target for target in targets(recorder))
    for (name, one), other in zip(model.named_parameters(), wide.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None, name
        scale = other.grad.abs().max()
        torch.testing.assert_close(
            one.grad / scale, other.grad / scale, rtol=0, atol=tolerance, check_dtype=False
        )


def test_gradients_of_states() -> None:
    model, (x, state) = layer({"num_layers": 1, "bidirectional": False, "bias": True}, torch.float32)
    given = tuple(t.clone().requires_grad_() for t in state)
    result, _ = torch.compile(model, backend=Recorder())(x, given)
    found = torch.autograd.grad(result.square().sum(), given)
    wide = tuple(t.double().requires_grad_() for t in state)
    result, _ = deepcopy(model).double()(x.double(), wide)
    for one, other in zip(found, torch.autograd.grad(result.square().sum(), wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


ORDERS = list(itertools.permutations(range(3)))
TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the last": torch.fft.rfft,
    "the first": lambda x: torch.fft.rfft(x, dim=0),
    "both halves": lambda x: torch.fft.fft(x, dim=1),
    "the first two": lambda x: torch.fft.rfft2(x, dim=(0, 1)),
    "two, the other way": lambda x: torch.fft.rfft2(x, dim=(2, 0)),
    "all": torch.fft.rfftn,
    "inverse": lambda x: torch.fft.ihfft(x, dim=1),
    "of integers": lambda x: torch.fft.rfft(x.long(), dim=1),
}


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_lay_out_results_as_eager_does(name: str, mode: Any) -> None:
    function = TRANSFORMS[name]
    for order in ORDERS:
        dense = torch.arange(60.0).sin().view([(3, 4, 5)[k] for k in order])
        value = dense.permute([order.index(k) for k in range(3)])
        wanted = function(value)
        gm = make_fx(function, tracing_mode=mode, decomposition_table=decompositions())(value)
        (output,) = gm.graph.find_nodes(op="output")
        assert tuple(map(int, output.args[0].meta["val"].stride())) == wanted.stride(), order
        torch.testing.assert_close(gm(value), wanted, check_stride=True)
