"""Models that exchange activations themselves: context-parallel attention in three ways, experts by
all-to-all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import _functional_collectives as funcol

from integration_tests.ranks.training import Setting, Step, average, descend
from integration_tests.ranks.transformer import Attention, Block, Decoder, Scale, loss_of

# queries, keys and values of this rank's part of the sequence, (batch, heads, part, head width), to its part
# of the result
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def _exchange(x: Tensor) -> Tensor:
    """Part k of dimension 0, in as many equal parts as ranks, goes to rank k."""
    sizes = [x.shape[0] // dist.get_world_size()] * dist.get_world_size()
    return funcol.all_to_all_single_autograd(x.contiguous(), sizes, sizes, dist.group.WORLD)


def _pass_on(x: Tensor) -> Tensor:
    """What the rank before had as `x`; differentiable."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    flat = x.contiguous().flatten()
    given = [flat.numel() if one == (rank + 1) % ranks else 0 for one in range(ranks)]
    got = [flat.numel() if one == (rank - 1) % ranks else 0 for one in range(ranks)]
    return funcol.all_to_all_single_autograd(flat, got, given, dist.group.WORLD).view(x.shape)


def mix_gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every rank gathers all keys and values."""
    part, rank = q.shape[2], dist.get_rank()
    # parts in dimension 0, then side by side in the sequence
    k, v = (
        torch.cat(funcol.all_gather_tensor_autograd(x.contiguous(), 0, dist.group.WORLD).chunk(
            dist.get_world_size()), 2)
        for x in (k, v)
    )  # fmt: skip
    places = torch.arange(k.shape[2], device=q.device)
    mask = places[None, :] <= places[rank * part : (rank + 1) * part, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def mix_by_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every rank gets whole sequences of its part of the heads, and gives them back (Ulysses)."""
    ranks = dist.get_world_size()

    def gather_sequence(x: Tensor) -> Tensor:
        b, h, n, d = x.shape
        split = x.view(b, ranks, h // ranks, n, d).movedim(1, 0)
        # (ranks of the sequence, b, h // ranks, n, d)
        return _exchange(split).movedim(0, 2).reshape(b, h // ranks, ranks * n, d)

    mixed = F.scaled_dot_product_attention(*map(gather_sequence, (q, k, v)), is_causal=True)
    b, h, n, d = mixed.shape
    split = mixed.view(b, h, ranks, n // ranks, d).movedim(2, 0)
    return _exchange(split).movedim(0, 1).reshape(b, h * ranks, n // ranks, d)


def mix_in_a_ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys and values go round; each rank adds up its softmax by its running maximum."""
    ranks, rank, part = dist.get_world_size(), dist.get_rank(), q.shape[2]
    scale = q.shape[-1] ** -0.5
    places = torch.arange(part, device=q.device)
    top = q.new_full((*q.shape[:3], 1), -1e30)
    below, sums = torch.zeros_like(top), torch.zeros_like(q)
    for turn in range(ranks):
        source = (rank - turn) % ranks
        following = [_pass_on(x) for x in (k, v)] if turn + 1 < ranks else []
        mask = places[None, :] + source * part <= places[:, None] + rank * part
        scores = (q @ k.mT * scale).masked_fill(~mask, -1e30)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        # of a part that lies behind, nothing is left
        weights = (scores - higher).exp() * mask
        faded = (top - higher).exp()
        below, sums = below * faded + weights.sum(-1, keepdim=True), sums * faded + weights @ v
        top = higher
        if following:
            k, v = following
    return sums / below


class PartAttention(Attention):
    """Attention between parts of a sequence, one on each rank."""

    def __init__(self, scale: Scale, mix: Mix) -> None:
        super().__init__(scale)
        self.mix_parts = mix

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[0], x.shape[1]
        q, k, v = (
            part(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for part in (self.wq, self.wk, self.wv)
        )
        return self.wo(self.mix_parts(q, k, v).transpose(1, 2).reshape(batch, length, -1))


class Experts(nn.Module):
    """A feed-forward part of `2 * ranks` experts, two on each rank, each token to the one it likes best.

    An expert takes as many tokens of each rank as it gets if all are liked alike, and half as many more;
    tokens beyond that pass by.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.count = 2 * dist.get_world_size()
        self.router = nn.Linear(scale.width, self.count, bias=False)
        # all ranks draw all experts, and keep their own
        first, second = torch.randn(2, self.count, scale.width, 2 * scale.width) * scale.width**-0.5
        mine = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
        self.w1, self.w2 = nn.Parameter(first[mine].clone()), nn.Parameter(second.mT[mine].clone())

    def forward(self, x: Tensor) -> Tensor:
        ranks, width = dist.get_world_size(), x.shape[-1]
        tokens = x.reshape(-1, width)
        room = 3 * tokens.shape[0] // (2 * self.count)
        weights = self.router(tokens).softmax(-1)
        weight, expert = weights.max(-1)
        chosen = F.one_hot(expert, self.count)
        place = ((chosen.cumsum(0) - 1) * chosen).sum(1)
        fits = place < room
        # the last slot is for tokens that pass by
        slot = torch.where(fits, expert * room + place, self.count * room)
        sent = tokens.new_zeros(self.count * room + 1, width).index_copy(0, slot, tokens)[:-1]
        # (source rank, my expert, room, width)
        got = _exchange(sent).view(ranks, 2, room, width).transpose(0, 1).reshape(2, ranks * room, width)
        hidden = F.gelu(torch.bmm(got, self.w1), approximate="tanh")
        made = torch.bmm(hidden, self.w2).view(2, ranks, room, width).transpose(0, 1)
        back = _exchange(made.reshape(-1, width))
        back = torch.cat([back, back.new_zeros(1, width)])
        return (back[slot] * (weight * fits).unsqueeze(-1)).view_as(x)


def _make_context_parallel(scale: Scale, mix: Mix, checkpoints: bool) -> Decoder:
    model = Decoder(scale, checkpoints=checkpoints)
    for layer in model.layers:
        torch.manual_seed(11)
        layer.attention = PartAttention(scale, mix)
    return model


def _make_mixture(scale: Scale) -> Decoder:
    model = Decoder(scale)
    for number in range(len(model.layers)):
        model.layers[number] = Block(scale, mixer=Experts(scale))
    return model


def _train(setting: Setting, model: nn.Module, *, in_parts: bool) -> Step:
    """`in_parts`: ranks have parts of the same sequences; otherwise batches of their own. Gradients of what
    is equal on all ranks are averaged in eager mode, in one piece."""
    ranks = setting.me.ranks

    def whole(tokens: Tensor, targets: Tensor) -> Tensor:
        return loss_of(model(tokens), targets)

    forward = setting.compile(whole)
    optimizer = descend(model.parameters())
    own = {
        name for name, _ in model.named_parameters() if name.endswith((".w1", ".w2")) and in_parts is False
    }
    shared = [parameter for name, parameter in model.named_parameters() if name not in own]
    local = [parameter for name, parameter in model.named_parameters() if name in own]

    def step(number: int) -> Tensor:
        tokens, targets = setting.batch(number, own=not in_parts)
        if in_parts:
            tokens, targets = (x.chunk(ranks, 1)[setting.me.rank].contiguous() for x in (tokens, targets))
        loss = forward(tokens, targets)
        loss.backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in shared if parameter.grad is not None])
        dist.all_reduce(flat)
        for parameter, part in zip(shared, flat.split([parameter.numel() for parameter in shared])):
            parameter.grad = (part / ranks).view_as(parameter)
        for parameter in local:
            parameter.grad = parameter.grad / ranks if parameter.grad is not None else None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return average(loss, ranks)

    return step


def context_parallel(setting: Setting, *, mix: Mix = mix_gathered, checkpoints: bool = False) -> Step:
    model = setting.module(partial(_make_context_parallel, mix=mix, checkpoints=checkpoints))
    return _train(setting, model, in_parts=True)


def mixture_of_experts(setting: Setting) -> Step:
    return _train(setting, setting.module(_make_mixture), in_parts=False)
