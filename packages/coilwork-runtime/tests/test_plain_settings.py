"""Torch's settings as a process without Python reads them: those that Python reads."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch

from coilwork_runtime.executor.native_program import FOLDER
from coilwork_runtime.native_build import compile_library, list_source_files
from coilwork_runtime.torch_compat import get_convolution_settings, get_product_settings

SOURCE = """
#include "interfaces/settings.hpp"

static const coilwork::TorchSettings& settings() {
  coilwork::find_torch();
  return coilwork::TorchSettings::instance();
}
#define API extern "C" __attribute__((visibility("default")))
API int read_products() { return settings().products(); }
API int read_convolutions() { return settings().convolutions(); }
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    headers = {
        name: path.read_text() for name, path in list_source_files(FOLDER).items() if "interfaces/" in name
    }
    data = compile_library("g++", (*headers.items(), ("reader.cpp", SOURCE)), link_flags=["-ldl"])
    assert data is not None
    path = tmp_path_factory.mktemp("settings") / "reader.so"
    path.write_bytes(data)
    return ctypes.CDLL(str(path))


@pytest.fixture
def matmul() -> Iterator[Any]:
    """The settings of products, which are as before afterwards."""
    names = (
        "allow_tf32",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    settings = torch.backends.cuda.matmul
    before = {name: getattr(settings, name) for name in names}
    yield settings
    for name, value in before.items():
        setattr(settings, name, value)


def test_settings_of_products(reader: ctypes.CDLL, matmul: Any) -> None:
    reductions = [(True, True), (False, True), (False, False)]
    seen = set()
    for tf32, half, brain in product((False, True), reductions, reductions):
        matmul.allow_tf32 = tf32
        matmul.allow_fp16_reduced_precision_reduction = half
        matmul.allow_bf16_reduced_precision_reduction = brain
        assert reader.read_products() == get_product_settings() >= 0
        seen.add(get_product_settings())
    assert len(seen) == 18
    matmul.allow_fp16_accumulation = True
    assert reader.read_products() == get_product_settings() == -1


def test_products_that_aten_alone_does(reader: ctypes.CDLL) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert reader.read_products() == get_product_settings() == -1
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("enabled", "benchmark"), list(product((False, True), repeat=2)))
def test_settings_of_convolutions(
    reader: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, enabled: bool, benchmark: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", enabled)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    assert (
        reader.read_convolutions() == get_convolution_settings() == (0 if enabled and not benchmark else -1)
    )
