"""Programs of the C++ wrapper called very often under AddressSanitizer and LeakSanitizer.

`python -m integration_tests.sanitized_calls --calls 10000` compiles a few programs, kernels included, with
`-fsanitize=address`, calls each so often in a process that has the sanitizer's library, and fails if that
finds an error, or memory that was allocated beneath a program and that nobody points to. Some calls fail on
purpose: their memory counts, too. It needs g++ with libasan, and takes minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

CALLS: Final = 10_000
OPTIONS: Final = {"wrapper": "cpp", "strict": True}
# Modules that are imported are not looked at.
CHILD: Final = (
    "import ctypes, runpy; ctypes.CDLL(None).__lsan_disable(); "
    "runpy.run_module('integration_tests.sanitized_calls', run_name='__main__')"
)
# Torch and Python keep much memory that nobody points to; only what programs ask for is ours.
OURS: Final = re.compile(r"program\.so|coilwork_run|coilwork_kernel")


def attend(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ k


def choose(x: Tensor) -> tuple[Tensor, ...]:
    found = torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() + 1, (x,))
    return (found, *torch.split(torch.fft.fft(found).abs(), 2))


def count_down(n: Tensor, x: Tensor) -> Any:
    return torch.while_loop(lambda k, y: k > 0, lambda k, y: (k - 1, y * 2 + 1), (n, x))


def select(x: Tensor) -> Tensor:
    return x.nonzero().sum(1) + 1


def bin_by_data(x: Tensor, y: Tensor) -> Tensor:
    return torch.histc(x, 6, -y.item(), 2 * y.item()) + 1


def overwrite(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(0.5).add_(y[:, None])
    return x.t(), x.sum(-1), F.dropout(y, 0.5)


def look_up(table: Tensor, rows: Tensor) -> Tensor:
    return F.embedding(rows, table).relu()


Program = tuple[Callable[..., Any], Sequence[Callable[[], Sequence[Tensor]]]]
PROGRAMS: Final[Sequence[Program]] = (
    (attend, [lambda n=n: (torch.randn(2, n, 8), torch.randn(2, n, 8)) for n in (5, 17)]),
    (choose, [lambda: (torch.ones(6),), lambda: (-torch.ones(6),)]),
    (count_down, [lambda: (torch.tensor(3), torch.randn(5))]),
    (select, [lambda: ((torch.randn(8, 8) > 0).float(),)]),
    (bin_by_data, [lambda: (torch.randn(20), torch.tensor(1.5))]),
    (overwrite, [lambda: (torch.randn(4, 5), torch.randn(4))]),
    (
        look_up,
        [
            lambda: (torch.randn(9, 4), torch.tensor([3, 8])),
            lambda: (torch.randn(9, 4), torch.tensor([3, 9])),
        ],
    ),
)
"""Functions, and what they are called with in turn; the last call of `look_up` is out of range."""


def call_often(calls: int) -> None:
    """Call each program `calls` times, a training step as well, then have leaks looked for.

    What is allocated while programs are compiled does not count: the sanitizer looks at 5,000 leaks alone,
    and modules of Python's leave more.
    """
    from benchmarks.backends import resolve_backend

    sanitizer = ctypes.CDLL(None)
    backend = resolve_backend("coilwork")
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    for function, makers in PROGRAMS:
        compiled = torch.compile(function, backend=backend, options=OPTIONS)
        given = [make() for make in makers]
        _call_in_turn(compiled, given, 2 * len(given))
        sanitizer.__lsan_enable()
        failed = _call_in_turn(compiled, given, calls)
        sanitizer.__lsan_disable()
        print(f"{function.__name__}: {calls} calls, {failed} of them refused", flush=True)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    step = torch.compile(layers, backend=backend, options=OPTIONS)
    x = torch.randn(5, 8, requires_grad=True)
    step(x).square().sum().backward()
    sanitizer.__lsan_enable()
    for _ in range(calls):
        step(x).square().sum().backward()
    print(f"training step: {calls} calls", flush=True)
    sanitizer.__lsan_do_recoverable_leak_check()


def _call_in_turn(compiled: Callable[..., Any], given: Sequence[Sequence[Tensor]], calls: int) -> int:
    """Call so often, with each of `given` in turn; returns how many calls are refused."""
    failed = 0
    for number in range(calls):
        try:
            compiled(*given[number % len(given)])
        except IndexError:
            failed += 1
    return failed


def run_sanitized(calls: int) -> int:
    """Run `call_often` in a process that has the sanitizer, and return how many faults it found."""
    # the sanitizer takes exceptions from the library that throws them, which has to be there before
    libraries = [_find_library(name) for name in ("libasan.so", "libstdc++.so.6")]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "CXX": "g++ -fsanitize=address -fno-omit-frame-pointer",
            "COILWORK_CACHE_DIR": folder,
            "LD_PRELOAD": " ".join(libraries),
            # torch and Python are built without the sanitizer
            "ASAN_OPTIONS": f"log_path={folder}/report:leak_check_at_exit=0:fast_unwind_on_malloc=0:"
            "malloc_context_size=20:alloc_dealloc_mismatch=0:detect_leaks=1",
            "LSAN_OPTIONS": "max_leaks=0",
        }
        child = [sys.executable, "-c", CHILD, "--child", "--calls", str(calls)]
        status = subprocess.run(child, env=environment, check=False).returncode
        reports = [path.read_text(errors="replace") for path in sorted(Path(folder).glob("report*"))]
    leaks = [block for text in reports for block in text.split("\n\n") if "leak of" in block]
    ours = [block for block in leaks if OURS.search(block)]
    # the summary of leaks names the sanitizer, too
    errors = [text for text in reports if "ERROR: AddressSanitizer:" in text]
    for text in (*errors, *ours):
        print(text)
    print(
        f"{len(errors)} errors; {len(leaks)} leaks in the process, {len(ours)} of them beneath a program; "
        f"it ended with status {status}"
    )
    return len(errors) + len(ours) + int(status != 0)


def _find_library(name: str) -> str:
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration_tests.sanitized_calls", description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if not asked.child:
        return int(run_sanitized(asked.calls) > 0)
    # compilers would look for their own leaks
    os.environ.pop("LD_PRELOAD")
    call_often(asked.calls)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
