"""Check which package may import which, on the source and on what the packages declare."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from architecture.sources import Source, Violation, read_dotted_name

IR = frozenset({"coilwork-ir"})
COMPONENTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "coilwork-ir": frozenset(),
        "coilwork-frontend": IR,
        "coilwork-lowering": IR,
        "coilwork-scheduler": IR,
        "coilwork-triton": IR,
        "coilwork-cpp": IR,
        # its artefacts of modules and bytes are loaded; emitting needs the IR alone (decision 0051)
        "coilwork-wrapper": IR | {"coilwork-runtime"},
        "coilwork-cpp-wrapper": IR | {"coilwork-runtime"},
        "coilwork-cache": frozenset(),
        "coilwork-runtime": frozenset({"coilwork-cache"}),
        # loading needs the runtime alone; exporting is an extra (decision 0083)
        "coilwork-aot": IR | {"coilwork-cache", "coilwork-runtime", "coilwork-frontend"},
        "coilwork-tools": IR | {"coilwork-runtime", "coilwork-frontend", "coilwork-cache"},
    }
)
ALLOWED: Mapping[str, frozenset[str]] = MappingProxyType({**COMPONENTS, "coilwork": frozenset(COMPONENTS)})
"""What each package may import and declare, of ours."""

# The runtime needs the store's protocol, how keys are made and what it keeps there, not what implements it.
RUNTIME_MAY_IMPORT_OF_CACHE = frozenset(
    {
        "coilwork_cache.Store",
        "coilwork_cache.content_key",
        "coilwork_cache.KernelCache",
        "coilwork_cache.TuningCache",
        "coilwork_cache.store.Store",
        "coilwork_cache.key.content_key",
    }
)
WITHOUT_TORCH = frozenset({"coilwork-scheduler", "coilwork-triton", "coilwork-cpp", "coilwork-cache"})
HEAVY = frozenset({"torch", "sympy", "triton", "numpy"})
MAY_START_PROCESSES = frozenset({"coilwork-runtime", "coilwork-tools", "coilwork"})
PROCESS_MODULES = frozenset({"subprocess", "multiprocessing", "pty"})
MAY_TOUCH_DEVICES: Mapping[str, str] = MappingProxyType(
    {
        "coilwork_frontend.random_state": "a call that runs again in eager mode draws its numbers again",
        "coilwork_frontend.torch_compat.fake_devices": "torch's tracing crashes where there is no device",
        "coilwork_frontend.torch_compat.recurrent_operators": "cuDNN says how it lays weights out",
    }
)
DEVICE_APIS = ("torch.cuda.", "torch.xpu.", "torch.mps.", "torch.accelerator.")


def distribution(import_name: str) -> str:
    return import_name.replace("_", "-")


def is_ours(name: str) -> bool:
    return name == "coilwork" or distribution(name).startswith("coilwork-")


def check_imports_between_packages(sources: Sequence[Source]) -> list[Violation]:
    """Each package imports only those of ours that stand below it; typing-only imports count."""
    return sorted(
        source.violation(site.line, f"{source.package} must not import {site.top}")
        for source in sources
        for site in source.imports
        if is_ours(site.top)
        and distribution(site.top) not in ALLOWED[source.package or ""] | {source.package}
    )


def check_runtime_imports_only_the_store(sources: Sequence[Source]) -> list[Violation]:
    return sorted(
        source.violation(
            site.line, f"imports {site.dotted}; the runtime may import the store and what it keeps there only"
        )
        for source in sources
        for site in source.imports
        if source.package == "coilwork-runtime" and site.top == "coilwork_cache"
        if site.dotted not in RUNTIME_MAY_IMPORT_OF_CACHE
    )


def check_torch_free_packages(sources: Sequence[Source]) -> list[Violation]:
    return sorted(
        source.violation(site.line, f"{source.package} must work without {site.top}")
        for source in sources
        for site in source.imports
        if source.package in WITHOUT_TORCH and site.top in HEAVY
    )


def check_who_touches_devices(sources: Sequence[Source]) -> list[Violation]:
    """Only the runtime (and the tools, which measure, and the top) starts processes or talks to a device."""
    return sorted(
        found
        for source in sources
        if source.package not in MAY_START_PROCESSES and source.module not in MAY_TOUCH_DEVICES
        for found in process_and_device_uses(source)
    )


def process_and_device_uses(source: Source) -> Iterator[Violation]:
    for site in source.imports:
        if site.top in PROCESS_MODULES or f"{site.dotted}.".startswith(DEVICE_APIS):
            yield source.violation(
                site.line, f"{source.package} must not import {site.dotted}: that is the runtime's"
            )
    for line, name in attribute_chains(source):
        if f"{name}.".startswith(DEVICE_APIS):
            yield source.violation(line, f"{source.package} must not use {name}: devices are the runtime's")


def attribute_chains(source: Source) -> Iterator[tuple[int, str]]:
    """Each attribute chain `a.b.c`, every prefix of it too, with its line."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            name = read_dotted_name(node)
            if name is not None:
                yield node.lineno, name


# ---- what the pyproject.toml files say
# -------------------------------------------------------------------------


def read_requirements(root: Path, package: str) -> dict[str, int]:
    """The distributions a package asks for, extras but `test` included, with the line that names each."""
    path = root / "packages" / package / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    groups = [project.get("dependencies", [])]
    for extra, members in project.get("optional-dependencies", {}).items():
        if extra != "test":
            groups.append(members)
    lines = text.splitlines()
    found: dict[str, int] = {}
    for requirement in (requirement for group in groups for requirement in group):
        line = next((i for i, content in enumerate(lines, 1) if f'"{requirement}"' in content), 1)
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None, requirement
        found.setdefault(match.group().lower().replace("_", "-"), line)
    return found


def check_declared_packages(root: Path) -> list[Violation]:
    """A pyproject.toml names, of ours, only what the source may import. Its tests may need more."""
    violations = []
    for package, allowed in ALLOWED.items():
        for name, line in read_requirements(root, package).items():
            if is_ours(name) and name not in allowed | {package}:
                path = f"packages/{package}/pyproject.toml"
                violations.append(
                    Violation(path=path, line=line, message=f"{package} must not depend on {name}")
                )
    return sorted(violations)


def check_imports_are_declared(root: Path, sources: Sequence[Source]) -> list[Violation]:
    """Whatever a package imports, and the standard library does not hold, its pyproject.toml declares."""
    known = {p: read_requirements(root, p).keys() | {p} for p in ALLOWED}
    return sorted(
        source.violation(site.line, f"imports {site.top}, which {source.package} does not declare")
        for source in sources
        for site in source.imports
        if site.top and site.top not in sys.stdlib_module_names
        if distribution(site.top) not in known[source.package or ""]
    )
