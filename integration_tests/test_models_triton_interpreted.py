"""Every small model through Triton on a machine without a GPU: its kernels run in Triton's interpreter.

The schedule and the kernels are those for the smallest slice of an H200 (option `triton_on_cpu`), the numbers
are held to eager's accuracy. Four to ten minutes of one core in all, most of them the training steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import CASES
from integration_tests.interpreting import environment

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]

TRAINED = tuple(case.name for case in CASES if case.train)
# Rounding to bf16 where eager does, on a model with matrix products and on one with convolutions.
BF16 = ("bert", "resnet50")
DYNAMIC = tuple(case.name for case in CASES if case.dynamic_dims)


class InterpretedModels:
    """The process that checks models, see `interpreted_models`; one request at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "integration_tests.interpreted_models"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(self._folder),
            cwd=self._folder,
            text=True,
        )

    def check(self, check: str, case: str, trace: Path, *, dtype: str = "float32") -> None:
        """Fail with the process's traceback unless `check` of `case` passes there; dumps go to `trace`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"check": check, "case": case, "dtype": dtype, "trace": str(trace)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        try:
            line = self._process.stdout.readline()
        except (KeyboardInterrupt, pytest.fail.Exception):
            # the test was stopped: the next one gets a process that is not at work
            self._process.kill()
            self._process.communicate()
            self._process = self._started()
            raise
        if not line:
            pytest.fail(f"the process ended with code {self._process.wait()}")
        error = json.loads(line)["error"]
        if error:
            pytest.fail(error, pytrace=False)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpretedModels]:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    process = InterpretedModels(tmp_path_factory.mktemp("cache"))
    yield process
    process.close()


def check_traces(folder: Path, *, roles: set[str]) -> None:
    """The graphs compiled have these roles, none fell back, and every kernel is Triton."""
    reports: list[dict[str, Any]] = [json.loads(p.read_text()) for p in folder.glob("*/report.json")]
    assert {report["role"] for report in reports} == roles
    assert all(report["kernels"] > 0 and report["fallback"] == "" for report in reports), reports
    kernels = [path.suffix for path in folder.glob("*/kernels/*") if path.suffix != ".txt"]
    assert len(kernels) == sum(report["distinct_kernels"] for report in reports)
    assert set(kernels) == {".py"}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_inference_is_as_accurate_as_eager(models: InterpretedModels, name: str, tmp_path: Path) -> None:
    models.check("inference", name, tmp_path)
    check_traces(tmp_path, roles={"inference"})


@pytest.mark.parametrize("name", BF16)
def test_bf16_inference_is_as_accurate_as_eager(models: InterpretedModels, name: str, tmp_path: Path) -> None:
    models.check("inference", name, tmp_path, dtype="bfloat16")
    check_traces(tmp_path, roles={"inference"})


@pytest.mark.parametrize("name", TRAINED)
def test_training_step_is_as_accurate_as_eager(models: InterpretedModels, name: str, tmp_path: Path) -> None:
    models.check("training", name, tmp_path)
    # the optimizer's step is a graph without gradients
    check_traces(tmp_path, roles={"forward", "backward", "inference"})


@pytest.mark.parametrize("name", DYNAMIC)
def test_one_compile_serves_several_sizes(models: InterpretedModels, name: str, tmp_path: Path) -> None:
    models.check("dynamic", name, tmp_path)
    check_traces(tmp_path, roles={"inference"})
