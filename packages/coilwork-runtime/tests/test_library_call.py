"""Calls of programs in shared libraries, through one that hands its inputs back."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NoReturn

import pytest
import torch
from stub_library import StubLibrary

from coilwork_cache import MemoryStore
from coilwork_runtime.executor.library_call import LibraryProgram, make_library_call
from coilwork_runtime.executor.native_program import find_executor_extension
from coilwork_runtime.tensor_kinds import PLAIN

SOURCE = r"""
NUMBERS calls;
API int run(const void*, void** inputs, const int64_t* sizes, void** outputs, int64_t* output_sizes) {
  ++calls;
  outputs[0] = inputs[1], outputs[1] = nullptr, outputs[2] = inputs[0];
  output_sizes[0] = 2 * sizes[0];
  return 0;
}
API int refuse(const void*, void**, const int64_t*, void**, int64_t*) { return 3; }
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubLibrary:
    find_executor_extension(MemoryStore())
    return StubLibrary(tmp_path_factory.mktemp("library"), "program", SOURCE)


def refuse(kind: int) -> NoReturn:
    raise IndexError(f"failed as {kind}")


def open_call(stub: StubLibrary, name: str, seen: list[list[Any]]) -> Any:
    def instead(args: list[Any]) -> list[str]:
        seen.append([*args])
        args.clear()
        return ["instead"]

    program = LibraryProgram(
        run=ctypes.cast(stub.library[name], ctypes.c_void_p).value or 0,
        constants=0,
        inputs=("tensor", "size", "tensor"),
        outputs=("tensor", "size", "none", "tensor"),
        fail=refuse,
    )
    call = make_library_call(program, instead, PLAIN, None)
    assert call is not None
    return call


def test_inputs_and_results_cross_without_copies(stub: StubLibrary) -> None:
    call = open_call(stub, "run", [])
    x, y = torch.randn(3), torch.randn(2, 2)
    idle = sys.getrefcount(x), sys.getrefcount(y)
    boxed = [x, 7, y]
    for results in (call(boxed), call(x, 7, y)):
        assert results[1:3] == [14, None]
        assert [one.data_ptr() for one in (results[0], results[3])] == [y.data_ptr(), x.data_ptr()]
    assert boxed == []
    del results
    assert (sys.getrefcount(x), sys.getrefcount(y)) == idle


def test_what_is_rare_is_done_otherwise(stub: StubLibrary) -> None:
    seen: list[list[Any]] = []
    call = open_call(stub, "run", seen)
    x = torch.randn(3)
    before = stub.number("calls")
    sparse, meta = torch.eye(3).to_sparse(), torch.empty(3, device="meta")
    short = torch.randn(100)
    short.untyped_storage().resize_(4)
    rare: list[list[Any]] = [
        [sparse, 1, x],
        [x, 1, meta],
        [short, 1, x],
        [x, 1],
        [x, True, x],
        [1, x, x],
        [x, 1 << 70, x],
    ]
    for args in rare:
        assert call(*args) == ["instead"]
    assert call([x, 1, "text"]) == ["instead"]
    assert len(seen) == len(rare) + 1 and stub.number("calls") == before
    assert call([x, 1, x])[1] == 2 and stub.number("calls") == before + 1


def test_failures_are_raised_by_their_kind(stub: StubLibrary) -> None:
    call = open_call(stub, "refuse", [])
    with pytest.raises(IndexError, match="failed as 3"):
        call([torch.randn(1), 1, torch.randn(1)])
    with pytest.raises(TypeError, match="one list"):
        call(x=1)
