"""Write as JSON what AOTAutograd found out about a captured graph, and make the callable from it.

`describe_metadata` writes down AOTAutograd's facts about inputs and results; what it cannot write exactly, as
facts about wrapper subclasses or symbolic sizes, raises `UnstorableError`. `wrap_compiled` puts torch's own
runtime wrappers around compiled graphs, as torch does with results from its cache, of which it uses nothing
else. Facts about torch 2.11 to 2.13: the records have different fields, and all fields are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType, ModuleType, NoneType
from typing import Any, Final

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import schemas
from torch._functorch._aot_autograd.aot_autograd_result import BundledAOTAutogradResult
from torch._functorch._aot_autograd.schemas import AOTConfig, OutputType, ViewAndMutationMeta
from torch._functorch.aot_autograd import AOT_COUNTER
from torch._guards import TracingContext
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import _config as sizes_config
from torch.utils._config_module import ConfigModule
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

Boxed = Callable[[list[Any]], Any]


class UnstorableError(Exception):
    """Something has no exact form as JSON. The graph is compiled, but traced again in each process."""


# ---- Facts as JSON ----


_RECORDS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            schemas.InputAliasInfo,
            schemas.OutputAliasInfo,
            schemas.PlainTensorMeta,
            schemas.MemoryFormatMeta,
        )
    }
)
_ENUMS: Final[Mapping[str, type[Enum]]] = MappingProxyType(
    {"OutputType": OutputType, "MutationType": schemas.MutationType}
)
_TYPES: Final[Mapping[str, type]] = MappingProxyType(
    {
        f"{kind.__module__}.{kind.__name__}": kind
        for kind in (
            torch.Tensor,
            torch.nn.Parameter,
            FakeTensor,
            FunctionalTensor,
            int,
            float,
            bool,
            NoneType,
        )
    }
)
_FORMATS: Final[Mapping[str, torch.memory_format]] = MappingProxyType(
    {
        str(one): one
        for one in (
            torch.contiguous_format,
            torch.channels_last,
            torch.channels_last_3d,
            torch.preserve_format,
        )
    }
)
# Torch makes views of such results again, by the views that it noted. They have no form as data.
_REPLAYED: Final = (
    OutputType.alias_of_input,
    OutputType.alias_of_intermediate,
    OutputType.alias_of_intermediate_save_as_output,
    OutputType.alias_of_intermediate_base_is_user_output,
)
# Only for error messages; one of them is made anew.
_MESSAGES: Final = ("compile_id_str", "tangent_source_stack_traces")


def describe_metadata(metadata: ViewAndMutationMeta) -> dict[str, Any]:
    """Return the facts of `metadata` as JSON.

    Raises:
        UnstorableError: some have no exact form.
    """
    if metadata.tokens or metadata.num_graphsafe_rng_states or metadata.is_rng_op_functionalized:
        raise UnstorableError("tokens of effects or states of random numbers are inputs")
    if metadata.traced_tangents or metadata.traced_tangent_metas is None:
        raise UnstorableError("the graph is still being traced")
    if any(one is not None for one in metadata.traced_tangent_metas):
        raise UnstorableError("gradients are wrapper subclasses")
    facts = dict(vars(metadata))
    facts["output_info"] = [_forget_views(info) for info in metadata.output_info]
    facts["traced_tangents_descs"] = [None] * len(metadata.traced_tangents_descs)
    facts.update((name, None) for name in _MESSAGES if name in facts)
    return {name: _encode(value) for name, value in facts.items()}


def _forget_views(info: schemas.OutputAliasInfo) -> schemas.OutputAliasInfo:
    """Return `info` without the views that its result was made by."""
    if getattr(info, "view_meta_sequence", None) is None:
        return info
    if info.output_type in _REPLAYED:
        raise UnstorableError("a result is a view that torch makes again")
    return dataclasses.replace(info, view_meta_sequence=None)


def read_metadata(facts: Mapping[str, Any]) -> ViewAndMutationMeta:
    """Return the metadata of which `facts` are the JSON.

    Raises:
        UnstorableError: they are damaged.
    """
    metadata: ViewAndMutationMeta = object.__new__(ViewAndMutationMeta)
    vars(metadata).update({name: _decode(value) for name, value in facts.items()})
    missing = {one.name for one in dataclasses.fields(ViewAndMutationMeta)} - set(vars(metadata))
    if missing:
        raise UnstorableError(f"the facts {sorted(missing)} are missing")
    return metadata


def _encode(value: object) -> Any:
    """Return `value` as JSON: what JSON has by itself as it is, all else as a list that begins with a
    kind."""
    match value:
        case Enum() if type(value).__name__ in _ENUMS:
            return ["enum", type(value).__name__, value.name]
        case None | bool() | str():
            return value
        case int() if type(value) is int:
            return value
        case torch.memory_format():
            return ["format", str(value)]
        case torch.device():
            return ["device", str(value)]
        case type() if f"{value.__module__}.{value.__name__}" in _TYPES:
            return ["type", f"{value.__module__}.{value.__name__}"]
        case torch.Size():
            return ["size", *map(_encode, value)]
        case list() | tuple() | set() if type(value).__name__ in ("list", "tuple", "set"):
            items = sorted(value) if isinstance(value, set) else value
            return [type(value).__name__, *map(_encode, items)]
        case dict():
            return ["dict", *([_encode(key), _encode(one)] for key, one in value.items())]
        case _ if _RECORDS.get(type(value).__name__) is type(value):
            # computed anew
            fields = {name: one for name, one in vars(value).items() if name != "mutation_type"}
            return ["record", type(value).__name__, {name: _encode(one) for name, one in fields.items()}]
        case _:
            raise UnstorableError(f"{value!r}, a {type(value).__name__}, has no form as data")


def _decode(value: Any) -> Any:
    match value:
        case None | bool() | str() | int():
            return value
        case ["enum", str() as kind, str() as name]:
            return _ENUMS[kind][name]
        case ["format", str() as name]:
            return _FORMATS[name]
        case ["device", str() as name]:
            return torch.device(name)
        case ["type", str() as name]:
            return _TYPES[name]
        case ["size", *items]:
            return torch.Size(map(_decode, items))
        case ["list", *items]:
            return [_decode(item) for item in items]
        case ["tuple", *items]:
            return tuple(_decode(item) for item in items)
        case ["set", *items]:
            return {_decode(item) for item in items}
        case ["dict", *pairs]:
            return {_decode(key): _decode(one) for key, one in pairs}
        case ["record", str() as kind, dict() as fields]:
            return _RECORDS[kind](**{name: _decode(one) for name, one in fields.items()})
        case _:
            raise UnstorableError(f"{value!r} is no fact")


# ---- The callable ----


class _Loaded:
    """A compiled graph in the place of one that torch would load from its cache."""

    backward_state_indices: tuple[int, ...] = ()

    def __init__(self, call: Boxed, symbols: int = 0) -> None:
        self._call = call
        self.num_symints_saved_for_bw_ = symbols

    def load(self, args: object) -> Boxed:
        return self._call

    def post_compile(self, call: Boxed, config: object) -> Boxed:
        return call


def wrap_compiled(
    main: Boxed, backward: Boxed | None, metadata: ViewAndMutationMeta, detached: Sequence[int]
) -> Callable[..., Any]:
    """Return the call, with inputs one by one, that AOTAutograd makes of compiled graphs.

    `main` is the inference graph, or the forward graph of `backward`. `detached` are inputs through which no
    gradient flows.
    """
    settings = AOTConfig(
        fw_compiler=None,
        bw_compiler=None,
        inference_compiler=None,
        partition_fn=None,
        decompositions={},
        num_params_buffers=0,
        aot_id=next(AOT_COUNTER),
        keep_inference_input_mutations=True,
        enable_log=False,
    )
    symbols = int(metadata.num_symints_saved_for_bw or 0)
    values: dict[str, object] = {
        "compiled_fw": _Loaded(main),
        "compiled_bw": None if backward is None else _Loaded(backward, symbols),
        "runtime_metadata": metadata,
        "dispatch_wrappers": [],
        "indices_of_inps_to_detach": list(detached),
        "forward_time_taken_ns": 0,
        "backward_time_taken_ns": 0,
        "sanitized_aot_config": settings,
    }
    kind: type[Any] = BundledAOTAutogradResult
    result = kind(**{one.name: values.get(one.name) for one in dataclasses.fields(kind)})
    compiled: Boxed = result.wrap_post_compile([], settings, {})

    def call(*inputs: Any) -> Any:
        return compiled(list(inputs))

    return call


def get_current_metadata() -> ViewAndMutationMeta | None:
    """Return AOTAutograd's facts about the graph that it is having compiled."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def list_detached(gradients: Sequence[object], metadata: ViewAndMutationMeta) -> list[int]:
    """Return the inputs that AOTAutograd detaches: those that are no leaves and get no gradient.

    `gradients` are the results of the backward graph, None for no gradient.

    Raises:
        UnstorableError: there is not one for each input.
    """
    if len(gradients) != len(metadata.input_info):
        raise UnstorableError("the backward graph has other results than gradients")
    return [
        position
        for position, (gradient, info) in enumerate(zip(gradients, metadata.input_info, strict=True))
        if gradient is None and info.requires_grad and not info.is_leaf and not _is_set(info)
    ]


def _is_set(info: schemas.InputAliasInfo) -> bool:
    return bool(info.mutation_type == schemas.MutationType.MUTATED_IN_GRAPH and info.mutates_storage_metadata)


# ---- The state that tracing depends on ----


_PRECISIONS: Final = (
    ("generic", "all"),
    ("cuda", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "all"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
)


def _hash_settings(module: ModuleType) -> str:
    assert isinstance(module, ConfigModule), "torch makes its settings modules so"
    return module.get_hash().hex()


def describe_tracing_state() -> str:
    """Return text of the global state that AOTAutograd's tracing depends on.

    Raises:
        UnstorableError: the state is one whose results cannot be used in another process.
    """
    context = TracingContext.try_get()
    refusals = {
        "calls run on fake tensors first": context is None or context.fakify_first_call,
        "torch checks its own wrappers": functorch_config.debug_assert,
        "compiled autograd is on": torch._dynamo.compiled_autograd.in_compiled_autograd_region,
        "hooks change what is saved for backward": (
            torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        ),
        "a transform of torch.func is on": torch._C._functorch.peek_interpreter_stack() is not None,
        "forward mode is on": torch.autograd.forward_ad._current_level >= 0,
        "a dispatch mode is on": any(
            not isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack()
        ),
    }
    for reason, holds in refusals.items():
        if holds:
            raise UnstorableError(reason)
    casts = [
        (kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind)))
        for kind in ("cpu", "cuda", "xpu")
    ]
    attention = torch.backends.cuda
    facts = {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch._C._get_deterministic_fill_uninitialized_memory(),
        ),
        "autocast": (casts, torch.is_autocast_cache_enabled()),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "attention": (
            attention.flash_sdp_enabled(),
            attention.mem_efficient_sdp_enabled(),
            attention.math_sdp_enabled(),
            attention.cudnn_sdp_enabled(),
        ),
        "libraries": (
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.deterministic,
            torch.backends.mkldnn.is_available(),
            torch.backends.mkldnn.enabled,
        ),
        "precision": (
            [torch._C._get_fp32_precision_getter(*place) for place in _PRECISIONS],
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        ),
        "functorch": functorch_config.get_hash().hex(),
        "sizes": _hash_settings(sizes_config),
    }
    return str(facts)
