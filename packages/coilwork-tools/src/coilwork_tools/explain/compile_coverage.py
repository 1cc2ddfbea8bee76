"""The command that runs a program and lists all of it that is not generated code, with the reasons.

From most to least that is lost: functions that Dynamo does not capture, or no more, graphs that run in eager
mode, calls that Python makes between compiled parts, and operators of torch's that compiled programs call.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from coilwork_frontend.errors import CoilworkFallbackWarning
from coilwork_frontend.torch_compat.dynamo import DYNAMO_LOG, count_graph_breaks
from coilwork_tools.explain.report import CompileReport, read_report

_TRACE = "COILWORK_TRACE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncompiled:
    """All of a program that is not generated code.

    Attributes:
        reports: of the graphs that were compiled, or tried.
        warnings: of whatever was done otherwise than asked for.
        logged: what was logged of functions that are not compiled any more, and of calls that a compiled
            graph left to eager mode.
        breaks: where Dynamo ends a graph, by the reason; how often.
        error: what the program raised.
    """

    reports: tuple[CompileReport, ...]
    warnings: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()
    breaks: dict[str, int] = field(default_factory=dict)
    error: Exception | None = None

    def list_lines(self) -> Iterator[str]:
        """Yield the findings as text, a finding per line."""
        for reason, count in self.breaks.items():
            yield f"graph break  {count}x  {reason}"
        for text in self.warnings:
            yield f"warning      {_join_lines(text)}"
        for text in self.logged:
            yield f"log          {_join_lines(text)}"
        # what a part holds, the report of the whole says
        parts = {part for report in self.reports for part in report.parts}
        for report in self.reports:
            if report.graph_id in parts:
                continue
            split = f" in {len(report.parts)} parts" if report.parts else ""
            yield f"{report.graph_id}: {report.kernels} kernels, {report.extern_calls} operators{split}"
            if report.fallback:
                yield f"  eager      {_join_lines(report.fallback)}"
            if report.executor == "python":
                yield f"  driver     Python: {_join_lines(report.executor_reason)}"
            for call in report.called:
                yield f"  by Python  {call['op']}: {_join_lines(call['reason'])}{_place(call['source'])}"
            for one in report.operators:
                yield f"  operator   {one['count']}x  {one['op']}: {one['reason']}{_place(one['source'])}"


def _place(source: object) -> str:
    return f"  at {source}" if source else ""


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def run_script(path: Path, arguments: Sequence[str]) -> Uncompiled:
    """Run the Python program at `path`, and return what of it is not generated code."""
    log, error = _Log(), None
    before = count_graph_breaks()
    with tempfile.TemporaryDirectory() as folder, _environment(_TRACE, folder), _arguments(path, arguments):
        with warnings.catch_warnings(record=True) as caught, log.attach():
            warnings.simplefilter("always", CoilworkFallbackWarning)
            try:
                with suppress(SystemExit):
                    runpy.run_path(str(path), run_name="__main__")
            # whatever the program raises: what was found until then is told before
            except Exception as raised:  # noqa: BLE001
                error = raised
        told = [one for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
        for one in caught:
            if one not in told:
                warnings.showwarning(one.message, one.category, one.filename, one.lineno)
        files = sorted(Path(folder).glob("*/report.json"), key=lambda file: file.stat().st_mtime_ns)
        reports = [read_report(json.loads(file.read_text())) for file in files]
    return Uncompiled(
        reports=tuple(reports),
        warnings=tuple(f"{one.message} at {one.filename}:{one.lineno}" for one in told),
        logged=tuple(dict.fromkeys(log.texts)),
        breaks={
            reason: count - before.get(reason, 0)
            for reason, count in count_graph_breaks().items()
            if count > before.get(reason, 0)
        },
        error=error,
    )


class _Log(logging.Handler):
    """Keeps the warnings of the logs of the compiler and of Dynamo."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Listen while it is entered."""
        logs = [logging.getLogger(name) for name in ("coilwork", DYNAMO_LOG)]
        for one in logs:
            one.addHandler(self)
        try:
            yield
        finally:
            for one in logs:
                one.removeHandler(self)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _arguments(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    try:
        yield
    finally:
        sys.argv = before
        sys.path.remove(str(path.parent))


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def uncompiled(script: Path, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT, a Python program that compiles a model, and list what is not generated code, and why.

    What the program raises is raised behind the list.
    """
    found = run_script(script, arguments)
    for line in found.list_lines():
        click.echo(line)
    if found.error is not None:
        raise found.error
