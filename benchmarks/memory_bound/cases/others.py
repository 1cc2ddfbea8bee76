"""Losses, quantisation, updates, masks, routing: kernels of models that none of the other families has."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, first_bytes, stored_bytes

F16, F32 = torch.float16, torch.float32
BACKWARD = "the backward pass reads the inputs again"


def normal(make: Make, *shape: int) -> Arguments:
    return (make.normal(*shape),)


def normal_f16(make: Make, *shape: int) -> Arguments:
    return (make.normal(*shape, dtype=F16),)


def normal_f32(make: Make, *shape: int) -> Arguments:
    return (make.normal(*shape, dtype=F32),)


def two(make: Make, *shape: int) -> Arguments:
    return make.normal(*shape), make.normal(*shape)


def two_f32(make: Make, *shape: int) -> Arguments:
    return make.normal(*shape, dtype=F32), make.normal(*shape, dtype=F32)


def both_bytes(x: Tensor, y: Tensor) -> int:
    return stored_bytes(x) + stored_bytes(y)


def gated(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x) * y


def mish(x: Tensor) -> Tensor:
    return functional.mish(x)


def masked(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.bits(n, m, one_in=3)


def masked_scores(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 0.125).masked_fill(mask, -1e4)


def causal_softmax(x: Tensor) -> Tensor:
    length = x.shape[-1]
    places = torch.arange(length, device=x.device)
    return torch.softmax(x.masked_fill(places > places[:, None], float("-inf")), dim=-1)


def causal_bytes(x: Tensor) -> int:
    length = x.shape[-1]
    return x.numel() // (2 * length) * (length + 1) * x.element_size()


def quantised(x: Tensor) -> Tensor:
    return (x.float() * 31.5).round().clamp(-128, 127).to(torch.int8)


def quantised_by_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax().float() / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def momentum_inputs(make: Make, count: int, n: int, m: int) -> Arguments:
    def tensors() -> list[Tensor]:
        return [make.normal(n, m, dtype=F32) for _ in range(count)]

    return tensors(), tensors(), tensors()


def momentum(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor]) -> None:
    torch._foreach_mul_(buffers, 0.9)
    torch._foreach_add_(buffers, grads)
    torch._foreach_add_(params, buffers, alpha=-0.01)


def averaged(average: Tensor, x: Tensor) -> None:
    average.lerp_(x, 0.001)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    similarity: Tensor = functional.cosine_similarity(x, y, dim=-1)
    return similarity


def unit_columns(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=0)


def mean_square(x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(x, y)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(
        functional.log_softmax(x, -1), functional.log_softmax(y, -1), reduction="batchmean", log_target=True
    )


def bits_loss(x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x, y.sigmoid())


def pooled_inputs(make: Make, b: int, length: int, width: int) -> Arguments:
    return make.normal(b, length, width), make.bits(b, length, one_in=2)


def pooled(x: Tensor, mask: Tensor) -> Tensor:
    weight = mask.to(x.dtype)[..., None]
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1)


def outer_sums(x: Tensor) -> Tensor:
    return x.sum((0, 2))


def middle_sums(x: Tensor) -> Tensor:
    return x.sum(1)


def plane_means(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def column_std(x: Tensor) -> Tensor:
    deviations: Tensor = x.std(0)
    return deviations


def column_logsumexp(x: Tensor) -> Tensor:
    return x.logsumexp(0)


def middle_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=1)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, dim=-1)


def plain_layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def normed(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.near_one(m), make.normal(m)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def heads(make: Make, b: int, length: int, count: int, width: int) -> Arguments:
    return make.normal(b, length, 3 * count * width), make.near_one(width)


def normed_queries(x: Tensor, weight: Tensor) -> Tensor:
    width = weight.shape[0]
    queries = x[..., : x.shape[-1] // 3].unflatten(-1, (-1, width)).float()
    scale = torch.rsqrt(queries.square().mean(-1, keepdim=True) + 1e-6)
    normed: Tensor = ((queries * scale).to(x.dtype) * weight).transpose(1, 2)
    return normed


def third_bytes(x: Tensor, weight: Tensor) -> int:
    return stored_bytes(x) // 3 + stored_bytes(weight)


def grouped(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    return make.normal(n, c, h, w, dtype=F32), make.near_one(c, dtype=F32), make.normal(c, dtype=F32)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, 32, weight, bias)


def trained_norm(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    parameters = [make.near_one(c, dtype=F32) for _ in range(3)]
    return make.normal(n, c, h, w), make.normal(n, c, h, w), *parameters, make.near_one(c, dtype=F32).abs()


def inference_norm(
    x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    return (functional.batch_norm(x, mean, variance, weight, bias) + skip).relu()


def bits(make: Make, n: int, m: int) -> Arguments:
    return (make.bits(n, m, one_in=2),)


def positions(mask: Tensor) -> Tensor:
    return mask.long().cumsum(-1) - 1


def sums_from_the_end(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def column_sums_so_far(x: Tensor) -> Tensor:
    return x.cumsum(0)


def indexed_columns(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), torch.randperm(m, device=make.device)


def chosen_columns(x: Tensor, index: Tensor) -> Tensor:
    return x[:, index]


def bags(make: Make, entries: int, width: int, count: int, size: int) -> Arguments:
    return make.normal(entries, width), make.integers(count, size, below=entries)


def bag_sums(table: Tensor, index: Tensor) -> Tensor:
    return table[index].sum(1)


def bag_bytes(table: Tensor, index: Tensor) -> int:
    rows = int(index.unique().numel())
    return rows * table.shape[1] * table.element_size() + stored_bytes(index)


def routed(x: Tensor) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(x.float(), -1).topk(2, dim=-1)
    return weights / weights.sum(-1, True), experts


def routing_inputs(make: Make, n: int, m: int) -> Arguments:
    # Distinct by more than rounding, so that every implementation chooses the same experts.
    order = torch.rand(n, m, device=make.device).argsort(-1)
    return (order.to(F32) * 0.05,)


def permuted_rows(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), torch.randperm(n, device=make.device)


def written_rows(x: Tensor, index: Tensor) -> Tensor:
    return torch.empty_like(x).index_copy(0, index, x * 2)


CASES = (
    Case(
        name="SiLU gate fwd+bwd 8192x11008",
        function=gated,
        inputs=two,
        size=(8192, 11008),
        tiny=(5, 9),
        train=True,
        again=both_bytes,
        why=BACKWARD,
        set="other",
    ),
    Case(
        name="mish 8192x8192 f32",
        function=mish,
        inputs=normal_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="mish fwd+bwd 8192x8192 f16",
        function=mish,
        inputs=normal_f16,
        size=(8192, 8192),
        tiny=(5, 9),
        train=True,
        again=first_bytes,
        why=BACKWARD,
        set="other",
    ),
    Case(
        name="masked scores 8192x16384",
        function=masked_scores,
        inputs=masked,
        size=(8192, 16384),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="causal softmax 64x1024x1024",
        function=causal_softmax,
        inputs=normal,
        size=(64, 1024, 1024),
        tiny=(2, 9, 9),
        reads=causal_bytes,
        set="other",
    ),
    Case(
        name="quantised 16384x8192 to i8",
        function=quantised,
        inputs=normal,
        size=(16384, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="quantised by the largest 16384x8192 to i8",
        function=quantised_by_largest,
        inputs=normal,
        size=(16384, 8192),
        tiny=(5, 9),
        again=first_bytes,
        why="the largest of all comes before the first result",
        set="other",
    ),
    Case(
        name="momentum over 30 tensors f32",
        function=momentum,
        inputs=momentum_inputs,
        size=(30, 1024, 1536),
        tiny=(3, 5, 7),
        mutates=(0, 2),
        set="other",
    ),
    Case(
        name="moving average of 64M f32",
        function=averaged,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        mutates=(0,),
        set="other",
    ),
    Case(
        name="cosine similarity 65536x1024",
        function=cosine,
        inputs=two,
        size=(65536, 1024),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="unit columns 4096x16384 f32",
        function=unit_columns,
        inputs=normal_f32,
        size=(4096, 16384),
        tiny=(9, 5),
        again=first_bytes,
        why="all columns are larger than the memory on chip, and their norms come before the first result",
        set="other",
    ),
    Case(
        name="mean square of 64M f32",
        function=mean_square,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="divergence 16384x8192",
        function=divergence,
        inputs=two,
        size=(16384, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="binary cross-entropy of 64M f32",
        function=bits_loss,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="mean of tokens 128x512x1024",
        function=pooled,
        inputs=pooled_inputs,
        size=(128, 512, 1024),
        tiny=(2, 5, 8),
        set="other",
    ),
    Case(
        name="sums of first and last 256x512x1024",
        function=outer_sums,
        inputs=normal,
        size=(256, 512, 1024),
        tiny=(3, 5, 7),
        set="other",
    ),
    Case(
        name="sums of the middle 128x512x1024 f32",
        function=middle_sums,
        inputs=normal_f32,
        size=(128, 512, 1024),
        tiny=(3, 5, 7),
        set="other",
    ),
    Case(
        name="means of planes 128x512x28x28 f16",
        function=plane_means,
        inputs=normal_f16,
        size=(128, 512, 28, 28),
        tiny=(2, 3, 5, 7),
        set="other",
    ),
    Case(
        name="deviations of columns 3000x20000 f32",
        function=column_std,
        inputs=normal_f32,
        size=(3000, 20000),
        tiny=(9, 5),
        set="other",
    ),
    Case(
        name="logsumexp of columns 16384x4096",
        function=column_logsumexp,
        inputs=normal,
        size=(16384, 4096),
        tiny=(9, 5),
        set="other",
    ),
    Case(
        name="softmax of the middle 64x256x4096",
        function=middle_softmax,
        inputs=normal,
        size=(64, 256, 4096),
        tiny=(3, 5, 7),
        set="other",
    ),
    Case(
        name="softmax 32768x5003 f16",
        function=softmax,
        inputs=normal_f16,
        size=(32768, 5003),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="log softmax fwd+bwd 16384x5003 f32",
        function=log_softmax,
        inputs=normal_f32,
        size=(16384, 5003),
        tiny=(5, 9),
        train=True,
        again=first_bytes,
        why="the backward pass reads the log softmax, or what it was made of",
        set="other",
    ),
    Case(
        name="layer norm without weights 16384x5120",
        function=plain_layer_norm,
        inputs=normal,
        size=(16384, 5120),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="layer norm fwd+bwd 8192x12288",
        function=layer_norm,
        inputs=normed,
        size=(8192, 12288),
        tiny=(5, 9),
        train=True,
        again=first_bytes,
        why=BACKWARD,
        set="other",
    ),
    Case(
        name="norms of queries 8x2048x32x128",
        function=normed_queries,
        inputs=heads,
        size=(8, 2048, 32, 128),
        tiny=(2, 5, 3, 8),
        reads=third_bytes,
        set="other",
    ),
    Case(
        name="group norm 16x256x128x128 f32",
        function=group_norm,
        inputs=grouped,
        size=(16, 256, 128, 128),
        tiny=(2, 64, 3, 5),
        again=first_bytes,
        why="all groups in flight are larger than the memory on chip",
        set="other",
    ),
    Case(
        name="inference batch norm+skip+ReLU 64x256x56x56",
        function=inference_norm,
        inputs=trained_norm,
        size=(64, 256, 56, 56),
        tiny=(2, 3, 5, 7),
        set="other",
    ),
    Case(
        name="positions 8192x8192",
        function=positions,
        inputs=bits,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="sums from the end 8192x4096 f32",
        function=sums_from_the_end,
        inputs=normal_f32,
        size=(8192, 4096),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="cumsum of columns 2048x32768 f32",
        function=column_sums_so_far,
        inputs=normal_f32,
        size=(2048, 32768),
        tiny=(9, 5),
        set="other",
    ),
    Case(
        name="columns in another order 16384x4096",
        function=chosen_columns,
        inputs=indexed_columns,
        size=(16384, 4096),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="sums of bags of 20, 500000x128",
        function=bag_sums,
        inputs=bags,
        size=(500000, 128, 65536, 20),
        tiny=(30, 8, 5, 3),
        reads=bag_bytes,
        set="other",
    ),
    Case(
        name="two of 64 experts for 524288 tokens f32",
        function=routed,
        inputs=routing_inputs,
        size=(524288, 64),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="rows written in another order 131072x1024",
        function=written_rows,
        inputs=permuted_rows,
        size=(131072, 1024),
        tiny=(9, 5),
        set="other",
    ),
)
