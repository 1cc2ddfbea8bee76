"""The IR's conformance kit, and random kernels against the reference interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
import torch
from cpp_fixtures import TorchDType
from random_kernels import check_kernel

from coilwork_cpp import CppCodegen
from coilwork_ir.conformance import (
    CASES,
    CORE_CASES,
    check_codegen,
    check_cores,
    format_failures,
    make_random_kernel,
)
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.target import Target


@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_the_generator_passes_the_conformance_kit(
    build_source: Callable[[KernelSource], Callable[..., int]], machine: Target, numerics: Numerics
) -> None:
    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        values: list[torch.Tensor | int] = []
        for arg in source.args:
            if arg.role == "size":
                values.append(sizes[arg.name])
            elif arg.role != "scratch":
                values.append(args[arg.name])
        failed = build_source(source)(*values)
        if failed:
            raise RuntimeError(source.checks[failed - 1])

    # functions are what the levels differ in; how values move through a kernel does not depend on them
    cases = CASES if numerics == "fast" else [case for case in CASES if case.labels]
    results = check_codegen(CppCodegen(), machine, run, cases=cases, numerics=numerics)
    assert not format_failures(results), format_failures(results)
    # what only schedules for GPUs hold
    theirs = (" sequential", "combined {")
    refused = {case.name for case in cases if any(words in case.text for words in theirs)}
    assert {r.case for r in results if r.status == "refused"} == refused
    assert {r.case for r in results} == {case.name for case in cases}


@pytest.mark.parametrize("seed", [*range(40), 101, 107, 256, 519])
def test_random_kernels_compute_what_the_interpreter_does(
    load_kernel: Callable[..., Callable[..., int]], torch_dtype: TorchDType, seed: int
) -> None:
    kernel = make_random_kernel(seed)
    run = load_kernel(kernel, split_elements=random.Random(seed).choice([0, 64, 16384]))
    check_kernel(kernel, run, torch_dtype, seed)


# What no block of rows and keys computes; the scheduler keeps these nodes from templates.
REFUSED_CORES = ("convolution", "no attention is summed in f64", "the gradient of a bias is summed along")


def test_cores_are_run_or_refused_by_name(
    quick_build: Callable[[KernelSource], Callable[..., int]], machine: Target
) -> None:
    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        values = [sizes[arg.name] if arg.role == "size" else args[arg.name] for arg in source.args]
        quick_build(source)(*values)

    # the others differ in sizes and types
    results = check_cores(CppCodegen(), machine, run, CORE_CASES[::2])
    results += check_cores(CppCodegen(), machine, run, CORE_CASES[1:16:2])
    assert not format_failures(results), format_failures(results)
    refused = [result.reason for result in results if result.status == "refused"]
    assert all(any(words in reason for words in REFUSED_CORES) for reason in refused), refused
    assert any(result.status == "passed" for result in results)
