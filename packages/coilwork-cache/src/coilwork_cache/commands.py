"""The command line of a cache folder, as a group that a compiler's command takes in: needs
`coilwork-cache[cli]`.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from coilwork_cache.local_store import LocalStore
from coilwork_cache.maintenance import (
    clear,
    compare_graphs,
    describe,
    export_archive,
    find_key,
    import_archive,
    verify,
)


@click.group()
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
    rows = [(one.kind, str(one.entries), f"{one.size_bytes / 2**20:.2f}") for one in report.kinds]
    total = ("total", str(len(report.entries)), f"{report.size_bytes / 2**20:.2f}")
    click.echo(store.root)
    for kind, entries, size in (("kind", "entries", "MiB"), *rows, total):
        click.echo(f"{kind:<16}{entries:>10}{size:>12}")


@cache.command()
@click.option("--kind", default=None, help="Only entries of this kind.")
@click.pass_obj
def ls(store: LocalStore, kind: str | None) -> None:
    """List the entries, those used last first."""
    entries = [entry for entry in store.entries() if kind in (None, entry.kind)]
    for entry in sorted(entries, key=lambda entry: entry.last_used_s or 0.0, reverse=True):
        used = datetime.fromtimestamp(entry.last_used_s or 0.0).strftime("%Y-%m-%d %H:%M:%S")
        click.echo(f"{entry.key[:16]}  {entry.kind:<10}{entry.size_bytes / 2**10:>10.1f} KiB  {used}")


@cache.command()
@click.argument("one")
@click.argument("other")
@click.pass_obj
def why(store: LocalStore, one: str, other: str) -> None:
    """Show what differs between two graphs that were compiled apart. Keys may be cut short."""
    for line in compare_graphs(store, find_key(store, one), find_key(store, other)):
        click.echo(line)


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
