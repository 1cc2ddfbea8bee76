"""`associative_scan` beside a loop in Python: one scan node where its function combines element by element,
else what it stands for.

Torch refuses CPU tensors where its function of that name is asked for `pointwise` combining; the operator
takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
import torch
from lowering_backend import Recorder, make_boxed_call
from torch import Tensor
from torch._higher_order_ops import associative_scan
from torch._subclasses.fake_tensor import FakeTensorMode

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int
from coilwork_ir.loops import Extern, Graph, Loop, Scan
from coilwork_ir.scalar import Combine
from coilwork_lowering import lower
from coilwork_lowering.higher_order import scan as unrolled_scans

Function: TypeAlias = Callable[..., list[Tensor]]
Scanning: TypeAlias = Callable[..., list[Tensor]]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def by_operator(function: Function, rows: Sequence[Tensor], dim: int, reverse: bool = False) -> list[Tensor]:
    """As `torch._higher_order_ops.associative_scan` calls the operator."""
    moved = [row.movedim(dim, 0) for row in rows]
    if reverse:
        moved = [row.flip([0]) for row in moved]
    found: list[Tensor] = torch.ops.higher_order.associative_scan(function, moved, ())
    if reverse:
        found = [result.flip([0]) for result in found]
    return [result.movedim(0, dim) for result in found]


def by_loop(function: Function, rows: Sequence[Tensor], dim: int, reverse: bool = False) -> list[Tensor]:
    """One point after the other."""
    moved = [row.movedim(dim, 0).flip(0) if reverse else row.movedim(dim, 0) for row in rows]
    points = [[row[0] for row in moved]]
    for k in range(1, moved[0].shape[0]):
        points.append(function(*points[-1], *(row[k] for row in moved)))
    stacked = [torch.stack(result) for result in zip(*points, strict=True)]
    return [(result.flip(0) if reverse else result).movedim(0, dim) for result in stacked]


def recurrence(a: Tensor, b: Tensor, later_a: Tensor, later_b: Tensor) -> list[Tensor]:
    """Two steps of `h = a * h + b` as one."""
    return [a * later_a, later_a * b + later_b]


def lowered(
    function: Callable[..., list[Tensor]], *inputs: Tensor, dynamic: bool = False, **tolerance: Any
) -> Graph:
    """The graph of `function(scan, *inputs)`, whose results are those of a loop."""
    recorder = Recorder()
    compiled = torch.compile(
        lambda *given: function(by_operator, *given), backend=recorder, dynamic=dynamic, fullgraph=True
    )
    found, expected = compiled(*inputs), function(by_loop, *inputs)
    torch.testing.assert_close(found, expected, **tolerance)
    (made,) = recorder.lowered
    assert not made.guards
    return made.graph


def scan_of(graph: Graph) -> Scan:
    """The only scan of `graph`, which is by a function; it calls nothing."""
    assert not any(isinstance(node, Extern | Loop) for node in graph.nodes)
    (scan,) = (node for node in graph.nodes if isinstance(node, Scan))
    assert isinstance(scan.kind, Combine)
    return scan


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_recurrence_is_one_scan_in_any_direction(dtype: torch.dtype, dim: int, reverse: bool) -> None:
    a, b = ((torch.randn(3, 4, 5) * (1 if dtype.is_floating_point else 3)).to(dtype) for _ in range(2))

    def function(scan: Scanning, a: Tensor, b: Tensor) -> list[Tensor]:
        return [result + 1 for result in scan(recurrence, [a, b], dim, reverse)]

    found = scan_of(lowered(function, a, b))
    assert isinstance(found.kind, Combine) and found.kind.count == 2
    assert found.reverse is reverse
    # as the operands lie in memory, whatever is scanned
    (output, *_) = found.outputs
    assert output is not None and [as_int(size) for size in output.shape] == [3, 4, 5]
    assert found.ranges.index(found.axis) == dim


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_are_combined_as_f32(dtype: torch.dtype) -> None:
    a, b = torch.rand(3, 50).to(dtype), torch.randn(3, 50).to(dtype)
    recorder = Recorder()
    (_, h) = torch.compile(lambda a, b: by_operator(recurrence, [a, b], 1), backend=recorder)(a, b)
    (_, wanted) = by_loop(recurrence, [a.double(), b.double()], 1)
    assert torch.equal(h, wanted.to(dtype))
    found = scan_of(recorder.lowered[0].graph)
    assert isinstance(found.kind, Combine)
    assert [result.dtype for result in found.kind.results] == [DType.F32, DType.F32]


def test_results_that_nobody_asks_for_are_not_stored() -> None:
    found = scan_of(lowered(lambda scan, a: [scan(recurrence, [a, a + 1], 1)[1]], torch.rand(3, 6)))
    assert found.outputs[0] is None and found.outputs[1] is not None


def test_values_that_no_result_needs_are_not_combined() -> None:
    def function(scan: Scanning, a: Tensor) -> list[Tensor]:
        return [scan(lambda x, y, z, u, v, w: [x + u, y * v * w, z + w], [a, a + 1, a.exp()], 1)[1]]

    found = scan_of(lowered(function, torch.rand(3, 6)))
    assert isinstance(found.kind, Combine) and found.kind.count == 2
    assert found.outputs[0] is not None and found.outputs[1] is None
    torch._dynamo.reset()
    found = scan_of(lowered(lambda scan, a: [scan(recurrence, [a, a + 1], 1)[0]], torch.rand(3, 6)))
    assert not found.others


@pytest.mark.parametrize("shape", [(6,), (1, 5), (5, 1), (5, 1, 1)])
def test_a_scan_of_one_point_is_no_scan(shape: tuple[int, ...]) -> None:
    graph = lowered(lambda scan, a: scan(recurrence, [a, a], 0), torch.rand(shape))
    assert any(isinstance(node, Scan) for node in graph.nodes) is (shape[0] > 1)


def test_no_points_beside_the_axis() -> None:
    (found,) = torch.compile(
        lambda a: by_operator(lambda x, y: [x + y], [a], 0), backend=Recorder(), fullgraph=True
    )(torch.rand(5, 0))
    assert found.shape == (5, 0)


def test_strided_and_expanded_operands() -> None:
    a, b = torch.rand(7, 6), torch.randn(6, 14)
    scan_of(lowered(lambda scan, a, b: scan(recurrence, [a.t(), b[:, ::2]], 1), a, b))
    scan_of(lowered(lambda scan, a, b: scan(recurrence, [a.expand(2, 7, 6), b], 1), a, torch.rand(2, 7, 6)))


@pytest.mark.parametrize("reverse", [False, True])
def test_sizes_that_differ(reverse: bool) -> None:
    recorder = Recorder()
    compiled = torch.compile(
        lambda a, b: by_operator(recurrence, [a, b], 1, reverse), backend=recorder, dynamic=True
    )
    for count in (4, 7, 2):
        a, b = torch.rand(3, count, 5), torch.randn(3, count, 5)
        torch.testing.assert_close(compiled(a, b), by_loop(recurrence, [a, b], 1, reverse))
    (made,) = recorder.lowered
    found = scan_of(made.graph)
    assert found.ranges.index(found.axis) == 1 and found.axis.extent in made.graph.symbols


def test_what_the_function_reads_besides() -> None:
    weight, shift = torch.rand(5), torch.tensor(3)

    def largest(x: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.where(x * weight > y * weight, x, y)]

    def modular(x: Tensor, y: Tensor) -> list[Tensor]:
        return [(x + y) ^ shift ^ shift]

    def placed(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x + y + torch.arange(6)]

    found = scan_of(lowered(lambda scan, a: scan(largest, [a], 0), torch.randn(6, 5)))
    assert len(found.others) == 1 and found.outputs[1] is None
    assert found.others[0].dtype is DType.F32
    found = scan_of(lowered(lambda scan, a: scan(modular, [a], 0), torch.randint(0, 9, (6, 5))))
    assert [other.dtype for other in found.others] == [DType.I64]
    added = scan_of(lowered(lambda scan, a: scan(placed, [a], 1), torch.randint(0, 9, (6, 5))))
    assert [other.dtype for other in added.others] == [DType.I64]


def test_values_of_several_types() -> None:
    def later(x: Tensor, k: Tensor, y: Tensor, other: Tensor) -> list[Tensor]:
        return [torch.maximum(x, y), torch.where(y >= x, other, k)]

    values, places = torch.randn(4, 9), torch.arange(9).expand(4, 9)
    graph = lowered(lambda scan, x, k: scan(later, [x, k], 1), values, places)
    assert isinstance(scan_of(graph), Scan)
    graph = lowered(lambda scan, x: scan(lambda a, b: [a ^ b], [x > 0], 1), values)
    assert isinstance(scan_of(graph), Scan)


class OnGpu(Recorder):
    """A backend that lowers graphs and runs them as they are, on fake tensors."""

    def compiler(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.lowered.append(lower(gm, name="graph"))
        return make_boxed_call(lambda given: gm(*given))


@pytest.mark.parametrize("reverse", [False, True])
def test_pointwise_combining_on_a_gpu(reverse: bool) -> None:
    def function(values: dict[str, Tensor], factor: Tensor) -> Tensor:
        def combine(x: dict[str, Tensor], y: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"a": torch.minimum(x["a"], y["a"] * factor), "b": torch.maximum(x["b"], y["b"])}

        found: Any = associative_scan(combine, values, 1, reverse=reverse, combine_mode="pointwise")
        return found["a"] + found["b"]

    recorder = OnGpu()
    with FakeTensorMode():
        values = {name: torch.empty(2, 40, 8, device="cuda") for name in "ab"}
        found = torch.compile(function, backend=recorder)(values, torch.tensor(2.0))
    assert found.shape == (2, 40, 8)
    (scan,) = (node for node in recorder.lowered[0].graph.nodes if isinstance(node, Scan))
    # the number, which is on the CPU, is a value of its own
    assert len(scan.others) == 2 and scan.reverse is reverse
    assert scan.ranges.index(scan.axis) == 1


def test_gradients_of_a_scan_are_those_of_a_loop() -> None:
    def gradients(backend: Any) -> list[Tensor]:
        torch._dynamo.reset()
        generator = torch.Generator().manual_seed(0)
        given = [torch.rand(3, 7, 4, generator=generator).requires_grad_() for _ in range(2)]
        compiled = torch.compile(
            lambda a, b: by_operator(recurrence, [a.sigmoid(), b], 1, True), backend=backend
        )
        found = compiled(*given)
        (found[0].sum() + (found[1] * found[1].cos()).sum()).backward()
        return [*found, *(x.grad for x in given if x.grad is not None)]

    recorder = Recorder()
    torch.testing.assert_close(gradients(recorder), gradients("aot_eager"))
    forward, backward = recorder.lowered
    scan_of(forward.graph)
    assert not any(isinstance(node, Loop) for node in backward.graph.nodes)


def test_a_function_that_does_not_combine_numbers_is_called_for_each_row() -> None:
    # complex numbers are no scalars, and a division by zero is an error to be told
    graph = lowered(
        lambda scan, x: scan(lambda a, b: [a * b], [x], 0), torch.randn(5, 3, dtype=torch.complex64)
    )
    assert any(isinstance(node, Extern) for node in graph.nodes)
    graph = lowered(
        lambda scan, x: scan(lambda a, b: [torch.div(a, b, rounding_mode="floor")], [x], 0),
        torch.randint(1, 9, (5, 3)),
    )
    assert not any(isinstance(node, Scan) for node in graph.nodes)


def test_rows_that_are_too_many_to_be_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolled_scans, "_MOST_NODES", 10)
    graph = lowered(
        lambda scan, x: scan(lambda a, b: [torch.div(a, b, rounding_mode="floor")], [x], 1, True),
        torch.randint(1, 9, (3, 9)),
    )
    assert any(isinstance(node, Loop) for node in graph.nodes)
