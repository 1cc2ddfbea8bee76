"""Programs of whole models for a GPU that is not there: what they launch, and what is in memory
when most is.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.lifetimes import peak_of
from benchmarks.memory_bound.traffic import traffic
from benchmarks.model_plan import main, programs_of, text_of
from benchmarks.models import Size, find_case
from benchmarks.planner import Planner
from coilwork_ir.index import as_int
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.program.text import parse_program
from coilwork_ir.scalar import Op, iterate_postorder
from coilwork_ir.target import get_target

SMALL = {"target": "sm_90", "dtype": torch.bfloat16, "size": Size.REDUCED}


@pytest.mark.parametrize(("name", "train"), [("gpt2", True), ("resnet50", False)])
def test_peak_memory_is_that_of_the_planner(name: str, train: bool) -> None:
    programs = programs_of(find_case(name), train=train, **SMALL)
    assert len(programs) == (2 if train else 1)
    for program in programs:
        assert program.peak_bytes is not None
        assert peak_of(program).size_bytes == as_int(program.peak_bytes)
        assert all(buffer.device == "cuda:0" for buffer in program.inputs if hasattr(buffer, "device"))


def test_gradients_of_an_activation_and_of_its_bias_share_a_kernel() -> None:
    """Though the activation sees batch and sequence, and the linear layer before it their product."""

    def gradients(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.ops.aten.gelu_backward(
            dy.view(8, 1024, 3072), x.view(8, 1024, 3072), approximate="tanh"
        )
        rows = found.view(8192, 3072)
        return rows, rows.sum(0)

    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    x, dy = (torch.empty(8192, 3072, dtype=torch.bfloat16) for _ in range(2))
    torch.compile(gradients, backend=planner, dynamic=False)(x, dy)
    both, rest = traffic(planner.programs[0])
    assert both.read == 2 * 8192 * 3072 * 2 and rest.total < both.total / 100


def test_a_function_with_a_tensor_constant_is_planned() -> None:
    def shifted(x: Tensor) -> Tensor:
        return x - torch.tensor([1.0, 2.0, 3.0])

    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    torch.compile(shifted, backend=planner, dynamic=False)(torch.empty(1000, 3))
    assert traffic(planner.programs[0])[-1].written == 1000 * 3 * 4


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("has_end", [False, True])
def test_bag_offsets_are_checked_in_the_kernel_that_reads_them(mode: str, has_end: bool) -> None:
    """No kernel of its own, also where more is computed with the bags."""

    def combined(rows: Tensor, table: Tensor, offsets: Tensor) -> Tensor:
        return F.embedding_bag(rows, table, offsets, mode=mode, include_last_offset=has_end).relu()

    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    rows, table, offsets = (
        torch.zeros(2600, dtype=torch.int64),
        torch.empty(99, 64),
        torch.arange(0, 2600, 20),
    )
    torch.compile(combined, backend=planner, dynamic=False)(rows, table, offsets)
    _, bags = planner.programs[0].kernels
    assert [check.message for check in bags.checks] == ["the offsets of bags go down"]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_offsets_of_equal_bags_are_not_checked(mode: str) -> None:
    """They are counted up by the program; those that are data are bounded and checked at every bag."""

    def combined(rows: Tensor, table: Tensor) -> Tensor:
        return F.embedding_bag(rows, table, mode=mode)

    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    rows, table = torch.zeros(130, 20, dtype=torch.int64), torch.empty(99, 64)
    torch.compile(combined, backend=planner, dynamic=False)(rows, table)
    bags = planner.programs[0].kernels[-1]
    assert bags.checks == ()
    names = [node.op for node in iterate_postorder(list_kernel_roots(bags)) if isinstance(node, Op)]
    assert names.count("minimum") == 0


def test_views_move_no_bytes() -> None:
    """What a graph is given is complex: its parts are an operator's, a view."""
    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    given = torch.view_as_complex(torch.empty(1000, 2))
    torch.compile(lambda x: x.abs(), backend=planner, dynamic=False)(given)
    (step,) = traffic(planner.programs[0])
    assert (step.read, step.written) == (8000, 4000)


def test_the_table_is_sorted_by_bytes_moved() -> None:
    (program,) = programs_of(find_case("gpt2"), train=False, **SMALL)
    lines = text_of(program, get_target("sm_90"), most=3).splitlines()
    assert "kernels" in lines[0] and len([line for line in lines if " read " in line]) == 3
    costs = [float(line.split()[0]) for line in lines if " read " in line]
    assert costs == sorted(costs, reverse=True)


def test_reused_memory_counts_once() -> None:
    program = parse_program(
        """
program @p {
  alloc %a: f32[8] @cuda:0
  view %b: f32[4, 2] @cuda:0 of %a offset `0`
  reuse %c: f32[8] @cuda:0 of %a
  alloc %d: f32[2] @cuda:0
  free (%b)
  free (%c)
  alloc %e: f32[8] @cuda:0
  return (%d, %e)
}
"""
    )
    peak = peak_of(program)
    assert peak.size_bytes == 40 and peak.blocks[0].size_bytes == 32


def test_a_model_without_training_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["t5", "--train"])
    assert "no training step" in capsys.readouterr().err
