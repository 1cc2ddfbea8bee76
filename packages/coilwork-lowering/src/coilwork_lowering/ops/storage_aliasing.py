"""Facts about the storage of nodes in the captured graph: who owns it, who writes it, where a view begins.

`as_strided_scatter` replaces a box of a tensor's storage. These functions find the box, and tell whether the
memory is new and filled by such updates alone, so that no copy and no initial store is needed.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.alias_analysis import USER_KERNELS
from coilwork_lowering.facts.fx_nodes import get_packet_name as operator_of
from coilwork_lowering.facts.fx_nodes import iterate_readers, iterate_views, view_base
from coilwork_lowering.options import LoweringOptions
from coilwork_lowering.torch_compat.operators import Overload, get_schema

_SCATTER: Final = torch.ops.aten.as_strided_scatter.default
_CLONE: Final = torch.ops.aten.clone.default


def find_box(whole: torch.Tensor, size: Any, stride: Any, offset: Any) -> tuple[int, ...] | None:
    """Return where in `whole` the box begins that `as_strided` with these arguments shows.

    None if they show no box, if `whole` has gaps or is part of other memory, or if a number is symbolic.
    """
    shape, strides = tuple(whole.shape), tuple(whole.stride())
    numbers = (*shape, *strides, *size, *stride, offset, whole.storage_offset())
    if any(type(n) is not int for n in numbers) or len(size) != len(shape) or whole.storage_offset():
        return None
    below = 1
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        if step != below:
            return None
        below *= extent
    starts: list[int] = []
    left = offset
    for extent, step, count, given in zip(shape, strides, size, stride, strict=True):
        start, left = divmod(left, step)
        if not 0 < count <= extent - start or (count > 1 and given != step):
            return None
        starts.append(start)
    return None if left else tuple(starts)


def is_in_input_storage(node: object) -> bool:
    """Tell if `node` lies in its storage as some input does in its own, where the next call may have it begin
    elsewhere.

    That is true of views, and of `as_strided_scatter`, which copies the whole storage.
    """
    while isinstance(node, torch.fx.Node) and (_shares_memory(node) or node.target is _SCATTER):
        node = node.args[0]
    return isinstance(node, torch.fx.Node) and node.op == "placeholder"


def find_storage_offset(node: object) -> Any:
    """Return how much further `node` begins in its storage than its fake tensor says: as far as the input it
    copies.

    The functions that replace a part of a tensor copy it with its storage; only their fake tensors begin at
    0.
    """
    copied = False
    while isinstance(node, torch.fx.Node) and (
        _shares_memory(node) or find_info(operator_of(node.target)).replaces_part
    ):
        copied |= find_info(operator_of(node.target)).replaces_part
        node = node.args[0]
    if not copied or not isinstance(node, torch.fx.Node) or node.op != "placeholder":
        return 0
    return node.meta["val"].storage_offset()


def find_storage_owner(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node whose memory `node` shares in the captured graph: itself if it is no view and
    overwrites nothing.
    """
    while node.op == "call_function" and _shares_memory(node) and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _shares_memory(node: torch.fx.Node) -> bool:
    """Tell whether `node` is its first operand's memory, a part of it, or an item of a list of parts."""
    if node.target is operator.getitem:
        return True
    returned = get_schema(node.target).returns if isinstance(node.target, Overload) else ()
    return any(result.alias_info is not None for result in returned)


def is_written_into(node: torch.fx.Node) -> bool:
    """Tell whether an operator writes into `node` or a view of it."""
    open_nodes = [node]
    while open_nodes:
        given = open_nodes.pop()
        for user in given.users:
            if isinstance(user.target, Overload) and _writes(user, given):
                return True
            if _shares_memory(user):
                open_nodes.append(user)
    return False


def _writes(user: torch.fx.Node, given: torch.fx.Node) -> bool:
    assert isinstance(user.target, Overload)
    formals = get_schema(user.target).arguments
    pairs = [*zip(formals, user.args), *((f, user.kwargs[f.name]) for f in formals if f.name in user.kwargs)]
    return any(
        formal.alias_info is not None
        and formal.alias_info.is_write
        and (argument is given or (isinstance(argument, list | tuple) and given in argument))
        for formal, argument in pairs
    )


def is_filled_by_updates(node: torch.fx.Node, options: LoweringOptions) -> bool:
    """Tell if all that happens to `node`, memory of any contents, is that a part is stored into it."""
    users = tuple(node.users)
    if len(users) != 1 or not is_box_update(users[0], node, options):
        return False
    return int(node.meta["val"].numel()) > 0


def is_filled_by_calls(node: torch.fx.Node) -> bool:
    """Tell if all that reads `node`, memory of any contents, are operators that write into it, or into copies
    of it, before anybody reads these.

    These are launches of the user's kernels.
    """
    return all(
        _is_filled_by(user, node) or (user.target is _CLONE and _is_filled_first(user)) for user in node.users
    )


def _is_filled_first(copy: torch.fx.Node) -> bool:
    """Tell if the first operator that takes `copy` fills it. Users are in no order, but the graph is."""
    later = copy.next
    while copy not in later.all_input_nodes:
        if later.op == "output":
            return False
        later = later.next
    return _is_filled_by(later, copy)


def _is_filled_by(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Tell if `user` writes into `node`, once among its operands, and returns nothing."""
    if not isinstance(user.target, Overload) or get_schema(user.target).returns:
        return False
    operands: list[torch.fx.Node] = []
    torch.fx.node.map_arg((user.args, user.kwargs), operands.append)
    return user.target.namespace == USER_KERNELS and operands.count(node) == 1 and _writes(user, node)


def is_store_into_new_memory(node: torch.fx.Node, options: LoweringOptions) -> bool:
    """Tell if `node` stores into new memory that it alone reads, perhaps through views, and so need not read
    it.

    Not where the calls that make such memory fall back: they may fill it
    (`torch.use_deterministic_algorithms`).
    """
    changed = node.args[0] if node.args else None
    if not isinstance(changed, torch.fx.Node):
        return False
    result = view_base(changed)
    name = str(result.target)
    if (
        not find_info(operator_of(result.target)).is_uninitialized
        or options.falls_back(name)
        or not name.startswith("aten.")
    ):
        return False
    memory = {result, *iterate_views(result)}
    others: set[torch.fx.Node] = set()
    torch.fx.node.map_arg((node.args[1:], node.kwargs), others.add)
    return memory.isdisjoint(others) and all(reader is node for reader in iterate_readers(result))


def is_box_update(user: torch.fx.Node, node: torch.fx.Node, options: LoweringOptions) -> bool:
    """Tell if `user` is `node`, which nobody else needs, with other contents in a box."""
    if user.target is not _SCATTER or options.falls_back(str(_SCATTER)) or user.kwargs:
        return False
    whole, *others = user.args
    if whole is not node or node in user.args[1:] or len(node.users) != 1 or len(others) != 4:
        return False
    source, size, stride, offset = others
    value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    memory: torch.Tensor = node.meta["val"]
    if not isinstance(value, torch.Tensor) or (value.dtype, value.device) != (memory.dtype, memory.device):
        return False
    return not memory.dtype.is_complex and find_box(memory, size, stride, offset) is not None
