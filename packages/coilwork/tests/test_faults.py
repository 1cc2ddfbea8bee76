"""A fault of any stage costs the calls at fault and no others, whether its error names them or not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_reports import catch_fallbacks, read_reports
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from coilwork import backend as backends
from coilwork import compile_graph, stages
from coilwork.backend import backend
from coilwork_cpp import CppCodegen
from coilwork_cpp_wrapper import wrapper as cpp_wrapper
from coilwork_ir.errors import VerifyError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel, Schedule
from coilwork_ir.loc import Origin
from coilwork_ir.loops.nodes import Extern, Graph
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import list_kernels
from coilwork_ir.target import Capabilities, Target
from coilwork_lowering import pipeline
from coilwork_runtime import MissingCompilerError
from coilwork_runtime.executor import choice
from coilwork_scheduler import make_program
from coilwork_wrapper import fx_wrapper as fx_wrapper
from coilwork_wrapper import module_wrapper

Compile = Callable[..., Callable[..., Any]]
Patch = pytest.MonkeyPatch
COS = "aten.cos.default"


def waves(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.sin(x) * 2 + y
    b = torch.cos(a) - x.exp().sin()
    y.mul_(2).add_(1)
    return a.tanh() + b, torch.exp(b).sum(0)


def inputs() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2.0, 2.0, 24).reshape(6, 4)
    return x, torch.linspace(0.0, 1.0, 24).reshape(6, 4)


# Faults


def generated(value: object) -> Iterable[tuple[Origin, ...]]:
    """The calls that each part of a value of any IR computes itself."""
    match value:
        case Graph():
            return [node.origins for node in value.nodes if not isinstance(node, Extern)]
        case Schedule():
            return [kernel.origins for kernel in value.kernels]
        case Program():
            return [kernel.origins for kernel in list_kernels(value)]
    return []


def part_with(value: object, *operators: str) -> tuple[Origin, ...]:
    """The calls of a part that computes all of `operators`; empty if there is none."""
    wanted = set(operators)
    return next((part for part in generated(value) if wanted <= {origin.op for origin in part}), ())


def break_stage(
    monkeypatch: Patch, name: str, fault: Callable[[object], Exception | None], module: Any = None
) -> None:
    """Let stage `name` raise what `fault` makes of its first argument."""
    module = module or (make_program if hasattr(make_program, name) else module_wrapper)
    real = getattr(module, name)

    def run(value: Any, *args: Any, **kwargs: Any) -> Any:
        error = fault(value)
        if error is not None:
            raise error
        return real(value, *args, **kwargs)

    monkeypatch.setattr(module, name, run)


def unnamed(*operators: str) -> Callable[[object], Exception | None]:
    return lambda value: RuntimeError("injected") if part_with(value, *operators) else None


def named(*operators: str) -> Callable[[object], Exception | None]:
    def fault(value: object) -> Exception | None:
        found = part_with(value, *operators)
        return VerifyError("injected", "of a test", origins=found) if found else None

    return fault


@dataclass(frozen=True)
class Broken:
    """The C++ generator, which stumbles over kernels that compute all of `operators`, or writes nonsense for
    them.
    """

    operators: frozenset[str]
    emits: bool = False

    @property
    def name(self) -> str:
        return "broken"

    def supports(self, target: Target) -> bool:
        return CppCodegen().supports(target)

    def capabilities(self, target: Target) -> Capabilities:
        return CppCodegen().capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        source = CppCodegen().emit(kernel, target, options)
        if not self.operators <= {origin.op for origin in kernel.origins}:
            return source
        if not self.emits:
            raise IndexError("injected")
        return replace(source, text=source.text + "\nthis is not C++;\n")


def break_generator(monkeypatch: Patch, *operators: str, emits: bool) -> None:
    monkeypatch.setattr(stages, "find_codegen", lambda target: Broken(frozenset(operators), emits=emits))


STAGES: dict[str, Callable[[Patch], None]] = {
    "loop verifier": lambda m: break_stage(m, "verify_graph", named(COS)),
    "loop verifier, unnamed": lambda m: break_stage(m, "verify_graph", unnamed(COS)),
    "scheduler": lambda m: break_stage(m, "schedule", unnamed(COS)),
    "schedule verifier": lambda m: break_stage(m, "verify_schedule", named(COS)),
    "planner": lambda m: break_stage(m, "plan", unnamed(COS)),
    "program verifier": lambda m: break_stage(m, "verify_program", named(COS)),
    "generator": lambda m: break_generator(m, COS, emits=False),
    "compiler": lambda m: break_generator(m, COS, emits=True),
    "wrapper": lambda m: break_stage(m, "encode_program", unnamed(COS)),
}

MUL = "aten.mul.Tensor"
FUSED: dict[str, Callable[[Patch], None]] = {
    "schedule verifier": lambda m: break_stage(m, "verify_schedule", named(COS, MUL)),
    "planner": lambda m: break_stage(m, "plan", unnamed(COS, MUL)),
    "generator": lambda m: break_generator(m, COS, MUL, emits=False),
    "compiler": lambda m: break_generator(m, COS, MUL, emits=True),
}


def check(compiled: Callable[..., Any]) -> None:
    """The compiled function gives what eager gives, and updates its argument once."""
    x, y = inputs()
    expected = (*waves(x, y), y)
    x, again = inputs()
    torch.testing.assert_close((*compiled(x, again), again), expected)


@pytest.mark.parametrize("break_it", STAGES.values(), ids=list(STAGES))
def test_one_call_is_left_out(break_it: Any, leniently: Compile, monkeypatch: Patch, tmp_path: Path) -> None:
    break_it(monkeypatch)
    with catch_fallbacks() as said:
        check(leniently(waves, trace=str(tmp_path), cache=False, verify=True))
    assert [str(one.message).partition(" in graph")[0] for one in said] == [
        f"{COS} run as ATen's own kernels"
    ]
    assert "b = torch.cos(a) - x.exp().sin()" in str(said[0].message)
    assert f'options={{"fallback": ["{COS}"]}}' in str(said[0].message)
    assert (Path(said[0].filename).name, said[0].lineno) == (
        Path(__file__).name,
        waves.__code__.co_firstlineno + 2,
    )
    report = read_reports(tmp_path)["inference"]
    assert (report["fallback"], report["extern_calls"]) == ("", 1)
    assert report["kernels"] >= 1


@pytest.mark.parametrize("break_it", FUSED.values(), ids=list(FUSED))
def test_a_fault_of_fused_calls_costs_their_fusion(
    break_it: Any, leniently: Compile, monkeypatch: Patch, tmp_path: Path
) -> None:
    break_it(monkeypatch)
    with catch_fallbacks() as said:
        check(leniently(waves, trace=str(tmp_path), cache=False, verify=True))
    assert len(said) == 1
    assert "run as kernels of their own" in str(said[0].message)
    assert str(said[0].message).startswith((f"{COS} run", f"{MUL} run"))
    report = read_reports(tmp_path)["inference"]
    assert (report["fallback"], report["extern_calls"]) == ("", 0)


def test_under_strict_a_fault_of_any_stage_raises(strictly: Compile, monkeypatch: Patch) -> None:
    x, y = inputs()
    for break_it in (STAGES["scheduler"], STAGES["compiler"], STAGES["wrapper"], FUSED["planner"]):
        with monkeypatch.context() as patch:
            break_it(patch)
            torch._dynamo.reset()
            with pytest.raises(BackendCompilerFailed):
                strictly(waves, cache=False)(x, y)


DRIVERS: dict[str, tuple[str, Any, dict[str, object]]] = {
    "native executor": ("load_native", choice, {}),
    "fx": ("check_bound", fx_wrapper, {"wrapper": "fx"}),
    "cpp": ("build_library", cpp_wrapper, {"wrapper": "cpp"}),
}


@pytest.mark.parametrize(("name", "module", "options"), DRIVERS.values(), ids=list(DRIVERS))
def test_a_fault_of_a_driver_costs_no_call(
    name: str,
    module: Any,
    options: dict[str, object],
    leniently: Compile,
    strictly: Compile,
    monkeypatch: Patch,
    tmp_path: Path,
) -> None:
    break_stage(monkeypatch, name, lambda value: KeyError("injected"), module)
    with catch_fallbacks() as said:
        check(leniently(waves, trace=str(tmp_path), cache=False, **options))
    assert len(said) == 1
    assert "is driven by Python instead of" in str(said[0].message)
    report = read_reports(tmp_path)["inference"]
    assert (report["fallback"], report["extern_calls"]) == ("", 0)
    assert report["executor"] == ("native" if options else "python")
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="injected"):
        strictly(waves, cache=False, **options)(*inputs())


def test_a_fault_of_the_readable_module_costs_nothing(
    leniently: Compile, strictly: Compile, monkeypatch: Patch, tmp_path: Path
) -> None:
    break_stage(monkeypatch, "emit_python", lambda value: KeyError("injected"))
    with catch_fallbacks() as said:
        check(leniently(waves, trace=str(tmp_path), cache=False))
    assert len(said) == 1
    assert "has no readable module" in str(said[0].message)
    report = read_reports(tmp_path)["inference"]
    assert (report["fallback"], report["extern_calls"], report["executor"]) == ("", 0, "native")
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="injected"):
        strictly(waves, cache=False)(*inputs())


REWRITES: dict[str, tuple[str, Any]] = {
    "of the captured graph": ("rewrite_captured", backends),
    "of the ATen graph": ("clean_up_copy", pipeline),
    "layouts": ("lay_out_convolutions", pipeline),
    "padding": ("pad_products", pipeline),
}


@pytest.mark.parametrize(("name", "module"), REWRITES.values(), ids=list(REWRITES))
def test_a_fault_of_rewrites_costs_no_call(
    name: str, module: Any, leniently: Compile, strictly: Compile, monkeypatch: Patch, tmp_path: Path
) -> None:
    failed: list[object] = []

    def fault(value: object) -> Exception | None:
        # without rewrites the same function is asked for none
        if name == "rewrite_captured" and failed:
            return None
        failed.append(value)
        return KeyError("injected")

    break_stage(monkeypatch, name, fault, module)
    with catch_fallbacks() as said:
        check(leniently(waves, trace=str(tmp_path), cache=False))
    assert len(said) == 1
    assert "is compiled without rewrites" in str(said[0].message)
    report = read_reports(tmp_path)["inference"]
    assert (report["fallback"], report["extern_calls"]) == ("", 0)
    torch._dynamo.reset()
    failed.clear()
    with pytest.raises(BackendCompilerFailed, match="injected"):
        strictly(waves, cache=False)(*inputs())


def test_a_faulty_node_falls_back_for_every_size(monkeypatch: Patch, tmp_path: Path) -> None:
    break_stage(monkeypatch, "plan", unnamed(COS))
    options = {"trace": str(tmp_path), "cache": False}
    run = torch.compile(waves, backend=backend, options=options, dynamic=True)
    with catch_fallbacks() as said:
        for rows in (6, 9, 3):
            x, y = torch.randn(rows, 4), torch.randn(rows, 4)
            again = y.clone()
            expected = (*waves(x, y), y)
            torch.testing.assert_close((*run(x, again), again), expected)
    assert len(said) == 1
    assert read_reports(tmp_path)["inference"]["extern_calls"] == 1


@pytest.mark.parametrize("stage", ["schedule", "encode_program"])
def test_a_fault_in_a_backward_graph_falls_back(
    stage: str, leniently: Compile, monkeypatch: Patch, tmp_path: Path
) -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.sin(x) * x.exp()).tanh().sum()

    break_stage(monkeypatch, stage, unnamed(COS))
    x = inputs()[0].requires_grad_()
    with catch_fallbacks() as said:
        leniently(function, trace=str(tmp_path), cache=False)(x).backward()
    gradient, x.grad = x.grad, None
    function(x).backward()
    torch.testing.assert_close(gradient, x.grad)
    assert ["graph backward_" in str(one.message) for one in said] == [True]
    found = read_reports(tmp_path)
    assert {role: report["extern_calls"] for role, report in found.items()} == {"forward": 0, "backward": 1}
    assert not any(report["fallback"] for report in found.values())


PARTITION = {
    "joint rewrites": "clean_up",
    "joint layouts": "lay_out_convolutions",
    "dropouts": "expand_dropouts",
    "recomputing": "recompute_from_memory",
}


@pytest.mark.parametrize("name", PARTITION.values(), ids=list(PARTITION))
def test_a_fault_of_the_partition_costs_no_call(
    name: str, leniently: Compile, strictly: Compile, monkeypatch: Patch, tmp_path: Path
) -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.sin(x) * x.exp()).tanh().sum()

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("injected")

    monkeypatch.setattr(f"coilwork_lowering.joint.partition.{name}", fail)
    x = inputs()[0].requires_grad_()
    with catch_fallbacks() as said:
        leniently(function, trace=str(tmp_path), cache=False)(x).backward()
    gradient, x.grad = x.grad, None
    function(x).backward()
    torch.testing.assert_close(gradient, x.grad)
    assert ["forward and backward are compiled without" in str(one.message) for one in said] == [True]
    found = read_reports(tmp_path)
    assert {role: (one["extern_calls"], one["fallback"]) for role, one in found.items()} == {
        "forward": (0, ""),
        "backward": (0, ""),
    }
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="injected"):
        strictly(function, cache=False)(x)


def test_several_calls_of_different_operators(leniently: Compile, monkeypatch: Patch, tmp_path: Path) -> None:
    """Neither is enough by itself, and nothing says which they are."""
    break_stage(
        monkeypatch,
        "schedule",
        lambda graph: unnamed(COS)(graph) or unnamed("aten.tanh.default")(graph),
    )
    with catch_fallbacks() as said:
        check(leniently(waves, trace=str(tmp_path), cache=False))
    assert len(said) == 1
    assert read_reports(tmp_path)["inference"]["extern_calls"] == 2


def test_a_call_that_is_named_wrongly_is_not_left_out(
    leniently: Compile, monkeypatch: Patch, tmp_path: Path
) -> None:
    innocent = Origin(node="tanh", op="aten.tanh.default")

    def fault(graph: object) -> Exception | None:
        return VerifyError("injected", "of a test", origins=(innocent,)) if part_with(graph, COS) else None

    break_stage(monkeypatch, "schedule", fault)
    with catch_fallbacks() as said:
        check(leniently(waves, trace=str(tmp_path), cache=False))
    assert [str(one.message).partition(" run as")[0] for one in said] == [COS]
    assert read_reports(tmp_path)["inference"]["extern_calls"] == 1


def test_the_search_takes_few_tries(leniently: Compile, monkeypatch: Patch, tmp_path: Path) -> None:
    def deep(x: Tensor) -> Tensor:
        for step in range(60):
            x = torch.sin(x) * 2 + step
        return torch.cos(x).exp().sin()

    tries = 0

    def fault(graph: object) -> Exception | None:
        nonlocal tries
        tries += 1
        return unnamed(COS)(graph)

    break_stage(monkeypatch, "schedule", fault)
    with catch_fallbacks():
        leniently(deep, trace=str(tmp_path), cache=False)(inputs()[0])
    assert read_reports(tmp_path)["inference"]["extern_calls"] == 1
    assert tries <= 12


@pytest.mark.parametrize("random", ["generated", "eager"])
def test_random_numbers_stay_where_they_are(random: str, leniently: Compile, monkeypatch: Patch) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.rand_like(x), torch.cos(x), torch.bernoulli(x, 0.5)

    def run() -> tuple[tuple[Tensor, ...], Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(3)
        results = leniently(function, cache=False, random=random)(inputs()[0])
        return results, torch.get_rng_state()

    expected, state = run()
    for stage in ("schedule", "plan"):
        with monkeypatch.context() as patch, catch_fallbacks() as said:
            break_stage(patch, stage, unnamed(COS))
            results, after = run()
        assert len(said) == 1
        torch.testing.assert_close(results, expected)
        assert torch.equal(after, state)


def test_numbers_beside_a_call_that_is_left_out(leniently: Compile, monkeypatch: Patch) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.rand_like(x), torch.bernoulli(x, 0.5), torch.rand_like(x)

    def run() -> tuple[Tensor, ...]:
        torch._dynamo.reset()
        torch.manual_seed(3)
        return leniently(function, cache=False, random="generated", verify=True)(inputs()[0])

    expected = run()
    with monkeypatch.context() as patch, catch_fallbacks() as said:
        break_stage(patch, "verify_graph", named("aten.bernoulli.p"))
        results = run()
    assert len(said) == 1
    assert torch.equal(results[0], expected[0])
    assert torch.equal(results[2], expected[2])


def test_threads_fall_back_together(leniently: Compile, monkeypatch: Patch) -> None:
    break_stage(monkeypatch, "plan", unnamed(COS))
    found: list[object] = []

    def run() -> None:
        try:
            check(leniently(waves, cache=False))
            found.append("done")
        except Exception as error:  # noqa: BLE001  the test fails with it
            found.append(error)

    with catch_fallbacks() as said:
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["done"] * 3
    assert all("aten.cos.default run as" in str(one.message) for one in said)


def test_what_was_found_is_tried_first_and_never_cached_as_good(
    leniently: Compile, strictly: Compile, monkeypatch: Patch, tmp_path: Path
) -> None:
    tries = 0

    def fault(value: object) -> Exception | None:
        nonlocal tries
        tries += 1
        return unnamed(COS)(value)

    def compile_again() -> tuple[int, int]:
        nonlocal tries
        tries = 0
        torch._dynamo.reset()
        with catch_fallbacks() as said:
            check(leniently(waves, cache_dir=str(tmp_path)))
        return tries, len(said)

    with monkeypatch.context() as patch:
        break_stage(patch, "schedule", fault)
        first = compile_again()
        assert first[0] > 4
        assert compile_again() == (2, 1)
        torch._dynamo.reset()
        with pytest.raises(BackendCompilerFailed):
            strictly(waves, cache_dir=str(tmp_path))(*inputs())
    # mended: the first try is good, and no warning
    assert compile_again() == (0, 0)


def test_a_missing_compiler_is_not_looked_for_in_calls(leniently: Compile, monkeypatch: Patch) -> None:
    tries = 0

    def fail(*_: object) -> object:
        nonlocal tries
        tries += 1
        raise MissingCompilerError("no-compiler", "there is none")

    monkeypatch.setattr(compile_graph, "make_call", fail)
    with catch_fallbacks() as said:
        check(leniently(waves, cache=False))
    assert tries == 1
    assert "runs in eager mode: MissingCompilerError" in str(said[0].message)
