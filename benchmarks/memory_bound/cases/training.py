"""Losses with their gradients, optimizers and what goes with them, packed weights, graphs of
nodes and edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes
from benchmarks.memory_bound.cases.inputs import normal, normal_f32, two_f32

F32 = torch.float32
I8 = torch.int8


def focal(x: Tensor, y: Tensor) -> Tensor:
    target = y.sigmoid()
    chance = x.sigmoid()
    error = functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    near = chance * target + (1 - chance) * (1 - target)
    return error * (1 - near).square() * (0.25 * target + 0.75 * (1 - target))


def smooth_loss(x: Tensor, y: Tensor) -> Tensor:
    return functional.smooth_l1_loss(x, y)


def both_bytes(x: Tensor, y: Tensor) -> int:
    return count_stored_bytes(x) + count_stored_bytes(y)


def triples(make: Make, n: int, width: int) -> Arguments:
    return make.normal(n, width), make.normal(n, width), make.normal(n, width)


def triplet_loss(anchor: Tensor, same: Tensor, other: Tensor) -> Tensor:
    return functional.triplet_margin_loss(anchor, same, other)


def lists(make: Make, count: int, n: int, m: int) -> Arguments:
    return ([make.normal(n, m, dtype=F32) for _ in range(count)],)


def clipped(grads: list[Tensor]) -> None:
    norms = torch.stack(torch._foreach_norm(grads))
    torch._foreach_mul_(grads, torch.clamp(1.0 / (torch.linalg.vector_norm(norms) + 1e-6), max=1.0))


def all_bytes(grads: list[Tensor]) -> int:
    return sum(map(count_stored_bytes, grads))


def lion_inputs(make: Make, n: int, m: int) -> Arguments:
    return tuple(make.normal(n, m, dtype=F32) for _ in range(3))


def lion(param: Tensor, grad: Tensor, average: Tensor) -> None:
    update = torch.sign(average * 0.9 + grad * 0.1)
    param.mul_(1 - 1e-5).add_(update, alpha=-1e-4)
    average.mul_(0.99).add_(grad, alpha=0.01)


def master_inputs(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m, dtype=F32), make.normal(n, m), make.normal(n, m, dtype=F32), make.normal(n, m)


def sgd_with_master(master: Tensor, grad: Tensor, buffer: Tensor, param: Tensor) -> None:
    slope = grad.float() + 1e-4 * master
    buffer.mul_(0.9).add_(slope)
    master.add_(slope + 0.9 * buffer, alpha=-0.01)
    param.copy_(master)


def param_bytes(master: Tensor, grad: Tensor, buffer: Tensor, param: Tensor) -> int:
    return count_stored_bytes(master) + count_stored_bytes(grad) + count_stored_bytes(buffer)


def second_moments(grad: Tensor) -> tuple[Tensor, Tensor]:
    squares = grad.float().square() + 1e-30
    return squares.mean(-1), squares.mean(-2)


def packed(make: Make, n: int, m: int) -> Arguments:
    return make.integers(n, m // 2, below=256, dtype=torch.uint8), make.near_one(n, m // 128)


def unpacked(weights: Tensor, scales: Tensor) -> Tensor:
    low, high = (weights & 15).to(I8) - 8, (weights >> 4).to(I8) - 8
    numbers = torch.stack([low, high], -1).view(weights.shape[0], -1, 128)
    return (numbers.to(scales.dtype) * scales[..., None]).view(weights.shape[0], -1)


def grouped_quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    groups = x.float().view(x.shape[0], -1, 128)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return (groups / scale.clamp(min=1e-8)).round().to(I8).view(x.shape), scale.squeeze(-1)


def are_near(inputs: Arguments, results: Sequence[Tensor]) -> str:
    """Codes are eager's, but for a few that division rounds to the neighbour."""
    (codes, scales), (found, found_scales) = grouped_quantised(*inputs), results
    if not torch.allclose(found_scales, scales, rtol=1e-6):
        return "other scales than eager's"
    apart = (found.int() - codes.int()).abs()
    differing = (apart > 0).double().mean().item()
    return f"{differing:.2%} of the codes differ" if differing > 1e-3 or apart.max() > 1 else ""


def f8_inputs(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.near_one(1, dtype=F32)


def delayed_f8(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    return (wide * scale).clamp(-448, 448).to(torch.float8_e4m3fn), wide.abs().amax()


def is_eagers(inputs: Arguments, results: Sequence[Tensor]) -> str:
    """Each number is computed in one rounding, which all have to agree on."""
    same = all(torch.equal(one.float(), other.float()) for one, other in zip(results, delayed_f8(*inputs)))
    return "" if same else "other numbers than eager's"


def largest_so_far(x: Tensor) -> Tensor:
    return x.cummax(-1).values


def complex_filter(x: Tensor, y: Tensor) -> Tensor:
    real = x[..., 0] * y[..., 0] - x[..., 1] * y[..., 1]
    imaginary = x[..., 0] * y[..., 1] + x[..., 1] * y[..., 0]
    return torch.stack([real, imaginary], -1)


def pairs(make: Make, n: int, m: int) -> Arguments:
    return two_f32(make, n, m, 2)


def boxes(make: Make, n: int, m: int) -> Arguments:
    def some(count: int) -> Tensor:
        corner = make.normal(count, 2, dtype=F32)
        return torch.cat([corner, corner + make.near_one(count, 2, dtype=F32)], -1)

    return some(n), some(m)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = (a[:, 2:] - a[:, :2]).prod(-1)[:, None] + (b[:, 2:] - b[:, :2]).prod(-1)
    return shared / (areas - shared)


def graph(make: Make, nodes: int, edges: int, width: int) -> Arguments:
    features = make.normal(nodes, width, dtype=F32)
    return features, make.integers(edges, below=nodes), make.integers(edges, below=nodes)


def messages(features: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return torch.zeros_like(features).index_add(0, targets, features[sources])


def scored_graph(make: Make, nodes: int, edges: int) -> Arguments:
    return make.normal(edges, dtype=F32), make.integers(edges, below=nodes), make.normal(nodes, dtype=F32)


def attention_of_edges(scores: Tensor, targets: Tensor, nodes: Tensor) -> Tensor:
    largest = torch.full_like(nodes, float("-inf")).scatter_reduce(0, targets, scores, "amax")
    weights = (scores - largest[targets]).exp()
    return weights / torch.zeros_like(nodes).index_add(0, targets, weights)[targets]


def polynomial(x: Tensor) -> Tensor:
    result = torch.full_like(x, 0.125)
    for factor in (0.25, -0.5, 0.75, -1.0, 0.3, -0.2, 0.1):
        result = result * x + factor
    return result


CASES = (
    Case(
        name="focal loss of 64M f32",
        function=focal,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="smooth L1 fwd+bwd of 64M f32",
        function=smooth_loss,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        train=True,
        again=both_bytes,
        why="the backward pass reads the inputs again",
        set="later",
    ),
    Case(
        name="triplet loss 131072x512",
        function=triplet_loss,
        inputs=triples,
        size=(131072, 512),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="clipped norms of 30 tensors f32",
        function=clipped,
        inputs=lists,
        size=(30, 2048, 2048),
        tiny=(3, 5, 4),
        mutates=(0,),
        again=all_bytes,
        why="the norm of all comes before the first result",
        set="later",
    ),
    Case(
        name="Lion 8192x8192 f32",
        function=lion,
        inputs=lion_inputs,
        size=(8192, 8192),
        tiny=(5, 9),
        mutates=(0, 2),
        set="later",
    ),
    Case(
        name="SGD with master weights 8192x8192",
        function=sgd_with_master,
        inputs=master_inputs,
        size=(8192, 8192),
        tiny=(5, 9),
        mutates=(0, 2, 3),
        reads=param_bytes,
        set="later",
    ),
    Case(
        name="second moments by rows and columns 16384x8192",
        function=second_moments,
        inputs=normal,
        size=(16384, 8192),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="unpacked 4-bit weights 16384x8192",
        function=unpacked,
        inputs=packed,
        size=(16384, 8192),
        tiny=(5, 256),
        set="later",
    ),
    Case(
        name="groups of 128 quantised 16384x8192 to i8",
        function=grouped_quantised,
        inputs=normal,
        size=(16384, 8192),
        tiny=(5, 256),
        check=are_near,
        set="later",
    ),
    Case(
        name="fp8 and the largest 16384x8192",
        function=delayed_f8,
        inputs=f8_inputs,
        size=(16384, 8192),
        tiny=(5, 9),
        check=is_eagers,
        set="later",
    ),
    Case(
        name="largest so far 16384x4096",
        function=largest_so_far,
        inputs=normal,
        size=(16384, 4096),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="complex filter of 32M pairs f32",
        function=complex_filter,
        inputs=pairs,
        size=(4096, 8192),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="overlaps of 8192x8192 boxes f32",
        function=overlaps,
        inputs=boxes,
        size=(8192, 8192),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="messages of 2M edges 200000x64 f32",
        function=messages,
        inputs=graph,
        size=(200000, 1 << 21, 64),
        tiny=(5, 9, 4),
        set="later",
    ),
    Case(
        name="attention of 8M edges to 500000 nodes f32",
        function=attention_of_edges,
        inputs=scored_graph,
        size=(500000, 1 << 23),
        tiny=(5, 19),
        set="later",
    ),
    Case(
        name="polynomial of 64M f32",
        function=polynomial,
        inputs=normal_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="later",
    ),
)
