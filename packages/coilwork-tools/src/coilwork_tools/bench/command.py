"""The command `bench`, which a compiler's command line takes in: needs `coilwork-tools[cli]`.

The context's object of the command says where backends stand that torch has not been told of,
MODULE:FUNCTION by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from coilwork_tools.bench.comparison import measure_backends, to_json, to_markdown
from coilwork_tools.bench.worker import Finding


@click.command()
@click.argument("subject", metavar="FILE.py:FUNCTION")
@click.option(
    "--backends",
    default="eager,inductor,coilwork",
    show_default=True,
    help="What to compare, the first being the measure of the others: `name`, `name:mode`, or `name-max` for "
    "its mode "
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
@click.pass_obj
def bench(
    places: Mapping[str, str] | None,
    subject: str,
    backends: str,
    backward: bool,
    json_path: Path | None,
    markdown_path: Path | None,
    timeout: float,
) -> None:
    """Measure a function of yours under several backends.

    FUNCTION, of a file or of a module by its dotted name, takes nothing and returns what is to be compiled, a
    function or a module, and a tuple of its arguments. Each backend compiles in a process of its own with
    empty caches; its results are judged by eager's and float64's before they are timed. The exit status is 1
    if a backend failed.
    """
    script, colon, name = subject.rpartition(":")
    if not colon or not script or not name:
        raise click.UsageError(f"{subject!r} is not of the form FILE.py:FUNCTION")
    if script.endswith(".py") and not Path(script).is_file():
        raise click.UsageError(f"there is no file {script!r}")
    for path in filter(None, (json_path, markdown_path)):
        if not path.absolute().parent.is_dir():
            raise click.UsageError(f"there is no folder for {str(path)!r}")
    findings: list[Finding] = []
    for finding in measure_backends(
        script, name, backends.split(","), backward=backward, timeout_s=timeout, places=places or {}
    ):
        findings.append(finding)
        said = finding.failure or f"{finding.busy_us or 0.0:.1f} us"
        click.echo(f"{finding.backend}: {said}", err=True)
    table = to_markdown(subject, findings)
    click.echo(table)
    if json_path is not None:
        json_path.write_text(to_json(subject, findings))
    if markdown_path is not None:
        markdown_path.write_text(table)
    if any(finding.failure for finding in findings):
        raise SystemExit(1)
