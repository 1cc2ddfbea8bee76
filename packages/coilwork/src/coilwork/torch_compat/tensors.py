"""Tensors: whether they are fake or real, and whose memory they are in."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.autograd.grad_mode import _force_original_view_tracking
from torch.utils import _pytree as pytree


def is_static_input(value: object) -> bool:
    """Whether an input of a captured graph is a parameter or buffer of a module, as Dynamo marks them."""
    return isinstance(value, torch.Tensor) and (
        isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    )


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether `tensor` has a shape and no contents."""
    return isinstance(tensor, FakeTensor)


def version_of(tensor: torch.Tensor) -> int:
    """How often `tensor` has been written into; -1 where torch does not count, in tensors of inference mode."""
    return -1 if tensor.is_inference() else int(tensor._version)


def run_on_fakes(node: torch.fx.Node) -> Any:
    """What `node`, an input or a call of an operator, gives for the fake tensors in its arguments' metadata."""
    if node.op == "placeholder":
        return node.meta["val"]
    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
    with tensors[0].fake_mode if tensors else nullcontext():
        return target(*args, **kwargs)


def remembered_views() -> AbstractContextManager[object]:
    """While it is entered, views know the operators that made them, not only where they lie."""
    found: AbstractContextManager[object] = _force_original_view_tracking(True)
    return found


def mode_of(value: torch.Tensor) -> AbstractContextManager[object]:
    """Where tensors are made that belong with `value`, which may be fake."""
    mode: AbstractContextManager[object] = value.fake_mode if isinstance(value, FakeTensor) else nullcontext()
    return mode


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that tensors have in common if they share memory, while they live; fake tensors have one, too.

    Tensors of `torch.func` (batched, differentiated) have no memory of their own: theirs is that of what they wrap.
    """
    while is_functorch_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def strided_storage(value: object) -> int | None:
    """The identity of the storage of `value`, if that is a tensor with strides."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return storage_identity(value)


def share_count(value: object, source: object) -> Any:
    """A tensor like `value`, whose writes are counted with those of `source`; `value` itself if they share no memory."""
    if type(value) is not torch.Tensor or not isinstance(source, torch.Tensor):
        return value
    if storage_identity(value) != storage_identity(source):
        return value
    # a detached tensor keeps the count, also when it is given other contents
    counted = source.detach()
    if value is not source:
        counted.data = value
    return counted


def make_view(value: object, base: object) -> Any:
    """A view of `base` like `value`; `value` itself if they share no memory, or are no plain tensors."""
    if type(value) is not torch.Tensor or type(base) is not torch.Tensor:
        return value
    if value.is_quantized or storage_identity(value) != storage_identity(base):
        return value
    recorded = torch.is_grad_enabled()
    # views that were made without recording refuse to be written to once it is on
    torch._C._set_grad_enabled(True)
    try:
        made = base if base.dtype == value.dtype else _all_elements(base, value.dtype)
        made = made.as_strided(value.shape, value.stride(), value.storage_offset())
        if made.is_conj() != value.is_conj():
            made = made.conj()
        return made if made.is_neg() == value.is_neg() else torch._neg_view(made)
    finally:
        torch._C._set_grad_enabled(recorded)


def _all_elements(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The storage of `base` as elements of another type."""
    size = base.element_size()
    unit = math.lcm(size, dtype.itemsize)
    count = base.untyped_storage().nbytes() // unit * unit // size
    flat = base.as_strided((count,), (1,), 0)
    # no other type is read through a bit of torch's
    flat = flat.conj() if flat.is_conj() else flat
    flat = torch._neg_view(flat) if flat.is_neg() else flat
    # of complex numbers read as others autograd would know no base
    return (
        torch.view_as_real(flat) if base.is_complex() and dtype == base.dtype.to_real() else flat.view(dtype)
    )


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Whether `tensor` stands for another one inside of `vmap`, `grad` or `jvp`; its sizes and strides need not be that one's."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def real_tensors() -> AbstractContextManager[object]:
    """While it is entered, operators compute on real tensors, although a back end is called under a fake mode."""
    mode: AbstractContextManager[object] = unset_fake_temporarily()
    return mode
