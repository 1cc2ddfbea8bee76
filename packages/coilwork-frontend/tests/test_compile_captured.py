"""A captured graph through the frontend, by stages that compile nothing: what they are asked, and what is
done without them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import default_partition

from coilwork_frontend.calling_convention.convention import Roles
from coilwork_frontend.capture.dtype_checks import EagerKernels
from coilwork_frontend.compile_captured import CAPTURED_ROLES, MENDS, Promises, Stages, compile_captured
from coilwork_frontend.errors import CoilworkFallbackWarning
from coilwork_ir.calling_convention import CallRole


class RecordingStages:
    """Runs ATen graphs as they are; `roles` are those that it was asked to compile."""

    traces = None
    eager_kernels = EagerKernels(accept_types=lambda *_: True, accept_numbers=lambda *_: True)

    def __init__(self, *, fault: str = "", strict: bool = False) -> None:
        self.promises = Promises(strict=strict)
        self.decompositions: dict[Any, Callable[..., Any]] = {}
        self.roles: list[str] = []
        self.rows: list[str] = []
        self.watched = 0
        self._fault = fault

    def rewrite(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        if self._fault == "rewrite":
            raise ValueError("a rewrite fails")

    def leave_out_rewrites(self, error: Exception) -> Stages | None:
        self._fault = ""
        self.roles.append(f"without rewrites: {error}")
        return None if self.promises.strict else self

    def partition(self, joint: fx.GraphModule, example_inputs: Sequence[Any], **rest: Any) -> Any:
        self.roles.append("joint")
        return default_partition(joint, example_inputs, **rest)

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], *, role: str, **rest: Any) -> Any:
        if self._fault == "compile":
            raise ValueError("a stage fails")
        self.roles.append(role)
        return make_boxed_func(gm.forward)

    def apply_roles(self, call: Callable[..., Any], roles: Roles) -> Callable[..., Any]:
        self.rows += map(str, roles.convention.rows)
        makers = [roles.functions[row.name] for row in roles.convention.rows if isinstance(row, CallRole)]

        def apply(*args: Any) -> Any:
            given = [*args]
            for make in reversed(makers):
                given = make(given)
            return call(*given)

        return apply

    def is_other_shape(self, error: Exception) -> bool:
        return False

    def watch_in_eager(self, call: Callable[..., Any]) -> Callable[..., Any]:
        self.watched += 1
        return call

    def watch(
        self, call: Callable[..., Any], captured: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        return call


def compiled(function: Callable[..., Any], stages: RecordingStages) -> Callable[..., Any]:
    torch._dynamo.reset()
    found: Callable[..., Any] = torch.compile(
        function, backend=lambda gm, inputs: compile_captured(gm, inputs, lambda: stages)
    )
    return found


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


def test_a_training_step_is_a_joint_graph_and_two_roles() -> None:
    stages, x = RecordingStages(), torch.randn(4, requires_grad=True)
    compiled(softplus, stages)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.sigmoid(x))
    assert stages.roles == ["joint", "forward", "backward"]


def test_without_gradients_there_is_one_role() -> None:
    stages = RecordingStages()
    x = torch.randn(4)
    torch.testing.assert_close(compiled(softplus, stages)(x), softplus(x))
    assert stages.roles == ["inference"] and not stages.watched


def test_rewrites_that_fail_are_left_out() -> None:
    stages = RecordingStages(fault="rewrite")
    x = torch.randn(4)
    torch.testing.assert_close(compiled(softplus, stages)(x), softplus(x))
    assert stages.roles == ["without rewrites: a rewrite fails", "inference"]
    with pytest.raises(Exception, match="a rewrite fails"):
        compiled(softplus, RecordingStages(fault="rewrite", strict=True))(x)


def test_what_cannot_be_compiled_runs_as_captured() -> None:
    stages, x = RecordingStages(fault="compile"), torch.randn(4)
    with pytest.warns(CoilworkFallbackWarning, match="a stage fails"):
        found = compiled(softplus, stages)(x)
    torch.testing.assert_close(found, softplus(x))
    assert stages.watched == 3  # each call by itself
    with pytest.raises(Exception, match="a stage fails"):
        compiled(softplus, RecordingStages(fault="compile", strict=True))(x)


def test_a_fault_of_torch_is_mended_on_the_way() -> None:
    scores, labels = torch.tensor([[0.1, 0.2, 0.4, 0.8]]), torch.tensor([[3, -1, 1, -1]])
    loss = torch.nn.functional.multilabel_margin_loss
    stages = RecordingStages()
    torch.testing.assert_close(compiled(loss, stages)(scores, labels), loss(scores, labels))
    assert stages.roles == ["inference"]


def test_nested_inputs_are_made_flat_by_a_row() -> None:
    graph = fx.Graph()
    pair = graph.placeholder("pair")
    items = [graph.call_function(operator.getitem, (pair, k)) for k in range(2)]
    for node, value in zip((pair, *items), ((torch.ones(2), torch.ones(2)), torch.ones(2), torch.ones(2))):
        node.meta["example_value"] = value
    total = graph.call_function(torch.add, tuple(items))
    total.meta["example_value"] = torch.ones(2)
    graph.output((total,))
    stages = RecordingStages()
    inputs = [(torch.ones(2), torch.full((2,), 2.0))]
    call = compile_captured(fx.GraphModule(nn.Module(), graph), inputs, lambda: stages)
    assert call(*inputs)[0].tolist() == [3, 3]
    assert stages.rows == ["flatten before"]


def test_the_order_of_mending_has_reasons() -> None:
    assert MENDS.violations() == () and CAPTURED_ROLES.violations() == ()
