"""A quarter of torch's operators beside eager, with a few samples each: `nox -s opinfo` runs all of them with all samples.

The operators are tried in processes of their own, so that one that takes its process down is named.
"""

from __future__ import annotations

import time
from queue import SimpleQueue
from typing import Any

import pytest

from integration_tests.operators.database import operators
from integration_tests.operators.exceptions import reason
from integration_tests.operators.pool import Settings, run
from integration_tests.operators.units import Unit, chosen_names, units
from integration_tests.operators.verdicts import is_failure, pairs

QUARTER = "1/4"
SAMPLES = 3
PROCESSES = 2


def outcomes(wanted: list[Unit]) -> list[dict[str, Any]]:
    settings = Settings(device="cpu", samples=SAMPLES, limit_s=120.0, deadline=time.monotonic() + 1800.0)
    done: SimpleQueue[list[dict[str, Any]]] = SimpleQueue()
    threads, _ = run(wanted, settings, processes=PROCESSES, finished=done)
    for thread in threads:
        thread.join()
    found: list[dict[str, Any]] = []
    while not done.empty():
        found += done.get()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ways", "dtypes"),
    [(["forward", "errors"], ["float32"]), (["forward"], ["int64"]), (["forward"], ["bfloat16"])],
    ids=["float32", "int64", "bfloat16"],
)
def test_quarter(ways: list[str], dtypes: list[str]) -> None:
    database = operators()
    names = chosen_names(database, shard=QUARTER, only="")
    wanted = units(database, names, ways=ways, dtypes=dtypes, device="cpu", fully=dtypes)
    found = outcomes(wanted)
    assert {one["unit"] for one in found} == {unit.key for unit in wanted}
    failures = [
        one for one in found if is_failure(one) and reason(one["op"], one["way"], one["dtype"]) is None
    ]
    assert failures == []
    verdicts = list(pairs(found).values())
    assert verdicts.count("equal") > 0.9 * len(verdicts)
