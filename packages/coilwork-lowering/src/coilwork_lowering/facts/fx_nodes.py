"""Facts of single FX nodes: operator, origin in the user's source, and kind of call.

The kinds are views, pointwise operators, reductions and convolutions. This is the one place that knows the
convolution operators by name. `insert_call` adds a node that inherits the origin of another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_ir.loc import Origin, get_trace_origin
from coilwork_ir.operators import find_info
from coilwork_lowering.torch_compat.operators import Overload, get_qualified_name, get_schema

# names and origins


# where a node comes from, and which part of the joint graph it belongs to
_INHERITED: Final = (
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "seq_nr",
    "from_node",
    "partitioner_tag",
    "recompute",
    "ac_graph_id",
)


def get_operator_name(node: torch.fx.Node) -> str:
    """Return the operator of `node` as the IR spells it: `"aten.add.Tensor"`, or the function's name."""
    return name_of_target(node.target)


def name_of_target(target: object) -> str:
    """Return the IR's name of an operator or function."""
    if isinstance(target, Overload):
        return get_qualified_name(target)
    return target if isinstance(target, str) else str(getattr(target, "__name__", repr(target)))


def get_origin(node: torch.fx.Node) -> Origin:
    """Return the captured operation `node`, with the innermost frame of its stack trace."""
    origin = get_trace_origin(get_operator_name(node), node.meta.get("stack_trace"))
    return Origin(
        node=node.name,
        op=origin.op,
        file=origin.file,
        line=origin.line,
        code=origin.code,
        module=_module_of(node),
    )


def inherit_metadata(node: torch.fx.Node) -> dict[str, Any]:
    """Metadata that a call made in the place of `node`, or for it, has in common with it."""
    return {key: node.meta[key] for key in _INHERITED if key in node.meta}


def _module_of(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    return _shorten_path(str(next(reversed(stack.values()))[0]))


@lru_cache(maxsize=4096)
def _shorten_path(path: str) -> str:
    """`layers.0.attn` of `L['self'].layers[0].attn`."""
    return re.sub(r"L\['self'\]\.?|\['?([^'\]]*)'?\]", lambda m: f".{m[1]}" if m[1] else "", path).lstrip(".")


# kinds of calls


def get_packet_name(target: Any) -> str:
    """`"mm"` of an ATen or prims operator, `""` of anything else."""
    return _name_packet(target) if isinstance(target, Overload) else ""


# schemas are read through a slow binding, and a graph calls few overloads many times
@cache
def _name_packet(target: Overload) -> str:
    return get_schema(target).name.split("::")[-1] if target.namespace in ("aten", "prims") else ""


def is_view(node: torch.fx.Node) -> bool:
    """Tell if `node` is its first operand's memory under another layout."""
    return node.op == "call_function" and find_info(get_packet_name(node.target)).is_view


def is_pointwise(node: torch.fx.Node) -> bool:
    """Tell if each element of `node` is computed from a few of its operands'."""
    return node.op == "call_function" and isinstance(node.target, Overload) and _is_pointwise(node.target)


@cache
def _is_pointwise(target: Overload) -> bool:
    if not get_packet_name(target):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or get_schema(target).is_mutable:
        return False
    return torch.Tag.pointwise in target.tags or find_info(get_packet_name(target)).is_elementwise


def is_reduction(node: torch.fx.Node) -> bool:
    """Tell whether `node` is a reduction, or a choice of elements."""
    return node.op == "call_function" and find_info(get_packet_name(node.target)).is_reduction


def can_read_any_strides(node: torch.fx.Node) -> bool:
    """Tell whether generated code reads the operands of `node`, in place and with any strides; or only their
    shapes.
    """
    return is_pointwise(node) or is_reduction(node) or find_info(get_packet_name(node.target)).is_filled


def view_base(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node whose memory `node` views: itself if it is no view."""
    while is_view(node) and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def iterate_views(owner: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Views of `owner`, each before the views of it."""
    open_nodes = [owner]
    while open_nodes:
        for user in open_nodes.pop().users:
            if is_view(user):
                open_nodes.append(user)
                yield user


def iterate_readers(owner: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Nodes that read `owner`, directly or through views; some more than once."""
    for node in (owner, *iterate_views(owner)):
        yield from (user for user in node.users if not is_view(user))


# convolutions


CONVOLUTION: Final = "aten.convolution.default"
"""The overload that convolves, transposed or not."""

CONVOLUTION_GRADIENTS: Final = "aten.convolution_backward.default"
"""The overload that computes the gradients of a convolution's operands."""

# Positions of arguments: tensors that lie in memory, then numbers. The gradient of the output comes first.
_FORWARD: Final[Mapping[str, int]] = MappingProxyType({"input": 0, "weight": 1, "transposed": 6, "groups": 8})
_GRADIENTS: Final[Mapping[str, int]] = MappingProxyType(
    {"grad_output": 0, "input": 1, "weight": 2, "transposed": 7, "groups": 9}
)
_NUMBERS: Final = ("transposed", "groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    """A call of a convolution, or of its gradients.

    Attributes:
        node: the call.
        positions: where arguments stand, by their names.
    """

    node: torch.fx.Node
    positions: Mapping[str, int]

    @property
    def operands(self) -> tuple[int, ...]:
        """Positions of the tensors: input and weight, behind the output's gradient if there is one."""
        return tuple(position for name, position in self.positions.items() if name not in _NUMBERS)

    def __getitem__(self, name: str) -> Any:
        """Return the argument called `name`; None where the call leaves it out."""
        position = self.positions[name]
        return self.node.args[position] if position < len(self.node.args) else None


def match_convolution(node: torch.fx.Node) -> ConvolutionCall | None:
    """`node` as a convolution or its gradients; None if it is another call."""
    if node.op != "call_function":
        return None
    positions = {CONVOLUTION: _FORWARD, CONVOLUTION_GRADIENTS: _GRADIENTS}.get(get_operator_name(node))
    return None if positions is None else ConvolutionCall(node=node, positions=positions)


# new calls


def insert_call(
    graph: torch.fx.Graph,
    before: torch.fx.Node,
    like: torch.fx.Node,
    target: Any,
    args: tuple[Any, ...],
    value: torch.Tensor,
    kwargs: dict[str, Any] | None = None,
) -> torch.fx.Node:
    """Return a call of `target` in front of `before`, with the origin of `like`; `value` is its fake
    result.
    """
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs or {})
    node.meta.update(inherit_metadata(like))
    node.meta["val"] = value
    return node
