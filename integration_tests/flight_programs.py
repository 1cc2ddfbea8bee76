"""Programs that communicate between two processes, in each of the ways that torch has, for
`test_flight_programs.py`.

Each is a function of `x`, of `ROWS` rows, `w`, a square matrix, and of the groups it communicates in. Its
results are what it returns, waited for, and the gradients of `x` and `w` where it is differentiable. What
eager mode would make a race is not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as funcol
from torch.utils.checkpoint import checkpoint

ops: Any = torch.ops._c10d_functional
RANKS = 2
ROWS = 8


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a process: all ranks, all ranks once more, and this rank alone; with their names."""

    world: Any
    again: Any
    alone: Any
    rank: int

    @property
    def name(self) -> str:
        return self.world.group_name


@dataclass(frozen=True, slots=True)
class FlightProgram:
    """A program.

    Attributes:
        whole: it is one graph; False: Dynamo breaks it where it communicates.
        differentiates: gradients are asked for.
        dynamic: it is called with several sizes, compiled for all.
        needs: the operator that not every torch has; or, as `"Any group_name"`, a parameter of one.
    """

    function: Callable[[Tensor, Tensor, Groups], Any]
    whole: bool = True
    differentiates: bool = False
    dynamic: bool = False
    needs: str = ""

    def is_there(self) -> bool:
        """Whether this torch has what it needs."""
        return any(self.needs in str(schema) for schema in torch._C._jit_get_all_schemas())

    @property
    def name(self) -> str:
        return self.function.__name__


def functional_sum(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = funcol.all_reduce(z, "sum", groups.world)
    return g + 1, (z + 1).cos()


def in_a_group_object(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = ops.all_gather_into_tensor(z, RANKS, groups.world)
    u = (z + 1).cos()
    return ops.wait_tensor(g), u


def in_smaller_groups(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = ops.all_gather_into_tensor(z, 1, groups.alone.group_name)
    h = ops.all_gather_into_tensor(z, RANKS, groups.again.group_name)
    u = (z + 1).cos() @ w
    r = ops.all_reduce(u, "avg", groups.again.group_name)
    v = (u + 1).sin()
    return ops.wait_tensor(h), ops.wait_tensor(r), v, ops.wait_tensor(g)


def broadcast(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = ops.broadcast(z, 1, groups.name)
    u = (z + 1).cos()
    return ops.wait_tensor(g), u @ w


def uneven_exchange(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    given = [3, 5] if groups.rank == 0 else [6, 2]
    got = [3, 6] if groups.rank == 0 else [5, 2]
    g = ops.all_to_all_single(z, got, given, groups.name)
    u = (z + 1).cos() @ w
    return ops.wait_tensor(g), u


def exchange_of_nothing(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    given, got = ([0, 8], [0, 0]) if groups.rank == 0 else ([0, 8], [8, 8])
    g = ops.all_to_all_single(z, got, given, groups.name)
    u = (z + 1).cos() @ w
    return ops.wait_tensor(g) * 2, u


def coalesced(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    y = (z * 2).cos()
    g = ops.all_reduce_coalesced([z, y], "sum", groups.name)
    h = ops.all_gather_into_tensor_coalesced([z, y], RANKS, groups.name)
    s = ops.reduce_scatter_tensor_coalesced([z, y], "sum", RANKS, groups.name)
    u, v = (z + 1).cos(), (y + 1).sin()
    return tuple(ops.wait_tensor(one) for one in (*s, *g, *h)) + (u @ v.t(),)


def functional_coalesced(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = funcol.all_reduce_coalesced([z, z * 2], "sum", groups.world)
    h = funcol.all_gather_into_tensor_coalesced([z, z + 1], groups.world)
    s = funcol.reduce_scatter_tensor_coalesced([z, z - 1], "sum", [0, 0], groups.world)
    return (*[one * 2 for one in (*g, *h, *s)], (z + 1).cos())


def into_given_memory(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    whole, part = x.new_empty(ROWS * RANKS, z.shape[1]), x.new_empty(ROWS // RANKS, z.shape[1])
    g = ops.all_gather_into_tensor_out(z, RANKS, groups.name, out=whole)
    h = ops.reduce_scatter_tensor_out(z, "sum", RANKS, groups.name, out=part)
    u = (z + 1).cos()
    ops.wait_tensor(h)
    return part + 1, u @ w, ops.wait_tensor(g)


def in_place(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z, y = x @ w, x.sin()
    ops.all_reduce_(z, "sum", groups.name)
    ops.broadcast_(y, 1, groups.name)
    u = (x + 1).cos()
    ops.wait_tensor(y)
    return ops.wait_tensor(z) * 2, y, u


def gathered_with_dist(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    whole = x.new_empty(ROWS * RANKS, z.shape[1])
    dist.all_gather_into_tensor(whole, z)
    parts = [torch.empty_like(z) for _ in range(RANKS)]
    dist.all_gather(parts, z.sin(), group=groups.again)
    return whole * 2, (z + 1).cos(), *parts


def summed_with_dist(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    y = z.cos()
    dist.all_reduce(z)
    part = x.new_empty(ROWS // RANKS, z.shape[1])
    dist.reduce_scatter_tensor(part, y, op=dist.ReduceOp.MAX, group=groups.again)
    return z * 2, part, (y + 1).cos()


def exchanged_with_dist(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    got = torch.empty_like(z)
    dist.all_to_all_single(got, z)
    given, theirs = ([3, 5], [3, 6]) if groups.rank == 0 else ([6, 2], [5, 2])
    uneven = x.new_empty(sum(theirs), z.shape[1])
    dist.all_to_all_single(uneven, z, theirs, given)
    return got + 1, uneven, (z + 1).cos()


def sent_and_received(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    other = 1 - groups.rank
    y = torch.zeros_like(z)
    if groups.rank == 0:
        g, h = ops.isend(z, other, 0, groups.name), ops.irecv(y, other, 1, groups.name)
    else:
        h, g = ops.irecv(y, other, 0, groups.name), ops.isend(z, other, 1, groups.name)
    u = (z + 1).cos() @ w
    ops.wait_tensor(g)
    return ops.wait_tensor(h) + 1, u, y * 2


def sent_with_dist(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    other = 1 - groups.rank
    y = torch.zeros_like(z)
    # NCCL runs what two ranks exchange in the order of the calls: were both to send first, neither would end
    if groups.rank == 0:
        works = [dist.isend(z, other), dist.irecv(y, other)]
    else:
        works = [dist.irecv(y, other), dist.isend(z, other)]
    u = (z + 1).cos() @ w
    for work in works:
        work.wait()
    return y + 1, u


def batch_between_two(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    other = 1 - groups.rank
    y = torch.zeros_like(z)
    v = torch.zeros_like(z)
    sent = z * 2
    got = ops.batch_p2p_ops(
        ["isend", "irecv", "isend", "irecv"], [other] * 4, [0, 0, 1, 1], [z, y, sent, v], groups.name
    )
    u = (z + 1).cos() @ w
    done = [ops.wait_tensor(one) for one in reversed(got)]
    return done[0] + 1, done[2], u


def received_one_by_one(x: Tensor, w: Tensor, groups: Groups) -> Any:
    """Into equal zeros, one of which stays; into rows of a tensor; into an input."""
    other = 1 - groups.rank
    z = x @ w
    zeros, first, rows = torch.zeros_like(z), torch.zeros_like(z), torch.zeros_like(z)
    part = rows[2:4]
    before = first + 1
    started = []
    for tag, (sent, got) in enumerate(((z, first), (z[:2] * 2, part), (z + 3, x))):
        pair = [lambda s=sent, t=tag: ops.isend(s, other, t, groups.name)]
        pair.append(lambda g=got, t=tag: ops.irecv(g, other, t, groups.name))
        started += [one() for one in (pair if groups.rank == 0 else pair[::-1])]
    u = (z + 1).cos() @ w
    for one in started[::-1]:
        ops.wait_tensor(one)
    return zeros, before, first + 1, rows * 2, x + 1, u


def received_in_training(x: Tensor, w: Tensor, groups: Groups) -> Any:
    other = 1 - groups.rank
    y = torch.zeros_like(x.detach())
    z = (x.detach() @ w.detach()).cos()
    got = ops.batch_p2p_ops(["isend", "irecv"], [other] * 2, [0, 0], [z, y], groups.name)
    u = (x @ w).sin()
    for one in got:
        ops.wait_tensor(one)
    return (u * y).sum() + (y.cos() @ w).sum()


def batch_with_dist(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    other = 1 - groups.rank
    y = torch.zeros_like(z)
    started = dist.batch_isend_irecv([dist.P2POp(dist.isend, z, other), dist.P2POp(dist.irecv, y, other)])
    u = (z + 1).cos() @ w
    for work in started:
        work.wait()
    return y + 1, u


def to_and_from_one(x: Tensor, w: Tensor, groups: Groups) -> Any:
    """What has no functional form: Dynamo breaks the graph there."""
    z = x @ w
    y, s = z.sin(), z.cos()
    dist.broadcast(z, src=1)
    dist.reduce(s, dst=0)
    if groups.rank:
        s = s * 0
    parts = [torch.empty_like(z) for _ in range(RANKS)] if groups.rank == 0 else None
    dist.gather(y, parts, dst=0)
    part = torch.empty_like(z)
    dist.scatter(part, parts, src=0)
    return z + 1, s, part * 2, (y + 1).cos()


def works(x: Tensor, w: Tensor, groups: Groups) -> Any:
    """Collectives that return a work, which is waited for with others at work between them."""
    z = x @ w
    y = z.sin()
    whole = x.new_empty(ROWS * RANKS, z.shape[1])
    first = dist.all_reduce(y, async_op=True)
    second = dist.all_gather_into_tensor(whole, z, async_op=True)
    u = (x + 1).cos() @ w
    second.wait()
    v = (u + 1).sin()
    first.wait()
    return whole + 1, y * 2, u, v


def waited_in_a_later_graph(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = ops.all_gather_into_tensor(z, RANKS, groups.name)
    u = (z + 1).cos()
    torch._dynamo.graph_break()
    v = (u @ w).sin()
    return ops.wait_tensor(g) + 1, v


def read_in_a_later_graph(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = funcol.all_gather_tensor(z, 0, groups.world)
    u = (z + 1).cos()
    torch._dynamo.graph_break()
    return g + 1, (u @ w).sin()


def never_waited(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    ops.all_gather_into_tensor(z, RANKS, groups.name)
    g = ops.all_reduce(z, "sum", groups.name)
    u = (z + 1).cos()
    return u @ w, (u + 1).sin(), g


def waited_in_any_order(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    first = ops.all_gather_into_tensor(z, RANKS, groups.name)
    second = ops.reduce_scatter_tensor(z, "sum", RANKS, groups.name)
    third = ops.all_reduce(z, "sum", groups.name)
    u = (z + 1).cos() @ w
    c = ops.wait_tensor(third)
    v = (u + c).sin()
    a = ops.wait_tensor(first.view(RANKS, -1)[1:])
    b = ops.wait_tensor(second)
    return a, ops.wait_tensor(first) + 1, ops.wait_tensor(b) * 2, v, ops.wait_tensor(c)


def in_a_branch(x: Tensor, w: Tensor, groups: Groups) -> Any:
    def then(z: Tensor, w: Tensor) -> Tensor:
        g = ops.all_gather_into_tensor(z @ w, RANKS, groups.name)
        u = (z + 1).cos()
        return ops.wait_tensor(g)[:ROWS] + u

    def otherwise(z: Tensor, w: Tensor) -> Tensor:
        return ops.wait_tensor(ops.all_reduce(z, "sum", groups.name)) * 2

    z = x @ w
    h = ops.all_reduce(z, "sum", groups.name)
    u = torch.cond(ops.wait_tensor(ops.all_reduce(z.sum(), "sum", groups.name)) > 0, then, otherwise, (z, w))
    return ops.wait_tensor(h), (u + 1).cos()


def of_any_size(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    n = z.shape[0]
    g = ops.all_gather_into_tensor(z, RANKS, groups.name)
    h = ops.all_to_all_single(z, [n // 2] * 2, [n // 2] * 2, groups.name)
    r = ops.reduce_scatter_tensor(z, "sum", RANKS, groups.name)
    u = (z + 1).cos()
    return ops.wait_tensor(g), u @ w, ops.wait_tensor(h) + ops.wait_tensor(r).repeat(2, 1)


def differentiable(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = (
        funcol.all_gather_single_autograd(z, 0, groups.world)
        if hasattr(funcol, "all_gather_single_autograd")
        else funcol.all_gather_tensor_autograd(z, 0, groups.world)
    )
    s = funcol.reduce_scatter_tensor_autograd(z.sin(), "sum", 0, groups.world)
    e = funcol.all_to_all_single_autograd(z, [ROWS // RANKS] * RANKS, [ROWS // RANKS] * RANKS, groups.world)
    return (g * 2).sum() + (z + 1).cos().sum() + (s * s).sum() + e.sin().sum()


def summed_in_backward(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    g = funcol.all_reduce(z, "sum", groups.world)
    return (g.sin() * z).sum()


def recomputed(x: Tensor, w: Tensor, groups: Groups) -> Any:
    def inner(x: Tensor, w: Tensor) -> Tensor:
        z = torch.tanh(x @ w)
        g = funcol.all_gather_tensor_autograd(z, 0, groups.world)
        return torch.cat([g[:ROWS], (z + 1).cos()]) @ w

    return checkpoint(inner, x, w, use_reentrant=False).sin().sum()


class _Summed(torch.autograd.Function):
    """The sum over all ranks, started in the backward graph and waited for behind other work there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g = ops.all_gather_into_tensor(grad.contiguous(), RANKS, ctx.name)
        scaled = (grad + 1).cos()
        h = ops.wait_tensor(g)
        return h[:ROWS] + h[ROWS:] + scaled, None


def started_in_backward(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = _Summed.apply(x @ w, groups.name)
    return (z.sin() @ w).sum()


PROGRAMS: tuple[FlightProgram, ...] = (
    *(
        FlightProgram(function)
        for function in (
            functional_sum, in_smaller_groups, broadcast, uneven_exchange, exchange_of_nothing,
            coalesced, functional_coalesced, into_given_memory, in_place, gathered_with_dist,
            summed_with_dist,
            exchanged_with_dist, never_waited, waited_in_any_order, in_a_branch,
        )
    ),
    *(
        FlightProgram(function, whole=False)
        for function in (
            sent_with_dist, batch_with_dist, to_and_from_one, works, waited_in_a_later_graph,
            read_in_a_later_graph,
        )
    ),
    FlightProgram(of_any_size, dynamic=True),
    FlightProgram(in_a_group_object, needs="Any group_name"),
    FlightProgram(sent_and_received, needs="_c10d_functional::isend("),
    FlightProgram(received_one_by_one, needs="_c10d_functional::isend("),
    FlightProgram(batch_between_two, needs="_c10d_functional::batch_p2p_ops("),
    FlightProgram(received_in_training, needs="_c10d_functional::batch_p2p_ops(", differentiates=True),
    *(
        FlightProgram(function, differentiates=True)
        for function in (differentiable, summed_in_backward, recomputed, started_in_backward)
    ),
)  # fmt: skip
