"""Chains of views, joins and reads at two places: work grows with their length, and results are eager's.

Work is counted, not timed: functions of Coilwork that are called, the longest index expression, and the text
of the kernels. What nests or doubles at each step would be thousands of times as much at three times the
length.
"""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, arange
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import interpolate, pad, pixel_shuffle, pixel_unshuffle

from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.stages import Compiled, run_stages
from coilwork_frontend.calling_convention.convention import Role
from coilwork_ir.index import measure_tree
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.walk import list_kernels
from coilwork_ir.scalar import IndexValue, Load, iterate_postorder
from coilwork_lowering import LoweringOptions, decompositions
from coilwork_scheduler import ScheduleOptions
from integration_tests.aot_backend import compile_by_role

LONGER = 3
# What a few of the largest kernels take: shorter chains than fill one are no measure.
CALLS, TEXT = 1_000_000, 100_000
# Nodes of an index expression of a kernel: of a sum of coordinates times strides.
LONGEST = 3 * ScheduleOptions().max_index_size
P, Q = torch.tensor([3, 1, 4, 7, 5, 0, 2, 6]), torch.tensor([2, 7, 1, 0, 2, 0, 1, 3])
MASK = arange(216).reshape(12, 18) % 7 < 3
Step = Callable[[Tensor], Tensor]

# One step, and how many.
CHAINS: dict[str, tuple[Step, int]] = {
    "transposed": (lambda x: x.t().reshape(x.shape), 10),
    "transposed, plus one": (lambda x: x.reshape(18, 12).t() + 1, 10),
    "permuted": (lambda x: x.reshape(4, 9, 6).permute(2, 0, 1).reshape(x.shape), 8),
    "rolled": (lambda x: x.roll((3, -2), (0, 1)).t().reshape(x.shape), 8),
    "windows": (lambda x: x.unfold(1, 5, 3).transpose(0, 1).reshape(-1)[5:221].reshape(x.shape), 8),
    "strided": (lambda x: x.as_strided((12, 18), (1, 11)).reshape(18, 12).t().contiguous(), 6),
    "repeated": (lambda x: x.repeat(2, 3)[3:15, 5:23].t().reshape(x.shape), 8),
    "each repeated": (lambda x: x.repeat_interleave(3, 0)[5:17].t().reshape(x.shape), 8),
    "expanded": (lambda x: x[:, None].expand(12, 3, 18).reshape(36, 18)[7:19].t().reshape(x.shape), 8),
    "shuffled pixels": (
        lambda x: pixel_unshuffle(pixel_shuffle(x.reshape(4, 6, 9), 2).transpose(1, 2), 2).reshape(x.shape),
        6,
    ),
    "interpolated": (lambda x: interpolate(x[None], scale_factor=2)[0][:, 3:21].t().reshape(x.shape), 8),
    "joined with itself": (lambda x: torch.cat([x, x.flip(0)])[5:17], 7),
    "halves exchanged": (lambda x: torch.cat([x[:, 7:], x[:, :7]], 1).t().reshape(x.shape), 8),
    "stacked slices": (lambda x: torch.stack([x[::2], x[1::2]]).reshape(x.shape), 6),
    "padded and cut": (lambda x: pad(x, (1, 2, 2, 1))[1:-2, 2:-1], 10),
    "reflected": (lambda x: pad(x[None], (3, 1), mode="reflect")[0, :, :18], 8),
    "chosen": (lambda x: torch.where(MASK, x.flip(0), x.roll(1, 0)), 8),
    "looked up twice": (lambda x: x[arange(12).flip(0)] + x[(arange(12) * 5) % 12], 10),
    "looked up in data": (lambda x: (x.reshape(27, 8)[:, Q] + x.reshape(27, 8)[:, P]).reshape(x.shape), 6),
    "neighbours": (lambda x: pad(x[1:] + x[:-1], (0, 0, 0, 1)), 10),
    "triangles": (lambda x: x.tril() + x.flip(1).triu(1), 8),
    "replaced slices": (lambda x: torch.slice_scatter(x, x[2:7].flip(0), 0, 3, 8), 10),
    "minus row maxima": (lambda x: x.t().reshape(x.shape) - x.amax(1, keepdim=True), 8),
    "plus column sums": (lambda x: x.t().reshape(x.shape) * 0.5 + x.sum(0) * 0.01, 6),
}
ON_GPUS = (
    *("transposed", "joined with itself", "chosen", "looked up twice", "neighbours"),
    *("replaced slices", "minus row maxima", "plus column sums"),
)
TRAINED = ("transposed, plus one", "neighbours", "chosen", "minus row maxima")


@dataclass(slots=True)
class Work:
    """What compiling took, and the graphs that were compiled."""

    calls: int = 0
    longest: int = 0
    text: int = 0
    graphs: list[str] = field(default_factory=list)

    def compile(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], *, role: Role, on_gpu: bool = False
    ) -> Compiled:
        """The graph compiled for a CPU or a GPU, counted."""
        options = CompileOptions(strict=True, triton_on_cpu=on_gpu)
        job = open_job(gm, inputs, role=role, options=options)
        profile = cProfile.Profile()
        compiled: Compiled = profile.runcall(run_stages, job, fallback=())
        profile.create_stats()
        self.calls += sum(entry[1] for code, entry in profile.stats.items() if "coilwork" in code[0])
        self.graphs.append(role)
        self.text += sum(len(source.text) for source in compiled.sources.values())
        for kernel in list_kernels(compiled.program):
            for value in iterate_postorder(list_kernel_roots(kernel)):
                exprs = value.index if isinstance(value, Load) else ()
                exprs = (value.expr,) if isinstance(value, IndexValue) else exprs
                self.longest = max(self.longest, *(measure_tree(e).nodes for e in exprs), 0)
        return compiled

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        """As a backend of `torch.compile`: results are computed by the interpreter of programs."""
        return compile_by_role(gm, example_inputs, self._interpreted)

    def _interpreted(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role
    ) -> Callable[[list[Any]], Sequence[Any]]:
        compiled = self.compile(gm, example_inputs, role=role)

        def call(args: list[Any]) -> Sequence[Any]:
            given = list(args)
            args.clear()
            return interpret_program(compiled.program, given, compiled.written.constants)

        call._boxed_call = True
        return call


def chain(name: str, times: int) -> Step:
    """The chain `name`, so many times its length."""
    step, length = CHAINS[name]

    def function(x: Tensor) -> Tensor:
        for _ in range(times * length):
            x = step(x)
        return x

    return function


def values() -> Tensor:
    return torch.rand(12, 18, generator=torch.Generator().manual_seed(0)) / 2**20


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Equal but for the order in which sums are added."""
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def work_of_inference(name: str, times: int, *, on_gpu: bool) -> Work:
    """What compiling the chain takes; its results are compared with eager's where no GPU is
    needed for that.
    """
    function, x, work = chain(name, times), values(), Work()
    written_out = functionalize(lambda x: (function(x),), remove="mutations_and_views")
    gm = make_fx(written_out, decomposition_table=decompositions(LoweringOptions()))(x)
    compiled = work.compile(gm, (x,), role="inference", on_gpu=on_gpu)
    if not on_gpu:
        (found,) = interpret_program(compiled.program, [x], compiled.written.constants)
        assert_near(found, function(x))
    return work


def work_of_training(name: str, times: int) -> Work:
    """The same of a forward and a backward graph."""
    function, work = chain(name, times), Work()
    results = []
    torch._dynamo.reset()
    for run in (function, torch.compile(function, backend=work, fullgraph=True)):
        x = values().requires_grad_()
        y = run(x)
        (y * arange(y.numel()).reshape(y.shape)).sum().backward()
        results.append((y.detach(), x.grad))
    (expected, expected_gradient), (found, gradient) = results
    assert_near(found, expected)
    assert_near(gradient, expected_gradient)
    return work


def assert_near_linear(work_of: Callable[[int], Work], graphs: list[str]) -> None:
    long = work_of(LONGER)
    assert long.graphs == graphs
    assert long.longest <= LONGEST
    calls, text = CALLS, TEXT
    if long.calls > 2 * LONGER * CALLS or long.text > 2 * LONGER * TEXT:
        # a chain whose third is no short one either
        short = work_of(1)
        calls, text = max(short.calls, CALLS), max(short.text, TEXT)
    assert long.calls <= 2 * LONGER * calls
    assert long.text <= 2 * LONGER * text


@pytest.mark.parametrize("name", CHAINS)
def test_work_grows_with_the_length_of_a_chain(name: str) -> None:
    assert_near_linear(lambda times: work_of_inference(name, times, on_gpu=False), ["inference"])


@pytest.mark.parametrize("name", ON_GPUS)
def test_work_for_a_gpu_grows_with_the_length_of_a_chain(name: str) -> None:
    assert_near_linear(lambda times: work_of_inference(name, times, on_gpu=True), ["inference"])


@pytest.mark.parametrize("name", TRAINED)
def test_work_of_gradients_grows_with_the_length_of_a_chain(name: str) -> None:
    assert_near_linear(lambda times: work_of_training(name, times), ["forward", "backward"])
