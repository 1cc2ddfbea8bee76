"""Torch's partitioner of joint graphs: run it, ask it what it knows of operators, and which settings ask for
it.

Facts about torch 2.11 to 2.13: the classes of operators differ, and are read from the release. Hints of sizes
have another name in 2.11, where saved tensors without a version check have no descriptor of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._pytree import tree_leaves

from coilwork_lowering.torch_compat.operators import Overload

SIZES: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of numbers that are not known before a call."""

# Numbers that no graph computes are counted as so many.
_UNKNOWN: Final = 4096

# torch's rules are ours where its settings have these values; who sets another one asks for torch's pass.
_SETTINGS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "activation_memory_budget": 1.0,
        "aggressive_recomputation": False,
        "ban_recompute_long_fusible_chains": True,
        "ban_recompute_materialized_backward": True,
        "ban_recompute_not_in_allowlist": True,
        "ban_recompute_reductions": True,
        "ban_recompute_used_far_apart": True,
        "debug_partitioner": False,
        "enable_activation_offloading": False,
        "is_non_builtin_to_include": False,
        "max_dist_from_bw": 1000,
        "recompute_views": False,
        "_sync_decision_cross_ranks": False,
        "treat_parameters_as_free_to_save": True,
        "unsafe_allow_optimization_of_collectives": False,
    }
)


def find_partitioner_setting() -> str | None:
    """Return the name of a setting of torch's partitioner that has another value than the usual one, or
    None.
    """
    from torch._functorch import config

    for name, usual in _SETTINGS.items():
        if getattr(config, name, usual) != usual:
            return f"torch._functorch.config.{name}"
    return None


def has_memory_budget(node: torch.fx.Node) -> bool:
    """Tell if the user limited the memory that is saved around `node`."""
    if "memory_budget" in node.meta:
        return True
    custom = node.meta.get("custom")
    return isinstance(custom, dict) and _BUDGET in custom


_BUDGET: Final = getattr(torch.fx.traceback, "MEMORY_BUDGET_ANNOTATION_KEY", "memory_budget")


@dataclass(frozen=True, slots=True)
class CallKinds:
    """Operators (packets) and functions, by what torch's partitioner takes them for.

    Attributes:
        fusible: a kernel may compute them together with others.
        views: results share memory with an operand.
        recomputable: what the backward may compute again.
    """

    fusible: AbstractSet[object]
    views: AbstractSet[object]
    recomputable: AbstractSet[object]


def list_call_kinds() -> CallKinds:
    """Return the kinds of this release of torch."""
    from torch._functorch.partitioners import get_default_op_list

    kinds = get_default_op_list()
    return CallKinds(kinds.fusible_ops, kinds.view_ops, kinds.recomputable_ops)


def get_packet(target: object) -> object:
    """Return the operator that `target` is an overload of; `target` itself if it is none."""
    return getattr(target, "overloadpacket", target)


def is_mutable(target: object) -> bool:
    """Tell if the overload `target` writes into operands."""
    return isinstance(target, Overload) and target._schema.is_mutable


def list_overwritten(node: torch.fx.Node) -> frozenset[object]:
    """Return the operands that a call with mutations made functional, of an operator or a user's Triton
    kernel, may write over in place.
    """
    higher = torch.ops.higher_order
    if node.target is higher.auto_functionalized:
        operator = node.args[0]
        assert isinstance(operator, Overload)
        written = [
            node.kwargs.get(argument.name)
            for argument in operator._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
    elif node.target is higher.triton_kernel_wrapper_functional:
        names, operands = node.kwargs["tensors_to_clone"], node.kwargs["kwargs"]
        assert isinstance(names, list | tuple) and isinstance(operands, dict)
        written = [operands[name] for name in names]
    else:
        return frozenset()
    return frozenset(leaf for leaf in tree_leaves(written) if isinstance(leaf, torch.fx.Node))


def is_result_of_user_kernel(node: torch.fx.Node) -> bool:
    """Tell if `node` is what a user's Triton kernel wrote."""
    return (
        isinstance(node.args[0], torch.fx.Node)
        and node.args[0].target is torch.ops.higher_order.triton_kernel_wrapper_functional
    )


def estimate_size(value: object) -> int:
    """Bytes of a tensor or of the tensors of a tuple; open sizes are those that were traced. 1 for a size."""
    if isinstance(value, torch.Tensor):
        count = value.numel()
        return (count if type(count) is int else _estimate_number(count)) * value.dtype.itemsize
    if isinstance(value, SIZES):
        return 1
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return sum(estimate_size(item) for item in value if isinstance(item, torch.Tensor))
    return 0


def _estimate_number(number: Any) -> int:
    from torch.fx.experimental import symbolic_shapes

    name = "optimization_hint" if hasattr(symbolic_shapes, "optimization_hint") else "size_hint"
    estimate: Callable[..., int] = getattr(symbolic_shapes, name)
    return int(estimate(number, fallback=_UNKNOWN))


def list_symbols(value: object) -> list[Any]:
    """Return the symbols in the sizes of `value`, by name."""
    from torch.fx.experimental.symbolic_shapes import free_symbols

    return sorted(free_symbols(value), key=lambda symbol: str(symbol.name))


def get_bound_symbol(node: torch.fx.Node) -> Any:
    """Return the symbol whose value `node` is: an input, or a size that run-time data decides; else None."""
    from torch.fx.experimental.symbolic_shapes import is_symbol_binding_fx_node

    return is_symbol_binding_fx_node(node)


def list_outputs(graph: torch.fx.Graph) -> tuple[list[Any], list[Any]]:
    """Return the results of a joint graph and what AOTAutograd notes of each (None if it notes nothing)."""
    last = graph.output_node()
    outputs = tree_leaves(last.args)
    notes = last.meta.get("desc")
    return outputs, [None] * len(outputs) if notes is None else tree_leaves(notes)


def describe_saved(count: int, unchecked: range) -> list[Any]:
    """Return AOTAutograd's notes of `count` saved values; those at `unchecked` have no version check."""
    from torch._functorch._aot_autograd import descriptors

    plain = descriptors.SavedForBackwardsAOTOutput
    without = getattr(descriptors, "SavedForBackwardsNoVcCheckAOTOutput", plain)
    return [(without if place in unchecked else plain)(place) for place in range(count)]


def make_lazy_module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Return a module that writes its Python text when it is called or printed, which few are."""
    return _LazyGraphModule(root, graph)


def has_random_subgraphs(gm: torch.fx.GraphModule) -> bool:
    """Tell if a nested graph of `gm` takes a generator's state, which the halves must hand on."""
    return any(
        "rng_state" in node.name
        for module in gm.children()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.find_nodes(op="placeholder")
    )


def is_input_of_forward(node: torch.fx.Node) -> bool:
    """Tell if `node` is an input of a joint graph that its forward takes."""
    name = str(node.target)
    return node.op == "placeholder" and not any(part in name for part in ("tangents", *_BACKWARD_SEEDS))


def is_seed(node: torch.fx.Node, *, forward: bool) -> bool:
    """Tell if `node` is a seed or an offset of random numbers that the forward, or the backward, takes."""
    parts: Sequence[str] = _FORWARD_SEEDS if forward else _BACKWARD_SEEDS
    return node.op == "placeholder" and any(part in str(node.target) for part in parts)


_FORWARD_SEEDS: Final = ("fwd_seed", "fwd_base_offset")
_BACKWARD_SEEDS: Final = ("bwd_seed", "bwd_base_offset")


def partition_by_min_cut(
    joint_gm: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Return the halves of a joint graph that torch's min-cut partitioner makes.

    Its own subexpression pass is off, because that imports TorchInductor.
    """
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with config.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint_gm, joint_inputs, **kw)
    return forward, backward
