"""Programs on a GPU whose work goes on after its call: on streams of the program's own, in copies that do not block, in operators that keep operands.

They are run as those of `flight_programs.py` are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from integration_tests.flight_programs import RANKS, FlightProgram, Groups, ops

SLEEP = 2_000_000  # cycles: about a millisecond


@functools.cache
def _side() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def on_a_stream(x: Tensor, w: Tensor, groups: Groups) -> Any:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    z = x @ w
    side.wait_stream(current)
    with torch.cuda.stream(side):
        u = (z + 1).cos() @ w
    v = (x + 1).sin() @ w
    y = (v * 2).relu()
    current.wait_stream(side)
    u.record_stream(current)
    return u + v, y @ w


def behind_events(x: Tensor, w: Tensor, groups: Groups) -> Any:
    side, before, after = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    z = x @ w
    before.record()
    with torch.cuda.stream(side):
        before.wait(side)
        u = (z + 1).cos() @ w
        s = u.sum(1)
        after.record(side)
    v = (x + 1).sin() @ w
    after.wait(torch.cuda.current_stream())
    return u + v, s


def collective_on_a_stream(x: Tensor, w: Tensor, groups: Groups) -> Any:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    z = x @ w
    side.wait_stream(current)
    with torch.cuda.stream(side):
        g = ops.all_gather_into_tensor(z, RANKS, groups.name)
        u = (z + 1).cos()
        h = ops.wait_tensor(g) * 2
    v = (x + 1).sin() @ w
    current.wait_stream(side)
    return h, u, v


def copied_without_blocking(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    host = z.to("cpu", non_blocking=True)
    u = (z + 1).cos() @ w
    torch.cuda.synchronize()
    forth = (host * 2).to(x.device, non_blocking=True)
    later = (host + 1).cos() * 3
    return u, forth, later, (later - 1).to(x.device)


def copied_from_pinned(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    host = z.to("cpu", non_blocking=True)
    u = (z + 1).cos() @ w
    torch.cuda.synchronize()
    back = (host * 2).pin_memory().to(x.device, non_blocking=True)
    return back + u, host + 1


def copied_into_pinned(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    host = torch.empty(z.shape, pin_memory=True)
    host.copy_(z, non_blocking=True)
    u = (z + 1).cos() @ w
    torch.cuda.synchronize()
    back = torch.empty_like(z)
    back.copy_(host, non_blocking=True)
    return back + u, host * 2


# An operator of a user's that reads its operand on a stream of its own, later, and holds it until it is asked for the result.
_HELD: dict[int, tuple[Tensor, Tensor]] = {}


@torch.library.custom_op("coilwork_stream_flights::start", mutates_args=())
def start(x: Tensor) -> Tensor:
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        doubled = x * 2
    ticket = len(_HELD)
    _HELD[ticket] = (x, doubled)
    return torch.tensor(ticket)


@torch.library.custom_op("coilwork_stream_flights::finish", mutates_args=())
def finish(ticket: Tensor, like: Tensor) -> Tensor:
    torch.cuda.current_stream().wait_stream(_side())
    return _HELD[int(ticket)][1].clone()


start.register_fake(lambda x: torch.empty((), dtype=torch.int64))
finish.register_fake(lambda ticket, like: torch.empty_like(like))


def kept_by_an_operator(x: Tensor, w: Tensor, groups: Groups) -> Any:
    z = x @ w
    ticket = start(z)
    u = (z + 1).cos()
    v = (u @ w).sin()
    y = z.index_put((torch.tensor([1, 2], device=z.device),), torch.ones_like(z[0]))
    return finish(ticket, v), v, y @ w


PROGRAMS: tuple[FlightProgram, ...] = tuple(
    FlightProgram(function, whole=False)
    for function in (
        on_a_stream, behind_events, collective_on_a_stream, copied_without_blocking, copied_from_pinned,
        copied_into_pinned, kept_by_an_operator,
    )
)  # fmt: skip
