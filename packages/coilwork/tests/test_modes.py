"""What a mode cannot do yet is said once."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from coilwork.compile_options import CompileOptions, Mode
from coilwork.stage_settings import make_search
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Trial

PROGRAM = """
import logging
import sys
import warnings

import torch
from coilwork.backend import backend
from coilwork.errors import NotBuiltYetWarning

seen = []
warnings.showwarning = lambda message, category, *rest: seen.append((category, str(message)))
for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead"):
    for size in (3, 4):
        torch._dynamo.reset()
        x = torch.arange(float(size))
        compiled = torch.compile(lambda v: v.sin() + size, backend=backend, mode=mode, options=None)
        assert torch.allclose(compiled(x), x.sin() + size)
for category, text in seen:
    if category is NotBuiltYetWarning:
        print(text)
"""


def test_once_for_each_mode_and_in_torchs_own_log(run_python: Callable[..., CompletedProcess[str]]) -> None:
    done = run_python("-c", PROGRAM, environ={"TORCH_LOGS": "+coilwork"})
    assert done.stdout.splitlines() == [
        'mode="reduce-overhead": CUDA graphs of whole calls are not built yet; '
        "stretches of work that repeat go to the driver as graphs in every mode",
        'mode="max-autotune": CUDA graphs of whole calls are not built yet; '
        "stretches of work that repeat go to the driver as graphs in every mode; "
        "the best configuration of each Triton kernel is searched for in its first call",
    ]
    # TORCH_LOGS is torch's: it takes any importable name, and our logger has that name
    lines = [line for line in done.stderr.splitlines() if "coilwork/" in line and "graph inference_" in line]
    assert lines, done.stderr


def test_without_torch_logs_nothing_is_printed(run_python: Callable[..., CompletedProcess[str]]) -> None:
    program = (
        "import torch; from coilwork.backend import backend\n"
        "torch.compile(lambda v: v.sin(), backend=backend)(torch.ones(3))"
    )
    done = run_python("-W", "ignore::DeprecationWarning", "-c", program)
    assert (done.stdout, done.stderr) == ("", "")


def ignored(kernel: str, trials: int, best: Trial) -> None:
    """Nobody listens."""


@pytest.mark.parametrize(
    ("mode", "searches"),
    [
        ("default", False),
        ("reduce-overhead", False),
        ("max-autotune", True),
        ("max-autotune-no-cudagraphs", True),
    ],
)
def test_autotuning_modes_search(mode: Mode, searches: bool) -> None:
    found = make_search(CompileOptions(mode=mode, autotune_budget=7), ignored)
    assert (found is not None) == searches
    assert found is None or found.most == 7
    assert make_search(CompileOptions(mode=mode, autotune_budget=0), ignored) is None
