"""Exports a model, loads the package in a fresh process, and judges what it gives beside eager.

    python -m integration_tests.architectures.exported PACKAGE INPUTS RESULTS

is the fresh process: it loads the package by `coilwork_aot` alone and saves the results.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from integration_tests.architectures.modes import Wrapped
from integration_tests.modules.checks import Outcome, judge_results, run_eager
from integration_tests.modules.database import Sample

# Of the fresh process.
TIMEOUT_S = 300.0
# Registers operators that models of transformers call.
OPERATORS = "transformers.integrations.moe"


class Inference(Wrapped):
    """Results without gradients."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        with torch.no_grad():
            return self.inner(*arguments, **keywords)


def check_exported(sample: Sample) -> Outcome:
    """The outcome of inference from a package: "ok", "wrong", "raises" (ours), "torch" (torch does not export
    the model) or "refused" (eager raises).
    """
    from coilwork import export
    from coilwork.errors import CoilworkError

    name = sample.describe()
    sample = replace(sample, module=Inference(sample.module.eval()))
    try:
        expected = run_eager(sample)
    except Exception as error:  # noqa: BLE001  what eager refuses is not compared
        return Outcome(sample=name, status="refused", detail=str(error)[:200])
    try:
        with torch.no_grad():
            program = torch.export.export(sample.module, sample.arguments, sample.keywords, strict=False)
            program.module()(*sample.arguments, **sample.keywords)
    except Exception as error:  # noqa: BLE001  whatever torch raises, there is no program
        return Outcome(sample=name, status="torch", detail=f"{type(error).__name__}: {error}"[:300])
    with tempfile.TemporaryDirectory() as folder:
        package, inputs, results = (Path(folder) / one for one in ("model.cw", "inputs.pt", "results.pt"))
        torch.save((sample.arguments, sample.keywords), inputs)
        try:
            export(program, path=package)
        except CoilworkError as error:
            return Outcome(sample=name, status="raises", detail=str(error)[:900])
        child = subprocess.run(
            [sys.executable, "-m", __name__, str(package), str(inputs), str(results)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if child.returncode:
            return Outcome(sample=name, status="raises", detail=child.stderr[-900:])
        found = torch.load(results, weights_only=True)
    return judge_results(sample, (found, [], expected[2]), expected)


def main() -> None:
    """Run the package that the command line names, and save its results."""
    from coilwork_aot import TargetError, load

    package, inputs, results = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    arguments, keywords = torch.load(inputs, weights_only=True)
    try:
        model = load(package)
    except TargetError as error:
        if error.code != "missing-operator":
            raise
        import_module(OPERATORS)
        model = load(package)
    with torch.no_grad():
        torch.save(model(*arguments, **keywords), results)


if __name__ == "__main__":
    main()
