"""Corrections of a joint graph before it is partitioned.

AOTAutograd and torch's meta functions state some facts of a joint graph wrongly, or too weakly for a
partitioner: specialized floats, inputs that the forward overwrites, element types of results, strides of
gradients, storages of merged values, shapes of incoming gradients. Each pass corrects one of them in place
and returns how often.
"""

from __future__ import annotations

import operator
from typing import Any, Final, TypeGuard

import torch
from torch import fx
from torch.fx import map_arg
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_lowering.aten_layouts.products import make_row_major_strides, restride_views, set_value
from coilwork_lowering.facts.alias_analysis import view_source
from coilwork_lowering.facts.fx_nodes import CONVOLUTION_GRADIENTS
from coilwork_lowering.torch_compat.graphs import (
    find_fake_mode,
    find_mode_among,
    is_fake,
    list_tangents,
    suppress_guards,
)
from coilwork_lowering.torch_compat.operators import find_kernel_dtype, makes_rows_of_one_tap
from coilwork_lowering.torch_compat.sizes import find_plain_float, is_surely

# specialized floats


_READ: Final = torch.ops.aten._local_scalar_dense.default


def fold_specialized_floats(joint_gm: torch.fx.GraphModule) -> int:
    """Replace floats that a guard has specialized by their numbers, in place; returns how many there are.

    A Python float that differs from call to call is captured as a tensor. Where torch had to decide something
    by it, as a gradient's formula does by a factor, the graph holds for that one value. The read of the
    tensor would still be saved for the backward, which takes only tensors and integers.
    """
    graph = joint_gm.graph
    numbers = {
        node: number
        for node in graph.nodes
        if node.target is _READ and (number := find_plain_float(node.meta.get("val"))) is not None
    }
    for node in numbers:
        for user in [user for user in node.users if user.op != "output"]:
            user.args = map_arg(user.args, lambda argument: numbers.get(argument, argument))
            user.kwargs = map_arg(user.kwargs, lambda argument: numbers.get(argument, argument))
        if not node.users:
            graph.erase_node(node)
    if numbers:
        joint_gm.recompile()
    return len(numbers)


# overwritten inputs


_COPY: Final = torch.ops.aten.copy_.default
_CLONE: Final = torch.ops.aten.clone.default


def copy_overwritten_inputs(joint_gm: torch.fx.GraphModule) -> int:
    """Copy inputs that the forward overwrites and the backward needs, in place; returns how many there are.

    Buffers are in memory anyway, so torch's partitioner lets the backward recompute from them, when they hold
    other numbers. The copy is marked as saved and is read wherever the input was. It costs memory only if
    nothing computed from it is what the backward needs.
    """
    graph = joint_gm.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    backward = _find_dependents([node for node in placeholders if "tangents" in str(node.target)])
    overwritten = [
        node
        for node in placeholders
        if _is_overwritten(node, backward) and _find_dependents([node]) & backward
    ]
    for node in overwritten:
        with graph.inserting_after(placeholders[-1]):
            copy = graph.call_function(_CLONE, (node,))
        copy.meta["val"] = _CLONE(node.meta["val"])
        copy.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for user in list(node.users):
            if user is not copy and not _overwrites(user, node):
                user.replace_input_with(node, copy)
    if overwritten:
        joint_gm.recompile()
    return len(overwritten)


def _is_overwritten(node: torch.fx.Node, backward: set[torch.fx.Node]) -> bool:
    """Tell if the forward overwrites `node`."""
    return any(_overwrites(user, node) and user not in backward for user in node.users)


def _overwrites(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    return user.target is _COPY and user.args[0] is node


def _find_dependents(nodes: list[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return all nodes computed from `nodes`, without the output node."""
    dependents: set[torch.fx.Node] = set()
    pending = list(nodes)
    while pending:
        new = [user for user in pending.pop().users if user.op != "output" and user not in dependents]
        dependents.update(new)
        pending.extend(new)
    return dependents


# element types


def correct_result_types(gm: torch.fx.GraphModule) -> int:
    """Give results of calls in `gm` the element types that kernels give them; returns how many were wrong.

    Values saved for the backward are allocated by their type in the graph.
    """
    mode = find_fake_mode(gm)
    if mode is None:
        return 0
    corrected = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        call, number = node.args
        first = (
            call.args[0].meta.get("val") if call.args and isinstance(call.args[0], torch.fx.Node) else None
        )
        dtype = find_kernel_dtype(
            call.target, number, first.dtype if isinstance(first, torch.Tensor) else None
        )
        value = node.meta.get("val")
        if dtype is not None and isinstance(value, torch.Tensor) and value.dtype is not dtype:
            with mode:
                node.meta["val"] = value.to(dtype)
            corrected += 1
    return corrected


# strides of gradients


def correct_gradient_strides(gm: torch.fx.GraphModule) -> int:
    """Give gradients of convolutions' weights in `gm` the strides that kernels give them, and their views
    theirs; returns how many were wrong.

    The strides of dimensions of one element say nothing of where elements lie, but a caller sees them.
    """
    mode = find_fake_mode(gm)
    if mode is None:
        return 0
    corrected = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not operator.getitem or node.args[1] != 1:
            continue
        call, value = node.args[0], node.meta.get("val")
        if str(call.target) != CONVOLUTION_GRADIENTS or not isinstance(value, torch.Tensor):
            continue
        given = map_arg(call.args[1:], lambda argument: argument.meta["val"])
        if value.dim() != 4 or value.stride() == _row_major(value):
            continue
        with suppress_guards(mode), mode:
            if not makes_rows_of_one_tap(*given):
                continue
            made = value.new_empty_strided(value.shape, _row_major(value))
        values = restride_views(node, made, mode)
        if values is None:
            continue
        for view, shown in values.items():
            set_value(view, shown)
        call.meta["val"] = tuple(made if k == 1 else each for k, each in enumerate(call.meta["val"]))
        corrected += 1
    return corrected


def _row_major(value: torch.Tensor) -> tuple[Any, ...]:
    return make_row_major_strides(tuple(value.shape))


# storages


def renew_shared_storages(gm: fx.GraphModule) -> int:
    """Let each view's fake value in `gm` share its operand's storage, in place; returns how many did not.

    AOTAutograd donates memory that is saved for the backward alone, and asks the fakes' storages whether a
    value shares it with a result. After two clones were merged, their views would still be in two storages.
    """
    renewed = 0
    for node in gm.graph.nodes:
        source = view_source(node)
        if source is None:
            continue
        value, operand = node.meta.get("val"), source.meta.get("val")
        if _is_strided_fake(value) and _is_strided_fake(operand) and _storage(value) != _storage(operand):
            node.meta["val"] = _move_into_storage(value, operand)
            renewed += 1
    return renewed


def _is_strided_fake(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and is_fake(value) and value.layout is torch.strided


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _move_into_storage(value: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """`value`, in the storage of `operand`. Views as other types have offsets in elements of their own."""
    mode = find_mode_among((operand,))
    assert mode is not None
    with mode, suppress_guards(mode):
        base = (
            operand
            if operand.dtype is value.dtype
            else torch.empty(0, dtype=value.dtype, device=value.device)
        )
        if base is not operand:
            base = base.set_(operand.untyped_storage(), 0, (0,), (1,))
        return base.as_strided(value.size(), value.stride(), value.storage_offset())


# incoming gradients


def shape_tangents(joint: torch.fx.GraphModule) -> int:
    """Give incoming gradients of `joint` the shapes of their results, in place; returns of how many.

    AOTAutograd takes gradients' shapes from torch's meta functions and traces results through decompositions.
    Torch 2.11's meta functions are wrong for norms along a last dimension of one element.
    """
    count = 0
    for tangent, result in list_tangents(joint):
        gradient, value = tangent.meta.get("val"), result.meta.get("val")
        if not isinstance(gradient, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        if gradient.dim() != value.dim() and is_surely(gradient.numel() == value.numel()):
            tangent.meta["val"] = gradient.view(value.shape)
            count += 1
    return count
