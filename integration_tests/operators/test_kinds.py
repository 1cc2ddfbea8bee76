"""Kinds of bad calls that no change of one argument makes, and bad calls amid others: a slice of what
`python -m integration_tests.operators.bad_calls --only "kind.*"` tries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from integration_tests.operators.amid import compute_around, is_refused_by_tracing
from integration_tests.operators.bad_calls import (
    Refusal,
    ask_eager,
    check_bad_calls,
    judge_call,
    judge_reuse,
)
from integration_tests.operators.database import Sample
from integration_tests.operators.kinds import KINDS
from integration_tests.operators.kinds.call import BadCall, integers
from integration_tests.operators.kinds_on_device import judged_calls

CALLS = {name: call for table in KINDS.values() for name, call in table.items()}
# One for each mechanism that refuses what torch's tracing takes.
COMPILED = (
    "atan2 of int, uint16",
    "outer of uint32, int64",
    "fmin of uint16, uint16",
    "addcdiv of float, bool",
    "heaviside of uint16, uint16",
    "assignment by torch.int16",
    "index_put by torch.float32",
    "floor_divide_ torch.int8 by 1099511627776",
    "an asynchronous assertion",
)
REUSED = (
    "as_strided by negative strides",
    "as_strided beyond memory",
    "narrow by a negative length",
    "one position below",
    "a label beyond",
    "an asynchronous assertion",
    "a remainder by zeros of integers",
)


def refusal(call: BadCall) -> tuple[Sample, Refusal]:
    sample = Sample(arguments=call.given, keywords={})
    (said,) = ask_eager(call.function, [sample], training=call.training)
    return sample, said


@pytest.mark.parametrize("name", COMPILED)
def test_what_tracing_takes_is_refused(name: str) -> None:
    call = CALLS[name]
    sample, wanted = refusal(call)
    assert wanted.kind is not None
    assert judge_call(call.function, sample, wanted, dynamic=False) == ("ok", "")


@pytest.mark.parametrize("name", REUSED)
def test_what_a_good_call_compiled_refuses_a_bad_one(name: str) -> None:
    call = CALLS[name]
    sample, wanted = refusal(call)
    assert wanted.kind is not None
    assert call.good is not None
    assert judge_reuse(call.function, Sample(arguments=call.good, keywords={}), sample, wanted) == ("ok", "")


def test_a_good_call_after_a_bad_one() -> None:
    for name in REUSED:
        call = CALLS[name]
        assert call.good is not None
        compiled = torch.compile(call.function, backend="coilwork", dynamic=True)
        wanted = call.function(*call.good)
        torch.testing.assert_close(compiled(*call.good), wanted)
        with pytest.raises((RuntimeError, IndexError)):
            compiled(*call.given)
        torch.testing.assert_close(compiled(*call.good), wanted)


def test_every_table_holds_bad_calls() -> None:
    assert all(len(table) >= 20 for table in KINDS.values())
    assert len(CALLS) == sum(len(table) for table in KINDS.values()), "a name stands in two tables"


def test_a_table_is_swept() -> None:
    found = check_bad_calls("kind.memory", device="cpu", way="bad_reused")
    assert {one.status for one in found} == {"ok"}, found
    known = [call for call in KINDS["kind.memory"].values() if call.good is not None]
    assert sum(one.samples for one in found) == len(known)


def test_bad_calls_amid_other_operators_are_refused() -> None:
    found = check_bad_calls("take", device="cpu", way="bad_amid")
    assert {one.status for one in found} == {"ok"}, found
    assert sum(one.samples for one in found) > 5


def test_what_stands_around_a_call_changes_nothing() -> None:
    given: list[torch.Tensor] = [torch.arange(3), torch.ones(2) > 0, torch.ones(2).to("meta"), torch.ones(3)]

    def swap(a: Any, b: Any, *, out: Any = None) -> Any:
        return [b, a, out]

    for value in given:
        b, a, written = compute_around(swap)(value, 2, out=given[0])
        assert (b, written.tolist()) == (2, [0, 1, 2])
        assert a.dtype is value.dtype
        assert a.is_meta or torch.equal(a, value)


def test_tracing_is_asked_with_what_is_shared() -> None:
    x = torch.ones(3)
    assert not is_refused_by_tracing(operator.add, Sample(arguments=(x, x), keywords={}))
    assert is_refused_by_tracing(operator.add, Sample(arguments=(x, torch.ones(2)), keywords={}))
    assert not is_refused_by_tracing(torch.take, Sample(arguments=(x, integers(9)), keywords={}))


def test_the_tables_on_a_device() -> None:
    found = list(judged_calls("cpu", 1, 400, until=float("inf")))
    assert len(found) > 2
    assert {one["status"] for one in found} == {"ok"}, found


def test_what_fails_beside_tensors_without_memory_is_asked_of_eager() -> None:
    def find(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.argmax(x, dim=0, keepdim=True, out=out)

    def double(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, out * 2

    given = torch.tensor(1.0), torch.empty((), dtype=torch.int64, device="meta")
    with pytest.raises(RuntimeError, match="Expected out tensor to have device cpu"):
        find(*given)
    compile_strictly = partial(torch.compile, backend="coilwork", options={"strict": True})
    with pytest.raises(RuntimeError, match="Expected out tensor to have device cpu"):
        compile_strictly(find)(*given)
    # calls that take no tensor with memory beside one without are made apart, and the rest is compiled
    assert compile_strictly(double)(*given)[0].item() == 2


def divisions() -> Iterator[tuple[Callable[..., Any], int]]:
    for function in (torch.fmod, torch.remainder, torch.floor_divide):
        yield function, 256
        yield function, -(2**40)


def test_divisors_are_cut_to_the_divided_type() -> None:
    for function, divisor in divisions():
        compiled = torch.compile(function, backend="coilwork", options={"strict": True})
        short = torch.arange(1, 4, dtype=torch.int8)
        assert compiled(short, divisor + 1).tolist() == function(short, divisor + 1).tolist()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(short, divisor)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(short, divisor)
