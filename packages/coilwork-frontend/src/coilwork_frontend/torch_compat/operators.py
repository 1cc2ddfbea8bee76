"""Facts about operators: what they overwrite, share, draw and order, and how many are called."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch._higher_order_ops.effects import _get_effect
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# Spellings of `max_pool1d` in Dynamo's graphs.
ROW_POOLS: Final = frozenset(
    {functional.max_pool1d, torch.max_pool1d, torch.ops.aten.max_pool1d, torch.ops.aten.max_pool1d.default}
)


def is_view(target: object) -> bool:
    """Tell if an operator returns memory of its first argument and changes nothing."""
    if not isinstance(target, OpOverload):
        return False
    aliases = [
        argument.alias_info for argument in target._schema.arguments if argument.alias_info is not None
    ]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def is_view_node(node: torch.fx.Node) -> bool:
    """Tell if a node of an ATen graph is a view, one of several that an operator returns, or all of these."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, torch.fx.Node) and source.op == "call_function" and is_view(source.target)


def can_convolve_in_tf32() -> bool:
    """Tell if cuDNN may round `f32` operands of convolutions to TF32.

    `torch.backends.cudnn.allow_tf32` raises where recurrent layers are set otherwise than convolutions.
    """
    return bool(torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32")


def get_native_function(name: str) -> Callable[..., Any]:
    """Return the function `name` of `torch._C._nn`, which `torch.nn.functional` calls, as in Dynamo's
    graphs."""
    function: Callable[..., Any] = getattr(torch._C._nn, name)
    return function


ASSERT_ASYNC: Final[Callable[..., Any]] = torch._assert_async
"""The assertion that a tensor of one element is not 0, as Dynamo's graphs call it."""


def is_operator(value: object) -> bool:
    """Tell if `value` is an operator overload or a higher-order operator; both print as their full name."""
    return isinstance(value, OpOverload | HigherOrderOperator)


def get_namespace(target: object) -> str:
    """Return the namespace of an operator, or of an overload packet; empty for other functions."""
    if isinstance(target, OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0]
    return str(target.namespace) if isinstance(target, OpOverload | HigherOrderOperator) else ""


def disable_modes() -> AbstractContextManager[object]:
    """Return a context without dispatch modes, in which nothing is traced."""
    context: AbstractContextManager[object] = _disable_current_modes()
    return context


class OperatorCounter(TorchDispatchMode):
    """Counts ATen operators other than views: what eager launches. Use as a context manager."""

    def __init__(self) -> None:
        initialize: Callable[[], None] = super().__init__  # the base class is not typed
        initialize()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += not is_view(func)
        return func(*args, **(kwargs or {}))


def has_no_writes(target: object) -> bool:
    """Tell if an operator overwrites no operand."""
    return isinstance(target, OpOverload) and not target._schema.is_mutable


def is_functional(target: object) -> bool:
    """Tell if an operator overwrites no operand and returns new memory."""
    if not isinstance(target, OpOverload) or not has_no_writes(target):
        return False
    return all(result.alias_info is None for result in target._schema.returns)


def list_overwritten_operands(node: torch.fx.Node) -> tuple[object, ...]:
    """Return the operands that a call of an operator overwrites; none for other nodes."""
    if not isinstance(node.target, OpOverload):
        return ()
    arguments = enumerate(node.target._schema.arguments)
    return tuple(
        node.args[k] if k < len(node.args) and not argument.kwarg_only else node.kwargs.get(argument.name)
        for k, argument in arguments
        if argument.is_write
    )


def is_random(target: object) -> bool:
    """Tell if an operator reads a random generator."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def has_effects(node: torch.fx.Node) -> bool:
    """Tell if a call must keep its order among calls with effects.

    It draws random numbers, overwrites memory, or may do something else that its results do not show.
    """
    if node.op != "call_function":
        return True
    if isinstance(node.target, HigherOrderOperator):
        return True
    if not isinstance(node.target, OpOverload):
        # arithmetic on numbers, and items of lists
        return False
    is_ours = node.target.namespace in ("aten", "prims")
    return not is_ours or node.target._schema.is_mutable or is_random(node.target)


def has_shared_writes(node: torch.fx.Node) -> bool:
    """Tell if a call overwrites memory that others may read."""
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    return isinstance(node.target, HigherOrderOperator) and "mutation" in node.target.name()


def get_effectful_operator(node: torch.fx.Node) -> object:
    """Return the operator that `node` (`with_effects`) orders by tokens; None for other nodes."""
    is_tied = isinstance(node.target, HigherOrderOperator) and node.target.name() == "with_effects"
    return node.args[1] if is_tied else None


def make_token(graph: torch.fx.Graph) -> torch.fx.Node:
    """Insert a token for the first call with effects of `graph`; tokens order these calls."""
    return graph.call_function(torch.ops.prims._make_token.default)


def is_first_token(node: torch.fx.Node) -> bool:
    """Tell if `node` makes the first token."""
    return node.target is torch.ops.prims._make_token.default


def is_token_sink(node: torch.fx.Node) -> bool:
    """Tell if `node` only keeps calls with effects alive whose results nobody reads."""
    return node.target is torch.ops.prims._sink_tokens.default


def is_ordered_by_token(target: object) -> bool:
    """Tell if torch orders the calls of an operator, or of any overload of one, by tokens."""
    if isinstance(target, OpOverloadPacket):
        return any(is_ordered_by_token(getattr(target, name)) for name in target.overloads())
    return isinstance(target, HigherOrderOperator | OpOverload) and _get_effect(target) is not None
