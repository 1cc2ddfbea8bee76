"""One process of a sweep: on stdin a line per part of a unit, its key and first sample.

On stdout lines of JSON: first where it runs; then of each part how many samples the unit has, what is tried,
and the outcomes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch

from integration_tests.operators.bad_calls import BAD_WAYS, check_bad_calls
from integration_tests.operators.calls import WAYS
from integration_tests.operators.checks import Outcome, check
from integration_tests.operators.database import operators
from integration_tests.operators.parts import SAMPLES
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

    say({"place": place(chosen.device)})
    for line in sys.stdin:
        key, first, *alone = line.split()
        unit = Unit.of(key)

        def tell(sample: str) -> None:
            say({"at": sample})

        outcomes: list[Outcome]
        if unit.way in BAD_WAYS:
            outcomes = check_bad_calls(unit.op, device=chosen.device, way=unit.way, tell=tell)
        elif unit.way == "errors":
            outcomes = check_rejections(unit.op, database[unit.op], device=chosen.device, tell=tell)
        else:
            outcomes = check(
                unit.op,
                database[unit.op],
                way=WAYS[unit.way],
                device=chosen.device,
                dtype=getattr(torch, unit.dtype),
                most=chosen.samples or None,
                tell=tell,
                part=slice(int(first), int(first) + SAMPLES),
                count=lambda samples: say({"of": samples}),
                alone=bool(alone),
            )
        say({"outcomes": [one.as_record() for one in outcomes]})


def place(device: str) -> str:
    """The machine and torch's version, for whoever reads the outcomes."""
    machine = torch.cuda.get_device_name() if device == "cuda" else f"a CPU of {os.cpu_count()} cores"
    return f"{machine}, torch {torch.__version__.partition('+')[0]}"


if __name__ == "__main__":
    main()
