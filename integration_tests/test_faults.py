"""What goes wrong in the middle of a compiled model: the exception says where, nothing is lost, the next call
works.
"""

from __future__ import annotations

import gc
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from coilwork.backend import backend
from integration_tests.memory_events import allocator_events

if shutil.which("g++") is None or sys.platform != "linux":
    pytest.skip("needs g++ and Linux", allow_module_level=True)

MEBI = 1 << 20


def compiled(function: Callable[..., Any], *, dynamic: bool = False) -> Callable[..., Any]:
    torch._dynamo.reset()
    call: Callable[..., Any] = torch.compile(
        function, backend=backend, dynamic=dynamic, options={"strict": True, "executor": "native"}
    )
    return call


@contextmanager
def address_space(more_bytes: int) -> Iterator[None]:
    """The process may map so many bytes more than it has."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """As if somebody pressed Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def balance(run: Callable[[], object]) -> int:
    """Bytes that torch's allocator has handed out and not got back."""
    # what others left in cycles, else it may be collected while `run` runs
    gc.collect()
    return sum(allocator_events(run))


def outer_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x)
    return (y[:, None] + y[None, :]).cumsum(0), y


def test_an_allocation_failure_is_recovered_from() -> None:
    call = compiled(outer_sums, dynamic=True)
    small = torch.randn(7)
    with torch.no_grad():
        torch.testing.assert_close(call(small), outer_sums(small))
        large = torch.randn(20_000)  # asks for 1.6 GB
        failures = []

        def fail() -> None:
            for _ in range(5):
                with (
                    address_space(256 * MEBI),
                    pytest.raises(RuntimeError, match="allocate memory") as caught,
                ):
                    call(large)
                failures.append(caught.value.__notes__[0])

        assert balance(fail) == 0
        assert len(set(failures)) == 1 and failures[0].startswith("instruction ")
        torch.testing.assert_close(call(small), outer_sums(small))


def product_of_parts(x: Tensor, index: Tensor) -> Tensor:
    y = torch.tanh(x)
    return torch.index_select(y, 0, index).cumsum(0) @ y.t()


def test_a_refused_input_is_recovered_from() -> None:
    call = compiled(product_of_parts)
    x, good, bad = torch.randn(5, 4), torch.tensor([0, 4]), torch.tensor([0, 9])
    with torch.no_grad():
        torch.testing.assert_close(call(x, good), product_of_parts(x, good))
        notes = []

        def fail() -> None:
            for _ in range(50):
                with pytest.raises((IndexError, RuntimeError), match="out of range") as caught:
                    call(x, bad)
                notes.append(caught.value.__notes__[0])

        assert balance(fail) == 0
        assert "product_of_parts" in notes[0] or "index" in notes[0]
        torch.testing.assert_close(call(x, good), product_of_parts(x, good))


def many_products(x: Tensor) -> Tensor:
    for _ in range(60):
        x = torch.tanh(x @ x)
    return x


def long_loop(x: Tensor, turns: Tensor) -> Tensor:
    _, y = while_loop(
        lambda k, y: k < turns, lambda k, y: (k + 1, torch.sin(y) + 1), (torch.zeros_like(turns), x)
    )
    return y


@pytest.mark.parametrize(
    ("function", "slow", "quick"),
    [
        (many_products, lambda: (torch.randn(900, 900),), None),
        (
            long_loop,
            lambda: (torch.zeros(1000), torch.tensor(100_000_000)),
            lambda: (torch.zeros(1000), torch.tensor(3)),
        ),
    ],
    ids=["program", "loop"],
)
def test_an_interrupt_is_recovered_from(
    function: Callable[..., Any],
    slow: Callable[[], tuple[Tensor, ...]],
    quick: Callable[[], tuple[Tensor, ...]] | None,
) -> None:
    call = compiled(function)
    inputs = slow()
    first = (quick or slow)()
    with torch.no_grad():
        expected = call(*first)

        def interrupt() -> None:
            for _ in range(3):
                with pytest.raises(KeyboardInterrupt) as caught, interrupted_after(0.15):
                    call(*inputs)
                assert any(note.startswith("instruction ") for note in caught.value.__notes__)
                del caught
            gc.collect()

        assert balance(interrupt) == 0
        torch.testing.assert_close(call(*first), expected, rtol=0, atol=0)


PLACES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "of an input": lambda x, n: x.as_strided((n,), (1,)) + 1,
    "of a part of an input": lambda x, n: x[2:].as_strided((n - 2,), (1,)) + 1,
    "of what is computed": lambda x, n: (x * 2).as_strided((n,), (1,)) * 3,
    "returned": lambda x, n: (x * 2).as_strided((n,), (1,)),
    "further on": lambda x, n: (x * 2).as_strided((2,), (1,), n - 2) + 1,
    "of a product": lambda x, n: torch.mm(x.view(5, 2), x.view(2, 5)).as_strided((n + 15,), (1,)) + 1,
    "copied": lambda x, n: torch.as_strided_copy(x + 1, (n,), (1,)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PLACES)
def test_as_strided_beyond_the_memory_is_an_error(name: str, dynamic: bool) -> None:
    call = compiled(PLACES[name], dynamic=dynamic)
    x = torch.randn(10)
    for count in (10, 7):
        torch.testing.assert_close(call(x, count), PLACES[name](x, count))
    for count in (11, 1000):
        with pytest.raises(RuntimeError, match="out of bounds for"):
            PLACES[name](x, count)
        with pytest.raises(RuntimeError, match="out of bounds for"):
            call(x, count)
