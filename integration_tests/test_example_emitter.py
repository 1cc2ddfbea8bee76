"""A compiler of FX graphs by somebody else is built, installed beside ours, and handed over by an option."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from integration_tests.consumers.test_consumers import check_output
from integration_tests.test_example_wrapper import run

HERE = Path(__file__).parent / "consumers" / "example_emitter"


def test_an_installed_emitter_is_handed_over_and_compiles_graphs_further(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    site, wheels = tmp_path / "site", tmp_path / "wheels"
    run(*pip, "wheel", "--no-deps", "-w", str(wheels), str(HERE / "emitter"))
    run(*pip, "install", "--no-deps", "--no-compile", "--target", str(site), *map(str, wheels.glob("*.whl")))

    paths = os.pathsep.join([str(site), *(path for path in sys.path if path)])
    output = run(sys.executable, str(HERE / "use_emitter.py"), PYTHONPATH=paths, COILWORK_CACHE="0")
    check_output(output, (HERE / "expected.txt").read_text().splitlines())
