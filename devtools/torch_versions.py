"""The tests with one version of torch, file by file, and a page of what came of them with each version.

`python devtools/torch_versions.py run [--results FILE] [--again] [WHAT ...]` runs test files with the torch
of this Python, eight at a time in a process. WHAT are packages, `integration_tests`, or files; without any,
all are meant. What came of a file is a line in FILE, so that an interrupted run goes on where it stopped:
files that passed with this torch and were not edited since are run again only if told so.
`python devtools/torch_versions.py page` writes `docs/torch-versions.md` of the lines.

`nox -s versions -- 2.11.0 WHAT ...` does both, in an environment with that torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "torch_versions.jsonl"
PAGE = ROOT / "docs" / "torch-versions.md"
TOGETHER = "integration_tests"
FILE_LIMIT_S = 20 * 60
# A test that is left out because of the version says so in these words.
_OF_A_VERSION = re.compile(r"\btorch \d\.\d+")

# The versions of torch and of Python, this without its last part.
Column = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """The outcome of one test file with one torch.

    Attributes:
        torch, triton, python: versions, without what builds add to them; `triton` is empty where there is
            none.
        file: relative to the repository.
        digest: of the file's bytes.
        passed, failed, skipped: numbers of tests; errors are failures, and so is a process that ends early.
        failures: names of those that failed.
        reasons: why tests were skipped, and how many for each reason.
        seconds: of its tests, wall-clock time.
    """

    torch: str
    triton: str
    python: str
    file: str
    digest: str
    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...]
    reasons: Mapping[str, int]
    seconds: float

    @property
    def column(self) -> Column:
        """Its column on the page."""
        return column_of(self.torch, self.python)

    @property
    def group(self) -> str:
        """The package that the file tests, or the integration tests."""
        first, second, *_ = Path(self.file).parts
        return second if first == "packages" else first


def column_of(torch: str, python: str) -> Column:
    return torch, python.rpartition(".")[0]


def list_files(wanted: Sequence[str]) -> list[Path]:
    """Test files of the named packages, folders and files, relative to the repository.

    Raises:
        SystemExit: one is no package and no path.
    """
    packages = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
    found: dict[Path, None] = {}
    for name in wanted or (*packages, TOGETHER):
        place = ROOT / "packages" / name / "tests" if name in packages else ROOT / name
        if not place.exists():
            raise SystemExit(f"{name} is no package, and no path in {ROOT}")
        # tests of GPUs and of other environments have sessions of their own
        files = sorted(place.glob("test_*.py")) if place.is_dir() else [place]
        found |= dict.fromkeys(path.relative_to(ROOT) for path in files)
    return list(found)


def digest_of(file: Path) -> str:
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def run_together(files: Sequence[Path]) -> list[FileRun]:
    """Run several files' tests in one process, which imports torch once. If it ends early, each file gets a
    process of its own, and so a crash counts where it happens.
    """
    with tempfile.TemporaryDirectory(prefix="torch-versions-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", *map(str, files), "-q", "-m", "not gpu"]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        code, output = _run(command, limit_s=FILE_LIMIT_S * len(files))
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    # 1: tests failed; 5: the files hold tests of GPUs alone
    ended_early = code not in (0, 1, 5)
    if ended_early and len(files) > 1:
        return [run for file in files for run in run_together([file])]
    if code not in (0, 5):
        print(output[-9000:], flush=True)
    of_file: dict[str, list[ElementTree.Element]] = {file.as_posix(): [] for file in files}
    for case in cases:
        # a relative path where pytest found its settings, and its folder
        named = case.get("file", "")
        for file, found in of_file.items():
            if file.endswith(named):
                found.append(case)
    return [_summarise(file, of_file[file.as_posix()], code if ended_early else 0) for file in files]


def _run(command: Sequence[str], *, limit_s: float) -> tuple[int, str]:
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=limit_s, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        return 124, f"{error.stdout!r}"
    return done.returncode, done.stdout + done.stderr


def _summarise(file: Path, cases: Sequence[ElementTree.Element], code: int) -> FileRun:
    failures = [case.get("name", "") for case in cases if _outcome(case) == "failed"]
    reasons: dict[str, int] = {}
    for case in cases:
        if _outcome(case) == "skipped":
            reason = " ".join(next(case.iter("skipped")).get("message", "").split())
            reasons[reason] = reasons.get(reason, 0) + 1
    if code:
        failures.append(f"exit {code}")
    return FileRun(
        torch=version_of("torch"),
        triton=version_of("triton"),
        python=platform.python_version(),
        file=file.as_posix(),
        digest=digest_of(file),
        passed=sum(_outcome(case) == "passed" for case in cases),
        failed=len(failures),
        skipped=sum(reasons.values()),
        failures=tuple(failures),
        reasons=reasons,
        seconds=round(sum(float(case.get("time", "0")) for case in cases), 1),
    )


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def read_runs(results: Path) -> list[FileRun]:
    """The last line of each file with each torch and Python."""
    if not results.exists():
        return []
    last: dict[tuple[Column, str], FileRun] = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        run = FileRun(**{**fields, "failures": tuple(fields["failures"])})
        last[run.column, run.file] = run
    return list(last.values())


def run_files(files: Iterable[Path], results: Path, *, again: bool = False, at_a_time: int = 8) -> int:
    """Run test files, some at a time, and add a line for each to `results`; returns how many tests failed."""
    here = column_of(version_of("torch"), platform.python_version())
    # what has passed since it was last edited
    known = {(run.file, run.digest) for run in read_runs(results) if run.column == here and not run.failed}
    pending = [file for file in files if again or (file.as_posix(), digest_of(file)) not in known]
    failed = 0
    for start in range(0, len(pending), at_a_time):
        runs = run_together(pending[start : start + at_a_time])
        with results.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(asdict(run)) + "\n" for run in runs)
        for run in runs:
            counts = f"{run.passed} passed, {run.failed} failed, {run.skipped} skipped"
            print(
                f"{name_column(here)}, {run.file}: {counts} in {run.seconds:.0f} s", *run.failures, flush=True
            )
            failed += run.failed
    return failed


def name_column(column: Column) -> str:
    torch, python = column
    return f"{f'torch {torch}' if torch else 'no torch'}, Python {python}"


def _order(column: Column) -> list[list[int]]:
    return [[int(part) for part in re.findall(r"\d+", version)] for version in column]


def format_page(runs: Sequence[FileRun]) -> str:
    """The page: a column for each torch and Python, a row for each package."""
    columns = sorted({run.column for run in runs}, key=_order)
    groups = sorted({run.group for run in runs}, key=lambda group: (group == TOGETHER, group))
    lines = [f"| tests of | {' | '.join(map(name_column, columns))} |", "|---|" + "---|" * len(columns)]
    for group in groups:
        there = len(list_files([group]))
        cells = [_cell([r for r in runs if (r.group, r.column) == (group, c)], there) for c in columns]
        lines.append(f"| {group} | {' | '.join(cells)} |")
    together = [_cell([r for r in runs if r.column == column], len(list_files([]))) for column in columns]
    lines.append(f"| all | {' | '.join(together)} |")
    failures = [
        f"| {name_column(r.column)} | `{r.file}` | {', '.join(r.failures)} |" for r in runs if r.failed
    ]
    skips = [
        f"| {name_column(r.column)} | `{r.file}` | {number}: {reason} |"
        for r in runs
        for reason, number in r.reasons.items()
        if _OF_A_VERSION.search(reason)
    ]
    triton = sorted({f"{run.triton} with torch {run.torch}" for run in runs if run.triton})
    return _PAGE.format(
        table="\n".join(lines),
        triton=", ".join(triton) or "absent",
        failures=_table(failures),
        skips=_table(skips),
    )


def _table(rows: Sequence[str]) -> str:
    return "\n".join(["| with | file | tests |", "|---|---|---|", *sorted(rows)]) if rows else "None."


def _cell(runs: Sequence[FileRun], there: int) -> str:
    if not runs:
        return "not run"
    passed, failed, skipped = (
        sum(getattr(run, name) for run in runs) for name in ("passed", "failed", "skipped")
    )
    return f"{passed:,} / {failed} / {skipped} in {len(runs)} of {there} files"


_PAGE = """# The tests with each version of torch

`nox -s versions -- 2.11.0` runs test files with that torch, and writes this page
of all versions that were run so far. Names of packages, or of test files, behind the version run those alone.
The ordinary test command uses one version alone. On CPUs, without the tests of GPUs:

{table}

Tests that passed / failed / were skipped. The columns without torch are of tests that need none, by
`python devtools/torch_versions.py run FILE ...` with that Python.

Triton is {triton}.

## What differs between versions

- Before torch 2.13, Dynamo drops a user's `torch._check` on numbers from data if it has derived an assertion
  from it, and the user's message with it. The check fails with torch's words.

## What failed

{failures}

## What tests leave out because of the version

{skips}
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "page"):
        command = commands.add_parser(name)
        command.add_argument("--results", type=Path, default=RESULTS)
        if name == "run":
            command.add_argument("--again", action="store_true", help="also what has passed before")
            command.add_argument("what", nargs="*", help="packages, folders or files")
    arguments = parser.parse_args()
    if arguments.command == "page":
        PAGE.write_text(format_page(read_runs(arguments.results)), encoding="utf-8")
        return 0
    return 1 if run_files(list_files(arguments.what), arguments.results, again=arguments.again) else 0


if __name__ == "__main__":
    sys.exit(main())
