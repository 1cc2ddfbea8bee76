"""Commands for a compiler's command line: `export` and `inspect`. Needs `coilwork-aot[export]` and click."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import torch
from torch.export import ExportedProgram

from coilwork_aot.loading import read_manifest


def make_export_command(compiler: str) -> click.Command:
    """Return the command that exports a model by `export` of the module `compiler`."""

    @click.command()
    @click.argument("model")
    @click.option("--target", "targets", multiple=True, help="What to compile for; may be repeated.")
    @click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The file to write.")
    @click.option("--tune", is_flag=True, help="Time candidates of kernels on the GPU that is here.")
    def export(model: str, targets: tuple[str, ...], output: Path, tune: bool) -> None:
        """Compile MODEL ahead of time and write a package.

        MODEL is FILE.py:NAME, where NAME is what coilwork.export takes: a module beside NAME_inputs, a tuple
        of example inputs or a dict of arguments of coilwork.export; an exported program; or entry points by
        name. It may also be the file of a torch.export program, FILE.pt2. FILE.py is run.
        """
        subject, arguments = _read_model(model)
        arguments |= {"target": targets or None, "tunes": tune}
        digest = import_module(compiler).export(subject, path=output, **arguments)
        click.echo(f"{digest}  {output}")

    return export


def _read_model(text: str) -> tuple[Any, dict[str, Any]]:
    file, separator, name = text.rpartition(":")
    if not separator and text.endswith(".pt2"):
        return torch.export.load(text), {}
    if not separator or not file.endswith(".py"):
        raise click.UsageError(f"{text} is neither FILE.py:NAME nor FILE.pt2")
    names = runpy.run_path(file)
    if name not in names:
        raise click.UsageError(f"{file} defines no {name}")
    subject = names[name]
    if isinstance(subject, ExportedProgram | Mapping):
        return subject, {}
    inputs = names.get(f"{name}_inputs")
    if inputs is None:
        raise click.UsageError(f"{file} defines no {name}_inputs, a tuple or a dict of arguments")
    return subject, dict(inputs) if isinstance(inputs, Mapping) else {"args": tuple(inputs)}


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def inspect(path: Path) -> None:
    """Verify a package, and show what is in it."""
    manifest = read_manifest(path)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.made_by.items())
    click.echo(f"{manifest.name}: torch {manifest.torch[0]} to below {manifest.torch[1]}; made by {versions}")
    for name, variants in manifest.entries.items():
        for one in variants:
            inputs = ", ".join(
                f"{leaf.name}: {leaf.dtype or leaf.kind}{[*leaf.sizes]}" for leaf in one.inputs
            )
            click.echo(f"  {name} on {one.target.device} ({one.target.name}): {inputs}")
    parts = {"weights": "weights", "kernels": "kernels/", "programs": "programs/"}
    for part, prefix in parts.items():
        sizes = [one.size for key, one in manifest.records.items() if key.startswith(prefix)]
        click.echo(f"  {part}: {len(sizes)} records, {sum(sizes):,} bytes")
