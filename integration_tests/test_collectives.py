"""Collectives in flight: operands and results live, and stay as they are, until the wait, whoever drives the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork_cache import MemoryStore
from integration_tests.all_levels import AllLevels
from integration_tests.delayed_group import RANKS, DelayedGroup, Freed, delayed_group
from integration_tests.fuzz.collectives import check, run_gloo
from integration_tests.fuzz.flights import draw

ops: Any = torch.ops._c10d_functional
ROWS = 2 * RANKS
SIZES = [2] * RANKS
DRIVERS: dict[str, dict[str, Any]] = {
    "native": {"executor": "native"},
    "python": {"executor": "python"},
    "fx": {"wrapper": "fx"},
}


@pytest.fixture(scope="module")
def group() -> Iterator[DelayedGroup]:
    with delayed_group() as made:
        yield made


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gathered(z: Tensor) -> Tensor:
    return ops.all_gather_into_tensor(z, RANKS, "0")


def all_gather(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    u = (z + 1).cos()
    return ops.wait_tensor(g), u


def all_to_all(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = ops.all_to_all_single(z, SIZES, SIZES, "0")
    u = (z + 1).cos()
    return ops.wait_tensor(g), u @ w


def reduce_scatter(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = ops.reduce_scatter_tensor(z, "sum", RANKS, "0")
    u = (z + 1).cos() @ w
    return ops.wait_tensor(g) + 1, (u + 1).sin()


def two_of_one_operand(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g, h = gathered(z), gathered(z)
    u = (z + 1).cos()
    first = ops.wait_tensor(g).mean()
    v = (u + first).sin()
    return ops.wait_tensor(h), v


def coalesced(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    y = (z * 2).contiguous()
    g = ops.all_gather_into_tensor_coalesced([z, y], RANKS, "0")
    u, v = (z + 1).cos(), (y + 1).sin()
    first = ops.wait_tensor(g[0])
    return first, u @ v, ops.wait_tensor(g[1])


def one_result_of_two_is_dropped(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    y = z.sin()
    g = ops.all_gather_into_tensor_coalesced([z, y], RANKS, "0")
    u, v = (z + 1).cos(), (y + 1).sin()
    return ops.wait_tensor(g[0]), u @ v


def waited_through_a_view(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    u = (z + 1).cos()
    return ops.wait_tensor(g.view(-1)[3:]), u


def waited_through_no_layout(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    u = (z + 1).cos()
    return ops.wait_tensor(g.t()[1:]) + 1, u


def read_under_its_own_name(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    u = (z + 1).cos()
    ops.wait_tensor(g)
    return g + 1, u, g.view(-1)[2:]


def waited_twice(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    h = gathered(ops.wait_tensor(g)[:ROWS])
    u = ops.wait_tensor(g).cos()
    return ops.wait_tensor(h), (u + 1).sin()


def overwritten_copies(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    y = z.clone()
    y[1:3] = 0
    v = y.index_put((torch.tensor([1, 2]),), torch.ones(ROWS))
    return ops.wait_tensor(g), v @ w


def scattered_copy(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    v = z.index_put((torch.tensor([1, 2]),), torch.ones(ROWS))
    return ops.wait_tensor(g), v @ w


def transposed_sum(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = ops.all_reduce(z.t(), "sum", "0")
    h = ops.all_reduce_coalesced([z.t(), x], "sum", "0")
    u = (z + 1).cos()
    # torch says that the second lies transposed; it does not
    return ops.wait_tensor(g), (ops.wait_tensor(h[0]) + u).contiguous(), ops.wait_tensor(h[1])


def received(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    ops.wait_tensor(ops.isend(z, 1, 0, "0"))
    y = z * 2
    g = ops.irecv(y, 1, 0, "0")
    u = (x + 1).cos()
    got = ops.wait_tensor(g)
    return got + y, u


def input_overwritten_behind_the_wait(x: Tensor, w: Tensor) -> Any:
    g = gathered(x)
    u = (x @ w).cos()
    h = ops.wait_tensor(g)
    x.add_(1)
    return h * 2, u


def left_in_flight(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    g = gathered(z)
    u = (z + 1).cos()
    return u @ w, g


def in_place(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    r = ops.all_reduce_(z, "sum", "0")
    u = (x + 1).cos() @ w
    y = ops.wait_tensor(r) + 1
    b = ops.broadcast_(x, 1, "0")
    v = (u + 1).sin()
    ops.wait_tensor(x)
    return y, z, v, b * 2


def several_in_place(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    y = z + 1
    r = ops.all_reduce_coalesced_([z, y], "sum", "0")
    u = (x + 1).cos() @ w
    ops.wait_tensor(r[1])
    v = ops.wait_tensor(z).sin()
    return r[0] + r[1], y, u, v


def into_given_memory(x: Tensor, w: Tensor) -> Any:
    z = x @ w
    u = (z + 1).cos()
    part = torch.empty(2, ROWS)
    h = ops.reduce_scatter_tensor_out(z, "sum", RANKS, "0", out=part)
    v = (u + 1).sin() @ w
    return ops.wait_tensor(h) + 1, part * 2, v


def in_one_branch(x: Tensor, w: Tensor) -> Any:
    def then(z: Tensor) -> Tensor:
        g = ops.all_reduce(z, "sum", "0")
        return ops.wait_tensor(g) * 2

    z = x @ w
    h = gathered(z)
    u = torch.cond(x.sum() > -1e9, then, torch.sin, (z,))
    return ops.wait_tensor(h), (u + 1).cos()


def waited_in_one_branch(x: Tensor, w: Tensor) -> Any:
    def then(g: Tensor, z: Tensor) -> Tensor:
        return ops.wait_tensor(g) * 2 + z.sum()

    def otherwise(g: Tensor, z: Tensor) -> Tensor:
        return ops.wait_tensor(g) - z.sum()

    z = x @ w
    g = gathered(z)
    u = torch.cond(x.sum() > -1e9, then, otherwise, (g, z))
    return u, (z + 1).cos()


FUNCTIONS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    all_gather, all_to_all, reduce_scatter, two_of_one_operand, coalesced, one_result_of_two_is_dropped,
    waited_through_a_view, waited_through_no_layout, read_under_its_own_name, waited_twice,
    overwritten_copies,
    scattered_copy, transposed_sum, received, input_overwritten_behind_the_wait, left_in_flight, in_place,
    several_in_place, into_given_memory, in_one_branch,
    waited_in_one_branch,
)  # fmt: skip
# levels are compared as soon as they return, and begin behind AOTAutograd, which refuses collectives in place
NOT_AT_EVERY_LEVEL = (left_in_flight, in_place, several_in_place, into_given_memory)


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(ROWS, ROWS, generator=generator) for _ in range(2)]


def results(function: Callable[..., Any], given: list[Tensor]) -> list[Tensor]:
    """Everything that is to be seen of a call, waited for."""
    returned = [ops.wait_tensor(result).clone() for result in function(*given)]
    return [*returned, *given]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_level_agrees_with_eager(group: DelayedGroup, function: Callable[..., Any]) -> None:
    group.holds = True
    backend = AllLevels(store=MemoryStore())
    if function not in NOT_AT_EVERY_LEVEL:
        torch.compile(function, backend=backend, fullgraph=True)(*inputs())
        assert backend.calls == 1
    expected = results(function, inputs())
    for name, options in DRIVERS.items():
        torch._dynamo.reset()
        compiled = torch.compile(
            function, backend="coilwork", fullgraph=True, options={"strict": True, **options}
        )
        # what leaves the program in flight nobody in it can keep
        group.holds = function in (left_in_flight,)
        for _ in range(2):
            found = results(compiled, inputs())
            for got, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=name)


def test_the_test_group_detects_freed_and_overwritten_operands(group: DelayedGroup) -> None:
    """The judge: an operand that is gone is an error, one that changed is in the result."""
    group.holds = False
    g = gathered(torch.ones(ROWS, ROWS))
    with pytest.raises(Freed):
        ops.wait_tensor(g)
    x = torch.ones(ROWS, ROWS)
    g = gathered(x)
    assert g.isnan().all()
    x.add_(1)
    assert ops.wait_tensor(g)[0, 0] == 2


def test_gradients_of_collectives_agree(group: DelayedGroup) -> None:
    """Started and waited for in the forward graph, the backward graph, or one in each."""
    from torch.distributed import _functional_collectives as funcol

    group.holds = True

    def function(x: Tensor, w: Tensor) -> Tensor:
        z = x @ w
        return (funcol.all_gather_tensor_autograd(z, 0, torch.distributed.group.WORLD) * 2).sum() + (
            z + 1
        ).cos().sum()

    def gradients(call: Callable[..., Tensor]) -> list[Tensor]:
        given = [value.requires_grad_() for value in inputs()]
        return list(torch.autograd.grad(call(*given), given))

    expected = gradients(function)
    backend = AllLevels(store=MemoryStore())
    found = gradients(torch.compile(function, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, expected)
    assert sorted(backend.graphs) == ["backward", "forward"]


def test_a_result_in_flight_may_be_an_input(group: DelayedGroup) -> None:
    """As itself, and as the tensor subclass that waits when it is read; with work on it before the wait in
    the graph.
    """
    from torch.distributed import _functional_collectives as funcol

    group.holds = True

    def awaited(g: Tensor, x: Tensor) -> Any:
        u = (x + 1).cos()
        return ops.wait_tensor(g) + 1, u

    def read(g: Tensor, x: Tensor) -> Any:
        return g + 1, (x + 1).cos()

    x = inputs()[0]
    expected = [torch.cat([x + rank for rank in range(RANKS)]) + 1, (x + 1).cos()]
    for options in DRIVERS.values():
        torch._dynamo.reset()
        compiled = torch.compile(
            awaited, backend="coilwork", fullgraph=True, options={"strict": True, **options}
        )
        torch.testing.assert_close(list(compiled(gathered(x), x)), expected)
        # memory that starts anywhere is waited for where it is
        whole = torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x)
        torch.testing.assert_close(list(compiled(gathered(whole), whole)), expected)
        compiled = torch.compile(
            read, backend="coilwork", fullgraph=True, options={"strict": True, **options}
        )
        flying = funcol.all_gather_tensor(x, 0, torch.distributed.group.WORLD)
        assert isinstance(flying, funcol.AsyncCollectiveTensor)
        torch.testing.assert_close(list(compiled(flying, x)), expected)


def test_an_operand_kept_by_an_unknown_operator_is_unchanged(group: DelayedGroup) -> None:
    """Nothing is known of it; it reads what it was given when its result is asked for, as a future does."""
    kept: dict[int, Tensor] = {}

    @torch.library.custom_op("flights::start", mutates_args=())
    def start(x: Tensor) -> Tensor:
        ticket = torch.tensor(len(kept))
        kept[int(ticket)] = x
        return ticket

    @torch.library.custom_op("flights::finish", mutates_args=())
    def finish(ticket: Tensor, like: Tensor) -> Tensor:
        return kept[int(ticket)].clone()

    start.register_fake(lambda x: x.new_empty((), dtype=torch.int64))
    finish.register_fake(lambda ticket, like: torch.empty_like(like))

    def function(x: Tensor, w: Tensor) -> Any:
        z = x @ w
        ticket = start(z)
        u = (z + 1).cos()
        v = (u @ w).sin()
        y = z.index_put((torch.tensor([1, 2]),), torch.ones(ROWS))
        return finish(ticket, v), v, y @ w

    expected = results_without_waits(function)
    for options in DRIVERS.values():
        torch._dynamo.reset()
        compiled = torch.compile(
            function, backend="coilwork", fullgraph=True, options={"strict": True, **options}
        )
        torch.testing.assert_close(results_without_waits(compiled), expected)


def results_without_waits(function: Callable[..., Any]) -> list[Tensor]:
    return [result.clone() for result in function(*inputs())]


@pytest.mark.parametrize("number, driver", list(enumerate(DRIVERS)))
def test_random_programs_agree_with_work_done_at_the_wait(
    group: DelayedGroup, number: int, driver: str
) -> None:
    for seed in range(20 * number, 20 * number + 20):
        assert check(draw(seed, RANKS, delayed=True), ("0", "0"), 0, DRIVERS[driver], group) == "", (
            f"seed {seed}"
        )


def test_random_programs_agree_over_gloo() -> None:
    """A few; `python -m integration_tests.fuzz.collectives` runs as many as one likes, over more ranks."""
    outcomes = list(run_gloo(2, range(12), {}, 240.0))
    assert [outcome for outcome in outcomes if outcome.error] == []
    assert len(outcomes) > 2
