"""FX graphs and their fake tensors: copying, tracing, and fake tensor modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.proxy import GraphAppendingTracer as GraphAppendingTracer
from torch.utils._pytree import tree_leaves

from coilwork_lowering.torch_compat.operators import Overload

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


# graphs


def get_current_stack_trace() -> object:
    """Return the user's traceback of the call that is being traced from a captured graph; None if there is
    none.
    """
    return torch.fx.traceback.get_current_meta().get("stack_trace")


def copy_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a copy of `graph`, node for node, with metadata of its own; it calls and returns as `graph`
    does.

    `copy.deepcopy` does the same, but warns about how torch copies tree specifications.
    """
    copy = torch.fx.Graph(tracer_cls=graph._tracer_cls)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    old = graph.output_node()
    for node in graph.nodes:
        if node is not old:
            copies[node] = copy_node(copy, node, copies.__getitem__)
    copy.output(torch.fx.map_arg(old.args[0], copies.__getitem__), old.type).meta.update(old.meta)
    copy.set_codegen(graph._codegen)
    return copy


def copy_node(
    graph: torch.fx.Graph, node: torch.fx.Node, find: Callable[[torch.fx.Node], torch.fx.Node]
) -> torch.fx.Node:
    """Add a copy of `node` to `graph`, with metadata of its own, which reads what `find` gives for an
    operand.

    `Graph.node_copy` does the same, but walks the arguments a second time to warn of sizes among them.
    """
    args, kwargs = torch.fx.map_arg(node.args, find), torch.fx.map_arg(node.kwargs, find)
    made = graph.create_node(node.op, node.target, (), {}, node.name, node.type)
    if args:
        made.args = args
    if kwargs:
        made.kwargs = kwargs
    made.meta = dict(node.meta)
    return made


class GraphRecord:
    """A graph as it is now, of which a copy can be made later, whatever becomes of it. Much cheaper than a
    copy.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._tracer_cls = graph._tracer_cls
        self._codegen = graph._codegen
        self._nodes = [
            (node, node.op, node.target, node.args, node.kwargs, node.name, node.type, dict(node.meta))
            for node in graph.nodes
        ]

    def rebuild(self) -> torch.fx.Graph:
        """Return the recorded graph, node for node, with metadata of its own."""
        graph = torch.fx.Graph(tracer_cls=self._tracer_cls)
        made: dict[torch.fx.Node, torch.fx.Node] = {}
        for node, op, target, args, kwargs, name, kind, meta in self._nodes:
            new_args = torch.fx.map_arg(args, made.__getitem__)
            new_kwargs = torch.fx.map_arg(kwargs, made.__getitem__)
            made[node] = graph.create_node(op, target, new_args, new_kwargs, name, kind)
            made[node].meta = dict(meta)
        graph.set_codegen(self._codegen)
        return graph


def trace_call(
    function: Callable[..., Any], values: Sequence[Any], mode: AbstractContextManager[object] | None
) -> torch.fx.Graph:
    """Return the ATen graph of one call with fake tensors and numbers of `mode`, a placeholder for each
    of `values`.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with nullcontext() if mode is None else mode:
        return make_fx(function)(*values).graph


def list_tangents(joint_gm: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """Each gradient that comes into a joint graph as the caller hands it over, and the result that it belongs
    to.

    From torch 2.12 on there is none: AOTAutograd gives them the shapes that it has traced.
    """
    if not torch.__version__.startswith("2.11."):
        return []
    last = joint_gm.graph.output_node()
    results: dict[object, Any] = dict(zip(last.meta.get("desc", ()), tree_leaves(last.args), strict=False))
    pairs = [
        (node, results.get(getattr(node.meta.get("desc"), "output", None)))
        for node in joint_gm.graph.nodes
        if node.op == "placeholder"
    ]
    return [(tangent, result) for tangent, result in pairs if isinstance(result, torch.fx.Node)]


def find_decomposed_operator(node: torch.fx.Node) -> str | None:
    """Name, without overload, of the operator that was decomposed into `node` and others, or is it; `None` if
    it is not known.
    """
    original = node.meta.get("original_aten")
    return str(original.overloadpacket) if isinstance(original, Overload) else None


# fake tensors


def find_fake_mode(gm: torch.fx.GraphModule) -> AbstractContextManager[object] | None:
    """Return the fake tensor mode, to be entered, that the tensors in the graph's metadata belong to."""
    from torch._guards import detect_fake_mode

    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    mode: AbstractContextManager[object] | None = detect_fake_mode(
        [v for v in values if isinstance(v, torch.Tensor)]
    )
    return mode


def find_mode_among(values: Iterable[object]) -> AbstractContextManager[object] | None:
    """Return the fake tensor mode, to be entered, that the first fake tensor of `values` was made in.

    A captured graph's tensors are of Dynamo's mode, while `find_fake_mode` finds the one that AOTAutograd
    will trace with.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    modes = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    mode: AbstractContextManager[object] | None = next(modes, None)
    return mode


def suppress_guards(fake_mode: object) -> AbstractContextManager[object]:
    """While it is entered, questions about the open sizes of `fake_mode` are answered for those at hand,
    without a guard.
    """
    env: ShapeEnv | None = getattr(fake_mode, "shape_env", None)
    return nullcontext() if env is None else env.suppress_guards()


def is_fake(tensor: torch.Tensor) -> bool:
    """Tell if `tensor` has no contents."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def read_number(tensor: torch.Tensor) -> int | float | bool:
    """Return the value of a real tensor of one element, also where operators are being traced on fake
    ones.
    """
    with use_real_tensors():
        number: int | float | bool = tensor.item()
    return number


def use_real_tensors() -> AbstractContextManager[object]:
    """Within it operators compute, also where they are being traced on fake tensors."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    context: AbstractContextManager[object] = unset_fake_temporarily()
    return context
