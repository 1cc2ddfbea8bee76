"""Sizes from data, end to end: one graph for all of them, promises by `torch._check` used and held, no guard
of ours.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend
from coilwork_lowering import LoweringOptions, decompositions
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.registry import RULES
from coilwork_lowering.rules import Call
from integration_tests.dynamic_programs import TABLE, X, pick

STRICT: dict[str, Any] = {"strict": True}


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    torch._dynamo.reset()
    config = torch._dynamo.config
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield
    torch._dynamo.reset()


class Counted:
    """The back end, and how many graphs it was asked for."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return backend(gm, inputs, options=STRICT)


def compiled(function: Callable[..., Any], **settings: Any) -> tuple[Callable[..., Any], Counted]:
    counted = Counted()
    return torch.compile(function, backend=counted, fullgraph=True, **settings), counted


def listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


@pytest.mark.parametrize("name", list(TABLE))
def test_one_graph_serves_all_sizes(name: str) -> None:
    program = TABLE[name]
    run, counted = compiled(program.run)
    for arguments in program.arguments:
        for got, wanted in zip(listed(run(*arguments)), listed(program.run(*arguments)), strict=True):
            if not isinstance(wanted, Tensor):
                assert type(got) is type(wanted) and got == wanted
                continue
            assert got.shape == wanted.shape and got.dtype == wanted.dtype
            assert got.stride() == wanted.stride() or got.numel() < 2
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert counted.graphs == program.graphs


@pytest.mark.parametrize(
    "settings", [{"executor": "native"}, {"executor": "python"}, {"wrapper": "fx"}, {"wrapper": "cpp"}]
)
@pytest.mark.parametrize("name", ["scanned", "mapped"])
def test_loops_over_rows_agree_in_every_driver(name: str, settings: dict[str, Any]) -> None:
    function = TABLE[name].run
    run = torch.compile(function, backend=backend, fullgraph=True, options={**STRICT, **settings})
    for arguments in TABLE[name].arguments:
        torch.testing.assert_close(run(*arguments), function(*arguments))


@pytest.mark.parametrize("executor", ["native", "python"])
def test_a_broken_check_is_an_error_with_its_message(executor: str) -> None:
    def promised(x: Tensor, n: Tensor) -> Tensor:
        k: Any = n.item()
        torch._check(k >= 0)
        torch._check(k <= 4, lambda: "at most four, please")
        return x.narrow(0, k, 2) * 2

    run = torch.compile(promised, backend=backend, fullgraph=True, options={**STRICT, "executor": executor})
    torch.testing.assert_close(run(X, torch.tensor(3)), promised(X, torch.tensor(3)))
    for broken in (5, -1):
        with pytest.raises(RuntimeError, match=r"[kKuU<>=]|four"):
            run(X, torch.tensor(broken))
    torch.testing.assert_close(run(X, torch.tensor(4)), promised(X, torch.tensor(4)))


@pytest.mark.parametrize("pair", [(0, 6), (-7, 2)])
def test_a_row_out_of_range_is_an_error(pair: tuple[int, int]) -> None:
    run, _ = compiled(TABLE["at items"].run)
    run(X, torch.tensor([0, 0]))
    with pytest.raises(RuntimeError, match=r"out of range|>= -6"):
        run(X, torch.tensor(pair))


def test_gradients_of_data_dependent_slices_agree() -> None:
    def part(x: Tensor, n: Tensor) -> Tensor:
        low, high = (value.item() for value in n)
        return x[low:high].sin() * 2 + x[low].cos()

    run, _ = compiled(part)
    for pair in ((1, 4), (-3, -1), (4, 2)):
        grads = []
        for function in (part, run):
            x = X.clone().requires_grad_()
            function(x, torch.tensor(pair)).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name, broken", [("known by promise", 7), ("even", 5)])
def test_a_number_known_by_a_check_is_checked(name: str, broken: int) -> None:
    program = TABLE[name]
    run, _ = compiled(program.run)
    run(*program.arguments[0])
    with pytest.raises(RuntimeError):
        run(X, torch.tensor(broken))


def test_a_size_from_a_mutating_call_is_checked() -> None:
    def four(x: Tensor) -> Tensor:
        found = pick(torch.zeros(3), x)
        torch._check(found.size(0) == 4)
        return found + torch.ones(4)

    run, _ = compiled(four)
    x = torch.tensor([1.0, 2.0, -1.0, 3.0, 4.0])
    torch.testing.assert_close(run(x), four(x))
    with pytest.raises(RuntimeError):
        run(x[:4].clone())


@pytest.mark.parametrize(
    "settings",
    [{"executor": "native"}, {"executor": "python"}, {"wrapper": "cpp"}, {"wrapper": "fx"}],
    ids=str,
)
def test_a_check_that_fixes_a_size_is_checked(settings: dict[str, str]) -> None:
    def three(x: Tensor) -> Tensor:
        found = x.nonzero()
        torch._check(found.size(0) == 3)
        return found + 1

    run = torch.compile(three, backend=backend, fullgraph=True, options={**STRICT, **settings})
    x = torch.tensor([0.0, 1.0, 2.0, 0.0, -1.0])
    torch.testing.assert_close(run(x), three(x))
    for broken in (torch.zeros(5), torch.ones(5)):
        with pytest.raises(RuntimeError):
            three(broken)
        with pytest.raises(RuntimeError):
            run(broken)


def test_marked_dimensions_serve_all_sizes_in_one_graph() -> None:
    def normed(x: Tensor) -> Tensor:
        return torch.softmax(x @ x.t(), -1).sum(0) + x.size(0)

    run, counted = compiled(normed)
    for rows in (7, 2, 31, 100):
        x = torch.randn(rows, 5)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x), normed(x))
    assert counted.graphs == 1


def test_unbacked_dimensions_serve_zero_and_one() -> None:
    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0) * 2, torch.cat([x, x]) * x.size(0)

    run, counted = compiled(scaled)
    for rows in (5, 1, 0, 40):
        x = torch.randn(rows, 5)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        for got, wanted in zip(run(x), scaled(x), strict=True):
            torch.testing.assert_close(got, wanted)
    assert counted.graphs == 1


@pytest.mark.parametrize("training", [False, True])
def test_a_model_with_dynamic_sizes_is_compiled_once(training: bool) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3)
    )
    run, counted = compiled(model, dynamic=True)
    first = 0
    for rows in (4, 9, 33):
        x = torch.randn(rows, 8, requires_grad=training)
        got, wanted = run(x), model(x)
        first = first or counted.graphs
        torch.testing.assert_close(got, wanted)
        if training:
            got.sum().backward()
            found = x.grad
            x.grad = None
            wanted.sum().backward()
            torch.testing.assert_close(found, x.grad)
    assert counted.graphs == first


def guard_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "compiling added a guard" in r.getMessage()]


@pytest.mark.parametrize("name", ["products", "normed rows", "slices", "reshapes", "masked_select"])
def test_compiling_adds_no_guard(name: str, caplog: pytest.LogCaptureFixture) -> None:
    program = TABLE[name]
    run, _ = compiled(program.run, dynamic=True)
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        for arguments in program.arguments:
            run(*arguments)
    assert guard_warnings(caplog) == []


def test_slices_of_dynamic_sizes_add_no_guard(caplog: pytest.LogCaptureFixture) -> None:
    """Torch asks whether half of a height is divisible by all of it: what holds for all sizes is no guard."""

    def patches(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(len(x), -1, 16)
        return rows, torch.nn.functional.pixel_unshuffle(2 * x, 2)

    run, counted = compiled(patches)
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        for height, width in ((8, 8), (12, 16), (16, 20), (8, 24)):
            x, y = (torch.ones(2, 4, height, width, requires_grad=True) for _ in range(2))
            got, wanted = run(x), patches(y)
            torch.testing.assert_close(got, wanted)
            sum(one.sum() for one in got).backward()
            sum(one.sum() for one in wanted).backward()
            torch.testing.assert_close(x.grad, y.grad)
    assert guard_warnings(caplog) == []
    assert counted.graphs <= 4  # forward and backward, of the first sizes and of all others


def test_a_guard_of_ours_is_reported_with_operator_and_line(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RULES["aten.exp.default"]

    def specialising(builder: Builder, call: Call) -> Value:
        assert sizes[0] != 1234
        return original.lower(builder, call)

    def scaled(x: Tensor) -> Tensor:
        return torch.exp(x) * 2

    sizes: list[Any] = []

    def remembering(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        known = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        sizes[:] = [value.shape[0] for value in known if isinstance(value, Tensor)]
        return backend(gm, inputs, options={**STRICT, "trace": str(tmp_path), "cache": False})

    lowering = import_module("coilwork_lowering.lower")
    changed = {**RULES, "aten.exp.default": replace(original, lower=specialising)}
    monkeypatch.setattr(lowering, "RULES", changed)
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        torch.testing.assert_close(torch.compile(scaled, backend=remembering)(x), scaled(x))
    (warning,) = guard_warnings(caplog)
    assert "1234" in warning and "aten.exp.default at" in warning and "test_dynamic_programs.py" in warning
    (report,) = tmp_path.glob("*/report.json")
    guard = json.loads(report.read_text())["guards"]
    assert guard and guard in warning


def test_a_guard_of_a_decomposition_is_reported_with_operator_and_line(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def specialising(x: Tensor) -> Tensor:
        assert x.shape[0] != 1234
        return x * torch.sigmoid(x)

    def table(options: LoweringOptions) -> dict[Any, Callable[..., Any]]:
        return {**decompositions(options), torch.ops.aten.silu.default: specialising}

    def activated(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x * 2) * 1

    monkeypatch.setattr(import_module("coilwork.backend"), "decompositions", table)
    x = torch.randn(5, 4, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    ours = torch.compile(
        activated, backend=backend, options={**STRICT, "trace": str(tmp_path), "cache": False}
    )
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        ours(x).sum().backward()
    (warning,) = guard_warnings(caplog)
    assert "1234" in warning and "aten.silu.default at" in warning and "test_dynamic_programs.py" in warning
    reports = {
        path.parent.name.split("_")[0]: json.loads(path.read_text())
        for path in tmp_path.glob("*/report.json")
    }
    assert reports["forward"]["guards"] in warning and reports["forward"]["guards"]
    # what was done to the joint graph is said once
    assert reports["forward"]["rewrites"] and not reports["backward"]["guards"]
    assert "times-one" not in [item["name"] for item in reports["backward"]["rewrites"]]
