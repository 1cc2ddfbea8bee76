"""Types that eager's kernels take. What they refuse is neither decomposed nor lowered: the call is ATen's, whose error is eager's.

The tables err in one direction: a call that is left to ATen without need, as one of operands that are promoted, is right all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.accepted_shapes import accepts_shapes, has_rule
from coilwork_lowering.torch_compat.operators import Overload, qualified_name, schema_of

Types: TypeAlias = frozenset[torch.dtype]

_WIDE: Final[Types] = frozenset({torch.float32, torch.float64})
_FLOATS: Final[Types] = frozenset({*_WIDE, torch.float16, torch.bfloat16})
_INTEGERS: Final[Types] = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_REAL: Final[Types] = _FLOATS | _INTEGERS
_WIDE_UNSIGNED: Final[Types] = frozenset({torch.uint16, torch.uint32, torch.uint64})
_COMPLEX: Final[Types] = frozenset({torch.complex32, torch.complex64, torch.complex128})


def _table(*rows: tuple[Types, str]) -> Mapping[str, Types]:
    return MappingProxyType({name: types for types, names in rows for name in names.split()})


# Of the first tensor among the arguments, or of the result, if it is made from no tensor. An overload may have an entry of its own.
_ANYWHERE: Final = _table(
    (
        _FLOATS,
        "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data"
        " native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional"
        " _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional"
        " _batch_norm_no_update native_group_norm native_layer_norm"
        " elu celu selu gelu glu mish hardsigmoid hardswish hardshrink softshrink softplus _prelu_kernel"
        " log_sigmoid log_sigmoid_forward lerp igamma igammac frac round.decimals"
        " mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy nll_loss_forward nll_loss2d_forward"
        " multi_margin_loss multilabel_margin_loss_forward"
        " elu_backward softplus_backward leaky_relu_backward rrelu_with_noise_backward hardtanh_backward"
        " logit_backward huber_loss_backward"
        " max_pool2d_with_indices_backward max_unpool2d max_unpool3d upsample_linear1d upsample_trilinear3d",
    ),
    (_FLOATS, "bernoulli.default"),
    (_FLOATS | _COMPLEX | {torch.bool}, "im2col"),
    (_FLOATS | _COMPLEX, "silu logaddexp logaddexp2 addcdiv"),
    (
        _FLOATS | {torch.uint8},
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d"
        " upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    (_WIDE, "_cdist_forward _pdist_forward _cdist_backward _pdist_backward"),
    (
        _REAL,
        "threshold threshold_backward clamp clamp_min.default clamp_max.default ceil floor round trunc argmax argmin relu mvlgamma fmod remainder kthvalue topk median nanmedian",
    ),
    (_REAL | _COMPLEX, "abs dot vdot addcmul trace linspace logspace"),
    (_REAL | {torch.bool}, "logit nansum xlogy special_xlog1py special_entr special_ndtr"),
    (
        _REAL - _FLOATS | _WIDE | {torch.bool},
        "special_ndtri special_log_ndtr special_erfcx special_airy_ai special_spherical_bessel_j0"
        " special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1"
        " special_modified_bessel_i0 special_modified_bessel_i1"
        " special_modified_bessel_k0 special_modified_bessel_k1"
        " special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1"
        " special_chebyshev_polynomial_t special_chebyshev_polynomial_u"
        " special_chebyshev_polynomial_v special_chebyshev_polynomial_w"
        " special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u"
        " special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w",
    ),
)
_ON_CPUS: Final = _table(
    (_WIDE | {torch.int64}, "avg_pool3d"),
    (_WIDE | {torch.uint8}, "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa"),
    (_WIDE, "multi_margin_loss multilabel_margin_loss_forward"),
)
# Whose kernels for CPUs take no unsigned integers of more than 8 bits, some of them only in part.
_SIGNED_ON_CPUS: Final = frozenset(
    "flip add.Tensor add.Scalar div.Tensor_mode div.Scalar_mode floor_divide lt le gt ge amax amin max min aminmax"
    " maximum minimum cummax cummin topk median nanmedian kthvalue mode __lshift__ __rshift__ bitwise_left_shift"
    " bitwise_right_shift neg sign masked_fill masked_scatter gather scatter scatter_add scatter_reduce index_add index_put"
    " take put tril triu arange pow logical_not logical_and logical_or logical_xor count_nonzero searchsorted bucketize"
    " eye _conj_physical conj_physical pixel_shuffle pixel_unshuffle channel_shuffle native_dropout_backward"
    " max_pool2d_with_indices max_pool3d_with_indices hardtanh bernoulli index_select"
    " reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d".split()
)
_EIGHT_BITS: Final[Types] = frozenset(
    getattr(torch, name)
    for name in "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
    if hasattr(torch, name)
)
# Eager computes nothing with floats of 8 bits. It moves, fills, compares and converts them, and multiplies scaled matrices of them.
_OF_EIGHT_BITS: Final = frozenset(
    "_to_copy _unsafe_view abs alias alias_copy all any as_strided as_strided_copy as_strided_scatter cat clone"
    " constant_pad_nd copy copy_ detach diagonal diagonal_copy diagonal_scatter embedding empty_like eq expand expand_copy"
    " fill full_like index _unsafe_index index_put index_select isnan lift lift_fresh lift_fresh_copy narrow ne"
    " new_empty new_empty_strided new_full new_ones new_zeros ones_like permute permute_copy repeat roll select select_copy"
    " select_scatter slice slice_copy slice_scatter split split_copy split_with_sizes split_with_sizes_copy squeeze"
    " squeeze_copy stack t t_copy transpose transpose_copy unbind unbind_copy unfold unfold_copy unsafe_split unsqueeze"
    " unsqueeze_copy view view_copy _reshape_alias where zeros_like empty zeros ones full eye scalar_tensor _scaled_mm _scaled_grouped_mm set_".split()
)
# Of these, what eager does with tensors of one type, as floats of 8 bits are promoted to none.
_OF_ALIKE: Final = frozenset("cat eq ne stack where".split())
# And what eager does not do with powers of two, which have no zero and no sign.
_NOT_OF_POWERS: Final = frozenset("abs index_put constant_pad_nd".split())
# Gradients that eager computes of integers, too.
_INTEGER_GRADIENTS: Final = frozenset({"threshold_backward"})
# Whose kernels for CPUs give no unsigned integers of more than 8 bits, though they may take some.
_INTO_SIGNED: Final = frozenset({"cumsum", "cumprod", "prod", "sum"})
# Numbers between others, which may be tensors: the result's type alone counts.
_SPACED: Final = frozenset({"linspace", "logspace"})
# Of every tensor.
_EVERYWHERE: Final = _table(
    (_REAL | _COMPLEX, "sub rsub ldexp"),
    (
        _REAL | {torch.bool},
        "soft_margin_loss binary_cross_entropy_with_logits mse_loss huber_loss smooth_l1_loss",
    ),
    (_REAL, "isin"),
    (_INTEGERS | {torch.bool}, "bitwise_not bitwise_and bitwise_or bitwise_xor"),
    (_INTEGERS, "gcd lcm"),
)
# Of those, the arguments that are operands where they are truth values: others say how to compute.
_OPERANDS: Final = ("self", "other", "element", "test_element")
# Arguments that have one type.
_OF_ONE_TYPE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("index_put", "index_put_", "_unsafe_index_put"), ("self", "values")),
        "index_add": ("self", "source"),
        "heaviside": ("self", "values"),
        "_cdist_forward": ("x1", "x2"),
        "_cdist_backward": ("grad", "x1", "x2"),
        "_pdist_backward": ("grad", "self"),
        **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), ("grad_output", "output")),
        **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), ("self", "weight")),
        "binary_cross_entropy": ("self", "target", "weight"),
        "binary_cross_entropy_with_logits": ("self", "target"),
        "linalg_cross": ("self", "other"),
    }
)
# Of the argument of this name.
_POSITIONS: Final[Mapping[str, tuple[str, Types]]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("nll_loss_forward", "nll_loss2d_forward"), ("target", frozenset({torch.int64, torch.uint8}))
        ),
        **dict.fromkeys(
            "index_select index_add index_reduce gather scatter scatter_add scatter_reduce".split(),
            ("index", frozenset({torch.int64, torch.int32})),
        ),
        **dict.fromkeys("index_copy index_fill take put".split(), ("index", frozenset({torch.int64}))),
    }
)
_PARAMETERS: Final = ("weight", "bias", "running_mean", "running_var")


def accepts(target: Overload, arguments: Mapping[str, object]) -> bool:
    """Whether eager has a kernel of `target` for the types of `arguments`, which are named as in the schema."""
    space, name, overload = qualified_name(target).split(".")
    if space == "aten" and name not in _OF_EIGHT_BITS and _has_eight_bits(arguments.values()):
        return False
    if name in _OF_ALIKE and _mixes_eight_bits(arguments):
        return False
    tensors = [one for one in arguments.values() if isinstance(one, torch.Tensor)]
    if name in _NOT_OF_POWERS and any(one.dtype is torch.float8_e8m0fnu for one in tensors):
        return False
    every = _EVERYWHERE.get(name)
    if every is not None and not _are_all(arguments.items(), every):
        return False
    if len(_types(arguments, _OF_ONE_TYPE.get(name, ()))) > 1:
        return False
    if name.endswith("_backward") and name not in _INTEGER_GRADIENTS and not _is_of_its_type(arguments):
        return False
    if name in _POSITIONS and not _types(arguments, _POSITIONS[name][:1]) <= _POSITIONS[name][1]:
        return False
    types = _ANYWHERE.get(f"{name}.{overload}") or _ANYWHERE.get(name)
    signed = name in _SIGNED_ON_CPUS or f"{name}.{overload}" in _SIGNED_ON_CPUS
    dtype = arguments.get("dtype")
    if name in _INTO_SIGNED and dtype in _WIDE_UNSIGNED:
        return False
    if not tensors or name in _SPACED:
        if isinstance(dtype, torch.dtype) and not dtype.is_complex and any(map(torch.is_complex, tensors)):
            return False
        if (signed or name in _SPACED) and dtype in _WIDE_UNSIGNED:
            return False
        return types is None or dtype is None or dtype in types
    first = tensors[0]
    if types is not None and first.dtype not in types:
        return False
    if first.device.type != "cpu":
        return True
    if arguments.get("input_dtype") not in (None, first.dtype):
        return False
    if signed and any(one.dtype in _WIDE_UNSIGNED for one in tensors):
        return False
    if find_info(name).norm in ("batch", "group", "layer") and not _scaled_by(first.dtype, _types(arguments, _PARAMETERS)):
        return False
    return name not in _ON_CPUS or first.dtype in _ON_CPUS[name]


def _has_eight_bits(arguments: Iterable[object]) -> bool:
    """Tell if a tensor among the arguments, or in one of their lists, holds floats of 8 bits, or the result is to."""
    return not _EIGHT_BITS.isdisjoint(_listed_types(arguments))


def _listed_types(arguments: Iterable[object]) -> Iterator[torch.dtype]:
    """The types among the arguments, and those of tensors among them and in their lists."""
    for value in arguments:
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item.dtype
            elif isinstance(item, torch.dtype):
                yield item


def _mixes_eight_bits(arguments: Mapping[str, object]) -> bool:
    """Tell if floats of 8 bits would have to be promoted, or others to them."""
    tensors = [
        item
        for name, value in arguments.items()
        if name != "condition"
        for item in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(item, torch.Tensor)
    ]
    types = {one.dtype for one in tensors}
    return len(types) > 1 and not _EIGHT_BITS.isdisjoint(types)


def _is_of_its_type(arguments: Mapping[str, object]) -> bool:
    """Tell if a gradient has the type of what it is taken of, as eager's kernels have it, and is no integer."""
    types = _types(arguments, ("grad_output", "self", "grid"))
    return len(types) < 2 and not any(dtype in _INTEGERS or dtype is torch.bool for dtype in types)


def _are_all(arguments: Iterable[tuple[str, object]], types: Types) -> bool:
    """Whether all tensors are of these types, and stay so beside the numbers, which are of these types, too."""
    return all(_type_of(name, one) in (None, *types) for name, one in arguments)


def _type_of(name: str, value: object) -> torch.dtype | None:
    """That of a tensor or of a number that is an operand; None of others, and of integers, which take part in every type."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    if type(value) is float:
        return torch.float32
    return torch.bool if type(value) is bool and name in _OPERANDS else None


def _types(arguments: Mapping[str, object], names: tuple[str, ...]) -> Types:
    """Those of the tensors of these names."""
    given = [arguments.get(name) for name in names]
    return frozenset(one.dtype for one in given if isinstance(one, torch.Tensor))


def _scaled_by(dtype: torch.dtype, parameters: Types) -> bool:
    """Whether a norm of `dtype` may have parameters of these types: its own, or `f32` beside 16 bits."""
    return parameters <= {dtype} or (dtype in _FLOATS - _WIDE and parameters == {torch.float32})


def of_accepted_types(target: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """`decomposition` of `target`, for what eager has a kernel."""
    if not isinstance(target, Overload) or target.namespace != "aten":
        return decomposition
    if not _is_named(target) and not has_rule(target):
        return _of_wider_types(target, decomposition)
    names = [formal.name for formal in schema_of(target).arguments]

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        if not accepts(target, given) or not accepts_shapes(target, given):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decomposed


def _of_wider_types(target: Overload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """`decomposition` of an operator that takes every type but floats of 8 bits."""
    if target.overloadpacket.__name__ in _OF_EIGHT_BITS:
        return decomposition

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if _has_eight_bits(args) or _has_eight_bits(kwargs.values()):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decomposed


def _is_named(target: Overload) -> bool:
    name, overload = qualified_name(target).split(".")[1:]
    return name.endswith("_backward") or bool(
        {name, f"{name}.{overload}"}
        & {*_INTO_SIGNED, *_ANYWHERE, *_ON_CPUS, *_SIGNED_ON_CPUS, *_EVERYWHERE, *_OF_ONE_TYPE, *_POSITIONS}
    )
