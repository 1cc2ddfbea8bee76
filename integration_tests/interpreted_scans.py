"""A process that checks associative scans as a GPU does them, in Triton's interpreter on CPU tensors.

`test_associative_scans.py` starts it with the environment that this takes and a folder, and reads one line of
JSON: what is wrong with each case, empty if all is well.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from integration_tests.associative_scans import CASES
from integration_tests.model_checks import no_fallback


def wrong_with(case: Callable[[], None], trace: Path) -> str:
    """What is wrong with `case`; empty if it agrees with a loop, and its kernels scan by a function."""
    # options are read from the environment at every compile
    os.environ["COILWORK_TRACE"] = str(trace)
    torch._dynamo.reset()
    try:
        with no_fallback():
            case()
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()
    texts = [path.read_text() for path in trace.rglob("*.py")]
    return (
        ""
        if any("tl.associative_scan(" in text for text in texts)
        else f"no scans in {sorted(trace.rglob('*'))}"
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(
        json.dumps(
            {
                name: wrong_with(case, folder / str(number))
                for number, (name, case) in enumerate(CASES.items())
            }
        )
    )
