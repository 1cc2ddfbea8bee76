"""The compiler's identity follows its sources."""

from __future__ import annotations

from pathlib import Path

import coilwork_triton
from coilwork_cache.key import compiler_identity, digest_sources
from coilwork_tools.graph_key import COMPONENTS
from coilwork_triton.text.device_library import read_device_functions


def test_identity_is_stable() -> None:
    assert compiler_identity(COMPONENTS) == compiler_identity.__wrapped__(COMPONENTS)


def test_every_change_of_a_source_file_counts(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    source = tmp_path / "ops" / "sums.py"
    source.write_text("FACTOR = 1\n")
    seen = [digest_sources(tmp_path)]
    source.write_text("FACTOR = 2\n")
    seen.append(digest_sources(tmp_path))
    source.rename(tmp_path / "ops" / "means.py")
    seen.append(digest_sources(tmp_path))
    (tmp_path / "empty.py").touch()
    seen.append(digest_sources(tmp_path))
    for name in ("sums.triton", "sums.hpp", "sums.cpp", "sm_90.toml"):
        (tmp_path / "ops" / name).write_text("what kernels or the executor are made of")
        seen.append(digest_sources(tmp_path))
    assert len(set(seen)) == len(seen)
    (tmp_path / "notes.txt").write_text("not code")
    assert digest_sources(tmp_path) == seen[-1]


def test_the_functions_that_kernels_carry_along_are_sources() -> None:
    folder = Path(coilwork_triton.__path__[0])
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.triton")]
    assert all(
        any(function.source in text for text in texts) for function in read_device_functions().values()
    )
