"""Calls that are looked at: beside eager, and for NaN and infinities."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from coilwork import stages
from coilwork.backend import backend
from coilwork.compile_options import CompileOptions
from coilwork.errors import CoilworkFallbackWarning, DivergenceError, NotFiniteError
from coilwork_ir.kernel_source import KernelSource
from coilwork_lowering.rewrites import Rewrite, call, tensor
from coilwork_tools.check_mode.reference import copy_inputs, describe_disagreement, run_reference

Compile = Callable[..., Callable[..., Any]]


def blocks(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.sigmoid(x) @ w
    second = torch.tanh(first) @ w
    return first, torch.relu(second)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """`broken(old, new)`: from now on generated kernels have `new` where `old` should stand, which at least
    one has.
    """

    def break_kernels(old: str, new: str) -> None:
        emit = stages.emit_kernels

        def emit_broken(*arguments: Any, **keywords: Any) -> Mapping[str, KernelSource]:
            sources = emit(*arguments, **keywords)
            assert any(re.search(old, source.text) for source in sources.values())
            return {
                name: KernelSource(**{**_fields(source), "text": re.sub(old, new, source.text)})
                for name, source in sources.items()
            }

        monkeypatch.setattr(stages, "emit_kernels", emit_broken)

    return break_kernels


def _fields(source: KernelSource) -> dict[str, Any]:
    return {name: getattr(source, name) for name in KernelSource.__slots__}


# Beside eager


def test_a_right_call_passes(strictly: Compile) -> None:
    x, w = torch.randn(5, 8), torch.randn(8, 8)
    compiled = strictly(blocks, check=True)
    torch.testing.assert_close(compiled(x, w), blocks(x, w))


def test_training_mutation_and_dropout_pass(strictly: Compile) -> None:
    layer = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.ReLU()
    )
    compiled = strictly(layer, check=True)
    compiled(torch.randn(7, 6)).sum().backward()
    assert layer[0].weight.grad is not None and int(layer[1].num_batches_tracked) == 1


def test_sizes_that_are_not_known_and_numbers_pass() -> None:
    options = {"strict": True, "verify": True, "check": True}
    compiled = torch.compile(
        lambda x, n: (x * n, x.shape[0] > 3), backend=backend, options=options, dynamic=True
    )
    for size in (4, 7):
        result, large = compiled(torch.ones(size, 3), 2.5)
        assert large is True and result.sum() == size * 3 * 2.5


def test_a_broken_kernel_is_named_with_its_source_lines(
    strictly: Compile, broken: Callable[[str, str], None]
) -> None:
    broken(r"tanhf\(", "sinf(")
    broken(r"extern .C. \{\n", 'extern "C" {\n  float sinf(float) noexcept;\n')
    with pytest.raises(DivergenceError) as caught:
        strictly(blocks, check=True, cache=False)(torch.randn(5, 8), torch.randn(8, 8))
    message = str(caught.value)
    assert "result 1" in message
    assert re.search(r"%tanh\w* is the first value that differs", message)
    assert re.search(
        r"kernel tanh\w+, which computes aten\.tanh\.default at .*test_checking.py:\d+.*: second = ", message
    )


def branches(x: Tensor) -> Tensor:
    chosen: Tensor = torch.cond(x.sum() > 0, lambda x: torch.tanh(x), lambda x: torch.cos(x), (x,))
    return chosen + 1


def test_a_broken_kernel_of_a_branch_is_named(strictly: Compile, broken: Callable[[str, str], None]) -> None:
    broken(r"tanhf\(", "sinf(")
    broken(r"extern .C. \{\n", 'extern "C" {\n  float sinf(float) noexcept;\n')
    with pytest.raises(DivergenceError, match=r"kernel tanh\w+, which computes aten\.tanh\.default at "):
        strictly(branches, check=True, cache=False)(torch.rand(5, 8))


def test_a_broken_backward_is_found(strictly: Compile, broken: Callable[[str, str], None]) -> None:
    x = torch.randn(5, 8, requires_grad=True)
    compiled = strictly(lambda x: torch.sigmoid(x).sum(), check=True, cache=False)
    loss = compiled(x)
    broken(r"1\.0f", "1.25f")
    with pytest.raises(DivergenceError, match="graph backward"):
        loss.backward()


def test_an_overwritten_input_is_compared(strictly: Compile, broken: Callable[[str, str], None]) -> None:
    broken(r"2\.0f", "2.5f")
    with pytest.raises(DivergenceError, match="input 0 afterwards"):
        strictly(lambda x: x.mul_(2).add_(1).sum() * 0, check=True, cache=False)(torch.ones(3))


def test_the_generator_is_left_where_the_call_left_it(strictly: Compile) -> None:
    compiled = strictly(lambda x: torch.nn.functional.dropout(x), check=True)
    torch.manual_seed(3)
    compiled(torch.ones(5))
    ours = torch.rand(())
    torch.manual_seed(3)
    torch.nn.functional.dropout(torch.ones(5))
    assert torch.equal(ours, torch.rand(()))


# How values are compared


def test_floats_are_measured_by_eagers_own_error() -> None:
    wide = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eager = wide.float() * (1 + 1e-4)
    assert not describe_disagreement(eager * (1 + 1e-4), eager, wide)
    assert "off from float64" in describe_disagreement(eager * 1.01, eager, wide)
    assert not describe_disagreement(wide.float(), wide.float(), wide)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_infinities_and_nan_have_their_places(wrong: float) -> None:
    eager = torch.tensor([1.0, float("inf")])
    assert describe_disagreement(torch.tensor([wrong, float("inf")]), eager, eager.double())
    assert describe_disagreement(torch.tensor([1.0, 2.0]), eager, eager.double())
    assert not describe_disagreement(eager.clone(), eager, eager.double())


def test_integers_may_be_what_float64_gives() -> None:
    eager, wide = torch.tensor([3, 4]), torch.tensor([3, 5])
    assert not describe_disagreement(torch.tensor([3, 5]), eager, wide)
    assert "1 of 2 elements differ; at [1] 6 instead of 4" in describe_disagreement(
        torch.tensor([3, 6]), eager, wide
    )


@pytest.mark.parametrize(
    "ours", [torch.ones(2, dtype=torch.float64), torch.ones(3), torch.ones(1, 2), None, 1.0]
)
def test_another_kind_of_value_is_wrong(ours: object) -> None:
    assert describe_disagreement(ours, torch.ones(2), torch.ones(2, dtype=torch.float64))


def test_the_reference_runs_in_both_precisions() -> None:
    gm = fx.symbolic_trace(lambda x: (torch.ops.aten.div.Tensor(x, 3), torch.ops.aten.sum.default(x)))
    x = torch.tensor([1.0, 2.0])
    found = run_reference(gm, [x], keep=True)
    assert found.results[0].dtype is torch.float32 and found.wide_results[0].dtype is torch.float64
    assert found.wide_results[0][0].item() == 1 / 3
    assert found.values["div_tensor"][1][0].item() == 1 / 3


def test_copies_share_memory_as_the_originals_do() -> None:
    base = torch.arange(6.0)
    one, other, number = copy_inputs([base[1:], base.view(2, 3).t(), 7])
    one[0] = -1
    assert other[1, 0] == -1 and base[1] == 1 and number == 7 and other.stride() == (1, 3)


# NaN and infinities


def hidden_nan(x: Tensor) -> Tensor:
    logs = torch.log(x).cumsum(0)
    return torch.where(logs.isnan(), 0.0, logs)


def test_nan_in_a_result_names_its_kernel(strictly: Compile) -> None:
    compiled = strictly(lambda x: (x + 1, torch.log(x)), check_nan="results")
    compiled(torch.ones(4))
    with pytest.raises(
        NotFiniteError, match=r"result 1 holds NaN in 1 of 4 elements, the first at \[2\]"
    ) as caught:
        compiled(torch.tensor([1.0, 2.0, -1.0, 3.0]))
    assert "aten.log.default at" in str(caught.value) and "test_checking.py" in str(caught.value)


@pytest.mark.parametrize("where", ["results", "kernels"])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.t()], ids=["", "view"])
def test_nan_of_a_branch_names_its_kernel(strictly: Compile, where: str, view: Callable[..., Any]) -> None:
    def function(x: Tensor) -> Tensor:
        found: Tensor = view(torch.cond(x.sum() > 0, lambda x: torch.log(x), lambda x: torch.sin(x), (x,)))
        return found

    compiled = strictly(function, check_nan=where)
    compiled(torch.ones(2, 2))
    with pytest.raises(NotFiniteError, match=r"kernel log_\w+, which computes aten\.log\.default at "):
        compiled(torch.tensor([[-1.0, 3.0], [2.0, 1.0]]))


def test_nan_in_a_view_names_the_kernel_of_its_memory(strictly: Compile) -> None:
    with pytest.raises(NotFiniteError, match=r"kernel log_\w+, which computes aten\.log\.default at "):
        strictly(lambda x: torch.log(x).t()[1:], check_nan="results")(-torch.ones(2, 2))


@pytest.mark.parametrize("where", ["results", "kernels"])
def test_nan_in_a_graph_that_runs_in_eager_mode(leniently: Compile, where: str) -> None:
    def untraced(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return torch.log(x)

    x = torch.tensor([-3.0, 2.0])
    with pytest.warns(CoilworkFallbackWarning), pytest.raises(NotFiniteError, match="result 0 holds NaN"):
        leniently(untraced, check_nan=where)(x, x.view(torch.int32))


def log_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    """The graph returns the sum alone: torch takes the input from its caller."""
    y = x + 1
    x.log_()
    return x, y


def test_nan_in_an_input_that_is_written_names_its_kernel(strictly: Compile) -> None:
    compiled = strictly(log_in_place, check_nan="results")
    compiled(torch.ones(4))
    with pytest.raises(
        NotFiniteError, match=r"input \d, which is written, holds NaN in 1 of 2(.|\n)*aten\.log\.default"
    ):
        compiled(torch.tensor([2.0, -1.0]))


def test_nan_in_an_input_that_is_only_read_is_no_result(strictly: Compile) -> None:
    x = torch.tensor([1.0, float("nan")])
    strictly(lambda x, y: (x.nan_to_num(), y.add_(1)), check_nan="results")(x, torch.ones(2))


@pytest.mark.parametrize("view", [lambda x: x.detach(), lambda x: x.t()[1:], lambda x: x.view(4)])
@pytest.mark.parametrize("where", ["results", "kernels"])
def test_nan_in_a_view_of_an_input(strictly: Compile, where: str, view: Callable[..., Any]) -> None:
    x = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    with pytest.raises(NotFiniteError, match="holds NaN"):
        strictly(lambda x: (x[1] + 1, view(x)), check_nan=where)(x)


def test_nan_in_an_input_that_a_graph_in_eager_mode_writes(leniently: Compile) -> None:
    def untraced(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z.add_(1)
        y.log_()
        return x + 1

    compiled = leniently(untraced, check_nan="results")
    x = torch.tensor([3.0])
    with (
        pytest.warns(CoilworkFallbackWarning),
        pytest.raises(NotFiniteError, match="which is written, holds NaN"),
    ):
        compiled(x, torch.tensor([-3.0]), x.view(torch.int32))


def test_nan_in_a_kernel_is_found_though_no_result_has_it(strictly: Compile) -> None:
    x = torch.tensor([1.0, -1.0, 3.0])
    strictly(hidden_nan, check_nan="results")(x)
    with pytest.raises(NotFiniteError, match=r"writes %\w+, which holds NaN") as caught:
        strictly(hidden_nan, check_nan="kernels", fusion=False)(x)
    assert "aten.log.default" in str(caught.value) and "logs = torch.log(x)" in str(caught.value)


def test_nan_that_the_caller_passes_is_the_callers(strictly: Compile) -> None:
    with pytest.raises(NotFiniteError, match=r"reads %\w+, which holds NaN(.|\n)*it is the caller's"):
        strictly(lambda x: x.nan_to_num(), check_nan="kernels")(torch.tensor([float("nan")]))


def test_infinities_are_another_option(strictly: Compile) -> None:
    x = torch.tensor([0.0, 1.0])
    strictly(torch.log, check_nan="kernels")(x)
    for where in ("results", "kernels"):
        with pytest.raises(NotFiniteError, match="an infinity in 1 of 2 elements"):
            strictly(torch.log, check_inf=where)(x)


def test_a_call_in_steps_is_right(strictly: Compile) -> None:
    layer = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.GELU())
    x = torch.randn(2, 2, 6, 6)
    compiled = strictly(layer, check_nan="kernels", check_inf="kernels")
    compiled(x).square().sum().backward()
    grad = layer[0].weight.grad
    assert grad is not None and torch.isfinite(grad).all()
    torch.testing.assert_close(strictly(torch.cat, check_nan="kernels")([x, x]), torch.cat([x, x]))


def test_checks_are_off_by_default() -> None:
    options = CompileOptions()
    assert (options.check, options.check_nan, options.check_inf) == (False, "off", "off")


# Beside the program as it was written


def logarithms(x: Tensor, y: Tensor) -> Tensor:
    z = x.half().clone()
    z[:1].mul_(2)
    return torch.log(x) + torch.log(y) + z.float()


WRONG_SUM = Rewrite(
    name="wrong-sum-of-logs",
    doc="log(x) + log(y) is not log(x + y).",
    pattern=call(
        "aten.add.Tensor",
        self=call("aten.log.default", self=tensor("x")),
        other=call("aten.log.default", self=tensor("y")),
    ),
    replacement=lambda x, y: torch.ops.aten.log.default(torch.ops.aten.add.Tensor(x, y)),
    uuid="1",
)


def test_a_rewrite_of_a_joint_graph_that_is_wrong_is_named(strictly: Compile) -> None:
    """Forward and backward graphs hold what the rewrite made."""
    compiled = strictly(logarithms, check=True, rewrites=[WRONG_SUM])
    line = logarithms.__code__.co_firstlineno + 3
    message = rf"rewritten by .*wrong-sum-of-logs at .*{line}(.|\n)*skip_rewrites"
    with pytest.raises(DivergenceError, match=message):
        compiled((torch.rand(5) + 1).requires_grad_(), torch.rand(5) + 1)


def test_a_pass_that_is_wrong_is_named(strictly: Compile) -> None:
    def doubled(gm: fx.GraphModule) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.log.default):
            node.target = torch.ops.aten.exp.default

    compiled = strictly(logarithms, check=True, passes=[doubled], cache=False)
    with pytest.raises(DivergenceError, match=r"pass .*doubled"):
        compiled(torch.rand(5) + 1, torch.rand(5) + 1)


def test_what_was_rewritten_rightly_passes(strictly: Compile) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)).masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        k.mul_(0.5)
        return torch.dropout(weights @ v, 0.5, True) * torch.rand(2, 3, 600, 1)

    compiled = strictly(program, check=True)
    hidden = torch.rand(600, 600) < 0.3
    hidden[5] = True
    for _ in range(2):
        found = compiled(*(torch.randn(2, 3, 600, 16) for _ in range(3)), hidden)
        assert found[:, :, 5].isnan().any()
