"""The `coilwork` command."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import coilwork
from coilwork.backends.registry import BACKENDS
from coilwork.caches import COMPONENTS
from coilwork.compile_options import list_options
from coilwork.wrappers import WRAPPERS
from coilwork_cache import CacheError, LocalStore
from coilwork_cache.commands import cache
from coilwork_ir.registration import Registered, RegistrationError
from coilwork_ir.target import Target
from coilwork_runtime import RuntimeFault
from coilwork_runtime.executor_costs import ExecutorFacts, measure_executor
from coilwork_runtime.triton_kernels.remembered import read_findings
from coilwork_tools.bench.command import bench
from coilwork_tools.conform.command import make_conform_command
from coilwork_tools.explain.trace import MAPPING_SUFFIX

PACKAGES = (*(name.replace("_", "-") for name in COMPONENTS), "torch", "triton")


class ToldErrors(click.Group):
    """Commands whose expected errors are told like those of their usage, without a traceback: the exit status is 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (CacheError, RegistrationError, RuntimeFault) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            # of a file that was named; others, a closed pipe for one, are click's to handle
            if error.filename is None:
                raise
            raise click.ClickException(f"{error.strerror}: {error.filename}") from error


@click.group(cls=ToldErrors)
@click.version_option(coilwork.__version__, prog_name="coilwork")
@click.pass_context
def main(context: click.Context) -> None:
    """Coilwork, a deep-learning compiler for PyTorch."""
    context.obj = {"coilwork": "coilwork.backend:backend"}


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
    console.print(_backends_table())
    console.print(_wrappers_table())
    devices = Table(title="devices")
    for heading in ("device", "target", "multiprocessors", "shared memory, KiB", "L2, MiB"):
        devices.add_column(heading)
    for entry in BACKENDS.list():
        for device, target in _described(entry):
            sizes = (_quantity(target.shared_memory_bytes, 2**10), _quantity(target.l2_bytes, 2**20))
            devices.add_row(device, target.name, str(target.multiprocessors), *sizes)
    console.print(devices)


def _wrappers_table() -> Table:
    """The values of the option `wrapper`, and where each comes from."""
    table = Table(title="wrappers")
    for heading in ("wrapper", "from"):
        table.add_column(heading, overflow="fold")
    for entry in WRAPPERS.list():
        table.add_row(entry.name, entry.origin or "a source tree")
    return table


def _backends_table() -> Table:
    """The back ends that are installed: what they serve, where each comes from, and what each refuses."""
    table = Table(title="back ends")
    for heading in ("back end", "serves", "from", "refuses"):
        table.add_column(heading, overflow="fold")
    for entry in BACKENDS.list():
        origin = entry.origin or "a source tree"
        try:
            backend = BACKENDS.find(entry.name)
        except RegistrationError as error:
            table.add_row(entry.name, "-", origin, f"everything: {error.reason}")
            continue
        refused = backend.refuses()
        served = f"{', '.join(backend.device_types)}: {', '.join(backend.targets())}"
        table.add_row(entry.name, served, origin, f"to run: {refused}" if refused else "")
    return table


def _described(entry: Registered) -> list[tuple[str, Target]]:
    """The devices of a back end that are there; none of one that does not load, as the table of back ends says."""
    try:
        backend = BACKENDS.find(entry.name)
    except RegistrationError:
        return []
    return [(device, backend.describe(device)) for device in backend.devices()]


def _quantity(size_bytes: int, unit_bytes: int) -> str:
    return f"{size_bytes / unit_bytes:.0f}" if size_bytes else "-"


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
        headings = ("option", "values", "default", "environment variable", "honoured by", "effect")
        rows = [(o.name, o.values, o.default, o.variable, o.honoured_by, o.effect) for o in list_options()]
        for row in (headings, ("---",) * len(headings), *rows):
            click.echo(f"| {' | '.join(row)} |")
        return
    # one below the other: a terminal has no room for five columns, and would cut names short
    formatter = click.HelpFormatter()
    told = [(o, f"; only {o.honoured_by}" if o.honoured_by else "") for o in list_options()]
    formatter.write_dl(
        [(o.name, f"{o.effect}{who}\n\n{o.values}; default {o.default}; {o.variable}") for o, who in told],
        col_spacing=2,
    )
    click.echo(formatter.getvalue(), nl=False)


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


for command in (bench, cache, make_conform_command(BACKENDS)):
    main.add_command(command)


if __name__ == "__main__":
    main()
