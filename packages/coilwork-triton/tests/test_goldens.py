"""Generated text is reviewed text: `tests/goldens` holds what the samples must give, to the byte.

After a change that is meant, run with `--update` and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_sample_kernels import SAMPLES, sample_options

from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

GOLDENS = Path(__file__).parent / "goldens"


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_the_reviewed_one(name: str, request: pytest.FixtureRequest) -> None:
    source = TritonCodegen().emit(SAMPLES[name], get_target("sm_90"), sample_options(name))
    launch = [f"# grid {', '.join(map(repr, source.grid))}"]
    launch += [f"# try {dict(c.meta)} warps {c.num_warps}" for c in source.configs]
    # the kernel's own text, which the IR's tests are about, stands in comments above the functions
    lines = [line for line in source.text.splitlines() if not line.startswith("# ")]
    text = "\n".join(lines) + "\n" + "\n".join(launch) + "\n"
    file = GOLDENS / f"{name}.py"
    if request.config.getoption("--update", default=False):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_every_golden_belongs_to_a_sample() -> None:
    assert {f.stem for f in GOLDENS.glob("*.py")} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_emitting_twice_gives_the_same(name: str) -> None:
    first, second = (
        TritonCodegen().emit(SAMPLES[name], get_target("gfx942"), sample_options(name)) for _ in range(2)
    )
    assert first == second
