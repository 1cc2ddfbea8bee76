"""Chains of views, joins and reads at two places: work grows with their length, and results are eager's.

Work is counted, not timed: functions of Coilwork that are called, the longest index expression, and the text of the
kernels. What nests or doubles at each step would be thousands of times as much at three times the length.
"""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, arange
from torch.nn.functional import interpolate, pad, pixel_shuffle, pixel_unshuffle

from coilwork.drive import boxed
from coilwork.job import Role, open_job
from coilwork.options import CompileOptions
from coilwork.stages import Compiled, run_stages
from coilwork_ir.index import written_size
from coilwork_ir.kernels.roots import kernel_roots
from coilwork_ir.program.interpret import interpret_program
from coilwork_ir.program.walk import all_kernels
from coilwork_ir.scalar import IndexValue, Load, postorder
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
class Counted:
    """A torch.compile backend that counts what compiling takes, and computes results by the interpreter of programs."""

    on_gpu: bool
    calls: int = 0
    longest: int = 0
    text: int = 0
    graphs: list[str] = field(default_factory=list)

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        return compile_by_role(gm, example_inputs, self._compile)

    def _compile(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role
    ) -> Callable[[list[Any]], Sequence[Any]]:
        options = CompileOptions(strict=True, triton_on_cpu=self.on_gpu)
        job = open_job(gm, example_inputs, role=role, options=options)
        profile = cProfile.Profile()
        compiled: Compiled = profile.runcall(run_stages, job, fallback=())
        profile.create_stats()
        self.calls += sum(entry[1] for code, entry in profile.stats.items() if "coilwork" in code[0])
        self.graphs.append(role)
        self.text += sum(len(source.text) for source in compiled.sources.values())
        for kernel in all_kernels(compiled.program):
            for value in postorder(kernel_roots(kernel)):
                exprs = value.index if isinstance(value, Load) else ()
                exprs = (value.expr,) if isinstance(value, IndexValue) else exprs
                self.longest = max(self.longest, *(written_size(e).nodes for e in exprs), 0)

        def call(args: list[Any]) -> Sequence[Any]:
            given = list(args)
            args.clear()
            if self.on_gpu:
                return boxed(gm)(given)
            return interpret_program(compiled.program, given, compiled.constants)

        call._boxed_call = True
        return call


def compiled_chain(name: str, times: int, *, on_gpu: bool, training: bool = False) -> Counted:
    """The chain `name`, so many times its length, compiled, and compared with eager."""
    step, length = CHAINS[name]

    def function(x: Tensor) -> Tensor:
        for _ in range(times * length):
            x = step(x)
        return x

    counted = Counted(on_gpu)
    values = torch.rand(12, 18, generator=torch.Generator().manual_seed(0)) / 2**20
    results = []
    torch._dynamo.reset()
    for run in (function, torch.compile(function, backend=counted, fullgraph=True)):
        x = values.clone().requires_grad_(training)
        y = run(x)
        if training:
            (y * arange(y.numel()).reshape(y.shape)).sum().backward()
        results.append((y.detach(), x.grad))
    # both add in their own order
    for expected, found in zip(*results, strict=True):
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    return counted


def assert_near_linear(name: str, *, on_gpu: bool, training: bool = False) -> None:
    short = compiled_chain(name, 1, on_gpu=on_gpu, training=training)
    long = compiled_chain(name, LONGER, on_gpu=on_gpu, training=training)
    assert short.graphs == long.graphs == (["forward", "backward"] if training else ["inference"])
    assert max(short.longest, long.longest) <= LONGEST
    assert long.calls <= 2 * LONGER * max(short.calls, CALLS)
    assert long.text <= 2 * LONGER * max(short.text, TEXT)


@pytest.mark.parametrize("name", CHAINS)
def test_work_grows_with_the_length_of_a_chain(name: str) -> None:
    assert_near_linear(name, on_gpu=False)


@pytest.mark.parametrize("name", ON_GPUS)
def test_work_for_a_gpu_grows_with_the_length_of_a_chain(name: str) -> None:
    assert_near_linear(name, on_gpu=True)


@pytest.mark.parametrize("name", TRAINED)
def test_work_of_gradients_grows_with_the_length_of_a_chain(name: str) -> None:
    assert_near_linear(name, on_gpu=False, training=True)
