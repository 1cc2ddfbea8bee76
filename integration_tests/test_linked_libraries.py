"""Environments of the test command get the libraries that are declared, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from linked_libraries import link_distributions


def add_distribution(folder: Path, name: str, *requires: str) -> None:
    package, metadata = folder / name, folder / f"{name}-1.0.dist-info"
    for made in (package / "__pycache__", metadata):
        made.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__pycache__" / "__init__.cpython-311.pyc").write_bytes(b"")
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        "Version: 1.0",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n")
    files = (f"{name}/__init__.py", f"{name}-1.0.dist-info/METADATA", f"../../bin/{name}")
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    add_distribution(
        folder, "torch", "sympy>=1.13", 'setuptools; python_version < "3"', 'optree; extra == "more"'
    )
    for name in ("sympy", "setuptools", "optree", "triton"):
        add_distribution(folder, name)
    return folder


def test_what_is_declared_is_linked_with_what_it_requires(shared: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    assert sorted(link_distributions(shared, site, ["torch>=2.11,<2.14"])) == ["sympy", "torch"]
    packages = {"torch", "sympy"}
    assert {path.name for path in site.iterdir()} == packages | {f"{name}-1.0.dist-info" for name in packages}
    for file in ("torch/__init__.py", "torch/__pycache__/__init__.cpython-311.pyc"):
        assert (site / file).samefile(shared / file)


def test_what_another_installed_before_stays(shared: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("mine = True")
    assert link_distributions(shared, site, ["torch"])
    assert (site / "torch" / "__init__.py").read_text() == "mine = True"


def test_what_is_not_shared_is_left_to_pip(shared: Path, tmp_path: Path) -> None:
    assert link_distributions(shared, tmp_path, ["numpy>=1.26", "triton; platform_system == 'Nowhere'"]) == []
