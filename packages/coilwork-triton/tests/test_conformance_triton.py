"""The IR's conformance kit: every op, reduction, scan and store mode, in Triton's interpreter and on a GPU if
there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from kernel_bench import TritonProcess, run_source

from coilwork_ir.conformance import CASES, CORE_CASES, Case, check_codegen, check_cores, format_failures
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

# What GPUs have no instruction for, and so is refused, with the reason that the error gives.
REFUSED = {
    "store-add-other-types": "no atomic add on bf16",
    "store-extremes-other-types": "no atomic min on f16",
    "store-mul": "no atomic mul on f64",
    "sort-wide": "no sort of f64 in registers",
}
# What neither engine shows.
NOT_RUN = {
    "failing-check": (
        "assertions need a build for debugging, and end the process; test_compile shows that they trap"
    ),
}
# What the engines get wrong, with the reason.
_TWO_ROUNDINGS = "the interpreter multiplies and adds in two steps, where the remainder of f64 needs one"
INTERPRETER_EXCUSED = {f"{name} f64": _TWO_ROUNDINGS for name in ("floordiv", "mod", "fmod")}
# In the interpreter, blocks so short that these rows are several of them: something is carried from one to
# the next.
SHORT_BLOCK = 16
SHORT_ROWS = ({"n0": 5}, {"n0": 40})


def check(engine: TritonProcess, case: Case, numerics: Numerics) -> None:
    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        blocks = dict(source.configs[0].meta)
        # sequential rows are whole blocks
        if engine.interprets and "R0_BLOCK" in blocks and "WBLOCK" not in blocks and sizes:
            meta = tuple((n, SHORT_BLOCK if n == "R0_BLOCK" else v) for n, v in source.configs[0].meta)
            source = replace(source, configs=(replace(source.configs[0], meta=meta),))
        tensors = [args[a.name] for a in source.args if a.role != "size"]
        given = [sizes[a.name] for a in source.args if a.role == "size"]
        for mine, changed in zip(tensors, run_source(engine, source, tensors, given), strict=True):
            mine.copy_(changed)

    known = INTERPRETER_EXCUSED if engine.interprets else {}
    excused = {label: known[label] for _, label in case.labels if label in known}
    if engine.interprets and case.name.startswith(("reduce", "scan")):
        case = replace(case, sizes=SHORT_ROWS if case.sizes != ({},) else case.sizes)
    codegen, device = TritonCodegen(), get_target("sm_90")
    results = check_codegen(codegen, device, run, cases=(case,), numerics=numerics, excused=excused)
    assert not format_failures(results), format_failures(results)
    refused = [r.reason for r in results if r.status == "refused"]
    assert bool(refused) == (case.name in REFUSED)
    assert all(REFUSED[case.name] in reason for reason in refused)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in NOT_RUN], ids=lambda case: str(case.name)
)
def test_the_generator_passes_the_conformance_kit(engine: TritonProcess, case: Case) -> None:
    check(engine, case, "fast")


@pytest.mark.parametrize("numerics", ["eager", "strict"])
@pytest.mark.parametrize("name", ["ops-f32", "ops-bf16", "softmax", "layer-norm"])
def test_exact_numerics_pass_too(engine: TritonProcess, name: str, numerics: Numerics) -> None:
    check(engine, next(case for case in CASES if case.name == name), numerics)


# Cores of attention that are refused, with the reason.
REFUSED_CORES = {"attention": ("f64",), "attention-gradient": ("f64", "of a bias")}


@pytest.mark.parametrize("part", range(4))
def test_cores_are_run_or_refused_by_name(engine: TritonProcess, part: int) -> None:
    """Attention and its gradient have text; convolutions are refused."""

    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        tensors = [args[a.name] for a in source.args if a.role != "size"]
        given = [sizes[a.name] for a in source.args if a.role == "size"]
        for mine, changed in zip(tensors, run_source(engine, source, tensors, given), strict=True):
            mine.copy_(changed)

    results = check_cores(TritonCodegen(), get_target("sm_90"), run, CORE_CASES[part::4])
    assert not format_failures(results), format_failures(results)
    refused = [result.reason for result in results if result.status == "refused"]
    assert all(
        reason == "convolution" or any(word in reason for words in REFUSED_CORES.values() for word in words)
        for reason in refused
    ), refused
    assert any(result.status == "passed" for result in results) or set(refused) == {"convolution"}
