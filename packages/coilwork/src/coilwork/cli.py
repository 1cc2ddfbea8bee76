"""The `coilwork` command."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

import coilwork
from coilwork.caches import COMPONENTS
from coilwork.compile_options import list_options
from coilwork_cache import CacheError, LocalStore, clear, describe, export_archive, import_archive, verify
from coilwork_runtime import RuntimeFault, describe_device
from coilwork_runtime.executor.measured import ExecutorFacts, measure_executor
from coilwork_runtime.triton_kernels.remembered import read_findings
from coilwork_tools.bench.comparison import findings, to_json, to_markdown
from coilwork_tools.bench.worker import Finding
from coilwork_tools.explain.trace import MAPPING_SUFFIX

PACKAGES = (*(name.replace("_", "-") for name in COMPONENTS), "torch", "triton")


_PLACES = MappingProxyType({"coilwork": "coilwork.backend:backend"})


class ToldErrors(click.Group):
    """Commands whose expected errors are told like those of their usage, without a traceback: the exit status is 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (CacheError, RuntimeFault) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            # of a file that was named; others, a closed pipe for one, are click's to handle
            if error.filename is None:
                raise
            raise click.ClickException(f"{error.strerror}: {error.filename}") from error


@click.group(cls=ToldErrors)
@click.version_option(coilwork.__version__, prog_name="coilwork")
def main() -> None:
    """Coilwork, a deep-learning compiler for PyTorch."""


@main.command()
def info() -> None:
    """Show versions, devices, and how the compiler sees them."""
    console = Console()
    versions = Table(title="packages")
    versions.add_column("package")
    versions.add_column("version")
    for name in PACKAGES:
        versions.add_row(name, _version(name))
    versions.add_row("python", platform.python_version())
    console.print(versions)
    devices = Table(title="devices")
    for heading in ("device", "target", "multiprocessors", "shared memory, KiB", "L2, MiB"):
        devices.add_column(heading)
    devices.add_row("cpu", str(describe_device("cpu")["name"]), "", "", "")
    for number in range(torch.cuda.device_count()):
        facts = describe_device(f"cuda:{number}")
        sizes = (_quantity(facts["shared_memory_bytes"], 2**10), _quantity(facts["l2_bytes"], 2**20))
        devices.add_row(f"cuda:{number}", str(facts["name"]), str(facts["multiprocessors"]), *sizes)
    console.print(devices)


def _quantity(size_bytes: object, unit_bytes: int) -> str:
    return f"{size_bytes / unit_bytes:.0f}" if isinstance(size_bytes, int) and size_bytes else "-"


@main.command()
def executor() -> None:
    """Build and load the native executor once more: seconds and bytes."""
    facts = measure_executor()
    table = Table(title="native executor")
    table.add_column("what")
    table.add_column("")
    table.add_row("comes with the package", "yes" if facts.prebuilt else "no")
    table.add_row("build", _seconds(facts))
    table.add_row("load", "-" if facts.load_s is None else f"{1e3 * facts.load_s:.2f} ms")
    table.add_row("size", "-" if facts.size_bytes is None else f"{facts.size_bytes / 1024:.0f} KiB")
    Console().print(table)


def _seconds(facts: ExecutorFacts) -> str:
    if facts.build_s is None:
        return "no compiler"
    return f"{facts.build_s:.2f} s ({facts.build_cpu_s:.2f} s of processors)"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


@main.command()
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def options(markdown: bool) -> None:
    """List the options of the backend.

    They are given as torch.compile(..., backend="coilwork", options={...}), or in environment variables.
    """
    if markdown:
        headings = ("option", "values", "default", "environment variable", "effect")
        rows = [(o.name, o.values, o.default, o.variable, o.effect) for o in list_options()]
        for row in (headings, ("---",) * len(headings), *rows):
            click.echo(f"| {' | '.join(row)} |")
        return
    # one below the other: a terminal has no room for five columns, and would cut names short
    formatter = click.HelpFormatter()
    formatter.write_dl(
        [(o.name, f"{o.effect}\n\n{o.values}; default {o.default}; {o.variable}") for o in list_options()],
        col_spacing=2,
    )
    click.echo(formatter.getvalue(), nl=False)


@main.command()
@click.argument("subject", metavar="FILE.py:FUNCTION")
@click.option(
    "--backends",
    default="eager,inductor,coilwork",
    show_default=True,
    help="What to compare, the first being the measure of the others: `name`, `name:mode`, or `name-max` for its mode "
    "max-autotune-no-cudagraphs.",
)
@click.option("--backward", is_flag=True, help="Take gradients of parameters and inputs, too.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the findings there as JSON."
)
@click.option(
    "--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table there, too."
)
@click.option("--timeout", default=900.0, show_default=True, help="Seconds per backend.")
def bench(
    subject: str,
    backends: str,
    backward: bool,
    json_path: Path | None,
    markdown_path: Path | None,
    timeout: float,
) -> None:
    """Measure a function of yours under several backends.

    FUNCTION, of a file or of a module by its dotted name, takes nothing and returns what is to be compiled, a function or a module, and a tuple of its arguments. Each
    backend compiles in a process of its own with empty caches; its results are judged by eager's and float64's before
    they are timed. The exit status is 1 if a backend failed.
    """
    script, colon, name = subject.rpartition(":")
    if not colon or not script or not name:
        raise click.UsageError(f"{subject!r} is not of the form FILE.py:FUNCTION")
    if script.endswith(".py") and not Path(script).is_file():
        raise click.UsageError(f"there is no file {script!r}")
    for path in filter(None, (json_path, markdown_path)):
        if not path.absolute().parent.is_dir():
            raise click.UsageError(f"there is no folder for {str(path)!r}")
    found: list[Finding] = []
    for finding in findings(
        script, name, backends.split(","), backward=backward, timeout_s=timeout, places=_PLACES
    ):
        found.append(finding)
        said = finding.failure or f"{finding.busy_us or 0.0:.1f} us"
        click.echo(f"{finding.backend}: {said}", err=True)
    table = to_markdown(subject, found)
    click.echo(table)
    if json_path is not None:
        json_path.write_text(to_json(subject, found))
    if markdown_path is not None:
        markdown_path.write_text(table)
    if any(finding.failure for finding in found):
        raise SystemExit(1)


@main.group()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=None, help="Cache folder.")
@click.pass_context
def cache(context: click.Context, folder: Path | None) -> None:
    """Inspect and maintain the on-disk cache."""
    context.obj = LocalStore(folder)


@cache.command()
@click.pass_obj
def stats(store: LocalStore) -> None:
    """Show how many entries of each kind there are, and their size."""
    report = describe(store)
    table = Table(title=str(store.root))
    for heading in ("kind", "entries", "MiB"):
        table.add_column(heading)
    for kind in report.kinds:
        table.add_row(kind.kind, str(kind.entries), f"{kind.size_bytes / 2**20:.2f}")
    table.add_row("total", str(len(report.entries)), f"{report.size_bytes / 2**20:.2f}")
    Console().print(table)


@cache.command()
@click.option(
    "--write", "folder", type=click.Path(path_type=Path), default=None, help="Write a file for each kernel."
)
@click.pass_obj
def mappings(store: LocalStore, folder: Path | None) -> None:
    """Show how kernels run best, as far as searches (max-autotune) found out.

    The option `mappings` takes the folder that is written. Of a kernel that was searched for sizes of several
    magnitudes it gets what was found last.
    """
    for entry in store.entries():
        data = store.get(entry.key)
        for one in () if data is None else read_findings(data):
            sizes = f" for sizes like {', '.join(map(str, one.sizes))}" if one.sizes else ""
            click.echo(f"# {one.kernel} on {one.device}{sizes}: {one.gain:.2f} times as fast as proposed")
            click.echo(f"{one.mapping}\n")
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{one.kernel}{MAPPING_SUFFIX}").write_text(f"{one.mapping}\n")


@cache.command(name="clear")
@click.option("--kind", default=None, help="Only entries of this kind.")
@click.pass_obj
def clear_command(store: LocalStore, kind: str | None) -> None:
    """Remove entries."""
    click.echo(f"removed {clear(store, kind=kind)} entries")


@cache.command(name="verify")
@click.pass_obj
def verify_command(store: LocalStore) -> None:
    """Read every entry, and remove the damaged ones.

    They are reported, and make the exit status 1.
    """
    report = verify(store)
    for problem in report.problems:
        click.echo(problem)
    click.echo(f"{report.intact} intact, {len(report.problems)} damaged")
    if report.problems:
        raise SystemExit(1)


@cache.command(name="export")
@click.argument("path", type=click.Path(path_type=Path))
@click.pass_obj
def export_command(store: LocalStore, path: Path) -> None:
    """Write every entry to one archive that another machine can import."""
    report = export_archive(store, path)
    click.echo(f"exported {report.entries} entries, {report.size_bytes / 2**20:.2f} MiB")


@cache.command(name="import")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.pass_obj
def import_command(store: LocalStore, path: Path) -> None:
    """Add the entries of an archive. Import only archives you trust: they hold code that will run."""
    report = import_archive(store, path)
    click.echo(f"imported {report.entries} entries, {report.size_bytes / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
