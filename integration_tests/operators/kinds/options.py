"""Options that contradict each other or that are none, types that an operator does not take, and values that
it does not compute with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F

from integration_tests.operators.kinds.call import (
    FLAGS,
    LONGER,
    MATRIX,
    NUMBERS,
    PLANE,
    ROW,
    SQUARE,
    WIDER,
    BadCall,
    grid,
    integers,
)

OPTIONS: Final[Mapping[str, BadCall]] = {
    "interpolate by a size and a factor": BadCall(
        lambda x: F.interpolate(x * 2, size=3, scale_factor=2.0), (PLANE,)
    ),
    "interpolate by neither": BadCall(lambda x: F.interpolate(x * 2), (PLANE,)),
    "interpolate with corners by nearest": BadCall(
        lambda x: F.interpolate(x * 2, 3, mode="nearest", align_corners=True), (PLANE,)
    ),
    "interpolate of a row bilinearly": BadCall(lambda x: F.interpolate(x, 3, mode="bilinear"), (MATRIX,)),
    "interpolate with three sizes": BadCall(lambda x: F.interpolate(x * 2, size=(3, 3, 3)), (PLANE,)),
    "interpolate by an unknown mode": BadCall(lambda x: F.interpolate(x * 2, 3, mode="cubic"), (PLANE,)),
    "interpolate antialiased by nearest": BadCall(
        lambda x: F.interpolate(x * 2, 3, mode="nearest", antialias=True), (PLANE,)
    ),
    "padding by a word with strides": BadCall(
        lambda x, w: F.conv2d(x * 2, w, stride=2, padding="same"), (PLANE, grid(3, 3, 2, 2))
    ),
    "padding by an unknown word": BadCall(
        lambda x, w: F.conv2d(x * 2, w, padding="full"), (PLANE, grid(3, 3, 2, 2))
    ),
    "channels of a convolution": BadCall(
        lambda x, w: F.conv2d(x * 2, w), (PLANE, grid(3, 2, 2, 2)), (PLANE, grid(3, 3, 2, 2))
    ),
    "a bias of a convolution": BadCall(
        lambda x, w, b: F.conv2d(x * 2, w, b),
        (PLANE, grid(5, 3, 2, 2), grid(4)),
        (PLANE, grid(5, 3, 2, 2), grid(5)),
    ),
    "a convolution between types": BadCall(
        lambda x, w: F.conv2d(x * 2, w), (PLANE, grid(3, 3, 2, 2).double())
    ),
    "a linear layer between types": BadCall(lambda x, w: F.linear(x * 2, w), (MATRIX, grid(5, 6).half())),
    "pad by an unknown mode": BadCall(lambda x: F.pad(x * 2, (1, 1), mode="mirror"), (PLANE,)),
    "a reduction that is none": BadCall(lambda x: F.mse_loss(x * 2, x, reduction="median"), (MATRIX,)),
    "smoothing beyond 1": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t, label_smoothing=1.5), (MATRIX, integers(0, 1, 2, 3))
    ),
    "dropout beyond 1": BadCall(lambda x, p: F.dropout(x * 2, p), (MATRIX, 1.5), (MATRIX, 0.5)),
    "alpha dropout below 0": BadCall(
        lambda x, p: F.alpha_dropout(x * 2, p, True), (MATRIX, -0.5), (MATRIX, 0.5)
    ),
    "bernoulli beyond 1": BadCall(lambda x, p: torch.bernoulli(x * 2, p), (MATRIX, 1.5), (MATRIX, 0.5)),
    "normal with a negative deviation": BadCall(
        lambda x, s: torch.normal(0.0, s, (3,)) + x[0, 0], (MATRIX, -1.0), (MATRIX, 1.0)
    ),
    "uniform between turned ends": BadCall(
        lambda x, s: torch.empty(3).uniform_(s, 0.0) + x[0, 0], (MATRIX, 1.0), (MATRIX, -1.0)
    ),
    "exponential of a negative": BadCall(
        lambda x, s: x.clone().exponential_(s), (MATRIX, -1.0), (MATRIX, 1.0)
    ),
    "gelu by an unknown word": BadCall(lambda x: F.gelu(x * 2, approximate="sigmoid"), (MATRIX,)),
    "div by an unknown word": BadCall(lambda x: torch.div(x * 2, 2, rounding_mode="ceil"), (MATRIX,)),
    "sum into truth values of a word": BadCall(lambda x: torch.sum(x * 2, dtype="float"), (MATRIX,)),
    "mean of integers": BadCall(lambda x: (x * 2).mean(), (NUMBERS,)),
    "mean of truth values": BadCall(lambda x: x.mean(), (FLAGS,)),
    "std of integers": BadCall(lambda x: (x * 2).std(), (NUMBERS,)),
    "softmax of integers": BadCall(lambda x: torch.softmax(x * 2, 1), (NUMBERS,)),
    "norm of integers": BadCall(lambda x: torch.linalg.vector_norm(x * 2), (NUMBERS,)),
    "median of complex": BadCall(lambda x: (x * 2).median(), (MATRIX.to(torch.complex64),)),
    "sort of complex": BadCall(lambda x: (x * 2).sort(), (MATRIX.to(torch.complex64),)),
    "amax of complex": BadCall(lambda x: (x * 2).amax(), (MATRIX.to(torch.complex64),)),
    "argmin of complex": BadCall(lambda x: (x * 2).argmin(), (MATRIX.to(torch.complex64),)),
    "floor of complex": BadCall(lambda x: (x * 2).floor(), (MATRIX.to(torch.complex64),)),
    "relu of complex": BadCall(lambda x: (x * 2).relu(), (MATRIX.to(torch.complex64),)),
    "relu of truth values": BadCall(lambda x: x.relu(), (FLAGS,)),
    "clamp of complex": BadCall(lambda x: (x * 2).clamp(0), (MATRIX.to(torch.complex64),)),
    "clamp by nothing": BadCall(lambda x: (x * 2).clamp(), (MATRIX,)),
    "a negative truth value": BadCall(lambda x: -x, (FLAGS,)),
    "a difference of truth values": BadCall(lambda x: x - x, (FLAGS,)),
    "a difference of a number and truth values": BadCall(lambda x: torch.rsub(x, True), (FLAGS,)),
    "diff of truth values": BadCall(lambda x: x.diff(), (FLAGS,)),
    "a shift of floats": BadCall(lambda x: x << 1, (MATRIX,)),
    "not of floats": BadCall(lambda x: ~x, (MATRIX,)),
    "and of floats": BadCall(lambda x: x & 1, (MATRIX,)),
    "an integer to a negative power": BadCall(lambda k: (k + 1) ** -1, (NUMBERS,)),
    "an integer to a negative power given": BadCall(lambda k, n: (k + 1) ** n, (NUMBERS, -1), (NUMBERS, 2)),
    "a fill of 8 bits by more": BadCall(lambda k: torch.full_like(k, 300) + k, (NUMBERS.to(torch.uint8),)),
    "a fill of 8 bits by less": BadCall(lambda k: k.clone().fill_(-1000), (NUMBERS.to(torch.int8),)),
    "a fill of integers by infinity": BadCall(lambda k: k.clone().fill_(float("inf")), (NUMBERS,)),
    "a fill of integers by NaN": BadCall(lambda k: torch.full_like(k, float("nan")), (NUMBERS,)),
    "a fill of floats by complex": BadCall(lambda x: x.clone().fill_(1j), (MATRIX,)),
    "a masked fill of integers by floats": BadCall(
        lambda k, m: k.clone().masked_fill_(m, 1e30), (NUMBERS, FLAGS)
    ),
    "a masked fill of truth values by many": BadCall(
        lambda x, m: x.masked_fill(m, MATRIX[0]), (MATRIX, FLAGS)
    ),
    "where between complex and 8 bits": BadCall(
        lambda m, x: torch.where(m, x, x.to(torch.float8_e5m2)), (FLAGS, MATRIX)
    ),
    "8 bits added to more": BadCall(lambda k: k + 300, (NUMBERS.to(torch.uint8),)),
    "8 bits compared to more": BadCall(lambda k: k < 2**70, (NUMBERS.to(torch.uint8),)),
    "an integer beyond 64 bits": BadCall(lambda k: k + 2**64, (NUMBERS,)),
    "a full of an integer beyond 64 bits": BadCall(lambda x: torch.full((3,), 2**64) + x[0, 0], (MATRIX,)),
    "einsum with an unknown arrow": BadCall(lambda x: torch.einsum("ij>ji", x * 2), (MATRIX,)),
    "einsum with a letter from nowhere": BadCall(lambda x: torch.einsum("ij->ik", x * 2), (MATRIX,)),
    "einsum with too many letters": BadCall(lambda x: torch.einsum("ijk->i", x * 2), (MATRIX,)),
    "einsum of too few operands": BadCall(lambda x: torch.einsum("ij,jk->ik", x * 2), (MATRIX,)),
    "einsum with a letter twice in the result": BadCall(lambda x: torch.einsum("ij->ii", x * 2), (MATRIX,)),
    "einsum with a figure": BadCall(lambda x: torch.einsum("i1->i", x * 2), (MATRIX,)),
    "einsum of a diagonal of unlike sizes": BadCall(
        lambda x: torch.einsum("ii->i", x * 2), (MATRIX,), (SQUARE,)
    ),
    "permute with a dimension twice": BadCall(lambda x: (x * 2).permute(0, 0), (MATRIX,)),
    "permute with too few": BadCall(lambda x: (x * 2).permute(0), (MATRIX,)),
    "sum over a dimension twice": BadCall(lambda x: (x * 2).sum((0, -2)), (MATRIX,)),
    "flip of a dimension twice": BadCall(lambda x: (x * 2).flip(0, 0), (MATRIX,)),
    "roll by unlike counts": BadCall(lambda x: (x * 2).roll((1, 2), (0,)), (MATRIX,)),
    "rot90 in one dimension": BadCall(lambda x: (x * 2).rot90(1, (0, 0)), (MATRIX,)),
    "movedim of unlike counts": BadCall(lambda x: (x * 2).movedim((0, 1), (0,)), (MATRIX,)),
    "tensordot of unlike counts": BadCall(lambda x: torch.tensordot(x * 2, x, ([0], [0, 1])), (MATRIX,)),
    "broadcast to less": BadCall(lambda x: torch.broadcast_to(x * 2, (6,)), (MATRIX,)),
    "meshgrid by an unknown word": BadCall(lambda x: torch.meshgrid(x * 2, x, indexing="yx"), (ROW,)),
    "meshgrid of matrices": BadCall(lambda x: torch.meshgrid(x * 2, x, indexing="ij"), (MATRIX,)),
    "cat of nothing": BadCall(lambda x: torch.cat([]) + x, (MATRIX,)),
    "stack of nothing": BadCall(lambda x: torch.stack([]) + x, (MATRIX,)),
    "cat of a number": BadCall(lambda x: torch.cat([x, x[0, 0]]), (MATRIX,)),
    "no tensor in a sum": BadCall(lambda x: torch.add(x, None), (MATRIX,)),
    "no weight": BadCall(lambda x: F.linear(x, None), (MATRIX,)),
    "a list as a tensor": BadCall(lambda x: torch.sin([1.0, 2.0]) + x, (MATRIX,)),
    "an unknown keyword": BadCall(lambda x: torch.sum(x * 2, axes=0), (MATRIX,)),
    "too many arguments": BadCall(lambda x: torch.sin(x, x, x), (MATRIX,)),
    "too few arguments": BadCall(lambda x: torch.gather(x, 0), (MATRIX,)),
    "a method with too many arguments": BadCall(lambda x: (x * 2).relu(1, 2), (MATRIX,)),
    "a word as a number": BadCall(lambda x: x + "a", (MATRIX,)),
    "a word as a dimension": BadCall(lambda x: torch.softmax(x, "a"), (MATRIX,)),
    "a float as a dimension": BadCall(lambda x: torch.softmax(x, 1.0), (MATRIX,)),
    "a float as a size": BadCall(lambda x: x.view(2.0, 12), (MATRIX,)),
    "a tensor as a size of floats": BadCall(lambda x: x.view(x[0, 0], -1), (MATRIX,)),
    "an unknown device": BadCall(lambda x: torch.zeros(3, device="nowhere") + x[0, 0], (MATRIX,)),
    "an unknown type": BadCall(lambda x: x.to("float99"), (MATRIX,)),
    "channels last of a matrix": BadCall(
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last), (MATRIX,), (PLANE,)
    ),
    "quantised added": BadCall(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8) + x, (MATRIX,)),
    "a cholesky of what is not positive": BadCall(
        lambda x: torch.linalg.cholesky(x - 100), (SQUARE,), (torch.eye(4) * 200 + 100,)
    ),
    "an inverse of a rectangle": BadCall(lambda x: torch.linalg.inv(x * 2), (MATRIX,), (torch.eye(4),)),
    "an inverse of nothing": BadCall(
        lambda x: torch.linalg.inv(x * 2), (torch.zeros(3, 3),), (torch.eye(3),)
    ),
    "a solution of a singular": BadCall(
        lambda a, b: torch.linalg.solve(a * 2, b), (torch.zeros(3, 3), grid(3)), (torch.eye(3), grid(3))
    ),
    "eigenvalues of NaN": BadCall(
        lambda a: torch.linalg.eigh(a * 2), (torch.full((3, 3), float("nan")),), (torch.eye(3),)
    ),
    "a division by 0 of integers": BadCall(lambda k, n: k // n, (NUMBERS, 0), (NUMBERS, 2)),
    "a remainder by 0 of integers": BadCall(lambda k, n: k % n, (NUMBERS, 0), (NUMBERS, 2)),
    "a division by zeros of integers": BadCall(
        lambda k, n: k // n, (NUMBERS, NUMBERS * 0), (NUMBERS, NUMBERS + 1)
    ),
    "a remainder by zeros of integers": BadCall(
        lambda k, n: (k + 1) % n, (NUMBERS, NUMBERS * 0), (NUMBERS, NUMBERS + 1)
    ),
    "fmod by zeros of integers": BadCall(
        lambda k, n: torch.fmod(k + 1, n), (NUMBERS, NUMBERS * 0), (NUMBERS, NUMBERS + 1)
    ),
    "trunc by zeros of integers": BadCall(
        lambda k, n: torch.div(k + 1, n, rounding_mode="trunc"),
        (NUMBERS, NUMBERS * 0),
        (NUMBERS, NUMBERS + 1),
    ),
    "fmod by 0": BadCall(lambda k: torch.fmod(k, 0), (NUMBERS,)),
    "an assertion": BadCall(
        lambda x: torch._assert(bool((x > 5).all()), "small") or x * 2, (MATRIX,), (MATRIX + 5,)
    ),
    "an asynchronous assertion": BadCall(
        lambda x: torch._assert_async((x > 5).all()) or x * 2, (MATRIX,), (MATRIX + 5,)
    ),
    "a check of a size": BadCall(lambda x: torch._check(x.shape[0] == 5) or x * 2, (MATRIX,), (LONGER,)),
    "a python error": BadCall(lambda x: x * 2 if x.shape[0] == 5 else 1 // 0, (MATRIX,), (LONGER,)),
    "ctc with long targets": BadCall(
        lambda x, t, n: F.ctc_loss(x.log_softmax(2), t, n, integers(9)),
        (grid(5, 1, 4), integers(1, 2)[None], integers(5)),
    ),
    "bags without offsets": BadCall(lambda k, w: F.embedding_bag(k, w), (integers(0, 1), MATRIX)),
    "bags of rows with offsets": BadCall(
        lambda k, w: F.embedding_bag(k, w, integers(0)), (integers(0, 1)[None], MATRIX)
    ),
    "weights of bags by a mean": BadCall(
        lambda k, w: F.embedding_bag(k, w, mode="mean", per_sample_weights=torch.ones(1, 2)),
        (integers(0, 1)[None], MATRIX),
    ),
    "a padding row that is not there": BadCall(
        lambda k, w: F.embedding(k, w, padding_idx=9), (integers(0, 1), MATRIX)
    ),
    "causal attention with a mask": BadCall(
        lambda q, m: F.scaled_dot_product_attention(q * 2, q, q, m, is_causal=True),
        (grid(1, 2, 4, 8), grid(4, 4)),
    ),
    "attention dropped out beyond 1": BadCall(
        lambda q: F.scaled_dot_product_attention(q * 2, q, q, dropout_p=1.5), (grid(1, 2, 4, 8),)
    ),
    "attention of unlike types": BadCall(
        lambda q: F.scaled_dot_product_attention(q * 2, q.half(), q), (grid(1, 2, 4, 8),)
    ),
    "attention with a mask of integers": BadCall(
        lambda q, m: F.scaled_dot_product_attention(q * 2, q, q, m),
        (grid(1, 2, 4, 8), torch.ones(4, 4).long()),
    ),
    "a norm without its shape": BadCall(lambda x: F.layer_norm(x * 2, (4,)), (MATRIX,)),
    "a norm of nothing": BadCall(lambda x: F.layer_norm(x * 2, ()), (MATRIX,)),
    "a running mean of another size": BadCall(
        lambda x, m: F.batch_norm(x * 2, m, m), (MATRIX, grid(5)), (MATRIX, ROW)
    ),
    "a running mean that is missing": BadCall(lambda x: F.batch_norm(x * 2, None, None), (MATRIX,)),
    "a cosine of unlike widths": BadCall(
        lambda x, y: F.cosine_similarity(x * 2, y), (MATRIX, WIDER), (MATRIX, MATRIX)
    ),
    "a triplet of unlike shapes": BadCall(
        lambda x, y: F.triplet_margin_loss(x * 2, x, y), (MATRIX, grid(3, 5)), (MATRIX, MATRIX)
    ),
    "a p of 3 in a margin": BadCall(
        lambda x, t: F.multi_margin_loss(x * 2, t, p=3), (MATRIX, integers(0, 1, 2, 3))
    ),
    "huber by a negative": BadCall(
        lambda x, d: F.huber_loss(x * 2, x, delta=d), (MATRIX, -1.0), (MATRIX, 1.0)
    ),
    "smooth l1 by a negative": BadCall(
        lambda x, b: F.smooth_l1_loss(x * 2, x, beta=b), (MATRIX, -1.0), (MATRIX, 1.0)
    ),
    "a celu by 0": BadCall(lambda x, a: F.celu(x * 2, a), (MATRIX, 0.0), (MATRIX, 1.0)),
    "a softplus of integers": BadCall(lambda x: F.softplus(x * 2), (NUMBERS,)),
    "a hardtanh with turned ends": BadCall(lambda x: F.hardtanh(x * 2, 1.0, -1.0), (MATRIX,)),
    "a threshold of truth values": BadCall(lambda x: F.threshold(x, 1.0, 2.0), (FLAGS,)),
    "a softshrink by a negative": BadCall(lambda x, n: F.softshrink(x * 2, n), (MATRIX, -1.0), (MATRIX, 1.0)),
    "a log_softmax of truth values": BadCall(lambda x: F.log_softmax(x, 1), (FLAGS,)),
    "a gumbel softmax of integers": BadCall(lambda x: F.gumbel_softmax(x * 2), (NUMBERS,)),
    "lp pool by 0": BadCall(lambda x, n: F.lp_pool2d(x * 2, 2, n), (PLANE, 0), (PLANE, 2)),
    "unpool of unlike shapes": BadCall(
        lambda x, k: F.max_unpool2d(x * 2, k, 2), (PLANE, torch.zeros(2, 3, 5, 6, dtype=torch.int64))
    ),
    "fold of another count": BadCall(
        lambda x: F.fold(x * 2, (4, 5), (2, 2)), (grid(1, 12, 11),), (grid(1, 12, 12),)
    ),
    "a grid by an unknown mode": BadCall(
        lambda x, g: F.grid_sample(x * 2, g, mode="cubic"), (PLANE, grid(2, 4, 4, 2))
    ),
    "a window with a negative length": BadCall(
        lambda x, n: torch.hann_window(n) + x[0, 0], (MATRIX, -1), (MATRIX, 3)
    ),
    "a transform of no points": BadCall(lambda x, n: torch.fft.fft(x * 2, n), (MATRIX, 0), (MATRIX, 4)),
    "a transform of complex as real": BadCall(lambda x: torch.fft.rfft(x * 2), (MATRIX.to(torch.complex64),)),
    "a transform by an unknown norm": BadCall(lambda x: torch.fft.fft(x * 2, norm="half"), (MATRIX,)),
    "a gradient by unlike spacing": BadCall(
        lambda x: torch.gradient(x * 2, spacing=(1.0, 2.0, 3.0)), (MATRIX,)
    ),
    "a trapezoid of unlike": BadCall(
        lambda x, y: torch.trapezoid(x * 2, y), (MATRIX, WIDER), (MATRIX, MATRIX)
    ),
    "bucketize of a matrix of borders": BadCall(lambda x: torch.bucketize(x * 2, x), (MATRIX,)),
    "searchsorted of other rows": BadCall(
        lambda x, y: torch.searchsorted(x * 2, y), (MATRIX, LONGER), (MATRIX, MATRIX)
    ),
    "histc of complex": BadCall(lambda x: torch.histc(x * 2), (MATRIX.to(torch.complex64),)),
    "histc between turned ends": BadCall(lambda x: torch.histc(x * 2, 4, 5.0, 1.0), (MATRIX,)),
    "bincount of negatives": BadCall(lambda k: torch.bincount(k), (integers(-1, 2),), (integers(1, 2),)),
    "bincount of floats": BadCall(lambda x: torch.bincount(x), (ROW,)),
    "bincount of a matrix": BadCall(lambda x: torch.bincount(x), (NUMBERS,)),
    "combinations of a matrix": BadCall(lambda x: torch.combinations(x * 2), (MATRIX,)),
    "vander of a number": BadCall(lambda x: torch.vander(x[0, 0] * 2), (MATRIX,)),
    "tril of a row": BadCall(lambda x: torch.tril(x * 2), (ROW,), (MATRIX,)),
    "diag of a cube": BadCall(lambda x: torch.diag(x * 2), (PLANE,), (MATRIX,)),
    "a cross product along another size": BadCall(
        lambda x, y: torch.cross(x * 2, y, dim=0), (MATRIX, MATRIX)
    ),
    "renorm below 0": BadCall(lambda x: torch.renorm(x * 2, -1.0, 0, 1.0), (MATRIX,)),
    "cdist by a negative": BadCall(lambda x: torch.cdist(x * 2, x, p=-1.0), (MATRIX,)),
    "pdist of a cube": BadCall(lambda x: torch.pdist(x * 2), (grid(2, 2, 2),), (MATRIX,)),
    "polygamma of a negative order": BadCall(
        lambda x, n: torch.polygamma(n, x * 2), (MATRIX, -1), (MATRIX, 1)
    ),
    "mvlgamma of small": BadCall(lambda x: torch.mvlgamma(x * 0, 2), (MATRIX,)),
    "a left shift by floats": BadCall(lambda k: k << 1.5, (NUMBERS,)),
    "numbers of unlike devices": BadCall(lambda x, y: x * 2 + y, (MATRIX, MATRIX.to("meta"))),
    "one position beyond": BadCall(
        lambda x, k: (x * 2)[k] + 1, (MATRIX, integers(0, 4)), (MATRIX, integers(0, 3))
    ),
    "one position below": BadCall(
        lambda x, k: (x * 2)[k] + 1, (MATRIX, integers(0, -5)), (MATRIX, integers(0, -4))
    ),
    "a position of no rows": BadCall(
        lambda x, k: (x * 2)[k] + 1, (torch.empty(0, 6), integers(0)), (MATRIX, integers(0))
    ),
    "an embedding of a negative": BadCall(
        lambda w, k: F.embedding(k, w * 2) + 1, (MATRIX, integers(0, -1)), (MATRIX, integers(0, 1))
    ),
    "a label beyond": BadCall(
        lambda x, t: F.nll_loss(x * 2, t), (MATRIX, integers(0, 1, 2, 6)), (MATRIX, integers(0, 1, 2, 5))
    ),
    "a label below": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t),
        (MATRIX, integers(0, 1, 2, -1)),
        (MATRIX, integers(0, 1, 2, -100)),
    ),
    "a label of an image beyond": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t),
        (PLANE, torch.full((2, 6, 6), 3)),
        (PLANE, torch.full((2, 6, 6), 2)),
    ),
    "a margin's label beyond": BadCall(
        lambda x, t: F.multi_margin_loss(x * 2, t),
        (MATRIX, integers(0, 1, 2, 6)),
        (MATRIX, integers(0, 1, 2, 5)),
    ),
    "many margins' label beyond": BadCall(
        lambda x, t: F.multilabel_margin_loss(x * 2, t),
        (MATRIX, torch.full((4, 6), 6)),
        (MATRIX, torch.full((4, 6), -1)),
    ),
    "gather of another rank": BadCall(
        lambda x, k: (x * 2).gather(1, k) + 1, (MATRIX, integers(0, 1)), (MATRIX, NUMBERS % 4)
    ),
    "gather of more rows": BadCall(
        lambda x, k: (x * 2).gather(1, k) + 1,
        (MATRIX, torch.zeros(5, 2, dtype=torch.int64)),
        (MATRIX, NUMBERS % 4),
    ),
    "scatter of a smaller source": BadCall(
        lambda x, k, s: (x * 2).scatter(1, k, s) + 1,
        (MATRIX, NUMBERS % 4, grid(4, 5)),
        (MATRIX, NUMBERS % 4, MATRIX),
    ),
    "scatter_add of other rows": BadCall(
        lambda x, k, s: (x * 2).scatter_add(1, k, s) + 1,
        (MATRIX, torch.zeros(5, 2, dtype=torch.int64), LONGER),
        (MATRIX, NUMBERS % 4, MATRIX),
    ),
    "index_add of another count": BadCall(
        lambda x, k, s: (x * 2).index_add(0, k, s) + 1,
        (MATRIX, integers(0, 1), grid(3, 6)),
        (MATRIX, integers(0, 1), grid(2, 6)),
    ),
    "index_copy of another width": BadCall(
        lambda x, k, s: (x * 2).index_copy(0, k, s) + 1,
        (MATRIX, integers(0, 1), grid(2, 5)),
        (MATRIX, integers(0, 1), grid(2, 6)),
    ),
    "index_put of another width": BadCall(
        lambda x, k, s: (x * 2).index_put((k,), s) + 1,
        (MATRIX, integers(0, 1), grid(5)),
        (MATRIX, integers(0, 1), ROW),
    ),
    "indices that do not broadcast": BadCall(
        lambda x, j, k: (x * 2)[j, k] + 1,
        (MATRIX, integers(0, 1), integers(0, 1, 2)),
        (MATRIX, integers(0, 1), integers(0, 1)),
    ),
    "multinomial of negatives": BadCall(lambda x: torch.multinomial(-x, 1), (MATRIX,)),
    "multinomial of infinities": BadCall(
        lambda x: torch.multinomial(x, 1), (torch.tensor([1.0, float("inf")]),), (ROW,)
    ),
    "normal of negative deviations": BadCall(lambda x: torch.normal(x, -x), (MATRIX,)),
    "a probability beyond 1": BadCall(
        lambda p, t: F.binary_cross_entropy(p, t), (MATRIX, MATRIX * 0), (MATRIX / 100, MATRIX * 0)
    ),
    "repeats that are negative": BadCall(
        lambda x, n: torch.repeat_interleave(x * 2, n, 0),
        (MATRIX, integers(1, 1, -1, 1)),
        (MATRIX, integers(1, 1, 2, 1)),
    ),
    "repeats of another count": BadCall(
        lambda x, n: torch.repeat_interleave(x * 2, n, 0),
        (MATRIX, integers(1, 1, 1)),
        (MATRIX, integers(1, 1, 2, 1)),
    ),
    "an output size of repeats": BadCall(
        lambda x, n: torch.repeat_interleave(x * 2, n, 0, output_size=7),
        (MATRIX, integers(1, 1, 1, 1)),
        (MATRIX, integers(1, 1, 4, 1)),
    ),
    "lengths of segments": BadCall(
        lambda x, n: torch.segment_reduce(x[:, 0] * 2, "sum", lengths=n),
        (MATRIX, integers(1, 4)),
        (MATRIX, integers(1, 3)),
    ),
    "quantile beyond 1": BadCall(lambda x, q: torch.quantile(x * 2, q), (MATRIX, 1.5), (MATRIX, 0.5)),
    "quantile of integers": BadCall(lambda x: torch.quantile(x * 2, 0.5), (NUMBERS,)),
    "nonzero_static of a negative": BadCall(
        lambda x, n: torch.nonzero_static(x * 2, size=n), (MATRIX, -1), (MATRIX, 3)
    ),
    "an item beyond the type": BadCall(lambda x: torch.zeros(int(x[0, 0].item())), (-MATRIX,), (MATRIX,)),
}
