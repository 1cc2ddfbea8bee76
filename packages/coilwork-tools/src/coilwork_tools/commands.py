"""Commands for a compiler's command line: `info`, `options`, `executor`, `mappings`, `conform`.

They tell what is installed, how it is set and what was found, and show that a back end keeps its contract.
The command line hands in its registries and options. Needs `coilwork-tools[cli]`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich.console import Console
from rich.table import Table

from coilwork_frontend.option_table import OptionInfo
from coilwork_ir.backend import Backend
from coilwork_ir.machine import TUNING, MachineModel, list_borrowed
from coilwork_ir.registration import Registered, RegistrationError, Registry
from coilwork_ir.target import Target
from coilwork_ir.wrapper import Wrapper
from coilwork_runtime import Device, KernelCompiler
from coilwork_runtime.extensions import ExecutorFacts, measure_executor
from coilwork_runtime.triton_kernels.autotune.records import list_findings
from coilwork_tools.explain.trace_folder import MAPPING_SUFFIX

Backends: TypeAlias = Registry[Backend[Any, Any, Any]]


def print_errors_of(*kinds: type[Exception]) -> type[click.Group]:
    """Return a group of commands that print errors of `kinds` like usage errors, without a traceback; exit
    status 1.
    """

    class Printing(click.Group):
        def invoke(self, ctx: click.Context) -> Any:
            try:
                return super().invoke(ctx)
            except kinds as error:
                raise click.ClickException(str(error)) from error
            except OSError as error:
                # of a file that was named; others, such as a closed pipe, click handles
                if error.filename is None:
                    raise
                raise click.ClickException(f"{error.strerror}: {error.filename}") from error

    return Printing


def make_info_command(
    packages: Sequence[str], backends: Backends, wrappers: Registry[Wrapper]
) -> click.Command:
    """Return the command that shows what is installed of `packages`, and what `backends` and `wrappers`
    hold.
    """

    @click.command()
    @click.option(
        "--figures", is_flag=True, help="Show what was measured of each device, or borrowed for it."
    )
    def info(figures: bool) -> None:
        """Show versions, devices, and how the compiler sees them."""
        console = Console()
        versions = Table(title="packages")
        versions.add_column("package")
        versions.add_column("version")
        for name in packages:
            versions.add_row(name, _version(name))
        versions.add_row("python", platform.python_version())
        console.print(versions)
        console.print(_backends_table(backends))
        console.print(_wrappers_table(wrappers))
        devices = Table(title="devices")
        for heading in ("device", "target", "multiprocessors", "shared memory, KiB", "L2, MiB"):
            devices.add_column(heading)
        for entry in backends.list():
            for device, target in _describe_devices(backends, entry):
                sizes = (_quantity(target.shared_memory_bytes, 2**10), _quantity(target.l2_bytes, 2**20))
                devices.add_row(device, target.name, str(target.multiprocessors), *sizes)
        console.print(devices)
        described = [target for entry in backends.list() for _, target in _describe_devices(backends, entry)]
        for machine in {target.machine.name: target.machine for target in described}.values():
            if figures:
                console.print(_figures_table(machine))

    return info


def _figures_table(machine: MachineModel) -> Table:
    """Return the figures of `machine`, and of which device those are that were not measured on it."""
    # a file of another package says itself what it borrows
    path = TUNING / f"{machine.name}.toml"
    borrowed = list_borrowed(path) if path.exists() else {}
    table = Table(title=f"figures of {machine.name}")
    for heading in ("figure", "value", "borrowed from"):
        table.add_column(heading)
    for subject in fields(machine):
        group = getattr(machine, subject.name)
        for one in fields(group) if is_dataclass(group) else ():
            name = f"{subject.name}.{one.name}"
            table.add_row(name, f"{getattr(group, one.name):g}", borrowed.get(name, ""))
    return table


def _wrappers_table(wrappers: Registry[Wrapper]) -> Table:
    """Return the values of the option `wrapper`, and where each comes from."""
    table = Table(title="wrappers")
    for heading in ("wrapper", "from"):
        table.add_column(heading, overflow="fold")
    for entry in wrappers.list():
        table.add_row(entry.name, entry.origin or "a source tree")
    return table


def _backends_table(backends: Backends) -> Table:
    """The back ends that are installed: what they serve, where each comes from, and what each refuses."""
    table = Table(title="back ends")
    for heading in ("back end", "serves", "from", "refuses"):
        table.add_column(heading, overflow="fold")
    for entry in backends.list():
        origin = entry.origin or "a source tree"
        try:
            backend = backends.find(entry.name)
        except RegistrationError as error:
            table.add_row(entry.name, "-", origin, f"everything: {error.reason}")
            continue
        refused = backend.refuses()
        served = f"{', '.join(backend.device_types)}: {', '.join(backend.targets())}"
        table.add_row(entry.name, served, origin, f"to run: {refused}" if refused else "")
    return table


def _describe_devices(backends: Backends, entry: Registered) -> list[tuple[str, Target]]:
    """Return the devices of a back end that are there; none of one that does not load, as the table of back
    ends says.
    """
    try:
        backend = backends.find(entry.name)
    except RegistrationError:
        return []
    return [(device, backend.describe(device)) for device in backend.devices()]


def _quantity(size_bytes: int, unit_bytes: int) -> str:
    return f"{size_bytes / unit_bytes:.0f}" if size_bytes else "-"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


@click.command()
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


def make_options_command(list_options: Callable[[], Sequence[OptionInfo]]) -> click.Command:
    """Return the command that lists options."""

    @click.command()
    @click.option("--markdown", is_flag=True, help="Print a Markdown table.")
    def options(markdown: bool) -> None:
        """List the options of the backend.

        They are given as torch.compile(..., backend="coilwork", options={...}), or in environment variables.
        """
        if markdown:
            headings = ("option", "values", "default", "environment variable", "honoured by", "effect")
            rows = [
                (o.name, o.values, o.default, o.variable, o.honoured_by, o.effect) for o in list_options()
            ]
            for row in (headings, ("---",) * len(headings), *rows):
                click.echo(f"| {' | '.join(row)} |")
            return
        # one below the other: a terminal has no room for five columns, and would cut names short
        formatter = click.HelpFormatter()
        told = [(o, f"; only {o.honoured_by}" if o.honoured_by else "") for o in list_options()]
        formatter.write_dl(
            [
                (o.name, f"{o.effect}{who}\n\n{o.values}; default {o.default}; {o.variable or 'no variable'}")
                for o, who in told
            ],
            col_spacing=2,
        )
        click.echo(formatter.getvalue(), nl=False)

    return options


@click.command()
@click.option(
    "--write", "folder", type=click.Path(path_type=Path), default=None, help="Write a file for each kernel."
)
@click.pass_obj
def mappings(store: Any, folder: Path | None) -> None:
    """Show how kernels run best, as far as searches (max-autotune) found out.

    The option `mappings` takes the folder that is written. Of a kernel that was searched for sizes of several
    magnitudes it gets what was found last.
    """
    for one in list_findings(store):
        sizes = f" for sizes like {', '.join(map(str, one.sizes))}" if one.sizes else ""
        click.echo(f"# {one.kernel} on {one.device}{sizes}: {one.gain:.2f} times as fast as proposed")
        click.echo(f"{one.mapping}\n")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{one.kernel}{MAPPING_SUFFIX}").write_text(f"{one.mapping}\n")


# ---- conform ----


def make_conform_command(backends: Registry[Backend[Any, KernelCompiler, Device]]) -> click.Command:
    """Return the command that tries one of `backends`."""

    @click.command()
    @click.argument("name", metavar="BACKEND")
    def conform(name: str) -> None:
        """Run all conformance kits against an installed back end, on its first device.

        Every kind of kernel is generated, built and run, and compared with the reference interpreter; then
        its device is tried: order, streams, events, memory, threads, faults. It takes some minutes. The exit
        status is 1 if a case failed.
        """
        # the kits are no small import
        from coilwork_tools.backend_conformance import check_backend

        if name not in backends.names():
            raise click.UsageError(f"there is no back end {name!r}; installed: {', '.join(backends.names())}")
        failed = 0
        for result in check_backend(backends.find(name)):
            failed += len(result.failures)
            counts = f"{result.passed} passed, {len(result.failures)} failed, {result.refused} refused"
            click.echo(f"{result.kit}: {counts}")
            for line in result.failures:
                click.echo(f"  {line}")
        if failed:
            raise SystemExit(1)

    return conform
