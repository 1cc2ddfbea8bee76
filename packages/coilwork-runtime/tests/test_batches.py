"""C++ kernels compiled together: which, as how many files, and what comes of it."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from runtime_sample_kernels import cpp_kernel

from coilwork_cache import KernelCache, LocalStore, MemoryStore
from coilwork_runtime import Builder, KernelBuildError
from coilwork_runtime.cpp.cpp_builder import LONGEST_TOGETHER, MOST_TOGETHER, join_sources, make_batches
from coilwork_runtime.devices import read_cpu_features
from coilwork_runtime.manifest.kernel_manifest import KernelSpec

SOURCE = """
extern "C" __attribute__((visibility("default"))) void ENTRY(const float* a, float* b, long long n) {
  for (long long i = 0; i < n; ++i) b[i] = FACTOR * a[i];
}
"""


def kernel(number: int, *, source: str = SOURCE) -> KernelSpec:
    """`b = number * a`, under an entry of its own."""
    entry = f"kernel_of_{number}"
    given = cpp_kernel(f"k{number}", factor=number, source=source.replace("ENTRY", entry))
    return dataclasses.replace(given, entry=entry)


def product(launch: object) -> float:
    x, y = torch.ones(4), torch.zeros(4)
    assert callable(launch)
    launch(x, y, 4)
    return float(y[3])


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that notes each compilation of kernels in this file."""
    notes, command = tmp_path / "notes", tmp_path / "counting-g++"
    notes.touch()
    command.write_text(f'#!/bin/sh\ncase "$*" in *-O3*) echo compiled >> {notes};; esac\nexec g++ "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    return notes


def count(notes: Path) -> int:
    return len(notes.read_text().splitlines())


def test_every_worker_gets_something_to_do() -> None:
    kernels = [kernel(number) for number in range(5)]
    assert sorted(map(len, make_batches(kernels, 1))) == [5]
    assert sorted(map(len, make_batches(kernels, 2))) == [2, 3]
    assert sorted(map(len, make_batches(kernels, 8))) == [1] * 5
    assert make_batches([], 2) == []


def test_groups_are_neither_too_many_nor_too_long() -> None:
    many = [kernel(number) for number in range(3 * MOST_TOGETHER)]
    assert [len(group) for group in make_batches(many, 1)] == [MOST_TOGETHER] * 3
    comment = "//" + "x" * (LONGEST_TOGETHER // 2) + "\n"
    long = [kernel(number, source=comment + SOURCE) for number in range(4)]
    assert len(make_batches(long, 1)) == 3


def test_groups_are_equally_long() -> None:
    sources = [SOURCE + "// text\n" * length for length in (800, 400, 400, 1, 1, 1)]
    kernels = [kernel(number, source=source) for number, source in enumerate(sources)]
    first, second = make_batches(kernels, 2)
    lengths = [sum(len(one.source) for one in group) for group in (first, second)]
    assert max(lengths) < 1.2 * min(lengths)


def test_what_cannot_share_a_file_does_not() -> None:
    other_flags = dataclasses.replace(kernel(1), features=("avx2",))
    with_header = kernel(2, source="  #include <cstdint>\n" + SOURCE)
    same_entry = dataclasses.replace(kernel(0), name="again")
    groups = make_batches([kernel(0), other_flags, with_header, same_entry, kernel(3)], 1)
    found = {one.name: {other.name for other in group} for group in groups for one in group}
    assert found["k1"] == {"k1"} and found["k2"] == {"k2"}
    assert "again" not in found["k0"] and found["k3"] in (found["k0"], found["again"])


def test_definitions_of_one_name_do_not_meet() -> None:
    helper = "static float factor() { return FACTOR; }\n" + SOURCE.replace("FACTOR", "factor()")
    specs = [kernel(number, source=helper) for number in (2, 3)]
    assert join_sources(specs).count("float factor()") == 2
    launchers = Builder(workers=1).build(specs)
    assert [product(launch) for launch in launchers.values()] == [2, 3]


CHOOSING = """
extern "C" {
  __attribute__((simd("notinbranch"), const)) float tanhf(float) noexcept;
}
static void body(const float* a, float* b, long long n) {
  for (long long r = 0; r < n / 32; ++r) {
    #pragma omp simd
    for (int x = 0; x < 32; ++x) {
      const bool late = x >= 24;
      const float before = x < 24 ? a[r * 32 + x] : 0.0f;
      const float after = late ? a[r * 32 + x - 24] : 0.0f;
      const float product = FACTOR * tanhf(after) * (1.0f - after);
      const float other = late ? product : 0.0f;
      b[r * 32 + x] = x < 24 ? before : other;
    }
  }
}
extern "C" __attribute__((visibility("default"))) void ENTRY(const float* a, float* b, long long n) { \
body(a, b, n); }
"""


def test_the_last_bit_does_not_depend_on_what_a_kernel_is_compiled_with() -> None:
    wide = ("avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl")
    features = tuple(feature for feature in wide if feature in read_cpu_features())
    one, two = (dataclasses.replace(kernel(k, source=CHOOSING), features=features) for k in (1, 2))
    x = torch.randn(3200)
    alone, together = torch.zeros(3200), torch.zeros(3200)
    Builder(workers=1).build([one])[one.name](x, alone, 3200)
    Builder(workers=1).build([two, one])[one.name](x, together, 3200)
    assert torch.equal(alone, together)
    head, _, rest = join_sources([two, one]).partition("namespace")
    assert head.count("tanhf") == 1 and rest.count("tanhf(float)") == 0


def test_kernels_of_a_graph_are_compiled_in_one_go(compilations: Path, tmp_path: Path) -> None:
    specs = [kernel(number) for number in range(2, 6)]
    root = tmp_path / "store"
    for _ in range(2):
        launchers = Builder(LocalStore(root), workers=1).build(specs)
        assert [product(launch) for launch in launchers.values()] == [2, 3, 4, 5]
        assert count(compilations) == 1


def test_builders_that_share_a_folder_compile_a_group_once(compilations: Path, tmp_path: Path) -> None:
    builders = [Builder(LocalStore(tmp_path / "store"), workers=1) for _ in range(2)]
    specs = [kernel(2), kernel(3)]
    with ThreadPoolExecutor(2) as threads:
        for launchers in threads.map(lambda builder: builder.build(specs), builders):
            assert [product(launchers[spec.name]) for spec in specs] == [2, 3]
    assert count(compilations) == 1


def test_a_kernel_that_is_there_is_not_compiled_with_others(compilations: Path) -> None:
    store = MemoryStore()
    Builder(store, workers=1).build([kernel(2), kernel(3)])
    assert count(compilations) == 1
    launchers = Builder(store, workers=1).build([kernel(3), kernel(4)])
    assert [product(launch) for launch in launchers.values()] == [3, 4]
    assert count(compilations) == 2
    assert product(Builder(store).build([kernel(2)])["k2"]) == 2
    assert count(compilations) == 2


def test_a_library_that_is_gone_or_does_not_load_is_built_again(compilations: Path) -> None:
    store = MemoryStore()
    specs = [kernel(2), kernel(3)]
    Builder(store, workers=1).build(specs)
    (shared,) = [
        e.key for e in store.entries() if (KernelCache(store).get(e.key) or b"").startswith(b"\x7fELF")
    ]
    for damage in (b"\x7fELF junk", None):
        if damage is None:
            store.delete(shared)
        else:
            KernelCache(store).put(shared, damage)
        launchers = Builder(store, workers=1).build(specs)
        assert [product(launch) for launch in launchers.values()] == [2, 3]


def test_of_kernels_that_do_not_compile_together_the_guilty_is_named() -> None:
    broken = kernel(3, source="int f() { return undeclared_name; }")
    with pytest.raises(KernelBuildError, match=r"kernel\.cpp:1") as caught:
        Builder(workers=1).build([kernel(2), broken, kernel(4)])
    assert caught.value.kernel == "k3"


def test_what_is_saved_of_a_kernel_depends_on_it_alone() -> None:
    together, alone = Builder(MemoryStore(), workers=1), Builder(MemoryStore(), workers=1)
    together.build([kernel(2), kernel(3)])
    assert together.binaries([kernel(2)]) == alone.binaries([kernel(2)])
    library = alone.binaries([kernel(2)])[0][0][1]
    assert isinstance(library, bytes)
    assert product(together.load_library(kernel(2), library)) == 2


def test_stored_together_they_need_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = MemoryStore()
    Builder(store, workers=1).build([kernel(2), kernel(3)])
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    launchers = Builder(store).build([kernel(2), kernel(3)])
    assert [product(launch) for launch in launchers.values()] == [2, 3]
