"""A quarter of all pairs of operator and type beside eager, with few samples each: `nox -s opinfo` runs all
pairs with all samples.

Of every type it is another quarter of the operators, so that each operator is tried in some of its types.
They are tried in processes of their own, so that one that takes its process down is named. Measured: about a
quarter of a processor second per pair and sample, five minutes on two cores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from integration_tests.operators.database import operators
from integration_tests.operators.exceptions import reason
from integration_tests.operators.parts import Part
from integration_tests.operators.pool import Settings, run
from integration_tests.operators.units import DTYPES, Unit, chosen_names, units
from integration_tests.operators.verdicts import is_failure, pairs

PROCESSES = 2
# The types that most programs have, with more samples.
COMMON = ("float32", "int64", "bfloat16")
FLOATS = {torch.bfloat16, torch.float16, torch.float32, torch.float64}
INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}
OTHERS = tuple(dtype for dtype in DTYPES if dtype not in COMMON)


def quarter(database: Mapping[str, Any], dtype: str) -> list[Unit]:
    """Every fourth operator forward in `dtype`, and in the first type also with calls that must fail."""
    # by name, the four common floats come one after another, and so do the integers: each gets another
    # quarter
    shard = f"{sorted(DTYPES).index(dtype) % 4}/4"
    ways = ["forward", "errors"] if dtype == DTYPES[0] else ["forward"]
    names = chosen_names(database, shard=shard, only="")
    return units(database, names, ways=ways, dtypes=[dtype], device="cpu", fully=[dtype])


def outcomes(wanted: list[Unit], samples: int) -> list[dict[str, Any]]:
    settings = Settings(device="cpu", samples=samples, limit_s=120.0, deadline=time.monotonic() + 1800.0)
    done: SimpleQueue[list[dict[str, Any]]] = SimpleQueue()
    threads, _ = run([Part(unit=unit) for unit in wanted], settings, processes=PROCESSES, finished=done)
    for thread in threads:
        thread.join()
    found: list[dict[str, Any]] = []
    while not done.empty():
        found += done.get()
    return found


def test_every_operator_is_in_some_quarter() -> None:
    database = operators()
    found = [unit for dtype in DTYPES for unit in quarter(database, dtype) if unit.way == "forward"]
    pairs_in_all = units(database, sorted(database), ways=["forward"], dtypes=DTYPES, device="cpu")
    assert len(found) == pytest.approx(len(pairs_in_all) / 4, rel=0.02)
    tried = {unit.op for unit in found}
    for dtypes in (FLOATS, INTEGERS):
        assert {name for name in database if dtypes <= set(database[name].supported_dtypes("cpu"))} <= tried


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtypes", "samples"),
    [*(((dtype,), 3) for dtype in COMMON), (OTHERS, 1)],
    ids=[*COMMON, "others"],
)
def test_a_quarter_of_all_units_has_no_failures(dtypes: tuple[str, ...], samples: int) -> None:
    database = operators()
    wanted = [unit for dtype in dtypes for unit in quarter(database, dtype)]
    found = outcomes(wanted, samples)
    assert {one["unit"] for one in found} == {unit.key for unit in wanted}
    failures = [one for one in found if is_failure(one) and reason(one) is None]
    assert failures == []
    verdicts = list(pairs(found).values())
    assert verdicts.count("equal") > 0.9 * len(verdicts)
