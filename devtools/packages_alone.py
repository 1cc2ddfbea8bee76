"""Every package alone from its wheel: which of ours it pulls in, how long its import takes, and a program
that uses it.

`python devtools/packages_alone.py --wheels FOLDER [--page docs/packages-alone.md] [--beside] [NAME ...]`.
Each package gets an environment of its own with its wheel and what that declares, and nothing else; there,
the first Python block of its README runs, which uses that package and those it declares. `--beside` takes
what others made (torch, sympy) from the Python that runs this, which spares a download; then a package of
others that is not declared goes unnoticed, which the architecture test looks for.

The exit status is 1 if a package does not install or import, or if its program fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")))
RUN_LIMIT_S = 600
# Both times are of processors: torch's import, if the package needs it, and the package's own after it.
IMPORT = """
import importlib.util, sys, time
start = time.process_time()
if {needs_torch}:
    import torch
between = time.process_time()
import {module}
print(between - start, time.process_time() - between)
"""


class PackageFault(Exception):
    """A package does not work alone; the message says which step failed, and what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One package.

    Attributes:
        name: of the distribution.
        wheel_bytes: the size of its wheel.
        others: distributions of ours that it pulls in.
        torch_s: processor seconds of torch's import; None for a package that does not declare torch.
        import_s: those of its own import, after that.
        lines: of the program, blank ones not counted.
        printed: lines that the program printed.
    """

    name: str
    wheel_bytes: int
    others: tuple[str, ...]
    torch_s: float | None
    import_s: float
    lines: int
    printed: int


def run(arguments: Sequence[str], *, cwd: Path) -> str:
    """Return what a command prints. Neither this shell's Python path nor its options of ours reach it.

    Raises:
        PackageFault: it fails.
    """
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COILWORK_"))}
    done = subprocess.run(
        arguments, cwd=cwd, env=settings, capture_output=True, text=True, timeout=RUN_LIMIT_S
    )
    if done.returncode != 0:
        raise PackageFault(f"{' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def find_wheel(wheels: Path, name: str) -> Path:
    """The wheel of a package.

    Raises:
        PackageFault: there is none, or more than one.
    """
    found = sorted(wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl"))
    if len(found) != 1:
        raise PackageFault(f"{wheels} holds {len(found)} wheels of {name}; `nox -s alone` builds them")
    return found[0]


def list_requirements(name: str) -> list[str]:
    """Return what a package declares, without extras."""
    text = (ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8")
    declared: list[str] = tomllib.loads(text)["project"].get("dependencies", [])
    return declared


def list_closure(name: str) -> tuple[str, ...]:
    """The package and those of ours that it declares, directly or through another, extras that it asks for
    included.
    """
    pending, found = [name], dict[str, None]()
    while pending:
        requirement = pending.pop()
        current = _distribution(requirement)
        if current not in PACKAGES or current in found:
            continue
        found[current] = None
        pending += list_requirements(current)
        text = (ROOT / "packages" / current / "pyproject.toml").read_text(encoding="utf-8")
        extras = tomllib.loads(text)["project"].get("optional-dependencies", {})
        for extra in re.findall(r"[\w-]+", requirement.partition("[")[2].partition("]")[0]):
            pending += extras.get(extra, [])
    return tuple(found)


def _distribution(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def make_environment(folder: Path, name: str, wheels: Path, *, beside: bool) -> Path:
    """The Python of a fresh environment with the package and what it declares."""
    run([sys.executable, "-m", "venv", str(folder)], cwd=folder.parent)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    if beside:
        ours = [str(find_wheel(wheels, one)) for one in list_closure(name)]
        run([*install, "--no-deps", "--no-index", *ours], cwd=folder)
        site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=folder)
        # behind the environment's own folder, so that its packages come first
        (Path(site.strip()) / "others.pth").write_text(sysconfig.get_path("purelib"))
    else:
        pins = folder / "wheels.txt"
        pins.write_text("".join(f"{one} @ {find_wheel(wheels, one).as_uri()}\n" for one in PACKAGES))
        run([*install, name, "-c", str(pins), "-c", str(ROOT / "constraints.txt")], cwd=folder)
    return python


def list_installed(python: Path) -> tuple[str, ...]:
    """Distributions of ours in an environment's own folder."""
    listing = json.loads(run([str(python), "-m", "pip", "list", "--format=json", "--local"], cwd=ROOT))
    names = {str(entry["name"]).lower().replace("_", "-") for entry in listing}
    folder = python.parent.parent
    own = {path.name.split("-")[0].replace("_", "-") for path in folder.rglob("coilwork*.dist-info")}
    return tuple(sorted(names & own & set(PACKAGES)))


def read_program(name: str) -> str:
    """The first Python block of a package's README.

    Raises:
        PackageFault: there is none.
    """
    text = (ROOT / "packages" / name / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if block is None:
        raise PackageFault(f"the README of {name} has no program")
    return block[1]


def check_package(name: str, wheels: Path, *, beside: bool) -> Finding:
    """Return what a package is alone.

    Raises:
        PackageFault: it does not install or import, or its program fails.
    """
    with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        python = make_environment(folder / "venv", name, wheels, beside=beside)
        needs_torch = any(
            _distribution(one) == "torch" for part in list_closure(name) for one in list_requirements(part)
        )
        code = IMPORT.format(module=name.replace("-", "_"), needs_torch=needs_torch)
        # the first import makes bytecode
        run([str(python), "-c", code], cwd=folder)
        of_torch, own = map(float, run([str(python), "-c", code], cwd=folder).split())
        program = read_program(name)
        (folder / "program.py").write_text(program, encoding="utf-8")
        printed = run([str(python), "program.py"], cwd=folder)
        return Finding(
            name=name,
            wheel_bytes=find_wheel(wheels, name).stat().st_size,
            others=tuple(one for one in list_installed(python) if one != name),
            torch_s=of_torch if needs_torch else None,
            import_s=own,
            lines=sum(bool(line.strip()) for line in program.splitlines()),
            printed=len(printed.splitlines()),
        )


def format_page(findings: Iterable[Finding]) -> str:
    """The findings as a page of the documentation."""
    rows = [
        f"| [{one.name}](packages/{one.name}.md) | {one.wheel_bytes / 1024:.0f} "
        f"| {', '.join(other.removeprefix('coilwork-') for other in one.others) or '-'} "
        f"| {'-' if one.torch_s is None else f'{one.torch_s:.2f}'} | {one.import_s:.3f} "
        f"| {one.lines} | {one.printed} |"
        for one in findings
    ]
    head = (
        "# Every package alone\n\n"
        "Each row is a fresh environment with one wheel and what it declares. The program is the first "
        "one of\n"
        "the package's README; it uses that package and those that it pulls in. Seconds are of one "
        "processor:\n"
        "torch's import, where the package declares it, and the package's own after that. `nox -s "
        "alone` measures\n"
        "again and writes this page.\n\n"
        "| package | wheel, KiB | of ours | torch, s | import, s | program, lines | it prints, lines |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages; all without any")
    parser.add_argument("--wheels", type=Path, required=True, help="folder with a wheel of each package")
    parser.add_argument("--page", type=Path, help="write the findings there")
    parser.add_argument("--beside", action="store_true", help="take others' packages from this Python")
    arguments = parser.parse_args()
    findings, has_failed = list[Finding](), False
    for name in arguments.names or PACKAGES:
        try:
            finding = check_package(name, arguments.wheels.resolve(), beside=arguments.beside)
        except PackageFault as fault:
            has_failed = True
            print(f"{name}: {fault}", flush=True)
            continue
        findings.append(finding)
        others = ", ".join(finding.others) or "nothing of ours"
        print(
            f"{name}: with {others}; import {finding.import_s:.3f} s; {finding.lines} lines ran", flush=True
        )
    if arguments.page is not None and not has_failed:
        arguments.page.write_text(format_page(findings), encoding="utf-8")
    raise SystemExit(has_failed)


if __name__ == "__main__":
    main()
