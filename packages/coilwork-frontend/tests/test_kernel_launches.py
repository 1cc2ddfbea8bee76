"""Launches of the user's kernels become calls of operators; parts of tensors are written in place."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode

from coilwork_frontend.capture.user_kernels import call_kernel_operators
from coilwork_frontend.torch_compat.user_kernels import FUNCTIONAL_CALL, FUNCTIONAL_LAUNCH

ATEN: Final = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What a definition returns."""

    overload: Any
    descriptor_argument: str = "descriptors"
    grid_argument: str = "grid"

    @property
    def arguments(self) -> Mapping[str, str]:
        return {name: name for name in ("source", "out", "rest")}


@pytest.fixture(scope="module")
def library() -> torch.library.Library:
    return torch.library.Library("coilwork_frontend_kernels", "FRAGMENT")


@pytest.fixture(scope="module")
def copying(library: torch.library.Library) -> Operator:
    """An operator that copies its first argument into the others."""
    library.define("fill(Tensor source, Tensor(a!) out, Tensor(b!) rest, SymInt[] grid) -> ()")

    def fill(source: torch.Tensor, out: torch.Tensor, rest: torch.Tensor, grid: list[int]) -> None:
        out.copy_(source)
        rest.copy_(-source)

    library.impl("fill", fill, "CompositeExplicitAutograd")
    return Operator(overload=torch.ops.coilwork_frontend_kernels.fill.default)


class Writer:
    """A graph that is written call by call, with fake values."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()

    def input(self, name: str, *shape: int) -> fx.Node:
        node = self.graph.placeholder(name)
        with self.mode:
            node.meta["val"] = torch.empty(shape)
        return node

    def call(self, target: Any, *args: Any) -> fx.Node:
        node = self.graph.call_function(target, args)
        with self.mode:
            node.meta["val"] = target(*fx.map_arg(args, lambda one: one.meta["val"]))
        return node

    def launch(self, source: fx.Node, out: fx.Node, rest: fx.Node) -> tuple[fx.Node, fx.Node]:
        named = {"source": source, "out": out, "rest": rest}
        node = self.graph.call_function(
            FUNCTIONAL_LAUNCH,
            kwargs={
                "kernel_idx": kernel_side_table.add_kernel(object()),
                "constant_args_idx": kernel_side_table.add_constant_args({}),
                "grid": [(1, 1, 1)],
                "tma_descriptor_metadata": {},
                "kwargs": named,
                # in another order than the operator has them
                "tensors_to_clone": ["rest", "out"],
            },
        )
        node.meta["val"] = {name: named[name].meta["val"] for name in ("rest", "out")}
        written, rested = (
            self.graph.call_function(operator.getitem, (node, name)) for name in ("out", "rest")
        )
        written.meta["val"], rested.meta["val"] = out.meta["val"], rest.meta["val"]
        return written, rested

    def finish(self, *results: fx.Node, define: Any) -> fx.GraphModule:
        self.graph.output(results)
        gm = fx.GraphModule(torch.nn.Module(), self.graph)
        call_kernel_operators(gm, define)
        gm.graph.lint()
        return gm


def _targets(gm: fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def test_results_follow_the_operators_order(copying: Operator) -> None:
    writer = Writer()
    source, out, rest = (writer.input(name, 4) for name in ("source", "out", "rest"))
    gm = writer.finish(*writer.launch(source, out, rest), define=lambda *_, **__: copying)
    x, old = torch.randn(4), torch.zeros(4)
    first, second = gm(x, old, old)
    torch.testing.assert_close((first, second, old), (x, -x, torch.zeros(4)))


def test_a_launch_without_an_operator_stays() -> None:
    writer = Writer()
    source, out, rest = (writer.input(name, 4) for name in ("source", "out", "rest"))
    gm = writer.finish(*writer.launch(source, out, rest), define=lambda *_, **__: None)
    assert FUNCTIONAL_LAUNCH in _targets(gm)


def test_parts_of_one_tensor_are_not_put_back(copying: Operator) -> None:
    writer = Writer()
    source, whole = writer.input("source", 4), writer.input("whole", 3, 8)
    row = writer.call(ATEN.select.int, whole, 0, 1)
    first, second = (
        writer.call(ATEN.slice.Tensor, row, 0, 0, 4),
        writer.call(ATEN.slice.Tensor, row, 0, 4, 8),
    )
    written, rested = writer.launch(source, first, second)
    once = writer.call(ATEN.slice_scatter.default, row, written, 0, 0, 4)
    whole_once = writer.call(ATEN.select_scatter.default, whole, once, 0, 1)
    again = writer.call(ATEN.select.int, whole_once, 0, 1)
    twice = writer.call(ATEN.slice_scatter.default, again, rested, 0, 4, 8)
    result = writer.call(ATEN.select_scatter.default, whole_once, twice, 0, 1)
    gm = writer.finish(result, rested, define=lambda *_, **__: copying)
    targets = _targets(gm)
    assert FUNCTIONAL_CALL in targets
    assert ATEN.select_scatter.default not in targets
    assert ATEN.slice_scatter.default not in targets
    x, old = torch.randn(4), torch.randn(3, 8)
    wanted = old.clone()
    wanted[1] = torch.cat([x, -x])
    torch.testing.assert_close(gm(x, old), (wanted, -x))


def test_a_part_that_is_put_elsewhere_is_put_there(copying: Operator) -> None:
    writer = Writer()
    source, whole, rest = writer.input("source", 4), writer.input("whole", 8), writer.input("rest", 4)
    part = writer.call(ATEN.slice.Tensor, whole, 0, 0, 4)
    written, _ = writer.launch(source, part, rest)
    result = writer.call(ATEN.slice_scatter.default, whole, written, 0, 4, 8)
    gm = writer.finish(result, define=lambda *_, **__: copying)
    assert ATEN.slice_scatter.default in _targets(gm)
    x, old = torch.randn(4), torch.randn(8)
    torch.testing.assert_close(gm(x, old, x)[0], torch.cat([old[:4], x]))


def test_half_of_the_parts_is_read_where_it_is(copying: Operator) -> None:
    writer = Writer()
    source, whole = writer.input("source", 4), writer.input("whole", 8)
    first, second = (
        writer.call(ATEN.slice.Tensor, whole, 0, 0, 4),
        writer.call(ATEN.slice.Tensor, whole, 0, 4, 8),
    )
    written, rested = writer.launch(source, first, second)
    half = writer.call(ATEN.slice_scatter.default, whole, written, 0, 0, 4)
    result = writer.call(ATEN.slice_scatter.default, half, rested, 0, 4, 8)
    gm = writer.finish(result, half, define=lambda *_, **__: copying)
    x, old = torch.randn(4), torch.randn(8)
    wanted = (torch.cat([x, -x]), torch.cat([x, old[4:]]))
    torch.testing.assert_close(gm(x, old), wanted)
