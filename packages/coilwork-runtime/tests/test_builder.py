"""Building: through the store, in parallel, once per source, and what is said when it fails."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from runtime_sample_kernels import cpp_kernel, rewrite, triton_kernel, version

from coilwork_cache import KernelCache, LocalStore, MemoryStore, Store
from coilwork_runtime import Builder, KernelBuildError, MissingCompilerError, RuntimeFault, Search
from coilwork_runtime.folders import new_folder
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import SearchResult, Trial
from coilwork_runtime.triton_kernels.autotune.records import remember
from coilwork_runtime.triton_kernels.compilation import GpuBinary, WorkerError, WorkerPool
from coilwork_runtime.triton_kernels.gpu import make_torch_gpu
from coilwork_runtime.triton_kernels.triton_builder import LONGEST_BUILD_S, TritonBuilder


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that notes each compilation of a kernel in this file."""
    notes, command = tmp_path / "notes", tmp_path / "counting-g++"
    notes.touch()
    command.write_text(f'#!/bin/sh\ncase "$*" in *-O3*) echo compiled >> {notes};; esac\nexec g++ "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    return notes


def count(notes: Path) -> int:
    return len(notes.read_text().splitlines())


def stored_library(store: MemoryStore) -> str:
    """The key of the one library in the store; beside it lies a record that names it."""
    (key,) = [key for key in entries(store) if (KernelCache(store).get(key) or b"").startswith(b"\x7fELF")]
    return key


def doubled(builder: Builder, factor: int = 2) -> float:
    launch = builder.build([cpp_kernel(factor=factor)])["double_it"]
    x, y = torch.ones(4), torch.zeros(4)
    launch(x, y, 4)
    return float(y[3])


def entries(store: MemoryStore) -> list[str]:
    return [entry.key for entry in store.entries()]


def test_builds_and_runs() -> None:
    assert doubled(Builder()) == 2


def test_nothing_to_build() -> None:
    assert Builder().build([]) == {}


def test_a_second_builder_with_the_same_store_compiles_nothing(compilations: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert doubled(Builder(LocalStore(root))) == 2
    assert count(compilations) == 1
    assert doubled(Builder(LocalStore(root))) == 2
    assert count(compilations) == 1
    assert doubled(Builder(LocalStore(root)), factor=3) == 3
    assert count(compilations) == 2


def test_a_builder_without_a_store_remembers_what_it_built(compilations: Path) -> None:
    builder = Builder()
    assert doubled(builder) == doubled(builder) == 2
    assert count(compilations) == 1


def test_features_are_part_of_the_key(compilations: Path) -> None:
    store = MemoryStore()
    doubled(Builder(store))
    Builder(store).build([dataclasses.replace(cpp_kernel(), features=("avx2",))])
    assert count(compilations) == 2


def test_equal_sources_are_compiled_once_even_from_several_threads(compilations: Path) -> None:
    builder = Builder(workers=4)
    start = threading.Barrier(4)

    def build() -> float:
        start.wait()
        return doubled(builder)

    with ThreadPoolExecutor(4) as threads:
        results = [future.result() for future in [threads.submit(build) for _ in range(4)]]
    assert results == [2, 2, 2, 2]
    assert count(compilations) == 1


def test_builders_that_share_a_folder_compile_once(compilations: Path, tmp_path: Path) -> None:
    """As processes of one machine do: each has a builder and a store of its own."""
    start = threading.Barrier(3)

    def build() -> float:
        builder = Builder(LocalStore(tmp_path / "store"))
        start.wait()
        return doubled(builder)

    with ThreadPoolExecutor(3) as threads:
        results = [future.result() for future in [threads.submit(build) for _ in range(3)]]
    assert results == [2, 2, 2]
    assert count(compilations) == 1


def test_threads_that_write_and_compile_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel comes from the store while the other is linked against what lies in the folder."""
    made: list[Path] = []

    def slow_folder(purpose: str) -> Path:
        time.sleep(0.2)
        made.append(new_folder(purpose))
        return made[-1]

    store = MemoryStore()
    Builder(store).build([cpp_kernel(factor=3)])
    monkeypatch.setattr("coilwork_runtime.cpp.cpp_builder.new_folder", slow_folder)
    builder = Builder(store)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda factor: doubled(builder, factor), (3, 4))) == [3, 4]
    assert len(made) == 1


def test_progress_counts_kernels() -> None:
    seen: list[tuple[int, int, int]] = []
    store = MemoryStore()
    for compiled in (3, 0):
        seen.clear()
        builder = Builder(store, progress=lambda *counts: seen.append(counts))
        launchers = builder.build([cpp_kernel(f"k{factor}", factor=factor) for factor in range(3)])
        assert list(launchers) == ["k0", "k1", "k2"]
        assert [counts[:2] for counts in seen] == [(1, 3), (2, 3), (3, 3)]
        assert seen[-1][2] == compiled


@pytest.mark.parametrize("junk", [b"", b"this is no library", b"\x7fELF\x02\x01\x01" + b"\0" * 200])
def test_a_stored_entry_that_does_not_load_is_built_again(junk: bytes) -> None:
    store = MemoryStore()
    doubled(Builder(store))
    key = stored_library(store)
    good = store.get(key)
    KernelCache(store).put(key, junk)
    assert doubled(Builder(store)) == 2
    assert store.get(key) == good


def test_a_stored_library_without_the_kernel_is_built_again() -> None:
    store = MemoryStore()
    other = cpp_kernel(source='extern "C" __attribute__((visibility("default"))) void other() {}')
    with pytest.raises(KernelBuildError, match="does not load"):
        Builder(store).build([other])
    key = stored_library(store)
    stranger = store.get(key)
    assert stranger is not None
    store.clear()
    doubled(Builder(store))
    key = stored_library(store)
    store.put(key, stranger)
    assert doubled(Builder(store)) == 2


def test_a_source_that_does_not_compile_names_kernel_message_and_remedy() -> None:
    broken = cpp_kernel("broken", source="int f() { return undeclared_name; }")
    texts = set()
    for _ in range(2):
        with pytest.raises(KernelBuildError) as caught:
            Builder().build([cpp_kernel(), broken])
        assert caught.value.kernel == "broken"
        texts.add(str(caught.value))
    (text,) = texts
    assert "kernel broken does not build" in text
    assert "undeclared_name" in text and "kernel.cpp:1" in text
    assert "  try     " in text


def test_of_several_failures_the_first_in_order_is_raised() -> None:
    slow = "#include <algorithm>\n#include <map>\n#include <string>\nint f() { return first_mistake; }"
    specs = [cpp_kernel("slow", source=slow), cpp_kernel("quick", source="second_mistake")]
    for _ in range(3):
        with pytest.raises(KernelBuildError, match="first_mistake"):
            Builder(workers=2).build(specs)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCompilerError, match=r"(?s)no C\+\+ compiler.*try     install g\+\+"):
        Builder().build([cpp_kernel()])


def test_a_compiler_that_is_named_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/absent/g++")
    with pytest.raises(MissingCompilerError, match=r"(?s)CXX names '/absent/g\+\+'.*try     correct CXX"):
        Builder().build([cpp_kernel()])


def test_stored_kernels_need_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = MemoryStore()
    assert doubled(Builder(store)) == 2
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doubled(Builder(store)) == 2
    with pytest.raises(MissingCompilerError):
        doubled(Builder(store), factor=3)
    for key in entries(store):
        KernelCache(store).put(key, b"\xff junk")
    with pytest.raises(MissingCompilerError):
        doubled(Builder(store))


def test_files_that_kernels_were_loaded_from_go_with_the_process(tmp_path: Path) -> None:
    """Also of a process whose forked child ends first, and without a word of Python's about what was left
    behind.
    """
    code = """
        import os, sys
        from runtime_sample_kernels import cpp_kernel
        from coilwork_runtime import Builder
        Builder().build([cpp_kernel()])
        if (child := os.fork()) == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        assert any(files for _, _, files in os.walk(os.environ["TMPDIR"])), \
"the files are there while the process is"
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_workers_start_in_the_background() -> None:
    started, release = threading.Event(), threading.Event()

    class SlowPool(WorkerPool):
        def warm_up(self, count: int) -> None:
            release.wait(30)
            started.set()

    Builder(pool=SlowPool(), workers=3).warm_up()
    assert not started.is_set()
    release.set()
    assert started.wait(30)


def test_with_a_compiler_that_does_not_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = tmp_path / "broken-g++"
    command.write_text("#!/bin/sh\necho no good >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    with pytest.raises(MissingCompilerError, match=r"(?s)cannot build a shared library.*no good"):
        Builder().build([cpp_kernel()])


def test_without_triton() -> None:
    """In a process of its own, where the import path holds no triton."""
    code = """
        import importlib.abc, sys

        class Absent(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "triton":
                    raise ModuleNotFoundError(name)

        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
        sys.meta_path.insert(0, Absent())
        from runtime_sample_kernels import cpp_kernel, triton_kernel
        from coilwork_runtime import Builder, MissingTritonError
        Builder().build([cpp_kernel()])
        try:
            Builder().build([triton_kernel()])
        except MissingTritonError as error:
            print(error)
    """
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert "MissingTritonError[no-triton]" in done.stdout
    assert "pip install 'coilwork-runtime[triton]'" in done.stdout


class BrokenPool(WorkerPool):
    """Refuses candidates with certain block sizes."""

    def __init__(self, *refused: int) -> None:
        super().__init__()
        self.refused = refused
        self.requests = 0
        self.waited: list[float | None] = []

    def compile(self, request: object, *, timeout_s: float | None = None) -> tuple[dict[str, object], bytes]:
        assert isinstance(request, dict)
        self.requests += 1
        self.waited.append(timeout_s)
        block = request["constants"]["XBLOCK"]
        if block in self.refused:
            raise WorkerError(f"block {block} is too large")
        metadata = {"name": "double_it", "shared": 0, "num_warps": 4, "num_ctas": 1, "warp_size": 32}
        rest = {"global_scratch_size": 0, "profile_scratch_size": 0}
        return metadata | rest | {"launch_cooperative_grid": False, "launch_pdl": False}, b"code"


class SlowPool(BrokenPool):
    """Takes long enough for others to ask for the same."""

    def compile(self, request: object, *, timeout_s: float | None = None) -> tuple[dict[str, object], bytes]:
        time.sleep(0.2)
        return super().compile(request, timeout_s=timeout_s)


def test_a_candidate_that_does_not_compile_is_left_out() -> None:
    triton = pytest.importorskip("triton", reason="its version is part of the key")
    assert triton
    builder = Builder(pool=BrokenPool(512))
    ((only,),) = builder.binaries([triton_kernel(blocks=(512, 256))])
    assert only[0]["XBLOCK"] == 256


WIDE = rewrite(
    triton_kernel(blocks=(512, 256)),
    versions=(version({"XBLOCK": (512, 128, 256, 1024), "num_warps": (4, 8)}),),
)


def found_earlier(block: int, sizes: list[int], *, pool: BrokenPool, spec: KernelSpec = WIDE) -> list[int]:
    """The blocks that are built after a search found `block` for `sizes`."""
    pytest.importorskip("triton", reason="its version is part of the key")
    store = MemoryStore()
    trial = Trial(config={"XBLOCK": block, "num_warps": 4, "num_stages": 1}, milliseconds=1.0)
    remember(store, spec, "a GPU", sizes, SearchResult(best=trial, proposed=(), tried=(trial,)))
    gpu = dataclasses.replace(make_torch_gpu(None), here=lambda: "a GPU")
    (built,) = Builder(store, pool=pool, gpu=gpu, workers=1).binaries([spec])
    return [config["XBLOCK"] for config, _ in built]


def test_what_a_search_found_is_built_alone_where_it_is_for_all_calls() -> None:
    pool = BrokenPool()
    assert found_earlier(1024, [], pool=pool) == [1024] and pool.requests == 1


def test_what_a_search_found_for_some_sizes_is_built_beside_the_candidates() -> None:
    assert found_earlier(1024, [1000], pool=BrokenPool()) == [512, 256, 1024]
    assert found_earlier(256, [1000], pool=BrokenPool()) == [512, 256]


def test_candidates_are_built_where_what_was_found_does_not_build() -> None:
    assert found_earlier(1024, [], pool=BrokenPool(1024)) == [512, 256]


def test_what_a_kernel_does_not_allow_is_not_built() -> None:
    assert found_earlier(64, [], pool=BrokenPool()) == [512, 256]
    narrow = triton_kernel(blocks=(512, 256))
    assert found_earlier(1024, [], pool=BrokenPool(), spec=narrow) == [512, 256]


def test_a_search_builds_others_in_parallel_and_keeps_what_fails() -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    pool = BrokenPool(1024)
    builder = TritonBuilder(None, pool, make_torch_gpu(None), search=Search(), workers=4)
    configs = [{"XBLOCK": block, "num_warps": 4, "num_stages": 1} for block in (128, 1024, 256)]
    first, second, third = builder.compile_further(WIDE, configs)
    assert isinstance(first, GpuBinary) and isinstance(third, GpuBinary)
    assert isinstance(second, KernelBuildError) and "XBLOCK=1024" in str(second)
    assert pool.waited == [LONGEST_BUILD_S] * 3


def test_if_no_candidate_compiles_the_first_ones_message_is_raised() -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    with pytest.raises(KernelBuildError, match=r"(?s)kernel double_it.*XBLOCK=512.*block 512 is too large"):
        Builder(pool=BrokenPool(512, 256)).build([triton_kernel(blocks=(512, 256))])


def test_compiled_triton_kernels_come_from_the_store() -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    store: Store = MemoryStore()
    pool = BrokenPool()
    for _ in range(2):
        Builder(store, pool=pool).build([triton_kernel(blocks=(512, 256))])
    assert pool.requests == 2


def test_builders_that_share_a_folder_compile_triton_kernels_once(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    pools = [SlowPool(), SlowPool()]
    builders = [Builder(LocalStore(tmp_path / "store"), pool=pool) for pool in pools]
    specs = [triton_kernel(blocks=(512, 256))]
    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(lambda builder: builder.build(specs), builders))) == 2
    assert sum(pool.requests for pool in pools) == 2


def test_a_damaged_triton_entry_is_compiled_again() -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    store = MemoryStore()
    pool = BrokenPool()
    Builder(store, pool=pool).build([triton_kernel()])
    (key,) = entries(store)
    KernelCache(store).put(key, b"junk")
    Builder(store, pool=pool).build([triton_kernel()])
    assert pool.requests == 2
    assert KernelCache(store).get(key) != b"junk"


def test_a_target_that_is_no_gpu() -> None:
    pytest.importorskip("triton", reason="its version is part of the key")
    with pytest.raises(RuntimeFault, match="'x86-64-avx2' is not a GPU"):
        Builder().build([triton_kernel(target="x86-64-avx2")])
