"""Checks operators one after another in one process: a name per line on stdin, a line of JSON per operator on stdout."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch

from integration_tests.operators.checks import WAYS, Outcome, check
from integration_tests.operators.database import operators

NARROW = (torch.bfloat16, torch.int64, torch.bool)
OTHERS = (torch.float64, torch.float16, torch.int32, torch.uint8)


def plans(op: Any, ways: list[str], device: str) -> list[tuple[str, torch.dtype]]:
    """The ways and dtypes in which an operator is checked; the narrow types only for elementwise ones and reductions."""
    elementwise = any(
        kind in type(op).__name__
        for kind in ("UnaryUfuncInfo", "BinaryUfuncInfo", "ReductionOpInfo", "ShapeFunc")
    ) or op.name in (
        "where",
        "clamp",
        "cumsum",
        "cumprod",
        "cat",
        "stack",
        "nn.functional.relu",
        "amax",
        "amin",
    )
    found = []
    for way in ways:
        if way == "narrow":
            found += [("forward", dtype) for dtype in NARROW] if elementwise else []
        elif way == "types":
            found += [("forward", dtype) for dtype in OTHERS] if elementwise else []
        elif way == "hard":
            found += [("hard", dtype) for dtype in (torch.float32, *NARROW)] if elementwise else []
        else:
            found.append((way, main_dtype(op, backward=way == "backward", device=device)))
    return found


def main_dtype(op: Any, *, backward: bool, device: str) -> torch.dtype:
    """float32, or what the operator takes instead."""
    supported = op.supported_backward_dtypes(device) if backward else op.supported_dtypes(device)
    return next(
        (dtype for dtype in (torch.float32, torch.int64, torch.complex64) if dtype in supported),
        torch.float32,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ways", default="forward")
    parser.add_argument("--samples", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # Results go to the real stdout; whatever else prints there goes to stderr.
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    database = operators()
    print("ready", file=report)
    for line in sys.stdin:
        name = line.strip()
        op = database[name]
        outcomes: list[Outcome] = []
        for way, dtype in plans(op, chosen.ways.split(","), chosen.device):
            outcomes += check(name, op, way=WAYS[way], device=chosen.device, dtype=dtype, most=chosen.samples)
        print(json.dumps({"op": name, "outcomes": [one.as_record() for one in outcomes]}), file=report)


if __name__ == "__main__":
    main()
