"""The command `conform`, for a compiler's command line: needs `coilwork-tools[cli]`."""

from __future__ import annotations

from typing import Any

import click

from coilwork_ir.backend import Backend
from coilwork_ir.registration import Registry
from coilwork_runtime import Device, KernelCompiler


def make_conform_command(backends: Registry[Backend[Any, KernelCompiler, Device]]) -> click.Command:
    """The command that tries one of `backends`."""

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
