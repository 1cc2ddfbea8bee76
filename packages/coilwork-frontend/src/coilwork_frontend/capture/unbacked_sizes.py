"""Guard calls against what the capture assumed of unbacked sizes, which only run-time data decides.

In `torch.where(x == 1, x[x == 1], y)` torch unifies an unbacked size with the other operand's. Eager
broadcasts one element as well. Where checks leave one value for a size, `torch._check(n > 4)` of at most 5,
torch puts that value everywhere, also into the check. `squeeze` of an unbacked size is captured as if the
size were not 1.

The compiled program finds out before it overwrites inputs, and the call runs the captured graph, without
torch's own assertions. If a number made of the assumed size is used elsewhere, the captured graph may differ
from the user's program; then it only serves to raise its error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.capture.eager_fallback import CapturedGraph, GuardedProgram
from coilwork_frontend.capture.input_storages import copy_graph
from coilwork_frontend.capture.runtime_checks import TORCH_ASSERTION, put_user_checks_first
from coilwork_frontend.torch_compat.aot_autograd import BoxedCallable, GraphCompiler
from coilwork_frontend.torch_compat.operators import is_random, list_overwritten_operands
from coilwork_frontend.torch_compat.sizes import (
    has_guard_on_unified_size,
    has_sizes_from_data,
    is_from_data,
    is_unequal,
)
from coilwork_ir.fx_metadata import SQUEEZED_ONE

# ---- Unified sizes ----


_ASSERTION: Final = torch.ops.aten._assert_scalar.default
_EQUALITY_ASSERTION: Final = f"{TORCH_ASSERTION}Eq("


class UnifiedSizes:
    """Unbacked sizes that torch unified with others in one captured graph, and the guard for other calls.

    A graph without such sizes costs nothing per call.
    """

    def __init__(self, gm: fx.GraphModule, *, is_other_shape: Callable[[Exception], bool]) -> None:
        """Read Dynamo's graph `gm`, before anything changes it.

        `is_other_shape` tells if an error of the compiled program means that an operator returned another
        shape than captured.
        """
        self._is_other_shape = is_other_shape
        unifies, settles = _unifies_sizes(gm), _settles_sizes(gm)
        self._captured = (
            _copy_without_assertions(gm) if unifies else _copy_with_user_checks(gm) if settles else None
        )
        self._is_faithful = not (settles or _computes_with_sizes(gm) or has_guard_on_unified_size(gm))
        self._overwrites = False
        self._random = False

    def watch_compiler(self, compiler: GraphCompiler) -> GraphCompiler:
        """Return `compiler`, which first looks at the forward or inference graph that it is given."""
        if self._captured is None:
            return compiler

        def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
            self._overwrites |= any(list_overwritten_operands(node) for node in gm.graph.nodes)
            self._random |= any(is_random(node.target) for node in gm.graph.nodes)
            return compiler(gm, example_inputs)

        return compile_graph

    def guard(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return `compiled`, with the captured graph for calls whose sizes differ from what was assumed.

        If the program may have overwritten inputs before it fails, its error stands.
        """
        if self._captured is None or self._overwrites:
            return compiled
        return GuardedProgram(
            compiled,
            CapturedGraph(self._captured, "a size from data was taken for another, and is 1"),
            is_failure=self._is_other_shape,
            random=self._random,
            faithful=self._is_faithful,
        )


def _unifies_sizes(gm: fx.GraphModule) -> bool:
    """Tell if torch asserts that sizes are equal, because it has unified them."""
    return any(_is_torch_assertion(node, _EQUALITY_ASSERTION) for node in gm.graph.nodes)


def _settles_sizes(gm: fx.GraphModule) -> bool:
    """Tell if torch asserts the same number as a lower and an upper bound of a size."""
    bounds: dict[Any, set[tuple[fx.Node, int]]] = {operator.ge: set(), operator.le: set()}
    for node in gm.graph.nodes:
        condition = node.args[0] if _is_torch_assertion(node) else None
        if isinstance(condition, fx.Node) and condition.target in bounds:
            size, bound = condition.args
            if isinstance(size, fx.Node) and isinstance(bound, int):
                bounds[condition.target].add((size, bound))
    return not bounds[operator.ge].isdisjoint(bounds[operator.le])


def _is_torch_assertion(node: fx.Node, message: str = TORCH_ASSERTION) -> bool:
    return node.target is _ASSERTION and str(node.args[1]).startswith(message)


def _copy_without_assertions(gm: fx.GraphModule) -> fx.GraphModule:
    """Copy `gm` without torch's own assertions; the user's have other messages."""
    copy = copy_graph(gm)
    for node in reversed(copy.graph.nodes):
        if _is_torch_assertion(node) or (not node.users and _is_number(node) and node.op == "call_function"):
            copy.graph.erase_node(node)
    copy.recompile()
    return copy


def _copy_with_user_checks(gm: fx.GraphModule) -> fx.GraphModule:
    """Copy `gm` with the user's checks first."""
    copy = copy_graph(gm)
    put_user_checks_first(copy)
    return copy


def _computes_with_sizes(gm: fx.GraphModule) -> bool:
    """Tell if a number made of sizes is used by anything but torch's assertions, or if a size may have been
    specialised to a constant, which leaves no trace.
    """
    asserting: set[fx.Node] = set()
    for node in reversed(gm.graph.nodes):
        if _is_torch_assertion(node) or (
            _is_number(node) and node.users and asserting.issuperset(node.users)
        ):
            asserting.add(node)
    numbers = [node for node in gm.graph.nodes if _is_number(node)]
    constants = (
        any(isinstance(side, int) for side in node.args[0].args)
        for node in asserting
        if _is_torch_assertion(node, _EQUALITY_ASSERTION) and isinstance(node.args[0], fx.Node)
    )
    return any(constants) or not asserting.issuperset(user for node in numbers for user in node.users)


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymBool, int, bool))


# ---- Squeezed sizes ----


aten: Final = torch.ops.aten
_SQUEEZES: Final = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)


@dataclass(slots=True)
class SqueezeAssertions:
    """The assertions about squeezed sizes in the ATen graphs of one captured graph.

    `are_there`: one of them asserts that a squeezed size is not 1. `random`: one of them draws random
    numbers.
    """

    are_there: bool = False
    random: bool = False

    def watch_compiler(self, compiler: GraphCompiler) -> GraphCompiler:
        """Return `compiler`, which first looks at the forward or inference graph that it is given."""

        def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
            _name_squeezed_sizes(gm)
            self.are_there |= any(map(_asserts_squeezed_size, _nodes(gm)))
            self.random |= any(is_random(node.target) for node in _nodes(gm))
            return compiler(gm, example_inputs)

        return compile_graph


def copy_for_squeezed_sizes(gm: fx.GraphModule) -> fx.GraphModule | None:
    """Copy Dynamo's graph if it has unbacked sizes; None if it has none."""
    return copy_graph(gm) if has_sizes_from_data(gm) else None


def guard_squeezed_sizes(
    compiled: Callable[..., Any], captured: fx.GraphModule | None, assertions: SqueezeAssertions
) -> Callable[..., Any]:
    """Return `compiled`, with `captured` for calls in which an assertion of `assertions` fails."""
    if captured is None or not assertions.are_there:
        return compiled
    graph = CapturedGraph(captured, "a size from data that is squeezed is 1")
    return GuardedProgram(compiled, graph, is_failure=_is_squeezed_one, random=assertions.random)


def _is_squeezed_one(error: Exception) -> bool:
    return SQUEEZED_ONE in str(error)


def _nodes(gm: torch.nn.Module) -> list[fx.Node]:
    """Return the nodes of a graph and of the graphs nested in it."""
    return [node for part in gm.modules() if isinstance(part, fx.GraphModule) for node in part.graph.nodes]


def _asserts_squeezed_size(node: fx.Node) -> bool:
    return node.target is _ASSERTION and node.args[1] == SQUEEZED_ONE


def _name_squeezed_sizes(gm: torch.nn.Module) -> None:
    """Give the assertions of squeezed sizes their message, in place, also in branches and loop bodies, where
    torch has replaced it by its own."""
    for part in gm.modules():
        nodes = list(part.graph.nodes) if isinstance(part, fx.GraphModule) else []
        sizes = [
            size
            for node in nodes
            if node.target in _SQUEEZES
            for size in _list_squeezed_sizes(*map(_fake, node.args))
        ]
        for node in nodes if sizes else ():
            if node.target is _ASSERTION and any(is_unequal(_fake(node.args[0]), size, 1) for size in sizes):
                node.args = (node.args[0], SQUEEZED_ONE)


def _list_squeezed_sizes(value: Any, dims: Any = None) -> list[torch.SymInt]:
    """Return the unbacked sizes that a call of `squeeze` drops if they are 1."""
    chosen = range(value.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    return [size for size in (value.shape[k] for k in chosen if value.dim() > 0) if is_from_data(size)]


def _fake(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument
