"""Every test starts with Dynamo's caches empty, without the caller's settings, and with the session's own
cache folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from coilwork.backend import backend

# The folder of helpers of these tests.
sys.path.insert(0, str(Path(__file__).parent))

LIMIT_S = 300


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that a kernel that several tests need is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, kernel_cache: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("COILWORK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COILWORK_CACHE_DIR", str(kernel_cache))
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        # torch's own, while it traces; ours stay
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
    torch._dynamo.reset()


Compile = Callable[..., Callable[..., Any]]


@pytest.fixture
def strictly() -> Compile:
    """`strictly(function, **options)`: compiled, where a failure is an error instead of a fallback."""

    def compile_strictly(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(
            function, backend=backend, options={"strict": True, "verify": True, **options}
        )
        return compiled

    return compile_strictly


@pytest.fixture
def leniently() -> Compile:
    """`leniently(function, **options)`: compiled as users do, with fallbacks."""

    def compile_leniently(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function, backend=backend, options=dict(options))
        return compiled

    return compile_leniently


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """`run_python(*arguments, environ={...})` in a process of its own; fails the test with its output if it
    fails.
    """

    def run(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **(environ or {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode:
            pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run
