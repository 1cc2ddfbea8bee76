"""Updates overwrite the tensor that they are an update of exactly where nobody reads its old contents, and
results are eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor

from coilwork_ir.loops import Pointwise, Scatter
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import Lowered, LoweringOptions

Function = Callable[..., Any]
# of a part of a tensor, an update in place needs so many bytes to pay
ROWS = 4096


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def lowered_as_eager(
    function: Function, *inputs: Any, dynamic: bool = False, options: LoweringOptions | None = None
) -> Lowered:
    """The lowered graph of `function`, whose results and overwritten inputs are eager's, as is what shares
    memory.
    """
    own = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
    expected = function(*inputs)
    recorder = Recorder(options)
    found = torch.compile(function, backend=recorder, dynamic=dynamic)(*own)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own, list(inputs))
    assert sharing((found, own)) == sharing((expected, inputs))
    (lowered,) = recorder.lowered
    verify_graph(lowered.graph)
    return lowered


def sharing(values: Any) -> list[list[bool]]:
    tensors = [x for x in torch.utils._pytree.tree_leaves(values) if isinstance(x, Tensor)]
    memory = [x.untyped_storage().data_ptr() for x in tensors]
    return [[a == b for b in memory] for a in memory]


def decisions(lowered: Lowered) -> list[str]:
    """Of each update why it copies; empty where it does not."""
    return [update.reason for update in lowered.updates]


def into_inputs(lowered: Lowered) -> int:
    """Elements of inputs that are overwritten, by nodes that store at known places."""
    points = 0
    for node in lowered.graph.nodes:
        if isinstance(node, Scatter) or (isinstance(node, Pointwise) and node.into is not None):
            shape = [int(str(s.extent)) for s in node.ranges]
            points += int(torch.Size(shape).numel())
    return points


def row(x: Tensor, v: Tensor) -> None:
    x[5] = v


def some_rows_added_to(x: Tensor, v: Tensor) -> None:
    x[5:9].add_(v)


def every_other_row(x: Tensor, v: Tensor) -> None:
    x[::2] = v


def column(x: Tensor, v: Tensor) -> None:
    x.t()[3] = v[0]


def part_of_a_part(x: Tensor, v: Tensor) -> None:
    x[16:4016][:, 1] = v[0]


def diagonal(x: Tensor, v: Tensor) -> None:
    x.diagonal().copy_(v)


@pytest.mark.parametrize(
    ("function", "shape", "written"),
    [
        (row, (8,), 8),
        (some_rows_added_to, (4, 8), 32),
        (every_other_row, (8,), ROWS * 4),
        (column, (8,), ROWS),
        (part_of_a_part, (8,), 4000),
        (diagonal, (8,), 8),
    ],
)
def test_of_an_input_only_the_part_is_stored(
    function: Function, shape: tuple[int, ...], written: int
) -> None:
    lowered = lowered_as_eager(function, torch.randn(ROWS, 8), torch.randn(shape))
    assert into_inputs(lowered) == written
    assert "" in decisions(lowered)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cache_is_updated_at_a_position(dynamic: bool) -> None:
    def function(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        cache[:, :, at] = new
        return cache.sum(2)

    lowered = lowered_as_eager(
        function, torch.randn(2, 4, 16, 8), torch.randn(2, 4, 1, 8), torch.tensor([3]), dynamic=dynamic
    )
    assert decisions(lowered) == [""]


def test_layers_of_one_cache() -> None:
    def function(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        read = []
        for layer in range(3):
            cache[layer][:, :, at] = new * layer
            read.append(cache[layer].sum(1))
        return torch.stack(read)

    lowered = lowered_as_eager(
        function, torch.randn(3, 2, 4, 16, 8), torch.randn(2, 4, 1, 8), torch.tensor([3])
    )
    assert decisions(lowered) == ["", "", ""]
    assert into_inputs(lowered) == 3 * 2 * 4 * 8


def test_a_cache_at_a_number_that_changes() -> None:
    def function(cache: Tensor, new: Tensor, at: int) -> Tensor:
        cache[:, at : at + 1] = new
        return cache.sum(1)

    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, dynamic=True)
    for at in (3, 7, 15):
        cache, new = torch.randn(4, 16, 8), torch.randn(4, 1, 8)
        own = cache.clone()
        torch.testing.assert_close(compiled(own, new, at), function(cache, new, at))
        torch.testing.assert_close(own, cache)
    assert [decisions(lowered) for lowered in recorder.lowered] == [[""]]


def scattered(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.cumsum(0)
    y[i] = v
    y.index_add_(0, i, v)
    return y


def read_between(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y = x.cumsum(0)
    y[i] = v
    before = y.sum(0)
    y[i] = v * 2
    return y, before


def test_what_the_graph_computed_is_overwritten() -> None:
    inputs = torch.randn(16, 8), torch.randperm(16)[:4], torch.randn(4, 8)
    assert decisions(lowered_as_eager(scattered, *inputs)) == ["", ""]
    assert decisions(lowered_as_eager(read_between, *inputs)) == ["", ""]


def old_value_returned(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y = x.cumsum(0)
    return y, y.index_put((i,), v)


def old_value_read_later(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.cumsum(0)
    z = y.index_put((i,), v)
    return z.sum(0) * y.sum(0)


def old_view_read_later(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.cumsum(0)
    view = y.t()[1:]
    z = y.index_put((i,), v)
    return z.t()[1:] * view


def repeated_elements(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.cumsum(0)[:1].expand(16, 8)
    return y.index_put((i,), v)


def an_input_that_stays(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_put((i,), v)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (old_value_returned, "%cumsum is read by %output"),
        (old_value_read_later, "%cumsum is read by %sum_2"),
        (old_view_read_later, "is read by %mul"),
        (repeated_elements, "its elements may share memory"),
        (an_input_that_stays, "it is an input's memory"),
    ],
)
def test_old_contents_that_are_needed_stay(function: Function, reason: str) -> None:
    inputs = torch.randn(16, 8), torch.randperm(16)[:4], torch.randn(4, 8)
    (found,) = decisions(lowered_as_eager(function, *inputs))
    assert found.endswith(reason)


def test_a_result_that_is_also_copied_into_an_input_has_memory_of_its_own() -> None:
    def function(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        y = x.index_put((i,), v)
        x.copy_(y)
        return y

    lowered_as_eager(function, torch.randn(16, 8), torch.randperm(16)[:4], torch.randn(4, 8))


def test_an_input_of_which_views_are_returned_is_updated_in_place() -> None:
    """They show its newest contents, not those that the update replaces."""

    def function(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        x[5:9] = v
        x[torch.arange(3)] += 1
        return x[1:], x.t(), x.sum()

    lowered = lowered_as_eager(function, torch.randn(ROWS, 8), torch.randn(8))
    assert decisions(lowered) == ["", ""]


def test_a_result_from_between_two_updates_of_an_input_keeps_its_values() -> None:
    def function(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x.index_add_(0, i, v)
        between = x.clone()
        x.index_copy_(0, i, v)
        return between

    lowered_as_eager(function, torch.randn(16, 8), torch.randperm(16)[:4], torch.randn(4, 8))


def test_small_parts_and_what_kernels_compute_stay_in_one_kernel() -> None:
    def function(x: Tensor, v: Tensor) -> Tensor:
        y = x.sin()
        y[3] = v
        return y

    assert decisions(lowered_as_eager(row, torch.randn(16, 8), torch.randn(8))) == ["few bytes"]
    assert decisions(lowered_as_eager(function, torch.randn(ROWS, 8), torch.randn(8))) == [
        "a kernel computes it"
    ]


def test_an_option_forbids_updates_in_place() -> None:
    options = LoweringOptions(updates_in_place=False)
    lowered = lowered_as_eager(row, torch.randn(ROWS, 8), torch.randn(8), options=options)
    assert decisions(lowered) == ["by option"]


def test_a_number_is_copied_into_a_part() -> None:
    def function(x: Tensor) -> Tensor:
        # torch's own types know no numbers here
        number: Any = 0.5
        x[1:].copy_(number)
        return x * 2

    lowered_as_eager(function, torch.randn(4, 3))


def test_what_is_saved_for_the_backward_is_not_overwritten() -> None:
    """What the forward graph saves for the backward is read by it; an update after that copies."""

    def function(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        y = torch.exp(x @ x.t())
        z = y.index_put((i,), v)
        return (z * z).sum()

    i, v = torch.randperm(8)[:4], torch.randn(4, 8)
    gradients = []
    for compiled in (function, torch.compile(function, backend=Recorder())):
        torch.manual_seed(0)
        x = (torch.randn(8, 4) / 4).requires_grad_()
        compiled(x, i, v).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
