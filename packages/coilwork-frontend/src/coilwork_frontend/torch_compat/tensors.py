"""Facts about tensors (fake or real, their memory, views, version counters), and nested containers of
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd.grad_mode import _force_original_view_tracking
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from coilwork_frontend.torch_compat.operators import ROW_POOLS
from coilwork_frontend.torch_compat.sizes import hint_of, is_from_data
from coilwork_ir.device_traits import ATEN_CPU, has_trait


def is_static_input(value: object) -> bool:
    """Tell if an input of a captured graph is a parameter or buffer of a module, as Dynamo marks them."""
    return isinstance(value, torch.Tensor) and (
        isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    )


def is_fake(tensor: torch.Tensor) -> bool:
    """Tell if `tensor` has a shape and no contents."""
    return isinstance(tensor, FakeTensor)


def is_functional_wrapper(tensor: torch.Tensor) -> bool:
    """Tell if `tensor` is a wrapper of `torch.func.functionalize`, which has no memory of its own."""
    return torch._is_functional_tensor(tensor)


def is_subclass_wrapper(tensor: torch.Tensor) -> bool:
    """Tell if `tensor` is of a class of Python's that AOTAutograd takes apart into plain tensors."""
    return is_traceable_wrapper_subclass(tensor)


def get_version(tensor: torch.Tensor) -> int:
    """Return how often `tensor` has been written to; -1 for tensors of inference mode, which have no
    count."""
    return -1 if tensor.is_inference() else int(tensor._version)


def run_on_fakes(node: torch.fx.Node) -> Any:
    """Run `node`, an input or a call of an operator, on the fake tensors in its arguments' metadata."""
    if node.op == "placeholder":
        return node.meta["val"]
    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
    with tensors[0].fake_mode if tensors else nullcontext():
        return target(*args, **kwargs)


def is_view_outside_dynamo(node: torch.fx.Node) -> bool | None:
    """Tell if a call of Dynamo's graph returns a view where operators run without decompositions.

    It runs on fake tensors with the sizes that the graph was traced with. `None`: a size is unknown, or the
    call fails.
    """
    if node.op not in ("call_function", "call_method"):
        return None
    if _pools_rows_at_once(node):
        return False
    mode = FakeTensorMode()
    try:
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), lambda argument: _build_static_fake(argument, mode)
        )
        with mode:
            target: Any = node.target
            result = getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else None
            result = target(*args, **kwargs) if node.op == "call_function" else result
    # if a call fails on fakes, what Dynamo computed is kept
    except Exception:  # noqa: BLE001
        return None
    return result._is_view() if isinstance(result, torch.Tensor) else None


def _pools_rows_at_once(node: torch.fx.Node) -> bool:
    """Tell if `max_pool1d` calls eager's kernel for rows on CPUs, which records no gradient and takes no
    fakes.

    Otherwise rows are pooled as images of one line, and the result is a view.
    """
    result = node.meta.get("example_value")
    return (
        node.target in ROW_POOLS
        and isinstance(result, torch.Tensor)
        and has_trait(result.device.type, ATEN_CPU)
        and not result.requires_grad
    )


def differentiate_alone(node: torch.fx.Node) -> None:
    """Trace the gradients of a call of Dynamo's graph by itself, on the fake tensors of its arguments.

    Does nothing if no floating-point argument has a size from data, or no result has a gradient. No guard is
    added.

    Raises:
        Exception: what torch raises for the call or its gradients.
    """

    def detach(argument: torch.fx.Node) -> Any:
        value = argument.meta["example_value"]
        if not isinstance(value, torch.Tensor):
            return value
        alone = value.detach()
        return alone.requires_grad_() if alone.is_floating_point() or alone.is_complex() else alone

    values = [argument.meta.get("example_value") for argument in node.all_input_nodes]
    fakes = [value for value in values if isinstance(value, FakeTensor)]
    sizes: list[Any] = [size for fake in fakes for size in fake.shape]
    sizes += [value for value in values if isinstance(value, torch.SymInt)]
    mode = fakes[0].fake_mode if fakes else None
    if mode is None or mode.shape_env is None or not any(map(is_from_data, sizes)):
        return
    with mode, mode.shape_env.suppress_guards(), mode.shape_env.ignore_fresh_unbacked_symbols():
        # operators may overwrite what they are given, which a leaf forbids
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), detach)
        leaves = [leaf for leaf in list_tensors((args, kwargs)) if leaf.requires_grad]
        args, kwargs = map_leaves(_view_of, (args, kwargs))
        called: Any = node.target
        results = (
            called(*args, **kwargs) if callable(called) else getattr(args[0], called)(*args[1:], **kwargs)
        )
        found = [result for result in list_tensors(results) if result.requires_grad]
        if found and leaves:
            torch.autograd.grad(found, leaves, list(map(torch.ones_like, found)), allow_unused=True)


def _view_of(leaf: Any) -> Any:
    return leaf.view_as(leaf) if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf


def _build_static_fake(node: torch.fx.Node, mode: FakeTensorMode) -> Any:
    """Return a fake tensor, or a number, like the value of `node` in `mode`, with static sizes."""
    value = node.meta["example_value"]
    if isinstance(value, torch.SymInt):
        return _close_size(value)
    if type(value) is not FakeTensor:
        raise TypeError(f"{type(value)} is no plain tensor")
    sizes, strides = ([_close_size(size) for size in part] for part in (value.shape, value.stride()))
    with mode:
        fake = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return fake.requires_grad_(value.requires_grad)


def _close_size(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    hint = hint_of(size)
    if hint is None:
        raise ValueError(f"{size} is unknown before the call")
    return hint


def track_views() -> AbstractContextManager[object]:
    """Make views record the operators that made them, not only their strides, while it is entered."""
    context: AbstractContextManager[object] = _force_original_view_tracking(True)
    return context


def get_fake_mode(value: torch.Tensor) -> AbstractContextManager[object]:
    """Return the fake mode of `value`, or an empty context if it is real."""
    mode: AbstractContextManager[object] = value.fake_mode if isinstance(value, FakeTensor) else nullcontext()
    return mode


def get_storage_identity(tensor: torch.Tensor) -> int:
    """Return a number that live tensors have in common if they share memory; fake tensors have one, too.

    Tensors of `torch.func` (batched, differentiated) have the memory of the tensor that they wrap.
    """
    while is_functorch_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def identify_strided_storage(value: object) -> int | None:
    """Return the identity of the storage of `value`, if `value` is a strided tensor."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return get_storage_identity(value)


def identify_node_storage(node: object) -> int | None:
    """Return the identity of the storage of what `node` of an ATen graph computes, if that is a tensor with
    strides."""
    return identify_strided_storage(node.meta.get("val")) if isinstance(node, torch.fx.Node) else None


def identify_version_counters(values: Sequence[torch.Tensor | None]) -> list[int]:
    """Return a number for each of `values`; tensors that share a version counter have the same number."""
    with_counter = [
        (place, value)
        for place, value in enumerate(values)
        if value is not None and value.layout == torch.strided and not value.is_inference()
    ]
    tensors = tuple(value for _, value in with_counter)
    before = tuple(value._version for value in tensors)
    numbers = [0] * len(values)
    if not tensors:
        return numbers
    try:
        # tensors with a common counter all read the last number that was set
        torch._C._autograd._unsafe_set_version_counter(tensors, tuple(range(len(tensors))))
        for place, value in with_counter:
            numbers[place] = value._version
    finally:
        torch._C._autograd._unsafe_set_version_counter(tensors, before)
    return numbers


class Marks(NamedTuple):
    """Torch's lazy bits of a tensor: memory holds its numbers with the other sign, or conjugated."""

    negative: bool = False
    conjugate: bool = False


def get_marks(value: object) -> Marks:
    """Return the marks of `value`; none are set unless it is a strided tensor."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return Marks()
    return Marks(value.is_neg(), value.is_conj())


class Creation(NamedTuple):
    """The way in which a view was made, which decides if autograd accepts writes to it.

    Attributes:
        name: torch's name for it.
        is_of_parts: it is one of several views that one operator returned.
    """

    name: str
    is_of_parts: bool


def find_creation(value: torch.Tensor) -> Creation | None:
    """Return how the view `value` was made; `None` if it is no view, or a tensor of inference mode."""
    if value.is_inference() or not value._is_view():
        return None
    name = str(torch._C._autograd._get_creation_meta(value).name)
    return Creation(name, is_of_parts=name == "MULTI_OUTPUT_NODE")


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Tell if `tensor` wraps another one inside of `vmap`, `grad` or `jvp`, whose sizes may differ."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def leave_fake_mode() -> AbstractContextManager[object]:
    """Return a context without fake mode; back ends are called under one."""
    mode: AbstractContextManager[object] = unset_fake_temporarily()
    return mode


def find_overlapping(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Return the positions of `tensors`, all in one storage, that share an element with another one."""
    return set(compute_overlapping_tensors(list(tensors), symbolic=False))


# ---- Nested values ----


TreeSpec = pytree.TreeSpec


def list_tensors(values: object) -> list[torch.Tensor]:
    """Return every tensor in nested `values`, in torch's order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return nested `values` with each tensor replaced by `function` of it."""
    mapped: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, function, values)
    return mapped


def list_leaves(values: object) -> list[Any]:
    """Return every leaf of nested `values`, in torch's order."""
    return list(pytree.tree_leaves(values))


def get_tree_spec(values: object) -> TreeSpec:
    """Return how `values` are nested."""
    return pytree.tree_structure(values)


def unflatten_tree(leaves: list[Any], nesting: TreeSpec) -> Any:
    """Return `leaves`, in torch's order, nested as `nesting` says."""
    return pytree.tree_unflatten(leaves, nesting)


def map_leaves(function: Callable[[Any], Any], values: Any) -> Any:
    """Return nested `values` with each leaf replaced by `function` of it."""
    return pytree.tree_map(function, values)
