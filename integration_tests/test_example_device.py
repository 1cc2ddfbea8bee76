"""A device that is not ours works after its package is installed: it trains, conforms, and is listed; nothing
of ours knows it.

The package lies in `consumers/example_device/device`. It is built and installed here, into a folder beside
what is installed already; programs run in processes of their own, without environment variables of ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE / "consumers" / "example_device"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package."""
    folder = tmp_path_factory.mktemp("device")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    source = [str(EXAMPLE / "device")]
    offline = ["--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "wheel", *offline, "-w", str(folder / "wheels"), *source], check=True)
    (wheel,) = (folder / "wheels").glob("*.whl")
    site = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("COILWORK_", "TORCH_"))
    }
    paths = filter(None, (str(site), os.environ.get("PYTHONPATH")))
    return {**variables, "PYTHONPATH": os.pathsep.join(paths), "HOME": str(folder / "home"), "COLUMNS": "200"}


def run(environment: dict[str, str], *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("when", ["new", "from the cache"])
def test_a_model_trains_on_the_example_device(installed: dict[str, str], tmp_path: Path, when: str) -> None:
    found = run(installed, str(EXAMPLE / "train.py"), cwd=tmp_path)
    wanted = (EXAMPLE / "expected.txt").read_text()
    assert re.fullmatch(re.escape(wanted).replace(r"\*", ".*"), found), found


def test_the_example_device_conforms_and_is_listed(installed: dict[str, str], tmp_path: Path) -> None:
    listing = run(installed, "-m", "coilwork.cli", "info", cwd=tmp_path)
    assert re.search(r"queued +│ queued: queued-\S+ +│ queued-device 0\.1\.0 ", listing), listing
    assert "queued:0" in listing
    kits = run(installed, "-m", "coilwork.cli", "conform", "queued", cwd=tmp_path)
    assert re.findall(r"^(.*): \d+ passed, 0 failed", kits, re.M) == ["kernels", "cores of kernels", "device"]


def test_our_packages_do_not_mention_the_example_device() -> None:
    ours = (
        path for path in HERE.parent.glob("packages/*/src/**/*") if path.suffix in (".py", ".cpp", ".hpp")
    )
    assert [path for path in ours if re.search(r"\bqueued_device\b|[\"']queued[\"']", path.read_text())] == []
