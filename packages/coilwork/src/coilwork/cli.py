"""The `coilwork` command."""

from __future__ import annotations

import click

import coilwork
from coilwork.compile_options import list_options
from coilwork.errors import CoilworkError
from coilwork.registries import BACKENDS, WRAPPERS
from coilwork_aot.commands import inspect, make_export_command
from coilwork_cache import CacheError
from coilwork_cache.commands import cache
from coilwork_ir.registration import RegistrationError
from coilwork_runtime import RuntimeFault
from coilwork_tools.bench.command import bench
from coilwork_tools.commands import (
    executor,
    make_conform_command,
    make_info_command,
    make_options_command,
    mappings,
    print_errors_of,
)
from coilwork_tools.explain.compile_coverage import uncompiled
from coilwork_tools.graph_key import COMPONENTS

PACKAGES = (*(name.replace("_", "-") for name in COMPONENTS), "torch", "triton")


@click.group(cls=print_errors_of(CacheError, CoilworkError, RegistrationError, RuntimeFault))
@click.version_option(coilwork.__version__, prog_name="coilwork")
@click.pass_context
def main(context: click.Context) -> None:
    """Coilwork, a deep-learning compiler for PyTorch."""
    context.obj = {"coilwork": "coilwork.backend:backend"}


cache.add_command(mappings)
for command in (
    make_info_command(PACKAGES, BACKENDS, WRAPPERS),
    make_options_command(list_options),
    make_conform_command(BACKENDS),
    make_export_command("coilwork.aot"),
    inspect,
    executor,
    bench,
    cache,
    uncompiled,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
