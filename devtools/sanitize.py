"""The native executor's tests under AddressSanitizer and LeakSanitizer: `python devtools/sanitize.py
[pytest's arguments]`.

Every leak whose allocation came from the executor, through however many functions of torch or Python, is an
error; what torch and Python leave behind by themselves is counted and passed over. Nothing is suppressed by
name. Needs g++ with its sanitizers, on Linux.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("program", "faults", "launches")
OURS = "coilwork_executor"
ASAN_OPTIONS = {
    "detect_leaks": "1",
    # torch is built without frame pointers, and what it allocates for us should name us; handles and Python's
    # objects are made a few functions below us
    "fast_unwind_on_malloc": "0",
    "malloc_context_size": "8",
    # a tensor that is too large is an exception, not the end
    "allocator_may_return_null": "1",
    "quarantine_size_mb": "1",
    "detect_odr_violation": "0",
}


def leaks(report: str) -> Iterator[str]:
    """The leaks in what LeakSanitizer wrote, each with its stack."""
    for part in re.split(r"\n(?=(?:Direct|Indirect) leak of )", report):
        if re.match(r"(Direct|Indirect) leak of ", part):
            yield part.split("\n\n")[0]


def main(arguments: list[str]) -> int:
    libraries = [_library(name) for name in ("libasan.so", "libstdc++.so.6")]
    tests = arguments or [f"packages/coilwork-runtime/tests/test_executor_{name}.py" for name in TESTS]
    with tempfile.TemporaryDirectory(prefix="coilwork-sanitize-") as folder:
        log = Path(folder, "log")
        options = ":".join(
            f"{name}={value}" for name, value in (ASAN_OPTIONS | {"log_path": str(log)}).items()
        )
        paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
        environ = os.environ | {
            "ASAN_OPTIONS": options,
            # the tests' own result decides, then this script
            "LSAN_OPTIONS": "exitcode=0:max_leaks=0:report_objects=0",
            "LD_PRELOAD": " ".join(libraries),
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "devtools.sanitized_executor", *tests]
        done = subprocess.run(command, env=environ, cwd=ROOT, check=False)
        report = "\n".join(path.read_text(errors="replace") for path in Path(folder).glob("log.*"))
    found = list(leaks(report))
    ours = [leak for leak in found if OURS in leak]
    errors = re.findall(r"ERROR: AddressSanitizer: .*", report)
    print("\n\n".join((*errors, *ours)))
    print(
        f"{len(ours)} leaks of the native executor, {len(errors)} errors; {len(found) - len(ours)} of others"
    )
    return 1 if ours or errors or done.returncode else 0


def _library(name: str) -> str:
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
