"""The command line of a cache, as a group that a compiler's command takes in: needs `coilwork-cache[cli]`.

It looks after the folder of this machine, and with `--tier` after what machines share through Redis.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import click
from click.core import ParameterSource

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
from coilwork_cache.store import InspectableStore, UseCount
from coilwork_cache.tiered_store import TieredStore, connect_shared

LOCAL, SHARED, BOTH = TIERS = ("local", "shared", "both")


@click.group()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=None, help="Cache folder.")
@click.option(
    "--redis-url",
    "url",
    envvar="COILWORK_REDIS_URL",
    default="",
    show_envvar=True,
    help="Redis server that machines share; its secret is in COILWORK_REDIS_KEY.",
)
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    default=LOCAL,
    help="The folder, the server, or one in front of the other. Default: the folder; both where --redis-url "
    "is given on the command line.",
)
@click.pass_context
def cache(context: click.Context, folder: Path | None, url: str, tier: str) -> None:
    """Inspect and maintain the caches: the folder of this machine, and a shared server."""
    is_given = context.get_parameter_source("tier") is not ParameterSource.DEFAULT
    if not is_given and context.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        tier = BOTH
    if tier != LOCAL and not url:
        raise click.UsageError(f"--tier {tier} needs --redis-url, or COILWORK_REDIS_URL")
    context.obj = _open(folder, url, tier)


def _open(folder: Path | None, url: str, tier: str) -> InspectableStore:
    if tier == LOCAL:
        return LocalStore(folder)
    shared = connect_shared(url, os.environ)
    return shared if tier == SHARED else TieredStore(LocalStore(folder), shared)


@cache.command()
@click.pass_obj
def stats(store: InspectableStore) -> None:
    """Show the entries of each kind, their size, and how often they were found and written.

    Hits, misses and writes are those of all processes that used the folder since it was cleared.
    """
    tiers = (store.fast, store.slow) if isinstance(store, TieredStore) else (store,)
    for tier in tiers:
        _print_stats(tier)


def _print_stats(store: InspectableStore) -> None:
    report = describe(store)
    kinds = {one.kind: one for one in report.kinds}
    click.echo(store.root if isinstance(store, LocalStore) else "shared server")
    headings = ["kind", "entries", "MiB"]
    if isinstance(store, LocalStore):
        headings += ["hits", "of them shared", "misses", "written", "damaged"]
    rows = [headings]
    for kind in sorted({*kinds, *report.uses}):
        entries, size_bytes = (kinds[kind].entries, kinds[kind].size_bytes) if kind in kinds else (0, 0)
        rows.append(_make_row(kind, entries, size_bytes, report.uses.get(kind, UseCount())))
    total = sum(report.uses.values(), UseCount())
    rows.append(_make_row("total", len(report.entries), report.size_bytes, total))
    widths = [10, 12, 10, 16, 10, 10, 10][: len(headings) - 1]
    for name, *cells in rows:
        click.echo(f"{name:<16}" + "".join(f"{one:>{width}}" for one, width in zip(cells, widths)))


def _make_row(kind: str, entries: int, size_bytes: int, used: UseCount) -> list[str]:
    counts = (used.hits, used.shared_hits, used.misses, used.puts, used.damaged)
    return [kind, str(entries), f"{size_bytes / 2**20:.2f}", *map(str, counts)]


@cache.command()
@click.option("--kind", default=None, help="Only entries of this kind.")
@click.pass_obj
def ls(store: InspectableStore, kind: str | None) -> None:
    """List the entries, those used last first. A server does not tell when, nor do entries on it alone."""
    entries = [entry for entry in store.entries() if kind in (None, entry.kind)]
    for entry in sorted(entries, key=lambda entry: entry.last_used_s or 0.0, reverse=True):
        used = "shared"
        if entry.last_used_s is not None:
            used = datetime.fromtimestamp(entry.last_used_s).strftime("%Y-%m-%d %H:%M:%S")
        click.echo(f"{entry.key[:16]}  {entry.kind:<10}{entry.size_bytes / 2**10:>10.1f} KiB  {used}")


@cache.command()
@click.argument("one")
@click.argument("other")
@click.pass_obj
def why(store: InspectableStore, one: str, other: str) -> None:
    """Show what differs between two graphs that were compiled apart. Keys may be cut short."""
    for line in compare_graphs(store, find_key(store, one), find_key(store, other)):
        click.echo(line)


@cache.command(name="clear")
@click.option("--kind", default=None, help="Only entries of this kind.")
@click.pass_obj
def clear_command(store: InspectableStore, kind: str | None) -> None:
    """Remove entries, and with all of a folder its counts. On a server they are gone for all who share it."""
    click.echo(f"removed {clear(store, kind=kind)} entries")


@cache.command(name="verify")
@click.pass_obj
def verify_command(store: InspectableStore) -> None:
    """Read every entry, and remove the damaged ones.

    They are reported, and make the exit status 1. On a server, what another secret signed is reported and
    stays.
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
def export_command(store: InspectableStore, path: Path) -> None:
    """Write every entry to one archive that another machine can import."""
    report = export_archive(store, path)
    click.echo(f"exported {report.entries} entries, {report.size_bytes / 2**20:.2f} MiB")


@cache.command(name="import")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.pass_obj
def import_command(store: InspectableStore, path: Path) -> None:
    """Add the entries of an archive. Import only archives you trust: they hold code that will run."""
    report = import_archive(store, path)
    click.echo(f"imported {report.entries} entries, {report.size_bytes / 2**20:.2f} MiB")
