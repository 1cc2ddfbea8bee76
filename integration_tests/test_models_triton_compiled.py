"""The GPU kernels of every model, at full size, compile for an H200 and an MI300X on a machine without
either.

Models are captured on the CPU, lowered, scheduled and emitted for each GPU, and every kernel goes through
Triton's compiler to machine code, in its best guess; kernels of training for the H200 in one other
configuration, too. With EVERY_CONFIGURATION=1 it is every kernel in every configuration (`nox -s
configurations`). Captured on the CPU, a graph holds the CPU's forms of ATen's own calls (attention above
all); the generated kernels around them are those of a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch

from benchmarks.models import CASES, Setting, Size, find_case, instantiate
from benchmarks.training import adamw_of_each_layout, make_training_step
from coilwork_ir.target import TARGETS
from coilwork_runtime import KernelBuildError
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.compilation import Candidate, GpuBinary, WorkerPool
from coilwork_runtime.triton_kernels.gpu import make_torch_gpu
from coilwork_runtime.triton_kernels.triton_builder import TritonBuilder
from integration_tests.gpu_kernels import KernelsFor
from integration_tests.model_checks import fresh_dynamo

pytestmark = pytest.mark.slow

GPUS = ("sm_90", "gfx942")
# Machine code is an ELF file, whose header says for which machine: EM_CUDA, EM_AMDGPU.
MACHINES = {"sm_90": 190, "gfx942": 224}
TRAINED = tuple(case.name for case in CASES if case.train)
EVERY = os.environ.get("EVERY_CONFIGURATION") == "1"


def _misfits(spec: KernelSpec, binary: GpuBinary) -> list[str]:
    """Why `binary` could not run on its target; Triton itself would only say so at the first launch."""
    target, wrong = TARGETS[spec.target], []
    if int.from_bytes(binary.image[18:20], "little") != MACHINES[spec.target]:
        wrong.append("code for another machine")
    if binary.shared_bytes > target.shared_memory_bytes:
        wrong.append(f"{binary.shared_bytes} bytes of shared memory of {target.shared_memory_bytes}")
    if binary.threads > target.max_threads_per_block:
        wrong.append(f"{binary.threads} threads of {target.max_threads_per_block}")
    return [f"{spec.name} for {spec.target}: {reason}" for reason in wrong]


@dataclass(slots=True, kw_only=True)
class Compiler:
    """Triton's compiler in a worker process; a kernel that several models share is compiled once.

    Attributes:
        builder: what compiles.
        done: kernels that compiled.
    """

    builder: TritonBuilder
    done: set[tuple[str, ...]] = field(default_factory=set)

    def chosen(self, spec: KernelSpec, *, another: bool) -> tuple[Candidate, ...]:
        """The configurations to compile; which other one it is depends on the length of the text, so that all
        have their turn.
        """
        best, *others = self.builder.candidates(spec)
        if EVERY:
            return (best, *others)
        if not another or spec.target != "sm_90" or not others:
            return (best,)
        return (best, others[len(spec.source) % len(others)])

    def compile(self, kernels: KernelsFor, *, another: bool = False) -> None:
        """Fail with every configuration that does not compile, and why."""
        failed: list[str] = []
        for identity, spec in kernels.specs.items():
            if identity in self.done:
                continue
            for candidate in self.chosen(spec, another=another):
                answer = self.builder.compile(spec, candidate)
                if isinstance(answer, KernelBuildError):
                    failed.append(f"{spec.name} for {spec.target}: {answer}")
                else:
                    failed += _misfits(spec, answer)
            self.done.add(identity)
        assert not failed, "\n".join([f"{len(failed)} do not compile:", *failed[:5]])


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    pool = WorkerPool()
    yield Compiler(builder=TritonBuilder(None, pool, make_torch_gpu(None)))
    pool.close()


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_inference_kernels_compile(compiler: Compiler, name: str) -> None:
    case, kernels = find_case(name), KernelsFor(targets=GPUS)
    setting = Setting(size=Size.FULL, device=torch.device("cpu"), dtype=torch.bfloat16)
    instance = instantiate(case, setting, training=False)
    with fresh_dynamo(case), torch.no_grad():
        torch.compile(instance.module, backend=kernels, fullgraph=True)(*instance.inputs)
    assert kernels.graphs == ["inference"]
    assert {spec.target for spec in kernels.specs.values()} == set(GPUS)
    compiler.compile(kernels)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generated_products_compile(compiler: Compiler, name: str) -> None:
    case, kernels = find_case(name), KernelsFor(targets=GPUS, contractions="generated")
    setting = Setting(size=Size.FULL, device=torch.device("cpu"), dtype=torch.bfloat16)
    instance = instantiate(case, setting, training=False)
    with fresh_dynamo(case), torch.no_grad():
        torch.compile(instance.module, backend=kernels, fullgraph=True)(*instance.inputs)
    assert sum("tl.dot" in spec.source for spec in kernels.specs.values()) >= 4 * len(GPUS)
    compiler.compile(kernels)


@pytest.mark.parametrize("name", TRAINED)
def test_training_kernels_compile(compiler: Compiler, name: str) -> None:
    case, kernels = find_case(name), KernelsFor(targets=GPUS)
    setting = Setting(size=Size.REDUCED, device=torch.device("cpu"), dtype=torch.float32)
    instance = instantiate(case, setting, training=True)
    with fresh_dynamo(case):
        make_training_step(
            instance, lambda function: torch.compile(function, backend=kernels), adamw_of_each_layout
        )(*instance.inputs)
    # the optimizer's step is a graph without gradients
    assert kernels.graphs == ["forward", "backward", "inference"]
    assert {spec.target for spec in kernels.specs.values()} == set(GPUS)
    compiler.compile(kernels, another=True)


def test_a_kernel_that_does_not_compile_is_found(compiler: Compiler) -> None:
    kernels = KernelsFor(targets=("sm_90",))
    torch._dynamo.reset()
    torch.compile(lambda x: x.sin() + 1, backend=kernels)(torch.zeros(64))
    (identity,) = kernels.specs
    good = kernels.specs[identity]
    source = good.source.replace("tl.sin", "tl.no_such_function")
    assert source != good.source
    kernels.specs[identity] = replace(good, source=source)
    with pytest.raises(AssertionError, match=r"1 do not compile:(?s:.*)no_such_function"):
        compiler.compile(kernels)
