"""A process that checks models whose kernels Triton's interpreter runs on CPU tensors;
`test_models_triton_interpreted.py` drives it.

Triton decides when it is imported, by TRITON_INTERPRET, whether it interprets; hence a process of its own.
Requests and replies are lines of JSON on stdin and stdout: `{"check": "inference", "case": "gpt2", "dtype":
"float32", "trace": folder}` is answered with `{"error": ""}`, or with a traceback.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TextIO

import torch

import coilwork.targets
from benchmarks.models import ModelCase, Setting, Size, find_case
from benchmarks.training import adamw_of_each_layout
from coilwork_ir.target import TARGETS
from integration_tests.model_checks import check_dynamic_sizes, check_inference, check_training
from integration_tests.quicker_compiles import quicken_compiles

# The smallest slice of an H200: blocks are as large as the real models' on all of it. On all of it, these
# small models' are split into many small ones, and each is dozens of milliseconds of the interpreter.
SLICE: Final = replace(TARGETS["sm_90"], multiprocessors=16)


def _check_dynamic_sizes(case: ModelCase, setting: Setting) -> None:
    check_dynamic_sizes(case, setting, ((2, 24), (3, 17)))


def _check_training(case: ModelCase, setting: Setting) -> None:
    check_training(case, setting, adamw_of_each_layout)


CHECKS: Final[Mapping[str, Callable[[ModelCase, Setting], None]]] = {
    "inference": check_inference,
    "training": _check_training,
    "dynamic": _check_dynamic_sizes,
}


def answer(request: Mapping[str, Any]) -> str:
    """What is wrong; empty if all is well."""
    # options are read from the environment at every compile
    os.environ["COILWORK_TRACE"] = request["trace"]
    setting = Setting(size=Size.SMALL, device=torch.device("cpu"), dtype=getattr(torch, request["dtype"]))
    try:
        CHECKS[request["check"]](find_case(request["case"]), setting)
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()
    return ""


def main(requests: TextIO, replies: TextIO) -> None:
    """Answer until stdin ends."""
    coilwork.targets.TARGETS = {**TARGETS, "sm_90": SLICE}
    for line in requests:
        replies.write(json.dumps({"error": answer(json.loads(line))}) + "\n")
        replies.flush()


if __name__ == "__main__":
    # torch and Triton may print; replies keep the real stdout to themselves
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    quicken_compiles()
    main(sys.stdin, channel)
