"""A program's first compile may stand within modes of torch that change what tensors are or where they lie.

Nothing of the compiler has been imported then, so whatever its modules compute as they are imported is
computed under these modes, too: on `meta`, with fake tensors, in inference mode.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

MODES: Final = {
    "a default device": "torch.device('meta')",
    "fake tensors": "torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)",
    "inference mode": "torch.inference_mode()",
}

IMPORTS: Final = """
import importlib, pkgutil, torch
with {mode}:
    for name in {packages}:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            if not module.name.rpartition(".")[2].startswith("__"):
                importlib.import_module(module.name)
"""
PACKAGES: Final = (
    "coilwork_ir",
    "coilwork_lowering",
    "coilwork_scheduler",
    "coilwork_frontend",
    "coilwork_wrapper",
    "coilwork_cache",
)

FIRST: Final = """
import torch
x = torch.ones(3, 4)
with {mode}:
    found = torch.compile(lambda x: (x.sin() + 1).sum(-1), backend="coilwork")(x)
assert tuple(found.shape) == (3,), found
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", MODES)
def test_first_compile_may_be_in_a_mode(name: str) -> None:
    run(FIRST.format(mode=MODES[name]))


def test_all_modules_can_be_imported_in_a_mode() -> None:
    run(IMPORTS.format(mode=", ".join(MODES.values()), packages=PACKAGES))
