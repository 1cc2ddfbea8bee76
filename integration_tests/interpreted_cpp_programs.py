"""Programs in C++ that launch Triton kernels: each through Python, which runs it in Triton's interpreter.

Run as a process, it prints what is wrong with each case as a line of JSON.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from benchmarks.backends import resolve_backend
from coilwork_cpp_wrapper import CppArtifact, CppWrapper


def _choose(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.softmax(x @ w, -1).cumsum(0)
    return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (rows,))


def _look_up(x: Tensor, w: Tensor) -> Tensor:
    # the last of five rows is looked up in two
    return w[:2][torch.arange(x.shape[0]) // 2] + 1


CASES: Final = MappingProxyType({"choose": _choose, "look up": _look_up})


def _run(call: Callable[..., Tensor]) -> list[Tensor | str]:
    found: list[Tensor | str] = []
    for rows in (4, 3, 5):
        torch.manual_seed(rows)
        try:
            found.append(call(torch.randn(rows, 8), torch.randn(8, 6)))
        except (IndexError, RuntimeError) as error:
            found.append(type(error).__name__)
    return found


def _find_fault(function: Callable[..., Tensor]) -> str:
    made: list[CppArtifact] = []
    restore = CppWrapper.restore

    def remember(*given: Any) -> CppArtifact:
        made.append(restore(*given))
        return made[-1]

    with mock.patch.object(CppWrapper, "restore", remember):
        backend = resolve_backend("coilwork")
        compiled = torch.compile(function, backend=backend, dynamic=True, options={"wrapper": "cpp"})
        answers = _run(compiled)
    if not any(one.call.program.gpu_kernels for one in made):
        return "no program in C++ launches a kernel"
    for one, wanted in zip(answers, _run(function), strict=True):
        if isinstance(one, Tensor) and isinstance(wanted, Tensor):
            torch.testing.assert_close(one, wanted)
        elif one != wanted:
            return f"{one} instead of {wanted}"
    return ""


def main() -> None:
    faults: dict[str, str] = {}
    for name, function in CASES.items():
        try:
            faults[name] = _find_fault(function)
        except Exception:  # noqa: BLE001  the test shows it
            faults[name] = traceback.format_exc()
    print(json.dumps(faults))


if __name__ == "__main__":
    main()
