"""`torch.compiler.save_cache_artifacts` and `load_cache_artifacts` carry what a fresh machine needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.compiler._cache import CacheArtifactManager

import coilwork
from coilwork.backend import backend
from coilwork_cache import LocalStore
from coilwork_frontend import compile_captured


def test_artifacts_start_another_cache_warm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(folder: Path) -> torch.Tensor:
        torch._dynamo.reset()
        x = torch.ones(3, 4, requires_grad=True)
        with coilwork.options(cache_dir=str(folder), strict=True):
            torch.compile(lambda x: (x * 2).sin().sum(), backend=backend)(x).backward()
        assert x.grad is not None
        return x.grad

    with CacheArtifactManager.with_fresh_cache():
        expected = train(tmp_path / "first")
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    data, info = saved
    first = LocalStore(tmp_path / "first")
    used = {entry.key for entry in first.entries() if entry.kind in ("graph", "trace")}
    assert len(used) == 3
    assert used <= set(info.artifacts["coilwork"]) <= set(first.list_used_keys())

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("traced")

    with CacheArtifactManager.with_fresh_cache():
        with coilwork.options(cache_dir=str(tmp_path / "second")):
            loaded = torch.compiler.load_cache_artifacts(data)
        assert loaded is not None and loaded.artifacts == info.artifacts
        second = LocalStore(tmp_path / "second")
        assert all(second.get(key) == first.get(key) for key in info.artifacts["coilwork"])
        monkeypatch.setattr(compile_captured, "compile_with_aot_autograd", refuse)
        assert torch.equal(train(tmp_path / "second"), expected)
        # what was loaded is used, and saved again
        again = torch.compiler.save_cache_artifacts()
    assert again is not None and used <= set(again[1].artifacts["coilwork"])


def test_an_entry_that_is_gone_is_left_out(tmp_path: Path) -> None:
    with CacheArtifactManager.with_fresh_cache():
        store = LocalStore(tmp_path / "first")
        torch._dynamo.reset()
        with coilwork.options(cache_dir=str(tmp_path / "first")):
            torch.compile(lambda x: x.cos() + 3, backend=backend)(torch.ones(5))
        store.clear()
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        with coilwork.options(cache_dir=str(tmp_path / "second")):
            torch.compiler.load_cache_artifacts(saved[0])
    assert list(LocalStore(tmp_path / "second").entries()) == []
