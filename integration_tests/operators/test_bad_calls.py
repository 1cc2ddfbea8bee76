"""Calls that eager refuses, a slice of what `python -m integration_tests.operators.bad_calls` tries.

Many are traced and lowered, as that is cheap; a few are compiled and run.
"""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.nn import functional

from integration_tests.operators.bad_calls import (
    ask_eager,
    bad_calls,
    check_bad_calls,
    judge_call,
    judged_program,
)
from integration_tests.operators.bad_values import MEMORY, NUMBERS, POSITIONS, WORDS, Call
from integration_tests.operators.database import Sample
from integration_tests.operators.exceptions import KNOWN_REFUSALS, refusal_reason
from integration_tests.operators.mutations import mutated
from integration_tests.operators.screening import screened
from integration_tests.operators.subjects import subjects

# Every so many names of torch's operators and modules.
STRIDE = 24
# Refused by storage that is too small, or by an item of no memory, of which a compiled program has none.
UNLIKE_A_PROGRAM = frozenset({"item", "empty_strided", "new_empty_strided"})
COMPILED = ("bucketize", "nn.functional.soft_margin_loss", "take", "kthvalue")


def test_lowered_operators_refuse_bad_calls() -> None:
    names = [name for name in subjects() if not name.startswith(("aten.", "inplace."))][::STRIDE]
    found = [
        one
        for name in names
        if name not in UNLIKE_A_PROGRAM
        for one in check_bad_calls(name, device="cpu", way="bad_lowered")
    ]
    assert [one for one in found if one.status not in ("ok", "skipped")] == []
    assert sum(one.samples for one in found) > 5 * len(names)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_operators_refuse_bad_calls(name: str) -> None:
    found = check_bad_calls(name, device="cpu", way="bad")
    assert {one.status for one in found} == {"ok"}, found


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("nn.functional.embedding", "bad_dynamic"),
        ("aten.scatter_.src", "bad"),
        ("function.native_channel_shuffle", "bad"),
        ("function.celu_", "bad_reused"),
        ("gather", "bad_reused"),
        ("module.nn.MaxUnpool1d", "bad_training"),
        ("module.nn.NLLLoss2d", "bad"),
    ],
)
def test_other_ways_and_subjects(name: str, way: str) -> None:
    found = check_bad_calls(name, device="cpu", way=way)
    assert {one.status for one in found} <= {"ok", "torch"}, found
    assert sum(one.samples for one in found) > 5


def test_what_guards_let_through() -> None:
    found = check_bad_calls("aten.fractional_max_pool2d_backward.default", device="cpu", way="bad_guarded")
    assert [(one.status, one.samples > 0) for one in found] == [("ok", True)], found


@pytest.mark.parametrize("calls", [POSITIONS, NUMBERS, WORDS, MEMORY])
def test_what_programs_compute(calls: Mapping[str, Call]) -> None:
    """With sizes that are known and sizes that are open, in turn."""
    found = {
        name: judged_program(function, given, dynamic=k % 2 == 0)
        for k, (name, (function, given)) in enumerate(calls.items())
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


_INTEGERS = torch.ones(4, 6, dtype=torch.int32)
_CLASSES = torch.ones(2, dtype=torch.int8)
_TRUTH = torch.ones(4, 3, dtype=torch.bool)
# Calls that tracing takes under open sizes and numbers.
OPEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a product with a fraction": (lambda x, y: x.mul_(y), (_INTEGERS, 1.5)),
    "a power of a fraction": (lambda x, y: x.pow_(y), (_INTEGERS, 1.5)),
    "a product by assignment": (operator.imul, (_INTEGERS, 0.5)),
    "classes of another type": (lambda k, n: functional.one_hot(k * 1, n), (_CLASSES, 4)),
    "a cross product of truth values": (lambda x, y: torch.linalg.cross(x, y), (_TRUTH, _TRUTH)),
}


@pytest.mark.parametrize("name", OPEN)
def test_calls_with_open_numbers_are_refused(name: str) -> None:
    function, given = OPEN[name]
    sample = Sample(arguments=given, keywords={})
    (wanted,) = ask_eager(function, [sample])
    assert wanted.kind is not None
    assert judge_call(function, sample, wanted, dynamic=True) == ("ok", "")


def test_what_torch_differs_in_itself_is_left_out() -> None:
    names = subjects()
    words = "\"trace\" not implemented for 'Half'"
    assert refusal_reason("trace", "argument 0: torch.float16 for torch.float32", words) is not None
    assert refusal_reason("trace", "argument 0: a dimension more", "trace: expected a matrix") is None
    assert not any(
        "more" in what for _, _, what, _, _ in bad_calls("lu_unpack", "cpu") if "argument 1:" in what
    )
    for known in KNOWN_REFUSALS:
        assert known.reason.endswith(".")
        assert all(fnmatch.filter(names, one) for one in known.ops.split()), known


def test_gradients_are_judged_after_gradients() -> None:
    """A process that has taken gradients forks children that can take none, and eager's are taken in such."""
    for _ in range(2):
        found = check_bad_calls("aten._pdist_forward.default", device="cpu", way="bad_training")
        assert {one.status for one in found} == {"ok"}, found
    assert sum(one.samples for one in found) > 5


def test_every_kind_of_argument_is_changed() -> None:
    good = Sample(arguments=(torch.ones(2, 3), 1, [0, 1], "sum"), keywords={"p": 0.5, "dtype": torch.float32})
    kinds = {what.partition(":")[0] for what, _ in mutated(good)}
    assert kinds >= {f"argument {position}" for position in range(7)} | {"one argument less"}
    assert all(
        sample.keywords != good.keywords or sample.arguments is not good.arguments
        for _, sample in mutated(good)
    )


def test_screening_tells_what_nothing_refuses() -> None:
    def lax(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert screened(lax, Sample(arguments=(torch.ones(3),), keywords={}))[0] == "accepted"
    assert screened(torch.linalg.inv, Sample(arguments=(torch.ones(3),), keywords={}))[0] == "refused"
