"""One process of a sweep: a unit's key per line on stdin; on stdout lines of JSON, what is tried, then the outcomes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch

from integration_tests.operators.calls import WAYS
from integration_tests.operators.checks import Outcome, check
from integration_tests.operators.database import operators
from integration_tests.operators.rejections import check_rejections
from integration_tests.operators.units import Unit
from integration_tests.quicker_compiles import quicken_compiles


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=0, help="most samples per unit; 0 for all")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # Results go to the real stdout; whatever else prints there goes to stderr.
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    database = operators()
    quicken_compiles()

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=report)

    say({"ready": os.getpid()})
    for line in sys.stdin:
        key, _, alone = line.strip().partition(" ")
        unit = Unit.of(key)
        op = database[unit.op]

        def tell(sample: str) -> None:
            say({"at": sample})

        outcomes: list[Outcome]
        if unit.way == "errors":
            outcomes = check_rejections(unit.op, op, device=chosen.device, tell=tell)
        else:
            outcomes = check(
                unit.op,
                op,
                way=WAYS[unit.way],
                device=chosen.device,
                dtype=getattr(torch, unit.dtype),
                most=chosen.samples or None,
                tell=tell,
                alone=alone == "alone",
            )
        say({"outcomes": [one.as_record() for one in outcomes]})


if __name__ == "__main__":
    main()
