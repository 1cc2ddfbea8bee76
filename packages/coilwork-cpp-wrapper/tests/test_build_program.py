"""Building: the store, errors, and sources that build without Python."""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hand_programs import RELU_ADD_SOURCE, SPECS, program_of, specs_of

from coilwork_cpp_wrapper import build_cpp, emit_cpp, write_sources
from coilwork_runtime import KernelBuildError, MissingCompilerError

TEXT = """program @p {
  symbol s0 in [1, inf]
  input %x: f32[s0, 4]
  input %w: f32[4, 4]
  RELU_ADD
  bind s0 in [1, inf] size %x 0
  alloc %y: f32[s0, 4]
  extern "aten.mm.out" (%x, %w) out ("out" %y)
  launch @relu_add (%y, %x, %y) sizes [4*s0]
  return (%y)
}"""


class CountingStore:
    """Bytes in memory, and what was asked for."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.hits = 0

    def get(self, key: str) -> bytes | None:
        found = self.kept.get(key)
        self.hits += found is not None
        return found

    def put(self, key: str, data: bytes) -> None:
        self.kept[key] = data


def test_a_stored_library_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    store, program = CountingStore(), emit_cpp(program_of(TEXT), SPECS)
    build_cpp(program, store=store, workers=1)
    assert len(store.kept) == 2  # the kernel's object and the library
    assert all(len(key) == 64 for key in store.kept)
    compiled: list[object] = []
    monkeypatch.setattr(
        "coilwork_cpp_wrapper.build_program.run_compiler", lambda *given: compiled.append(given)
    )
    call = build_cpp(program, store=store, workers=1)
    assert compiled == []
    assert store.hits == 1
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    (y,) = call([x, w])
    torch.testing.assert_close(y, torch.relu(x @ w) + x)


def test_kernels_are_shared_between_programs() -> None:
    store = CountingStore()
    build_cpp(emit_cpp(program_of(TEXT), SPECS), store=store, workers=1)
    other = emit_cpp(program_of(TEXT.replace("%w: f32[4, 4]", "%w: f32[4, 4]\n  input %u: f32[1]")), SPECS)
    build_cpp(other, store=store, workers=1)
    assert store.hits == 1
    assert len(store.kept) == 3


def test_a_kernel_that_does_not_compile() -> None:
    broken = replace(RELU_ADD_SOURCE, text="this is no C++")
    with pytest.raises(KernelBuildError, match=r"(?s)kernel relu_add does not build.*no C\+\+|error"):
        build_cpp(emit_cpp(program_of(TEXT), specs_of(broken)), workers=1)


def test_a_damaged_library_does_not_load() -> None:
    store, program = CountingStore(), emit_cpp(program_of(TEXT), SPECS)
    build_cpp(program, store=store, workers=1)
    damaged = CountingStore()
    damaged.kept = dict.fromkeys(store.kept, b"not a library")
    with pytest.raises(KernelBuildError, match="does not load"):
        build_cpp(program, store=damaged, workers=1)


def test_a_missing_compiler_has_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = emit_cpp(program_of(TEXT), SPECS)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingCompilerError):
        build_cpp(program)


def test_only_the_interface_is_exported(tmp_path: Path) -> None:
    library = build_with_script(tmp_path)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert names == {"coilwork_run", "coilwork_last_error", "coilwork_signature"}


def test_written_sources_build_and_describe_themselves(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build_with_script(tmp_path)))
    library.coilwork_signature.restype = ctypes.c_char_p
    assert library.coilwork_signature() == b"(x: f32[s0, 4], w: f32[4, 4]) -> (y: f32[s0, 4])"


def build_with_script(folder: Path) -> Path:
    """Build with the written script and nothing else."""
    script = write_sources(emit_cpp(program_of(TEXT), SPECS), folder)
    libraries = Path(torch.__file__).parent / "lib"
    environment = dict(os.environ, TORCH_LIB=str(libraries))
    subprocess.run([str(script)], env=environment, check=True, capture_output=True)
    return folder / "program.so"
