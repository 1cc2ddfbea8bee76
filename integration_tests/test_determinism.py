"""Results are the same from run to run, to the bit; `torch.use_deterministic_algorithms` holds in compiled
code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.backend import backend
from coilwork.compile_options import Accumulation, CompileOptions
from coilwork.job import open_job
from coilwork.registries import find_codegen
from coilwork.stages import lower_to_program, open_generation
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import LoweringOptions, decompositions, lower
from coilwork_tools.emit_kernels import emit_kernels
from coilwork_tools.explain.report import StageClock
from coilwork_tools.explain.trace_folder import Trace
from integration_tests.determinism import CASES, SCATTERS

STRICT: dict[str, Any] = {"strict": True}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch._dynamo.reset()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def tensors(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


@pytest.mark.parametrize("name", list(CASES))
def test_bits_depend_on_neither_run_nor_threads(name: str) -> None:
    function, inputs = CASES[name]
    compiled = torch.compile(function, backend=backend, options=STRICT)
    results = []
    for threads in (1, 2, 4, 2, 2):
        torch.set_num_threads(threads)
        results.append(tensors(compiled(*inputs)))
    for other in results[1:]:
        for got, wanted in zip(other, results[0], strict=True):
            assert torch.equal(got.view(torch.int32), wanted.view(torch.int32))
    for got, wanted in zip(results[0], tensors(function(*inputs)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def texts_for_a_gpu(name: str, accumulation: Accumulation) -> list[str]:
    """The Triton kernels of a case whose tensors are on a GPU, which nobody has to have."""
    function, inputs = CASES[name]
    with FakeTensorMode():
        fakes = [torch.empty(i.shape, dtype=i.dtype, device="cuda") for i in inputs]
        gm = make_fx(function, decomposition_table=decompositions(LoweringOptions()))(*fakes)
    lowered = lower(gm, name="graph", options=LoweringOptions(accumulation=accumulation))
    targets = declare_capabilities(Targets(main=TARGETS["sm_90"]), find_codegen)
    options = CompileOptions(accumulation=accumulation)
    program = lower_to_program(lowered.graph, targets, options, trace=Trace(None), clock=StageClock())
    generation = open_generation(program, targets, options)
    return [s.text for s in emit_kernels(program, generation, Trace(None)).values()]


def test_gpu_scatters_use_float_atomics_only_if_asked() -> None:
    found = {}
    for name in SCATTERS:
        texts = texts_for_a_gpu(name, "sorted")
        assert texts and not any("tl.atomic_" in text for text in texts), name
        atomics = [text for text in texts_for_a_gpu(name, "auto") if "tl.atomic_" in text]
        # an integer is the same sum in any order
        assert all(set(re.findall(r"arg io\d+: (\w+)", text)) <= {"i32", "i64"} for text in atomics), name
        assert bool(atomics) is (name == "single elements")
        found[name] = any("tl.atomic_add" in text for text in texts_for_a_gpu(name, "atomic"))
    assert all(found.values()), found


def test_deterministic_algorithms_disable_atomics_and_change_the_key() -> None:
    jobs = {}
    gm = make_fx(lambda x: x + 1)(torch.zeros(3))
    for setting in (False, True):
        torch.use_deterministic_algorithms(setting)
        options = CompileOptions(accumulation="atomic")
        jobs[setting] = open_job(gm, [torch.zeros(3)], role="inference", options=options)
    assert jobs[False].options.accumulation == "atomic" and jobs[True].options.accumulation == "sorted"
    assert jobs[False].key_text != jobs[True].key_text
    assert "aten.index_put" not in jobs[True].options.fallback


def test_deterministic_stores_on_accelerators_are_torch_calls() -> None:
    torch.use_deterministic_algorithms(True)
    with FakeTensorMode():
        x = torch.empty(3, device="cuda")
        gm = make_fx(lambda x: x + 1)(x)
        job = open_job(gm, [x], role="inference", options=CompileOptions(fallback=("aten.exp",)))
    assert {"aten.exp", "aten.index_put", "aten.scatter"} <= set(job.options.fallback)


@pytest.mark.parametrize("filled", [True, False])
def test_empty_tensors_are_filled_as_in_eager(filled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(x: Tensor) -> tuple[Tensor, ...]:
        part = torch.empty(4)
        part[:2] = x
        kinds = [torch.empty(3, dtype=dtype) for dtype in (torch.int32, torch.bool, torch.bfloat16)]
        return part, torch.empty_like(x) + x, x.new_empty(2, 2), torch.empty_strided((2, 3), (1, 2)), *kinds

    torch.use_deterministic_algorithms(True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", filled)
    x = torch.ones(2)
    found, wanted = torch.compile(made, backend=backend, options=STRICT)(x), made(x)
    assert [(t.shape, t.stride(), t.dtype) for t in found] == [(t.shape, t.stride(), t.dtype) for t in wanted]
    torch.testing.assert_close(found[0][:2], x)
    if filled:
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("executor", ["native", "python"])
def test_calls_that_eager_refuses_are_refused(executor: str) -> None:
    def written(x: Tensor, at: Tensor) -> Tensor:
        return torch.nn.functional.max_unpool2d(x * 2, at, 2) + 1

    inputs = (torch.ones(1, 1, 2, 2), torch.tensor([[[[0, 3], [9, 15]]]]))
    compiled = torch.compile(written, backend=backend, options={**STRICT, "executor": executor})
    torch.testing.assert_close(compiled(*inputs), written(*inputs))
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        written(*inputs)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        compiled(*inputs)


@pytest.mark.parametrize("name", SCATTERS)
def test_deterministic_algorithms_accept_ordered_scatters(name: str) -> None:
    function, inputs = CASES[name]
    torch.use_deterministic_algorithms(True)
    compiled = torch.compile(function, backend=backend, options={**STRICT, "accumulation": "atomic"})
    once, again = compiled(*inputs), compiled(*inputs)
    assert isinstance(once, Tensor) and isinstance(again, Tensor) and torch.equal(once, again)
    torch.testing.assert_close(once, function(*inputs), rtol=1e-4, atol=1e-4)
