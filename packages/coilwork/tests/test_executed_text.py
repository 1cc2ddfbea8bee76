"""What runs by default executes no text of ours: an audit hook sees every `exec`, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

SCRIPT = """
import json, sys
import torch
import coilwork
from coilwork.backend import backend

seen = []
sys.addaudithook(
    lambda event, args: seen.append(args[0].co_filename) if event == "exec" else None
)
executor = sys.argv[1]

def compiled(function, **rest):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options={"strict": True, "executor": executor}, **rest)

def pointwise(x):
    return torch.tanh(x) * 2

def views(x):
    doubled = x * 2
    return doubled, doubled.t(), x.view(-1), doubled

def update(x, step):
    x.add_(x, alpha=step)
    return x.sum()

x = torch.randn(4, 4)
for _ in range(2):
    compiled(pointwise)(x)
    compiled(views)(x)
    compiled(update)(torch.zeros(17)[1:].view(4, 4), 0.5)
    compiled(pointwise)(torch._neg_view(x))
    compiled(lambda z: (z * 2).conj())(torch.complex(x, x))
    growing = compiled(pointwise, dynamic=True)
    growing(x), growing(x[1:])
    weight = torch.randn(4, 4, requires_grad=True)
    sum(part.sum() for part in compiled(lambda x: views(x @ weight))(x)).backward()
    compiled(lambda i, w: torch.nn.functional.embedding(i, w, sparse=True).sum())(
        torch.arange(3), weight
    ).backward()
print(json.dumps([name for name in seen if "coilwork" in name and name.startswith("<")]))
"""


def list_executed(executor: str, folder: Path) -> list[str]:
    """The names of texts of ours that were executed."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, executor],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "COILWORK_CACHE_DIR": str(folder)},
    )
    found: list[str] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_default_calls_execute_no_text(tmp_path: Path) -> None:
    """Neither compiled anew nor from the cache, in inference nor in training."""
    assert list_executed("auto", tmp_path) == []


def test_who_asks_for_python_gets_the_module(tmp_path: Path) -> None:
    assert any(name.startswith("<coilwork ") for name in list_executed("python", tmp_path))
