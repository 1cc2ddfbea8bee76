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
from coilwork_frontend.random_state import random_state, restore
from coilwork_frontend.torch_compat.operators import disable_modes, space_of
from coilwork_frontend.torch_compat.sizes import hint_of
from coilwork_frontend.torch_compat.tensors import leaves_of, storage_identity

_PLAIN: Final = (Tensor, torch.nn.Parameter)
_TORCHS: Final = frozenset({"", "aten", "prims", "prim"})
# Copies of more than this are not made.
_MOST_BYTES: Final = 1 << 30


class RefusedCallError(Exception):
    """Eager refuses the call that a graph is compiled for, or its gradients; the cause is what compiling
    failed with.
    """


class UnknownGradientError(RefusedCallError):
    """A call takes tensors on meta beside others: eager refuses its gradient, or only its kernels know it."""


class EagerTrial:
    """A call of `captured` by eager, with what it is compiled for: made once, and only if compiling fails."""

    def __init__(self, captured: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self._captured = captured
        self._inputs = example_inputs
        self._is_recorded = torch.is_grad_enabled()
        self._refuses: bool | None = None
        self._refuses_gradients: bool | None = None

    def refuses(self) -> bool:
        """Tell if eager raises an error. It is not asked what the user's own operators would do once more.

        Where some operands are on the meta device, eager's kernels may read memory that there is not. Then
        only the call itself asks eager, and the answer is that it may refuse.
        """
        if self._refuses is None:
            is_tried = not _calls_user_code(self._captured)
            self._refuses = is_tried and (_mix_meta_tensors(self._inputs) or self._raises())
        return self._refuses

    def refuses_gradients(self) -> bool:
        """Tell if eager raises an error when gradients are asked for: when it records the call, or takes
        them.

        Eager's kernels read the memory of operands beside meta tensors, which have none. It is not asked
        then.
        """
        if _mix_meta_tensors(self._inputs):
            return True
        if self._refuses_gradients is None:
            asks = any(isinstance(value, Tensor) and value.requires_grad for value in self._inputs)
            is_tried = asks and self._is_recorded and not _calls_user_code(self._captured)
            self._refuses_gradients = is_tried and self._raises_in_backward()
        return self._refuses_gradients

    def refuses_training(self) -> bool:
        """Tell if eager refuses the call, or gradients of its results."""
        return self.refuses() or self.refuses_gradients()

    def _raises_in_backward(self) -> bool:
        with disable_modes(), torch.enable_grad():
            copies = _copy_inputs(self._inputs)
            if copies is None:
                return False
            leaves, given = _ask_for_gradients(copies, self._inputs)
            numbers = random_state()
            try:
                results = self._captured.forward(*given)
            except Exception:  # noqa: BLE001  the call itself raises it again, which is recorded, too
                restore(numbers)
                return True
            wanted = [one for one in leaves_of(results) if isinstance(one, Tensor) and one.requires_grad]
            try:
                torch.autograd.grad(
                    wanted, leaves, [torch.ones_like(one) for one in wanted], allow_unused=True
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
            numbers = random_state()
            try:
                self._captured.forward(*copies)
            except Exception:  # noqa: BLE001  whatever it is, the call itself will raise it again
                return True
            finally:
                restore(numbers)
        return False


def _ask_for_gradients(copies: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Tensor], list[Any]]:
    """Leaves for the copies of inputs that ask for gradients, and inputs made of these, which may be written
    to.
    """
    leaves: list[Tensor] = []
    given: list[Any] = []
    for copy, value in zip(copies, inputs, strict=True):
        if isinstance(value, Tensor) and value.requires_grad:
            leaves.append(copy.requires_grad_())
            copy = copy.clone()
        given.append(copy)
    return leaves, given


def calls_gradients(gm: fx.GraphModule) -> bool:
    """Tell if Dynamo's graph calls an operator of ATen's that computes a gradient.

    Torch's tracing calls these with what it computed itself, and looks at nothing else that they are given.
    """
    return any(
        node.op == "call_function" and space_of(node.target) == "aten" and "backward" in str(node.target)
        for node in gm.graph.nodes
    )


def run_refused(captured: fx.GraphModule, error: Exception, *, strict: bool) -> Callable[..., Any]:
    """A call that runs `captured`, whose first call eager refuses.

    With inputs that eager takes, `error` is raised or told, as otherwise at once.
    """
    told = False
    reason = _find_cause(error)

    def run(*args: Any) -> Any:
        nonlocal told
        results = captured.forward(*args)  # a call of the module would print where an error is raised
        if strict:
            raise reason
        if not told:
            told = True
            warn_user(f"a graph runs in eager mode: {reason}", CoilworkFallbackWarning)
        return results

    return run


def _find_cause(error: Exception) -> Exception:
    """Return what compiling failed with: behind `error`, if that says that eager refuses the call."""
    cause = error.__cause__ if isinstance(error, RefusedCallError) else None
    if not isinstance(cause, Exception):
        return error
    if isinstance(cause, CoilworkError):
        return cause
    return CompileError("graph-failed", "a graph cannot be compiled", reason=describe(cause))


def restore_shapes(captured: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give the fake inputs of Dynamo's graph their shapes back, of which Dynamo makes guards after a compile.

    Fakes of tensors that are overwritten with more than they hold (`x.clamp_(y)`) have grown, where eager
    refuses the call.
    """
    for node, value in zip(captured.graph.find_nodes(op="placeholder"), inputs):
        fake = node.meta.get("example_value")
        if isinstance(fake, Tensor) and isinstance(value, Tensor) and fake.dim() != value.dim():
            with torch.no_grad():
                fake.as_strided_(value.shape, value.stride(), value.storage_offset())


def _mix_meta_tensors(inputs: Sequence[Any]) -> bool:
    """Tell if some of the tensors among `inputs` have no memory, and others have."""
    return len({value.is_meta for value in inputs if isinstance(value, Tensor)}) > 1


def mixes_meta_tensors(gm: fx.GraphModule) -> bool:
    """Tell if a call of the ATen graph `gm` takes tensors that have no memory beside others that have: what
    its gradients are only eager's kernels know.
    """
    for node in gm.graph.nodes:
        values = [operand.meta.get("val") for operand in node.all_input_nodes]
        kinds = {value.device.type == "meta" for value in values if isinstance(value, Tensor)}
        if node.op == "call_function" and len(kinds) > 1:
            return True
    return False


def _calls_user_code(captured: fx.GraphModule) -> bool:
    """Tell if a call in the graph is of an operator that is not torch's, or of another graph."""
    spaces = {
        space_of(node.target)
        for module in captured.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    }
    return not spaces <= _TORCHS


def _copy_inputs(inputs: Sequence[Any]) -> list[Any] | None:
    """Inputs that may be written to, with their strides, in memory that they share as before; None if some
    cannot be copied.
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
    """Copies of what lies behind inputs: of whole storages, where several lie in one or some elements of one
    are the same.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        strided = [one for one in inputs if isinstance(one, Tensor) and one.layout is torch.strided]
        self._users = Counter(map(storage_identity, strided))
        self._storages: dict[int, torch.UntypedStorage] = {}
        self.size = 0

    def copy(self, value: Tensor) -> Tensor:
        """A tensor like `value` in memory of the copies."""
        identity = storage_identity(value)
        if self._users[identity] == 1 and 0 not in value.stride():
            self.size += value.numel() * value.element_size()
            return value.detach().clone()
        if identity not in self._storages:
            storage = value.untyped_storage()
            self.size += storage.nbytes()
            self._storages[identity] = storage.clone()
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(self._storages[identity], value.storage_offset(), value.shape, value.stride())
