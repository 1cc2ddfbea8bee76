"""The private torch API that the runtime touches; the same in 2.11 to 2.13.

torch's type stubs name some of it and miss the rest, so all of it is fetched by name and given its type here.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

Sizes = Sequence[int]

_profiler: Final[Any] = importlib.import_module("torch.autograd.profiler")
_guards: Final[Any] = importlib.import_module("torch._C._dynamo.guards")

# Allocation and views without the dispatcher's argument parsing: half the price of torch.empty_strided /
# as_strided.
empty_strided_cpu = cast(Callable[[Sizes, Sizes, torch.dtype], torch.Tensor], _guards._empty_strided_cpu)
empty_strided_cuda_current = cast(
    Callable[[Sizes, Sizes, torch.dtype], torch.Tensor], _guards._empty_strided_cuda
)
# The last argument counts elements after the first of the tensor that is given.
reinterpret = cast(Callable[[torch.Tensor, Sizes, Sizes, int], torch.Tensor], _guards._reinterpret_tensor)


def make_layout_predicate(*tensors: torch.Tensor) -> Callable[..., bool]:
    """Return a predicate in C++: as many tensors have the types, devices, shapes and strides of `tensors`,
    which it does not keep.
    """
    guards = _guards.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(value.shape) for value in tensors],
        dynamic_dims_strides=[list(value.stride()) for value in tensors],
    )
    check: Callable[..., bool] = guards.check
    return check


def has_address(value: torch.Tensor) -> bool:
    """Return True if `value` has memory; what stands for a tensor while a graph is traced has none."""
    return type(value) is torch.Tensor or not isinstance(value, FakeTensor)


def get_direct_operator(overload: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind torch's object for an operator overload, which saves a call in Python. Other
    callables stay.
    """
    if type(overload) is not torch._ops.OpOverload:
        return overload
    direct: Callable[..., Any] = overload._op
    return direct


def get_current_cuda_device() -> int:
    """Index of the current CUDA device, when CUDA is known to be initialised."""
    return torch._C._cuda_getDevice()


def get_raw_cuda_stream(device: int) -> int:
    """Return the handle of the current stream of a CUDA device."""
    return torch._C._cuda_getCurrentRawStream(device)


# Tensors as handles of torch's C interface, in capsules without a name, and back; the latter deletes the
# handles.
handles_of = cast(
    Callable[[list[torch.Tensor]], list[object]], torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
)
tensors_of = cast(
    Callable[[list[object]], list[torch.Tensor]], torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
)


def make_tensor_samples() -> list[torch.Tensor]:
    """Tensors of the types that programs are mostly given, whose `_cdata` is the address of their
    C++ object.
    """
    with _disable_current_modes():
        plain = torch.empty(2, 3, device="cpu")
        return [plain, plain.t(), torch.nn.Parameter(plain)]


def dispatch_keys(value: torch.Tensor) -> int:
    """Return the keys of a tensor in the dispatcher, as the bits of a `DispatchKeySet`."""
    keys: int = torch._C._dispatch_keys(value).raw_repr()
    return keys


def get_key_bits(*names: str) -> int:
    """Return the bits of these keys; those that torch does not know are left out."""
    bits = 0
    for name in names:
        key = torch._C._parse_dispatch_key(name)
        bits |= 0 if key is None else torch._C.DispatchKeySet(key).raw_repr()
    return bits


def make_kind_samples() -> list[tuple[torch.Tensor, int, int, int, int]]:
    """Tensors of several kinds, each with the bits of its keys, its storage, its bytes, and its place there.

    No two tensors have a number in common, but those without a storage.
    """
    with _disable_current_modes():
        with torch.inference_mode():
            untracked = torch.empty(91, device="cpu")[7:]
        plain, meta = torch.empty(37, device="cpu")[5:], torch.empty(53, device="meta")[11:]
        conjugate = torch.empty(29, dtype=torch.complex64, device="cpu")[13:].conj()
        placed = [
            (value, dispatch_keys(value), storage._cdata, storage.nbytes(), int(value.storage_offset()))
            for value in (plain, untracked, meta, conjugate)
            for storage in [value.untyped_storage()]
        ]
        sparse = torch.eye(3, device="cpu").to_sparse()
        return [*placed, (sparse, dispatch_keys(sparse), 0, 0, 0)]


def are_operators_watched(own: bool = False) -> bool:
    """Return True if a dispatch mode of Python wants to see operators: one of torch's, or, unless `own`, a
    user's.

    A mode may say that it does not want to see those of compiled graphs, where torch asks that.
    """
    return any(
        mode.is_infra_mode() or not (own or getattr(mode, "ignore_compile_internals", bool)())
        for mode in _get_current_dispatch_mode_stack()
    )


# Asked in every call of a program with matrix products.
_deterministic: Final = torch._C._get_deterministic_algorithms
_narrow_sums: Final = torch._C._get_cublas_allow_fp16_accumulation
_tf32: Final = torch._C._get_cublas_allow_tf32
_half_parts = cast(Callable[[], object], torch._C._get_cublas_allow_fp16_reduced_precision_reduction)
_brain_parts = cast(Callable[[], object], torch._C._get_cublas_allow_bf16_reduced_precision_reduction)
# Whether sums may be rounded between parts, and whether there may be parts; one bool in earlier versions.
_PARTS: Final[Mapping[object, int]] = MappingProxyType(
    {(r, p): r | p << 1 for r in (0, 1) for p in (0, 1)} | {False: 2, True: 3}
)


def get_product_settings() -> int:
    """Return torch's present settings of matrix products on CUDA, for products of our own.

    Bit 0: `float32` may be computed in TF32. Bits 1 and 2: sums of `float16` may be rounded to it between
    parts; there may be parts. Bits 3 and 4: the same of `bfloat16`. -1: something that only ATen does.
    """
    if _deterministic() or _narrow_sums():
        return -1
    try:
        tf32 = _tf32()
    except RuntimeError:
        # it was said in two ways that do not agree
        return -1
    return (1 if tf32 else 0) | _PARTS[_half_parts()] << 1 | _PARTS[_brain_parts()] << 3


_cudnn_enabled: Final = torch._C._get_cudnn_enabled
_cudnn_benchmark: Final = torch._C._get_cudnn_benchmark


def get_convolution_settings() -> int:
    """Return torch's present settings of convolutions on CUDA, for convolutions of our own.

    0: nothing that matters. -1: cuDNN is switched off, or torch is to try which of its engines is fastest.
    """
    return 0 if _cudnn_enabled() and not _cudnn_benchmark() else -1


def is_profiler_on() -> bool:
    """Return True if torch's profiler records."""
    return bool(getattr(_profiler, "_is_profiler_enabled", False))


def open_profiler_range(name: str) -> AbstractContextManager[object]:
    """Return a range of that name in what the profiler records; without the operator call that
    `record_function` is.
    """
    within: AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(name)
    return within


def find_operator_schema(namespace: str, name: str, overload: str) -> Any | None:
    """Return the `FunctionSchema` of an operator overload, `None` if torch has no such operator."""
    wanted = "" if overload == "default" else overload
    for schema in torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}"):
        if schema.overload_name == wanted:
            return schema
    return None


# Tells if two tensors share memory.
is_alias = cast(Callable[[torch.Tensor, torch.Tensor], bool], vars(torch._C)["_is_alias_of"])
# A view with the bit that says that memory holds numbers of the other sign.
negative_view = cast(Callable[[torch.Tensor], torch.Tensor], vars(torch)["_neg_view"])
# Whether gradients are recorded from now on: the quickest of torch's ways.
record_gradients = cast(Callable[[bool], None], torch._C._set_grad_enabled)
_creations: Final[Any] = torch._C._autograd.CreationMeta
# among the keys of the dispatcher within the `vmap` of autograd; its enumeration for Python has no name for
# it
_BATCHING: Final = torch._C._parse_dispatch_key("VmapMode")


class Creation(NamedTuple):
    """The way a view was made, after which it takes or refuses writes that autograd would record.

    Attributes:
        kind: torch's own value.
        recorded: views are made so with gradients recorded (`True`) or not (`False`); `None`: in another way.
        is_of_parts: it is one of several views that one operator gave.
    """

    kind: Any
    recorded: bool | None
    is_of_parts: bool


@functools.cache
def creation_kind(name: str) -> Creation:
    """Return the way to make views that torch calls `name`.

    Raises:
        ValueError: it has none of that name.
    """
    kind = getattr(_creations, name, None)
    if kind is None:
        raise ValueError(f"torch makes no views as {name}")
    recorded = True if name == "DEFAULT" else False if name == "NO_GRAD_MODE" else None
    return Creation(kind, recorded=recorded, is_of_parts=name == "MULTI_OUTPUT_NODE")


# How a view was made, as torch's own value; and to set that.
read_creation = cast(Callable[[torch.Tensor], Any], torch._C._autograd._get_creation_meta)
write_creation = cast(Callable[[torch.Tensor, Any], None], torch._C._autograd._set_creation_meta)


def get_storage_identity(tensor: torch.Tensor) -> int:
    """Return a number that tensors have in common if they share memory, while they live.

    Tensors of `torch.func` have no memory of their own: theirs is that of what they wrap.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def is_transformed() -> bool:
    """Return True if tensors may carry tangents or be wrapped, and then have no memory: by `torch.func`, or
    by autograd for batches of gradients.

    The latter's `vmap` is an older one, of which only the dispatcher tells.
    """
    return (
        forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or (_BATCHING is not None and torch._C._dispatch_tls_is_dispatch_key_included(_BATCHING))
    )


def keeps_graph() -> bool:
    """Tell if autograd runs a backward that keeps its graph (`retain_graph`), which may run again."""
    kept: bool = torch._C._autograd._get_current_graph_task_keep_graph()
    # outside of a backward torch says that it is kept
    return kept and torch._C._current_graph_task_id() >= 0


def transform_facts() -> tuple[object, ...]:
    """Return the objects by which C++ asks for `is_transformed`: the names of the module that has the level
    of tangents, the function that tells the interpreter of `torch.func`, that which tells if a key is
    included, and the key.
    """
    included = torch._C._dispatch_tls_is_dispatch_key_included
    return vars(forward_ad), torch._C._functorch.peek_interpreter_stack, included, _BATCHING
