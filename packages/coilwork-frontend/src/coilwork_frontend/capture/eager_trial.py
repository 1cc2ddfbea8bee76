"""Ask eager mode whether it refuses a call, once compiling the call has failed.

The captured graph runs on copies of the inputs. If that raises, the call is at fault and not the compiler:
the graph is not compiled, and the call runs what was captured, which raises eager's error, with `strict` too.
The same holds if eager gives results and refuses their gradients, which AOTAutograd traces together with
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx

from coilwork_frontend.errors import CoilworkError, CoilworkFallbackWarning, CompileError, describe, warn_user
from coilwork_frontend.random_state import get_random_state, restore
from coilwork_frontend.torch_compat.aot_autograd import leave_transforms
from coilwork_frontend.torch_compat.operators import disable_modes, get_namespace
from coilwork_frontend.torch_compat.sizes import hint_of
from coilwork_frontend.torch_compat.tensors import get_storage_identity, list_leaves
from coilwork_ir.dtypes import TORCH_NAMES

_PLAIN: Final = (Tensor, torch.nn.Parameter)
_TORCHS: Final = frozenset({"", "aten", "prims", "prim"})
# Copies of more than this are not made.
_MOST_BYTES: Final = 1 << 30


class RefusedCallError(Exception):
    """Eager refuses the call that a graph is compiled for, or its gradients; `__cause__` is the compiler's
    error.
    """


class UnknownGradientError(RefusedCallError):
    """A call mixes meta tensors with others: eager refuses its gradient, or only eager's kernels know it."""


class EagerTrial:
    """Runs `captured` in eager mode on copies of its inputs, at most once, if compiling it has failed."""

    def __init__(self, captured: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self._captured = captured
        self._inputs = example_inputs
        self._is_recorded = torch.is_grad_enabled()
        self._refuses: bool | None = None
        self._refuses_gradients: bool | None = None

    def refuses(self) -> bool:
        """Tell if eager raises an error.

        False without a trial if the graph calls operators of the user's, which may have effects. True without
        a trial if meta tensors are mixed with others: eager's kernels might read memory that does not exist.
        """
        if self._refuses is None:
            can_run = not _calls_user_code(self._captured)
            self._refuses = can_run and (_mix_meta_tensors(self._inputs) or self._raises())
        return self._refuses

    def refuses_gradients(self) -> bool:
        """Tell if eager raises an error as it records the call, or as it computes its gradients.

        True without a trial if meta tensors are mixed with others, as in `refuses`.
        """
        if _mix_meta_tensors(self._inputs):
            return True
        if self._refuses_gradients is None:
            has_gradients = any(isinstance(value, Tensor) and value.requires_grad for value in self._inputs)
            can_run = has_gradients and self._is_recorded and not _calls_user_code(self._captured)
            self._refuses_gradients = can_run and self._raises_in_backward()
        return self._refuses_gradients

    def refuses_training(self) -> bool:
        """Tell if eager refuses the call, or gradients of its results."""
        return self.refuses() or self.refuses_gradients()

    def _raises_in_backward(self) -> bool:
        with disable_modes(), torch.enable_grad():
            copies = _copy_inputs(self._inputs)
            if copies is None:
                return False
            leaves, inputs = _require_gradients(copies, self._inputs)
            numbers = get_random_state()
            try:
                with leave_transforms():
                    results = self._captured.forward(*inputs)
            except Exception:  # noqa: BLE001  the call itself raises it again, which is recorded, too
                restore(numbers)
                return True
            outputs = [
                leaf for leaf in list_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad
            ]
            try:
                torch.autograd.grad(
                    outputs, leaves, [torch.ones_like(output) for output in outputs], allow_unused=True
                )
            except Exception:  # noqa: BLE001  whatever it is, the call's gradient will raise it again
                return True
            finally:
                restore(numbers)
        return False

    def _raises(self) -> bool:
        with disable_modes(), torch.no_grad():
            copies = _copy_inputs(self._inputs)
            if copies is None:
                return False
            numbers = get_random_state()
            try:
                with leave_transforms():
                    self._captured.forward(*copies)
            except Exception:  # noqa: BLE001  whatever it is, the call itself will raise it again
                return True
            finally:
                restore(numbers)
        return False


def _require_gradients(copies: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Tensor], list[Any]]:
    """Return leaves that require gradients, and the inputs made of them, which may be written to."""
    leaves: list[Tensor] = []
    made: list[Any] = []
    for copy, value in zip(copies, inputs, strict=True):
        if isinstance(value, Tensor) and value.requires_grad:
            leaves.append(copy.requires_grad_())
            copy = copy.clone()
        made.append(copy)
    return leaves, made


def has_gradient_calls(gm: fx.GraphModule) -> bool:
    """Tell if Dynamo's graph calls an ATen operator that computes a gradient.

    Torch's tracing only calls these with operands of its own making, and does not check others.
    """
    return any(
        node.op == "call_function" and get_namespace(node.target) == "aten" and "backward" in str(node.target)
        for node in gm.graph.nodes
    )


def run_refused(captured: fx.GraphModule, error: Exception, *, strict: bool) -> Callable[..., Any]:
    """Return a callable that runs `captured`, whose first call eager refuses.

    On inputs that eager accepts, `error` is raised (`strict`) or warned of once.
    """
    has_warned = False
    reason = _find_cause(error)

    def run(*args: Any) -> Any:
        nonlocal has_warned
        results = captured.forward(*args)  # a call of the module would print where an error is raised
        if strict:
            raise reason
        if not has_warned:
            has_warned = True
            warn_user(f"a graph runs in eager mode: {reason}", CoilworkFallbackWarning)
        return results

    return run


def _find_cause(error: Exception) -> Exception:
    """Return the compiler's error: the cause of `error`, if `error` says that eager refuses the call."""
    cause = error.__cause__ if isinstance(error, RefusedCallError) else None
    if not isinstance(cause, Exception):
        return error
    if isinstance(cause, CoilworkError):
        return cause
    return CompileError("graph-failed", "a graph cannot be compiled", reason=describe(cause))


def restore_shapes(captured: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Restore the shapes of fake inputs of Dynamo's graph, from which Dynamo makes guards after a compile.

    Fakes of tensors that are overwritten with more elements than they have (`x.clamp_(y)`) have grown,
    although eager refuses the call.
    """
    for node, value in zip(captured.graph.find_nodes(op="placeholder"), inputs):
        fake = node.meta.get("example_value")
        if isinstance(fake, Tensor) and isinstance(value, Tensor) and fake.dim() != value.dim():
            with torch.no_grad():
                fake.as_strided_(value.shape, value.stride(), value.storage_offset())


def _mix_meta_tensors(inputs: Sequence[Any]) -> bool:
    """Tell if `inputs` mix meta tensors with others."""
    return len({value.is_meta for value in inputs if isinstance(value, Tensor)}) > 1


def has_mixed_meta_tensors(gm: fx.GraphModule) -> bool:
    """Tell if a call of the ATen graph `gm` mixes meta tensors with others: only eager knows its gradient."""
    for node in gm.graph.nodes:
        values = [operand.meta.get("val") for operand in node.all_input_nodes]
        kinds = {value.device.type == "meta" for value in values if isinstance(value, Tensor)}
        if node.op == "call_function" and len(kinds) > 1:
            return True
    return False


def _calls_user_code(captured: fx.GraphModule) -> bool:
    """Tell if the graph calls an operator that is not torch's, or another graph."""
    spaces = {
        get_namespace(node.target)
        for module in captured.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    }
    return not spaces <= _TORCHS


def _copy_inputs(inputs: Sequence[Any]) -> list[Any] | None:
    """Copy `inputs` with their strides and shared memory, so that they may be written to.

    None if an input cannot be copied, or if the copies take more than 1 GiB.
    """
    copies: list[Any] = []
    memory = _Memory(inputs)
    for value in inputs:
        if isinstance(value, Tensor):
            if type(value) not in _PLAIN or value.layout is not torch.strided:
                return None
            copies.append(memory.copy(value))
            if memory.size > _MOST_BYTES:
                return None
        elif isinstance(value, torch.SymInt):
            known = hint_of(value)
            if known is None:
                return None
            copies.append(known)
        elif isinstance(value, torch.SymFloat | torch.SymBool):
            return None
        else:
            copies.append(value)
    return copies


class _Memory:
    """Copies of inputs' memory: of whole storages, if inputs share one or repeat elements, and of types
    without a kernel for copies.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        strided = [one for one in inputs if isinstance(one, Tensor) and one.layout is torch.strided]
        self._users = Counter(map(get_storage_identity, strided))
        self._storages: dict[int, torch.UntypedStorage] = {}
        self.size = 0

    def copy(self, value: Tensor) -> Tensor:
        """Return a copy of `value`, which shares memory with other copies as the originals do."""
        identity = get_storage_identity(value)
        # of some types, integers of less than a byte among them, torch copies no elements
        is_known = str(value.dtype) in TORCH_NAMES
        if self._users[identity] == 1 and 0 not in value.stride() and is_known:
            self.size += value.numel() * value.element_size()
            return value.detach().clone()
        if identity not in self._storages:
            storage = value.untyped_storage()
            self.size += storage.nbytes()
            self._storages[identity] = storage.clone()
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(self._storages[identity], value.storage_offset(), value.shape, value.stride())
