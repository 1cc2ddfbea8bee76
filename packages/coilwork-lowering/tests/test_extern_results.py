"""What calls without a lowering return: lists beside other results, and quantised tensors, which capture
takes for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Extern, Pointwise

LIBRARY = torch.library.Library("coilwork_extern_results", "DEF")


def define(schema: str, kernel: Callable[..., object], fake: Callable[..., object]) -> None:
    LIBRARY.define(schema)
    name = schema.partition("(")[0]
    LIBRARY.impl(name, kernel, "CPU")
    LIBRARY.impl(name, fake, "Meta")


def like(x: Tensor) -> Tensor:
    return torch.empty_like(x)


define(
    "beside(Tensor x) -> (Tensor, Tensor[])",
    lambda x: (x * 2, [x + 1, x + 2]),
    lambda x: (like(x), [like(x), like(x)]),
)
define(
    "before(Tensor x, int n) -> (Tensor[], Tensor)",
    lambda x, n: ([x + k for k in range(n)], x * 2),
    lambda x, n: ([like(x) for _ in range(n)], like(x)),
)
define(
    "lists(Tensor x) -> (Tensor[], Tensor[])",
    lambda x: ([x + 1], [x * 2, x * 3]),
    lambda x: ([like(x)], [like(x), like(x)]),
)
define(
    "some(Tensor x) -> (Tensor?, Tensor?[])",
    lambda x: (None, [x + 1, None]),
    lambda x: (None, [like(x), None]),
)
define("list(Tensor x) -> Tensor[]", lambda x: [x + 1, x * 2], lambda x: [like(x), like(x)])

OPS = torch.ops.coilwork_extern_results
PROGRAMS: dict[str, tuple[Callable[[Tensor], object], tuple[tuple[int, ...], ...]]] = {
    "a list after a tensor": (
        lambda x: (lambda a, b: (a.relu(), b[0] * 2, b[1].sin()))(*OPS.beside(x.cos())),
        ((0,), (1, 0), (1, 1)),
    ),
    "a list before a tensor": (
        lambda x: (lambda a, b: (b.relu(), a[0] * 2, a[2].sin()))(*OPS.before(x.cos(), 3)),
        ((0, 0), (0, 1), (0, 2), (1,)),
    ),
    "an empty list": (lambda x: OPS.before(x.cos(), 0)[1] + 1, ((1,),)),
    "two lists": (
        lambda x: (lambda a, b: a[0] + b[1])(*OPS.lists(x.cos())),
        ((0, 0), (1, 0), (1, 1)),
    ),
    "results that are not there": (
        lambda x: (lambda a, b: (a, b[0] * 2, b[1]))(*OPS.some(x.cos())),
        ((0,), (1, 0), (1, 1)),
    ),
    "one list": (lambda x: [y.sin() for y in OPS.list(x.cos())], ()),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", PROGRAMS)
def test_lists_of_results(name: str) -> None:
    function, paths = PROGRAMS[name]
    recorder = Recorder()
    x = torch.randn(3, 4)
    expected = function(x)
    found = torch.compile(function, backend=recorder, fullgraph=True)(x)
    torch.testing.assert_close(found, expected)
    (lowered,) = recorder.lowered
    (call,) = [node for node in lowered.graph.nodes if isinstance(node, Extern)]
    assert call.paths == paths and not call.single
    assert any(isinstance(node, Pointwise) for node in lowered.graph.nodes)


def quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda q: q,
    "a kernel": lambda q: q.relu(),
    "a view": lambda q: q.view(4, 3),
    "strides": lambda q: q.t(),
    "repeated elements": lambda q: q.unsqueeze(0).expand(2, 3, 4),
    "lists": lambda q: torch.cat(q.split(2, 1)),
    "positions": lambda q: q.topk(2)[0],
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", BETWEEN)
def test_quantised_tensors_pass_from_call_to_call(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        return BETWEEN[name](quantized(x.sin())).dequantize() * 2

    recorder = Recorder()
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(function, backend=recorder, fullgraph=True)(x), function(x))
    (lowered,) = recorder.lowered
    nodes = lowered.graph.nodes
    assert isinstance(nodes[0], Pointwise) and isinstance(nodes[-1], Pointwise)
    first, *_, last = [node for node in nodes if isinstance(node, Extern)]
    assert [o.dtype for o in first.outputs if isinstance(o, Buffer)] == [DType.QU8]
    assert [o.dtype for o in last.outputs if isinstance(o, Buffer)] == [DType.F32]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_operators_that_capture_chose_for_floats_are_refused() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.max_pool2d(quantized(x), 2).dequantize()

    with pytest.raises(
        BackendCompilerFailed,
        match=r"(?s)MistracedError\[mistraced\].*max_pool2d_with_indices.*no kernel.*quint8",
    ):
        torch.compile(function, backend=Recorder(), fullgraph=True)(torch.randn(1, 2, 4, 4))
