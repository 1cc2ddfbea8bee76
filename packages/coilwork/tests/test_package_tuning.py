"""Tuning before a package is made: on the GPU that the kernels are for, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coilwork_aot.tuning import tune
from coilwork_frontend.errors import ExportError


def compiled(*languages: str) -> Any:
    """A compiled program with kernels in these languages."""
    return SimpleNamespace(graph=SimpleNamespace(kernels=languages), target="sm_90")


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coilwork_aot.tuning.load_kernels",
        lambda languages: [SimpleNamespace(is_triton=one == "triton") for one in languages],
    )


def test_a_program_without_kernels_of_a_gpu_has_nothing_to_choose() -> None:
    nothing: Any = None
    assert tune(compiled("cpp"), nothing, nothing) == {}


@pytest.mark.parametrize("present", ["", "sm_80"])
def test_kernels_for_a_gpu_that_is_not_here_are_refused(
    present: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coilwork_aot.tuning.count_devices", lambda kind: int(present != ""))
    monkeypatch.setattr("coilwork_aot.tuning.current_device", lambda kind: 0)
    monkeypatch.setattr("coilwork_aot.tuning.describe_gpu", lambda index: SimpleNamespace(name=present))
    nothing: Any = None
    with pytest.raises(ExportError, match=present or "no GPU") as raised:
        tune(compiled("cpp", "triton"), nothing, nothing)
    assert raised.value.code == "cannot-tune"
