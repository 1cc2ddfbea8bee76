"""Compiled functions called with tensors that have no memory, or under modes that watch operators: they get
what eager gives.

Estimates of memory and counters of operations do this, with the model as it is compiled. `aot_eager`, which
runs a compiled graph's operators, says what is to be had; every driver of kernels has to give the same.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.flop_counter import FlopCounterMode

from coilwork_frontend.calling_convention.operator_call import make_operator_call

DRIVERS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "native": {"strict": True, "executor": "native"},
        "python": {"strict": True, "executor": "python"},
        "cpp": {"strict": True, "wrapper": "cpp"},
        "fx": {"strict": True, "wrapper": "fx"},
    }
)
Compile = Callable[..., Callable[..., Any]]


def several(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.tanh(x @ w).sum(0), x.t(), x.mean()


def updating(x: Tensor, w: Tensor) -> Tensor:
    x.add_(w[:5])
    return torch.rand_like(x) + torch.sort(x)[0] + torch.ones(8)


def told(value: Any) -> Any:
    """What matters of a result."""
    if isinstance(value, (tuple, list)):
        return [told(item) for item in value]
    if not isinstance(value, Tensor):
        return value
    return (type(value).__name__, value.dtype, value.device, tuple(map(str, value.shape)), value.stride())


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 8), torch.randn(8, 8)


def fake_inputs_under_their_mode(compiled: Compile) -> Any:
    found = []
    for function in (several, updating):
        f = compiled(function)
        with FakeTensorMode():
            found.append(f(*inputs()))
        f(*inputs())
        with FakeTensorMode():
            found.append(f(*inputs()))
    return found


def fake_inputs_without_a_mode(compiled: Compile) -> Any:
    f = compiled(several)
    f(*inputs())
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(value) for value in inputs()]
    return f(*given)


def fake_inputs_of_open_sizes(compiled: Compile) -> Any:
    f = compiled(several, dynamic=True)
    f(*inputs())
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        first, second = f(mode.from_tensor(torch.randn(9, 8), static_shapes=False), torch.randn(8, 8))[:2]
        return type(first).__name__, second.dim()


def a_real_module_with_fake_inputs(compiled: Compile) -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    assert isinstance(model[2], nn.BatchNorm1d) and model[2].running_mean is not None
    before = model[2].running_mean.clone()
    with FakeTensorMode(allow_non_fake_inputs=True):
        result = compiled(model)(torch.randn(6, 8))
        result.sum().backward()
    kinds = {type(parameter.grad).__name__ for parameter in model.parameters()}
    return result, kinds, torch.equal(before, model[2].running_mean)


def a_fake_module_that_is_trained(compiled: Compile) -> Any:
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        result = compiled(model)(torch.randn(6, 8))
        result.sum().backward()
        return result, [parameter.grad for parameter in model.parameters()]


def the_backward_of_a_real_call_is_counted(compiled: Compile) -> Any:
    x, w = inputs()
    result = compiled(several)(x.requires_grad_(), w)[0]
    with FlopCounterMode(display=False) as counter:
        result.sum().backward()
    return counter.get_total_flops(), x.grad


def a_real_call_is_counted(compiled: Compile) -> Any:
    f = compiled(several)
    f(*inputs())
    with FlopCounterMode(display=False) as counter:
        f(*inputs())
    return counter.get_total_flops()


def traced_operators(compiled: Compile) -> Any:
    f = compiled(several)
    f(*inputs())
    found = []
    with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
        for mode in ("real", "fake", "symbolic"):
            graph = make_fx(lambda a, b: f(a, b), tracing_mode=mode)(*inputs()).graph
            found.append(sum(node.target is torch.ops.aten.mm.default for node in graph.nodes))
    return found


def under_functionalization(compiled: Compile) -> Any:
    f = compiled(several)
    x, w = inputs()
    expected = f(x, w)
    with FunctionalTensorMode():
        found = f(x, w)
    # eager's operators sum in another order than a kernel, and terms may cancel out
    is_close = torch.allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    return is_close, [type(value).__name__ for value in found]


SITUATIONS: Final = (
    fake_inputs_under_their_mode,
    fake_inputs_without_a_mode,
    fake_inputs_of_open_sizes,
    a_real_module_with_fake_inputs,
    a_fake_module_that_is_trained,
    the_backward_of_a_real_call_is_counted,
    a_real_call_is_counted,
    traced_operators,
    under_functionalization,
)


def compiler(backend: str, options: Mapping[str, object]) -> Compile:
    def compiled(function: Any, **rest: Any) -> Callable[..., Any]:
        torch._dynamo.reset()
        chosen = {"options": dict(options)} if options else {}
        made: Callable[..., Any] = torch.compile(function, backend=backend, **chosen, **rest)
        return made

    return compiled


@pytest.fixture(scope="module")
def expected() -> Mapping[str, Any]:
    """What `aot_eager` gives in each situation."""
    reference = compiler("aot_eager", {})
    return {situation.__name__: told(situation(reference)) for situation in SITUATIONS}


@pytest.mark.parametrize("driver", DRIVERS)
def test_calls_without_memory_agree_with_eager(driver: str, expected: Mapping[str, Any]) -> None:
    ours = compiler("coilwork", DRIVERS[driver])
    for situation in SITUATIONS:
        assert told(situation(ours)) == expected[situation.__name__], situation.__name__


def test_a_cached_graph_keeps_its_operators(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COILWORK_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        f = compiler("coilwork", DRIVERS["native"])(several)
        f(*inputs())
        with FakeTensorMode():
            assert {type(value).__name__ for value in f(*inputs())} == {"FakeTensor"}


def test_operators_do_not_keep_the_graph_alive() -> None:
    graph = make_fx(several, tracing_mode="fake")(*inputs())
    call, gone = make_operator_call(graph), weakref.ref(graph.graph)
    expected = several(*(given := inputs()))
    del graph
    gc.collect()
    assert gone() is None
    for found, wanted in zip(call(list(given)), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_released_memory_is_reported() -> None:
    f = compiler("coilwork", DRIVERS["native"])(lambda x: (x * 2).sum(0))
    f(torch.ones(3, 4))
    given = torch.ones(3, 4)
    given.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="memory holds 0 bytes, and shape \\(3, 4\\) takes 48"):
        f(given)
