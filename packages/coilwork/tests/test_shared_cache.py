"""Graphs and kernels shared through Redis, with a server in this process."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
import torch
from torch._dynamo.exc import BackendCompilerFailed

from coilwork.backend import options
from coilwork.caches import open_caches
from coilwork.compile_options import CompileOptions, list_options
from coilwork.errors import OptionError
from coilwork_cache import WARNINGS, CacheUnavailableWarning, CacheWarning, EntryTooLargeWarning
from coilwork_cache.tiered_store import SECRET

Compile = Callable[..., Callable[..., Any]]
# nothing listens there
NOBODY = "redis://127.0.0.1:1/0"


def waves(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum(-1) + 1


def test_another_machine_finds_what_one_has_compiled(
    strictly: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = fakeredis.FakeRedis()
    monkeypatch.setattr(redis.Redis, "from_url", lambda url, **_: client)
    monkeypatch.setenv(SECRET, "a secret of the whole team")
    x = torch.randn(4, 5)
    for machine, found in (("one", False), ("other", True)):
        torch._dynamo.reset()
        trace, folder = tmp_path / machine / "trace", tmp_path / machine / "cache"
        compiled = strictly(waves, redis_url="redis://shared", cache_dir=str(folder), trace=str(trace))
        torch.testing.assert_close(compiled(x), waves(x))
        (report,) = trace.glob("*/report.json")
        assert json.loads(report.read_text())["cache_hit"] is found
    assert client.dbsize() >= 2


def test_a_server_that_is_down_costs_a_warning(
    leniently: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, "a secret of the whole team")
    x = torch.randn(4, 5)
    with pytest.warns(CacheUnavailableWarning, match="redis"):
        compiled = leniently(waves, redis_url=NOBODY, cache_dir=str(tmp_path))(x)
    torch.testing.assert_close(compiled, waves(x))


def test_without_a_secret_nothing_is_shared(leniently: Compile) -> None:
    with pytest.raises(BackendCompilerFailed, match=f"redis_url needs {SECRET}") as raised:
        leniently(waves, redis_url=NOBODY)(torch.randn(4, 5))
    assert isinstance(raised.value.inner_exception, OptionError)


@pytest.mark.parametrize(
    ("url", "secret", "said"),
    [(NOBODY, "short", "at least 16"), ("http://there", "long enough a secret", "redis://")],
)
def test_wrong_settings_of_a_shared_cache_are_refused(
    url: str, secret: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SECRET, secret)
    with pytest.raises(OptionError, match=said):
        open_caches(CompileOptions(redis_url=url, cache_dir=str(tmp_path)))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SECRET, "a secret of the whole team")
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "coilwork_cache.redis_store", raising=False)
    with pytest.raises(OptionError, match=r"pip install .*redis"):
        open_caches(CompileOptions(redis_url="redis://absent", cache_dir=str(tmp_path)))


@pytest.mark.parametrize("warning", WARNINGS)
def test_warnings_name_options_that_exist(warning: type[CacheWarning]) -> None:
    named = set(re.findall(r"\boption (\w+)", warning.remedy))
    assert named <= {one.name for one in list_options()}


@pytest.mark.parametrize("source", ["options", "environment", "around"])
def test_size_age_and_place_come_from_every_source(
    source: str, leniently: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten bytes hold no entry, which the warning about the first one says; the folder is the one that was
    named."""
    settings = {"max_bytes": 10, "max_age_days": 1, "cache_dir": str(tmp_path / "cache")}
    around: AbstractContextManager[object] = nullcontext()
    if source == "environment":
        for name, value in settings.items():
            monkeypatch.setenv(f"COILWORK_{name.upper()}", str(value))
    elif source == "around":
        around = options(**settings)
    compiled = leniently(waves, **(settings if source == "options" else {}))
    with around, pytest.warns(EntryTooLargeWarning, match="max_bytes is 10\n.*option max_bytes"):
        compiled(torch.randn(4, 5))
    assert (tmp_path / "cache" / "v1" / "aged").exists()
