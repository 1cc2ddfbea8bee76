"""Launches of the user's Triton kernels in an ATen graph become calls of operators.

torch captures a launch as a call of a higher-order operator that names the kernel by a number of this
process. Here it becomes a call of an operator that is defined for the kernel
(`coilwork_runtime.triton_kernels.user_kernels`). So every later stage sees an operator with arguments and
mutations: it is cached, laid out and called as other operators are. A launch for which none can be defined
stays, and Python makes it between two programs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from coilwork_frontend.capture.user_kernel_writes import WrittenPart, find_written_parts
from coilwork_frontend.torch_compat.user_kernels import (
    FUNCTIONAL_CALL,
    FUNCTIONAL_LAUNCH,
    LAUNCH,
    describe_written,
    find_constants,
    find_kernel,
    list_written,
)


class LaunchOperator(Protocol):
    """An operator that launches a kernel."""

    @property
    def overload(self) -> Any:
        """The operator."""

    @property
    def arguments(self) -> Mapping[str, str]:
        """Its argument for each parameter of the kernel that is one, in order."""

    @property
    def descriptor_argument(self) -> str:
        """Its argument for the numbers of all tensor descriptors in a row, if there are any."""

    @property
    def grid_argument(self) -> str:
        """Its argument for all grids in a row."""


class DefineOperator(Protocol):
    """Defines an operator for launches of a kernel."""

    def __call__(
        self,
        kernel: Any,
        values: Mapping[str, Any],
        /,
        *,
        written: tuple[str, ...],
        descriptors: Mapping[str, tuple[str, tuple[int, ...]]],
        grids: int,
    ) -> LaunchOperator | None:
        """Return the operator; None if none can be defined.

        `values` are examples of the arguments by parameter, `written` parameters whose tensors the kernel
        writes. `descriptors` are parameters that take a descriptor of their tensor: the API that makes it,
        and how many numbers each list has that it takes. There are as many `grids` as configurations.
        """


def call_kernel_operators(gm: fx.GraphModule, define: DefineOperator) -> None:
    """Replace launches in `gm`, and in the graphs that it calls, by calls of operators of `define`."""
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        launches = [node for node in module.graph.nodes if _is_launch(node)]
        for node in launches:
            _call_operator(module.graph, _Launch.read(node), define)
        if launches:
            module.recompile()


def _is_launch(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in (FUNCTIONAL_LAUNCH, LAUNCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """A launch in a graph.

    Attributes:
        node: the call of the higher-order operator.
        kernel: what the user launches.
        arguments: by parameter; nodes are among them.
        written: parameters whose tensors the kernel writes.
        descriptors: of parameters that take a tensor descriptor, the API and lists of numbers.
        grids: of each configuration three extents.
    """

    node: fx.Node
    kernel: Any
    arguments: Mapping[str, Any]
    written: tuple[str, ...]
    descriptors: Mapping[str, tuple[str, tuple[tuple[Any, ...], ...]]]
    grids: tuple[tuple[Any, ...], ...]

    @classmethod
    def read(cls, node: fx.Node) -> _Launch:
        """Return what the call `node` says."""
        named: dict[str, Any] = dict(node.kwargs)
        descriptors: dict[str, tuple[str, tuple[tuple[Any, ...], ...]]] = {}
        for name, (api, lists) in named["tma_descriptor_metadata"].items():
            numbers = (tuple(one) if isinstance(one, list | tuple) else (one,) for one in lists)
            descriptors[name] = (str(api), tuple(numbers))
        written = named.get("tensors_to_clone")
        if written is None:
            written = list_written(named, _examples(named["kwargs"]))
        return cls(
            node=node,
            kernel=find_kernel(named["kernel_idx"]),
            arguments={**find_constants(named["constant_args_idx"]), **named["kwargs"]},
            written=tuple(written),
            descriptors=descriptors,
            grids=tuple(tuple(grid) for grid in named["grid"]),
        )


def _call_operator(graph: fx.Graph, launch: _Launch, define: DefineOperator) -> None:
    """Replace `launch` in `graph` by a call of an operator, if one can be defined."""
    node = launch.node
    made = define(
        launch.kernel,
        _examples(launch.arguments),
        written=launch.written,
        descriptors={
            name: (api, tuple(len(one) for one in lists)) for name, (api, lists) in launch.descriptors.items()
        },
        grids=len(launch.grids),
    )
    if made is None:
        return
    arguments: dict[str, Any] = {
        name: launch.arguments[parameter] for parameter, name in made.arguments.items()
    }
    if launch.descriptors:
        arguments[made.descriptor_argument] = [
            number for _, lists in launch.descriptors.values() for one in lists for number in one
        ]
    arguments[made.grid_argument] = [extent for grid in launch.grids for extent in grid]
    written = [parameter for parameter in made.arguments if parameter in launch.written]
    if node.target is FUNCTIONAL_LAUNCH and written:
        _call_over_copies(graph, launch, made, arguments, written)
    else:
        with graph.inserting_before(node):
            call = graph.call_function(made.overload, (), arguments)
        call.meta.update(node.meta, val=None)
    graph.erase_node(node)


def _call_over_copies(
    graph: fx.Graph,
    launch: _Launch,
    made: LaunchOperator,
    arguments: dict[str, Any],
    written: Sequence[str],
) -> None:
    """Add the call of the operator of `launch` over copies of tensors, and give its results to users."""
    node = launch.node
    results: dict[str, fx.Node] = {str(user.args[1]): user for user in node.users}
    parts = find_written_parts(launch.arguments, written, results)
    tensors: list[fx.Node] = []
    places: dict[str, int] = {}
    keywords: dict[str, Any] = {}
    for parameter in written:
        part = parts.get(parameter)
        operand: fx.Node = arguments.pop(made.arguments[parameter])
        # of a tensor that several arguments are parts of, there is one copy
        shared = [
            places[other]
            for other, one in parts.items()
            if part is not None and other in places and one.whole is part.whole
        ]
        places[parameter] = shared[0] if shared else len(tensors)
        if not shared:
            tensors.append(operand if part is None else part.whole)
        view = {} if part is None else _describe_view(operand)
        keywords |= describe_written(made.arguments[parameter], places[parameter], view)
    with graph.inserting_before(node):
        call = graph.call_function(
            FUNCTIONAL_CALL, (made.overload,), {**arguments, **keywords, "_all_bases": tensors}
        )
        call.meta.update(node.meta, val=(None, *(one.meta["val"] for one in tensors)))
        changed = [graph.call_function(operator.getitem, (call, 1 + k)) for k in range(len(tensors))]
        for new, old in zip(changed, tensors, strict=True):
            new.meta.update(node.meta, val=old.meta["val"])
    for parameter, result in results.items():
        part = parts.get(parameter)
        new = changed[places[parameter]]
        if part is None:
            result.replace_all_uses_with(new)
            graph.erase_node(result)
        else:
            _replace_parts(graph, part, new)


def _describe_view(operand: fx.Node) -> dict[str, Any]:
    value: torch.Tensor = operand.meta["val"]
    return {
        "size": list(value.shape),
        "stride": list(value.stride()),
        "storage_offset": value.storage_offset(),
    }


def _replace_parts(graph: fx.Graph, part: WrittenPart, new: fx.Node) -> None:
    """Let users of the replaced nodes read the tensor `new`, which was `part.whole`, instead."""
    for old, count in part.replaced:
        shown = new
        with graph.inserting_before(old):
            for view in part.views[:count]:
                shown = _view_again(graph, view, shown)
        old.replace_all_uses_with(shown)
    for old, _ in reversed(part.replaced):
        graph.erase_node(old)


def _view_again(graph: fx.Graph, view: fx.Node, source: fx.Node) -> fx.Node:
    again = graph.create_node("call_function", view.target, (source, *view.args[1:]))
    again.meta.update(view.meta)
    return again


def _examples(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments`, with what torch knows of each in the place of a node."""
    return {name: _example(value) for name, value in arguments.items()}


def _example(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_example(item) for item in value)
    return value.meta.get("val") if isinstance(value, fx.Node) else value
