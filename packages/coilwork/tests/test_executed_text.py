"""What runs executes no text of ours, whoever drives it: an audit hook sees every `exec`, in a process of its
own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from torch.utils.flop_counter import FlopCounterMode
import coilwork
from coilwork.backend import backend
from coilwork_cache import MemoryStore
from coilwork_aot import load, save_program
from coilwork_runtime.executor.choice import ExecutorOptions

seen = []
sys.addaudithook(
    lambda event, args: seen.append(args[0].co_filename) if event == "exec" else None
)

def compiled(function, **rest):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options=options, **rest)

def pointwise(x):
    return torch.tanh(x) * 2

def views(x):
    doubled = x * 2
    return doubled, doubled.t(), x.view(-1), doubled

def update(x, step):
    x.add_(x, alpha=step)
    return x.sum()

def chosen(x):
    return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos(), (x,))

def looped(x):
    return torch._higher_order_ops.while_loop(
        lambda k, y: k < 3, lambda k, y: (k + 1, y * 2 + k), (torch.tensor(0), x)
    )

def divided(x):
    for _ in range(3):
        x = (x @ x).tanh().softmax(-1)
    return x

class Number(int):
    pass

x = torch.randn(4, 4)
found_of = {}
for executor in sys.argv[2:]:
    seen.clear()
    # each compiles anew
    folder = Path(sys.argv[1]) / executor
    options = {"strict": True, "executor": executor, "cache_dir": str(folder / "cache")}
    for _ in range(2):
        compiled(pointwise)(x)
        compiled(views)(x)
        compiled(update)(torch.zeros(17)[1:].view(4, 4), 0.5)
        compiled(pointwise)(torch._neg_view(x))
        compiled(lambda z: (z * 2).conj())(torch.complex(x, x))
        growing = compiled(pointwise, dynamic=True)
        growing(x), growing(x[1:])
        for function in (chosen, looped, divided):
            found = compiled(function)
            for _ in range(3):
                torch.testing.assert_close(found(x), function(x))
        # no plain integers
        sized = compiled(lambda x, n: x.new_zeros(n) + n, dynamic=True)
        sized(x, 3), sized(x, 5), sized(x, Number(7))
        # operators are watched
        watched = compiled(pointwise)
        watched(x)
        with FlopCounterMode(display=False):
            watched(x)
        with torch.inference_mode():
            compiled(torch.nn.Linear(4, 4).requires_grad_(False))(x)
        weight = torch.randn(4, 4, requires_grad=True)
        sum(part.sum() for part in compiled(lambda x: views(x @ weight))(x)).backward()
        compiled(lambda i, w: torch.nn.functional.embedding(i, w, sparse=True).sum())(
            torch.arange(3), weight
        ).backward()
    # packages
    trace = folder / "trace"
    torch._dynamo.reset()
    torch.compile(divided, backend=backend, options=options | {"trace": str(trace)})(x)
    (saved,) = trace.iterdir()
    save_program(saved, trace / "model.cw")
    for runs in "python", "native":
        loaded = load(trace / "model.cw", store=MemoryStore(), options=ExecutorOptions(executor=runs))
        torch.testing.assert_close(loaded(x)[0], divided(x))
        assert loaded.entry("forward").executors == (runs,)
    # torch.fx tells behind `from` where it made a text, which a folder's name may spoil
    told = [name.partition(" from ")[0] for name in seen if name.startswith("<")]
    found_of[executor] = [name for name in told if "coilwork" in name]
print(json.dumps(found_of))
"""


EXECUTORS = ("auto", "python")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By executor, the names of texts of ours that were executed."""
    folder = tmp_path_factory.mktemp("executed")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), *EXECUTORS],
        capture_output=True,
        text=True,
        timeout=600,
        env={name: value for name, value in os.environ.items() if not name.startswith("COILWORK_")},
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, list[str]] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("executor", EXECUTORS)
def test_calls_execute_no_text(executor: str, executed: dict[str, list[str]]) -> None:
    """Neither compiled anew nor from the cache, in inference nor in training, with whatever inputs."""
    assert executed[executor] == []
