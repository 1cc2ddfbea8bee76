"""Compiled graphs on disk: hits in another process, and what damage costs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from coilwork.backend import backend
from coilwork.caches import list_key_parts, open_caches
from coilwork.compile_options import CompileOptions
from coilwork_cache import (
    Bundle,
    BundleCodec,
    CacheCorruptionWarning,
    GraphCache,
    GraphEntry,
    LocalStore,
    NullStore,
)
from coilwork_cache.codec import make_frame_head, strip_head
from coilwork_ir.kernel_source import write_kernels
from coilwork_tools.explain.report import CompileReport, read_report

Compile = Callable[..., Callable[..., Any]]

PROGRAM = """
import sys

import torch
from coilwork.backend import backend

torch.manual_seed(0)
table = torch.tensor([1.0, 2.0, 4.0, 8.0])
layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), \
torch.nn.Linear(8, 2))


def loss(x):
    return layer(x * table).square().mean()


compiled = torch.compile(loss, backend=backend, options={"strict": True})
kept = []
for rows in (5, 9):
    x = torch.randn(rows, 4, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    value = compiled(x)
    value.backward()
    kept += [value.detach(), x.grad]
kept += [p.grad for p in layer.parameters()]
torch.save(kept, sys.argv[1])
"""


def graph_key(text: str, targets: str, options: CompileOptions) -> str:
    return GraphCache(NullStore()).key(*list_key_parts(text, targets, options).values())


def reports(trace: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in trace.glob("*/report.json")}


def test_second_process_restores_the_same_code(
    tmp_path: Path, run_python: Callable[..., CompletedProcess[str]]
) -> None:
    """Keys do not depend on the order of hashes, results are the same bit for bit, and no stage
    runs again.
    """
    for seed in ("1", "2"):
        environ = {
            "PYTHONHASHSEED": seed,
            "COILWORK_CACHE_DIR": str(tmp_path / "cache"),
            "COILWORK_TRACE": str(tmp_path / f"trace-{seed}"),
        }
        run_python("-c", PROGRAM, str(tmp_path / f"{seed}.pt"), environ=environ)
    first, second = reports(tmp_path / "trace-1"), reports(tmp_path / "trace-2")
    assert sorted(report["role"] for report in first.values()) == ["backward", "forward"]
    assert first.keys() == second.keys()
    assert [report["cache_hit"] for report in first.values()] == [False, False]
    assert [report["cache_hit"] for report in second.values()] == [True, True]
    for name, report in second.items():
        assert set(report["seconds"]) == {"cache", "build"}
        assert report["kernels"] == first[name]["kernels"]
        modules = [tmp_path / f"trace-{seed}" / name / "module.py" for seed in ("1", "2")]
        assert modules[0].read_bytes() == modules[1].read_bytes()
    results = [torch.load(tmp_path / f"{seed}.pt") for seed in ("1", "2")]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * 0.5 + 1.0


def compile_again(strictly: Compile, folder: Path, trace: Path, **options: object) -> dict[str, Any]:
    """Compile `scaled` as a new process would, check its result, and return the report."""
    torch._dynamo.reset()
    x = torch.randn(6)
    compiled = strictly(scaled, cache_dir=str(folder), trace=str(trace), **options)
    torch.testing.assert_close(compiled(x), scaled(x))
    (report,) = reports(trace).values()
    return report


def test_hit_and_miss_in_one_process(strictly: Compile, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert [compile_again(strictly, cache, tmp_path / "t")["cache_hit"] for _ in range(2)] == [False, True]
    assert compile_again(strictly, cache, tmp_path / "u", numerics="eager")["cache_hit"] is False


def test_sizes_that_are_guarded_otherwise_are_another_graph(strictly: Compile, tmp_path: Path) -> None:
    def in_blocks(x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, 8 - x.shape[1] % 8))
        return padded.view(x.shape[0], -1, 8)

    torch._dynamo.reset()
    compiled = torch.compile(
        in_blocks,
        backend=backend,
        dynamic=True,
        options={"strict": True, "cache_dir": str(tmp_path / "cache")},
    )
    for columns in (6, 3, 8, 19):
        x = torch.randn(4, columns)
        torch.testing.assert_close(compiled(x), in_blocks(x), rtol=0, atol=0, check_stride=True)


def test_without_the_cache_nothing_is_read_or_written(strictly: Compile, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert compile_again(strictly, cache, tmp_path / "t", cache=False)["cache_hit"] is False
    assert not cache.exists()


def damage_by_truncation(store: LocalStore) -> None:
    for entry in store.entries():
        path = Path(entry.location)
        path.write_bytes(path.read_bytes()[:-7])


def damage_by_a_flipped_bit(store: LocalStore) -> None:
    for entry in store.entries():
        path = Path(entry.location)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def damage_by_emptying(store: LocalStore) -> None:
    for entry in store.entries():
        Path(entry.location).write_bytes(b"")


def replace_graphs(store: LocalStore, records: dict[str, bytes]) -> None:
    """Well-formed entries with other contents, as another program might write."""
    codec = "graph-6/bundle-1"
    for entry in list(store.entries()):
        if entry.kind == "graph":
            data = store.get(entry.key)
            assert data is not None
            old = BundleCodec().decode(strip_head(data, "graph", codec))
            changed = Bundle(records={**old.records, **records})
            store.put(entry.key, make_frame_head("graph", codec) + BundleCodec().encode(changed))


@pytest.mark.parametrize(
    "damage",
    [
        damage_by_truncation,
        damage_by_a_flipped_bit,
        damage_by_emptying,
        lambda store: replace_graphs(store, {"report.json": b"[]"}),
        lambda store: replace_graphs(store, {"constants.json": b"{"}),
        lambda store: replace_graphs(store, {"constants.json": b'["missing"]'}),
        lambda store: replace_graphs(store, {"kernels.bin": b"coilwork"}),
        lambda store: replace_graphs(store, {"roles.txt": b"takes 1\nin 0 aligned update\n"}),
        lambda store: replace_graphs(store, {"kernels.bin": write_kernels(())}),
        lambda store: replace_graphs(store, {"module.py": b"\xff\xfe"}),
        lambda store: replace_graphs(store, {"program.bin": b"coilwork"}),
    ],
    ids=[
        "truncated",
        "flipped",
        "empty",
        "report",
        "json",
        "constant",
        "kernels",
        "roles",
        "no kernels",
        "encoding",
        "program",
    ],
)
def test_damage_is_a_warning_and_a_recompile(
    damage: Callable[[LocalStore], None], strictly: Compile, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    compile_again(strictly, cache, tmp_path / "t")
    damage(LocalStore(cache))
    with pytest.warns(CacheCorruptionWarning):
        report = compile_again(strictly, cache, tmp_path / "t")
    assert report["cache_hit"] is False
    assert compile_again(strictly, cache, tmp_path / "t")["cache_hit"] is True


@pytest.mark.parametrize("text", [b"def make_call(:", b"KERNELS = ()"], ids=["syntax", "contents"])
def test_a_damaged_module_matters_to_no_call(text: bytes, strictly: Compile, tmp_path: Path) -> None:
    """People read it; whoever runs the program reads its bytes."""
    cache = tmp_path / "cache"
    for executor in ("native", "python"):
        compile_again(strictly, cache, tmp_path / "t", executor=executor)
        replace_graphs(LocalStore(cache), {"module.py": text})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            report = compile_again(strictly, cache, tmp_path / "t", executor=executor)
        assert report["cache_hit"] is True and report["executor"] == executor
        assert not any(isinstance(one.message, CacheCorruptionWarning) for one in told)


def test_a_damaged_program_matters_to_python_as_well(strictly: Compile, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    compile_again(strictly, cache, tmp_path / "t", executor="python")
    replace_graphs(LocalStore(cache), {"program.bin": b"coilwork"})
    with pytest.warns(CacheCorruptionWarning, match="its program does not load"):
        report = compile_again(strictly, cache, tmp_path / "t", executor="python")
    assert report["cache_hit"] is False


def test_entries_come_back_as_they_went(tmp_path: Path) -> None:
    graphs = GraphCache(open_caches(CompileOptions(cache_dir=str(tmp_path / "cache"))))
    report = CompileReport(graph_id="g", role="forward", kernels=2, saved_strides=[(1, [2, 1])])
    entry = GraphEntry(
        module="x = 1\n",
        kernels=write_kernels(()),
        constant_keys=("a.b",),
        report=json.loads(report.to_json()),
    )
    key = graph_key("text", "cpu", CompileOptions())
    assert graphs.get(key) is None
    graphs.put(key, entry)
    assert graphs.get(key) == entry
    assert read_report(entry.report).kernels == 2


def test_versions_and_options_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CompileOptions()
    keys = {
        graph_key("text", "cpu", plain),
        graph_key("other", "cpu", plain),
        graph_key("text", "cpu", CompileOptions(fusion=False)),
        graph_key("text", "sm_90", plain),
    }
    monkeypatch.setattr(torch, "__version__", "2.12")
    keys.add(graph_key("text", "cpu", plain))
    monkeypatch.setattr("coilwork.caches.compiler_identity", lambda *_: "another compiler")
    keys.add(graph_key("text", "cpu", plain))
    assert len(keys) == 6


def test_cache_off_opens_nothing() -> None:
    assert isinstance(open_caches(CompileOptions(cache=False)), NullStore)


def test_unusable_folder_is_a_warning(tmp_path: Path, leniently: Compile) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    x = torch.randn(3)
    with pytest.warns(UserWarning, match="file"):
        result = leniently(scaled, cache_dir=str(blocked / "cache"))(x)
    torch.testing.assert_close(result, scaled(x))
