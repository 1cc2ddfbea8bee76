"""A vocabulary product and its loss in chunks: programs, interpreted, are no further from float64 than eager,
and hold no buffer as large as the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork import stage_settings, targets
from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.stages import run_stages
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.torch_compat.aot_autograd import compile_with_aot_autograd
from coilwork_ir.index import as_int
from coilwork_ir.machine import MachineModel, change_figures
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import Alloc, PoolView, Program
from coilwork_ir.target import Target
from coilwork_lowering import decompositions, partition

ROWS, INNER, COLUMNS = 96, 32, 640
SMALL = {
    "products.chunked_bytes": 4096,
    "products.recomputed_bytes": 4096,
    "products.chunk_room_bytes": 60_000,
    "products.row_tile": 16,
}
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def widen(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


def smoothed(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """A bias, labels that are ignored, weights of classes and smoothed labels."""
    classes = widen(bias.detach()).abs() + 0.1
    return F.cross_entropy(
        widen(F.linear(hidden, weight, bias)), labels, classes, ignore_index=5, label_smoothing=0.1
    )


def capped(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Logits of a batch of sequences, soft-capped, and a loss for each row."""
    logits = 5 * torch.tanh(widen(F.linear(hidden.view(4, ROWS // 4, INNER), weight)) / 5)
    return F.cross_entropy(logits.view(-1, COLUMNS), labels, reduction="none").square().sum()


@pytest.fixture
def small_products_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model_of, target_of = stage_settings.find_machine_model, targets.find_target

    def model(device: str) -> MachineModel:
        return change_figures(model_of(device), SMALL)

    def target(device: str, options: CompileOptions) -> Target:
        found = target_of(device, options)
        return replace(found, model=change_figures(found.machine, SMALL))

    monkeypatch.setattr(stage_settings, "find_machine_model", model)
    monkeypatch.setattr(targets, "find_target", target)


class InterpretedPrograms:
    """A back end that verifies every stage and interprets programs, which it keeps."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        lowering = stage_settings.make_lowering_options(CompileOptions(), ())
        compilers = {role: partial(self._compile, role=role) for role in ("forward", "backward", "inference")}
        cut = partial(partition, lowering=lowering)
        return compile_with_aot_autograd(
            gm, inputs, decompositions=decompositions(lowering), partition=cut, **compilers
        )

    def _compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], *, role: Role) -> Callable[..., Any]:
        options = CompileOptions(strict=True, verify=True)
        compiled = run_stages(open_job(gm, inputs, role=role, options=options), fallback=())
        self.programs.append(compiled.program)

        def call(args: list[Any]) -> Sequence[Any]:
            given = list(args)
            args.clear()
            return interpret_program(compiled.program, given, compiled.written.constants)

        vars(call)["_boxed_call"] = True
        return call


def largest(program: Program) -> int:
    """Elements of the largest buffer of `program`."""
    made = [one.buffer for one in program.instructions if isinstance(one, Alloc | PoolView)]
    return max(as_int(buffer.numel) or 0 for buffer in made)


def run(loss: Loss, leaves: tuple[Tensor, ...], labels: Tensor) -> list[Tensor]:
    """The loss and the gradients."""
    own = [x.detach().clone().requires_grad_() for x in leaves]
    found = loss(*own, labels)
    return [found.detach(), *torch.autograd.grad(found, own, materialize_grads=True)]


@pytest.mark.usefixtures("small_products_are_large", "own_caches")
@pytest.mark.parametrize(
    ("loss", "dtype"), [(smoothed, torch.bfloat16), (capped, torch.float32)], ids=["smoothed", "capped"]
)
def test_losses_in_chunks_are_as_exact_as_eager(loss: Loss, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((ROWS, INNER), (COLUMNS, INNER), (COLUMNS,))
    leaves = tuple((torch.randn(shape, generator=generator) / 3).to(dtype) for shape in shapes)
    labels = torch.randint(0, COLUMNS, (ROWS,), generator=generator)
    labels[::7] = 5
    torch._dynamo.reset()
    backend = InterpretedPrograms()
    found = run(torch.compile(loss, backend=backend), leaves, labels)
    assert [2 * largest(program) < ROWS * COLUMNS for program in backend.programs] == [True, True]
    exact = run(loss, tuple(x.double() for x in leaves), labels)
    eager = run(loss, leaves, labels)
    for ours, theirs, wanted in zip(found, eager, exact, strict=True):
        far, farther = ((x.double() - wanted).norm() / (wanted.norm() + 1e-30) for x in (ours, theirs))
        # sums in f32 end within a few last bits of eager's
        assert far <= 1.02 * farther + 4e-7
