"""Good calls of functions and modules that torch's databases lack, of which bad calls are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from integration_tests.operators.database import Sample

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
Built: TypeAlias = tuple[Callable[[], nn.Module], tuple[Any, ...]]


def _call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Call:
    return function, arguments, keywords


def _grid(*shape: int) -> Tensor:
    return torch.linspace(-1.0, 1.0, torch.Size(shape).numel()).reshape(shape)


_ROW: Final = _grid(2, 3, 8)
_PLANE: Final = _grid(2, 3, 6, 6)
_SPACE: Final = _grid(1, 2, 6, 6, 6)
_MATRIX: Final = _grid(4, 6)
_ROWS: Final = torch.tensor([0, 2, 1, 3])
_BAGS: Final = torch.tensor([0, 2])
_PICKED: Final = torch.tensor([[0, 2, 4, 6], [1, 3, 5, 7]])[None]
_CORNERS: Final = torch.tensor([[[[0, 2], [8, 10]]]])
_EDGES: Final = torch.tensor([0, 3]).reshape(1, 1, 2, 1, 1)

FUNCTIONS: Final[Mapping[str, Call]] = MappingProxyType(
    {
        "adaptive_max_pool1d": _call(F.adaptive_max_pool1d, _ROW, 3, return_indices=True),
        "adaptive_max_pool2d": _call(F.adaptive_max_pool2d, _PLANE, (3, 2), return_indices=True),
        "adaptive_max_pool3d": _call(F.adaptive_max_pool3d, _SPACE, (3, 2, 1), return_indices=True),
        "affine_grid": _call(F.affine_grid, _grid(2, 2, 3), [2, 3, 4, 5], align_corners=False),
        "celu_": _call(F.celu_, _MATRIX, 0.5),
        "conv_tbc": _call(F.conv_tbc, _grid(8, 2, 3), _grid(3, 3, 4), _grid(4), 1),
        "dropout1d": _call(F.dropout1d, _ROW, 0.5, True),
        "elu_": _call(F.elu_, _MATRIX, 0.5),
        "fold": _call(F.fold, _grid(1, 12, 12), (4, 5), (2, 2)),
        "fractional_max_pool2d": _call(
            F.fractional_max_pool2d, _PLANE, 2, output_size=(3, 3), _random_samples=_grid(2, 3, 2).abs() / 2
        ),
        "gumbel_softmax": _call(F.gumbel_softmax, _MATRIX, 1.0, False, 1e-10, -1),
        "hardtanh_": _call(F.hardtanh_, _MATRIX, -0.5, 0.5),
        "leaky_relu_": _call(F.leaky_relu_, _MATRIX, 0.1),
        "log_softmax": _call(F.log_softmax, _MATRIX, 1, dtype=torch.float32),
        "lp_pool1d": _call(F.lp_pool1d, _ROW, 2.0, 2, 2),
        "lp_pool2d": _call(F.lp_pool2d, _PLANE, 2.0, 2, 2),
        "lp_pool3d": _call(F.lp_pool3d, _SPACE, 2.0, 2, 2),
        "max_pool1d": _call(F.max_pool1d, _ROW, 2, 2, 0, 1, return_indices=True),
        "max_pool2d": _call(F.max_pool2d, _PLANE, 2, 2, 0, 1, return_indices=True),
        "max_pool3d": _call(F.max_pool3d, _SPACE, 2, 2, 0, 1, return_indices=True),
        "max_unpool2d": _call(F.max_unpool2d, _grid(1, 1, 2, 2), _CORNERS, 2, 2),
        "native_channel_shuffle": _call(torch.native_channel_shuffle, _grid(1, 4, 3, 3), 2),
        "rrelu_": _call(F.rrelu_, _MATRIX, 0.1, 0.3, True),
        "selu_": _call(F.selu_, _MATRIX),
        "softmax": _call(F.softmax, _MATRIX, 1, dtype=torch.float32),
        "threshold_": _call(F.threshold_, _MATRIX, 0.1, 0.2),
        "upsample": _call(F.upsample, _PLANE, (4, 5), None, "bilinear", True),
        "interpolate_by_factors": _call(F.interpolate, _PLANE, None, (0.5, 2.0), "nearest"),
        "cross_entropy": _call(
            F.cross_entropy, _MATRIX, _ROWS, _grid(6).abs(), ignore_index=-100, label_smoothing=0.1
        ),
        "embedding_with_a_norm": _call(F.embedding, _ROWS, _MATRIX.clone(), 1, 1.0, 2.0),
        "embedding_bag": _call(
            F.embedding_bag, _ROWS, _MATRIX, _BAGS, mode="sum", per_sample_weights=_grid(4), padding_idx=1
        ),
        "grid_sample": _call(F.grid_sample, _PLANE, _grid(2, 4, 4, 2), "bilinear", "zeros", False),
        "scaled_dot_product_attention": _call(
            F.scaled_dot_product_attention, _PLANE, _PLANE, _PLANE, _grid(6, 6), 0.0, False, scale=0.5
        ),
        "linalg.matmul": _call(torch.linalg.matmul, _MATRIX, _MATRIX.t()),
        "linalg.matrix_exp": _call(torch.linalg.matrix_exp, _grid(2, 3, 3)),
        "fft.fftfreq": _call(torch.fft.fftfreq, 8, 0.5),
        "fft.rfftfreq": _call(torch.fft.rfftfreq, 8, 0.5),
        "special.multigammaln": _call(torch.special.multigammaln, _MATRIX.abs() + 2, 2),
        "special.gammainc": _call(torch.special.gammainc, _MATRIX.abs(), _MATRIX.abs()),
        "special.xlogy": _call(torch.special.xlogy, _MATRIX.abs(), _MATRIX.abs()),
        "special.softmax": _call(torch.special.softmax, _MATRIX, 1),
        "special.logsumexp": _call(torch.special.logsumexp, _MATRIX, 1, True),
        "special.round": _call(torch.special.round, _MATRIX, decimals=1),
        "special.logit": _call(torch.special.logit, _MATRIX.abs(), 0.1),
    }
)
MODULES: Final[Mapping[str, Built]] = MappingProxyType(
    {
        "AdaptiveLogSoftmaxWithLoss": (lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 8, [3]), (_MATRIX, _ROWS)),
        "AlphaDropout": (lambda: nn.AlphaDropout(0.5), (_MATRIX,)),
        "ChannelShuffle": (lambda: nn.ChannelShuffle(2), (_grid(1, 4, 3, 3),)),
        "CosineSimilarity": (lambda: nn.CosineSimilarity(1), (_MATRIX, _MATRIX + 1)),
        "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(2), (_PLANE,)),
        "Dropout": (lambda: nn.Dropout(0.5), (_MATRIX,)),
        "Dropout1d": (lambda: nn.Dropout1d(0.5), (_ROW,)),
        "Dropout2d": (lambda: nn.Dropout2d(0.5), (_PLANE,)),
        "Dropout3d": (lambda: nn.Dropout3d(0.5), (_SPACE,)),
        "EmbeddingBag": (lambda: nn.EmbeddingBag(6, 3, mode="mean"), (_ROWS, _BAGS)),
        "FeatureAlphaDropout": (lambda: nn.FeatureAlphaDropout(0.5), (_PLANE,)),
        "Flatten": (lambda: nn.Flatten(1, 2), (_PLANE,)),
        "Fold": (lambda: nn.Fold((4, 5), (2, 2)), (_grid(1, 12, 12),)),
        "Hardsigmoid": (lambda: nn.Hardsigmoid(), (_MATRIX,)),
        "MaxUnpool1d": (lambda: nn.MaxUnpool1d(2), (_grid(1, 2, 4), _PICKED)),
        "MaxUnpool2d": (lambda: nn.MaxUnpool2d(2), (_grid(1, 1, 2, 2), _CORNERS)),
        "MaxUnpool3d": (lambda: nn.MaxUnpool3d(2), (_grid(1, 1, 2, 1, 1), _EDGES)),
        "NLLLoss2d": (lambda: nn.NLLLoss2d(), (_PLANE, torch.zeros(2, 6, 6, dtype=torch.int64))),
        "PairwiseDistance": (lambda: nn.PairwiseDistance(2.0), (_MATRIX, _MATRIX + 1)),
        "PixelShuffle": (lambda: nn.PixelShuffle(2), (_grid(1, 8, 2, 2),)),
        "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), (_PLANE,)),
        "RReLU": (lambda: nn.RReLU(), (_MATRIX,)),
        "TripletMarginLoss": (lambda: nn.TripletMarginLoss(), (_MATRIX, _MATRIX + 1, _MATRIX - 1)),
        "TripletMarginWithDistanceLoss": (
            lambda: nn.TripletMarginWithDistanceLoss(),
            (_MATRIX, _MATRIX + 1, _MATRIX - 1),
        ),
        "Unflatten": (lambda: nn.Unflatten(1, (2, 3)), (_MATRIX,)),
        "Unfold": (lambda: nn.Unfold(2), (_PLANE,)),
        "Upsample": (lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), (_PLANE,)),
        "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d((4, 5)), (_PLANE,)),
        "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d((4, 5)), (_PLANE,)),
    }
)


def function_and_sample(name: str) -> tuple[Callable[..., Any], Sample]:
    """The function that goes by `name` in `FUNCTIONS`, and its good call."""
    function, arguments, keywords = FUNCTIONS[name]
    return function, Sample(arguments=arguments, keywords=dict(keywords))


def module_and_sample(name: str, *, training: bool) -> tuple[nn.Module, Sample]:
    """The module that goes by `name` in `MODULES`, in this mode, and its good call."""
    make, arguments = MODULES[name]
    torch.manual_seed(1234)
    return make().train(training), Sample(arguments=arguments, keywords={})
