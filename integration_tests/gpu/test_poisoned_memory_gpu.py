"""What lies around tensors on a GPU influences no kernel, and is not written: the programs of
`poisoned_programs.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from integration_tests.poisoned_programs import all_programs, check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # a kernel that never ends keeps the process in native code
    pytest.mark.timeout(120),
]
PROGRAMS = all_programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_around_tensors_has_no_influence(
    name: str, monkeypatch: pytest.MonkeyPatch, kernel_cache: Path
) -> None:
    monkeypatch.setenv("COILWORK_CACHE_DIR", str(kernel_cache))
    check(PROGRAMS[name], "cuda")
