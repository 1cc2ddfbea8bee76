"""Stores by position into memory that holds nothing: the memory is not filled first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor

from coilwork_ir.loops import Scatter
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import Lowered, LoweringOptions

X = torch.randn(6, 4)
ORDER = torch.randperm(6)
FEW = torch.tensor([4, 1, 3])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(
    function: Callable[..., Any],
    *inputs: Tensor,
    options: LoweringOptions | None = None,
    dynamic: bool = False,
) -> tuple[Any, Lowered]:
    recorder = Recorder(options)
    found = torch.compile(function, backend=recorder, dynamic=dynamic)(*inputs)
    (lowered,) = recorder.lowered
    verify_graph(lowered.graph)
    return found, lowered


def scatters(lowered: Lowered) -> list[Scatter]:
    return [node for node in lowered.graph.nodes if isinstance(node, Scatter)]


def is_filled(lowered: Lowered) -> bool:
    """Whether the first scatter has memory to scatter into."""
    return scatters(lowered)[0].into is not None


WHOLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_copy": lambda x, at: torch.empty_like(x).index_copy(0, at, x * 2),
    "index_put": lambda x, at: torch.empty(6, 4).index_put((at,), x),
    "assigned": lambda x, at: _assigned(x.new_empty(6, 4), x, at),
    "scattered": lambda x, at: torch.empty_strided((6, 4), (1, 6)).scatter(0, at[:, None].expand(6, 4), x),
    "viewed": lambda x, at: _assigned(torch.empty_permuted((2, 6, 2), (0, 1, 2)).view(6, 4), x, at),
}


def _assigned(memory: Tensor, x: Tensor, at: Tensor) -> Tensor:
    memory[at] = x
    return memory


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_copied(name: str, dynamic: bool) -> None:
    found, lowered = run(WHOLE[name], X, ORDER, dynamic=dynamic)
    expected = WHOLE[name](X, ORDER)
    assert torch.equal(found, expected) and found.stride() == expected.stride()
    (scatter,) = scatters(lowered)
    assert scatter.into is None and scatter.sparse


def test_only_some_rows_are_written() -> None:
    def two(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        memory = torch.empty(6, 4)
        memory[at] = x[:3]
        memory[torch.tensor([0, 1])] = x[4:]
        return memory, memory * 1

    (found, again), lowered = run(two, X, FEW)
    assert torch.equal(found[[4, 3, 0, 1]], X[[0, 2, 4, 5]])
    assert torch.equal(again.nan_to_num(), found.nan_to_num())
    first, second = scatters(lowered)
    assert first.sparse and not second.sparse and second.into == first.output.name


def test_two_of_them_are_not_one() -> None:
    def both(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x).index_copy(0, at, x), torch.empty_like(x).index_copy(0, at, x + 1)

    (one, other), lowered = run(both, X, ORDER)
    assert torch.equal(one + 1, other)
    assert [scatter.sparse for scatter in scatters(lowered)] == [True, True]


def test_memory_that_somebody_else_reads_holds_the_same_everywhere() -> None:
    def compared(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        memory = torch.empty_like(x)
        return memory.index_copy(0, at, x[:3]), memory

    (found, memory), lowered = run(compared, X, FEW)
    assert is_filled(lowered)
    assert torch.equal(found[[0, 2, 5]].nan_to_num(), memory[[0, 2, 5]].nan_to_num())

    def itself(x: Tensor, at: Tensor) -> Tensor:
        memory = torch.empty_like(x)
        return memory.index_copy(0, at, memory[:3])

    assert is_filled(run(itself, X, FEW)[1])


def test_sums_read_what_is_there() -> None:
    def added(x: Tensor, at: Tensor) -> Tensor:
        return torch.empty(6, 4).index_put((at,), x, accumulate=True)

    assert all(not scatter.sparse for scatter in scatters(run(added, X, ORDER)[1]))


def test_memory_that_a_call_fills_is_kept() -> None:
    kept = LoweringOptions(fallback=("aten.empty_permuted", "aten.empty"))
    _, lowered = run(WHOLE["index_copy"], X, ORDER, options=kept)
    assert is_filled(lowered)


def test_nothing_written_is_still_a_tensor() -> None:
    found, _ = run(WHOLE["index_put"], X[:0], ORDER[:0])
    assert found.shape == (6, 4)
