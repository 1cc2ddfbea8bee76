"""The `coilwork` command."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import coilwork
from coilwork.backend import resolve
from coilwork.cli import main
from coilwork.compile_options import CompileOptions
from coilwork_cache import Bundle, BundleCodec, LocalStore, TypedCache
from coilwork_ir.machine import TUNING, list_borrowed, read_entries
from coilwork_runtime.generated import KernelVersion, TritonKernel
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import SearchResult, Trial
from coilwork_runtime.triton_kernels.autotune.records import remember


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with two kernels."""
    root = tmp_path / "cache"
    kernels = TypedCache(LocalStore(root), kind="kernel", codec=BundleCodec())
    for name in ("a", "b"):
        kernels.put(kernels.key(name), Bundle(records={"kernel.so": name.encode() * 100}))
    return root


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(f"  {command} " in result.output for command in ("info", "options", "bench", "cache"))


def test_info_shows_figures_and_marks_borrowed_ones() -> None:
    assert "figures of" not in run("info").output
    found = run("info", "--figures").output
    assert "figures of cpu" in found
    borrowed, own = list_borrowed(TUNING / "cpu.toml"), read_entries(TUNING / "cpu.toml")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in found.splitlines() if "│" in line]
    told = {row[0]: row[2] for row in rows if len(row) == 3 and "." in row[0]}
    assert borrowed and own
    for name in (*borrowed, *own):
        assert told[name] == borrowed.get(name, "")


def test_info_shows_versions_and_the_cpu() -> None:
    result = run("info")
    assert result.exit_code == 0, result.output
    assert "coilwork-scheduler" in result.output and "torch" in result.output
    assert any(name in result.output for name in ("x86-64-avx2", "x86-64-avx512", "aarch64-neon"))


CODE = frozenset({"fx_emitter", "joint_passes", "passes", "rewrites"})
VARIABLES = [f"COILWORK_{field.name.upper()}" for field in fields(CompileOptions) if field.name not in CODE]


def test_options_lists_each_with_its_variable() -> None:
    result = run("options")
    assert result.exit_code == 0
    assert [name for name in VARIABLES if name not in result.output] == []


def test_options_that_hold_code_have_no_variable() -> None:
    output = run("options").output
    assert [name for name in CODE if f"COILWORK_{name.upper()}" in output] == []
    assert " ".join(output.split()).count("no variable") == len(CODE)


def test_options_are_legible_in_a_narrow_terminal() -> None:
    narrow = CliRunner().invoke(main, ["options"], env={"COLUMNS": "60"})
    assert all(f"{name}\n" in narrow.output for name in VARIABLES)


def test_options_as_markdown() -> None:
    lines = run("options", "--markdown").output.splitlines()
    assert lines[0] == "| option | values | default | environment variable | honoured by | effect |"
    assert lines[2].startswith("| mode | default, reduce-overhead, max-autotune")
    assert len(lines) == 2 + len(fields(CompileOptions))


def test_the_readme_has_the_table_of_options() -> None:
    """But for the wrappers, which depend on what is installed."""
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    lines = [
        line for line in run("options", "--markdown").output.splitlines() if "COILWORK_WRAPPER" not in line
    ]
    assert [line for line in lines if line not in readme.splitlines()] == []


def test_an_unknown_command_is_refused_by_name() -> None:
    result = run("optoins")
    assert result.exit_code == 2
    assert "optoins" in result.output


def test_the_cache_is_counted_by_kind(folder: Path) -> None:
    result = run("cache", "--dir", str(folder), "stats")
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if "kernel" in line and " 2 " in line]


def test_cache_verify_reports_damage_by_its_exit_status(folder: Path) -> None:
    assert run("cache", "--dir", str(folder), "verify").exit_code == 0
    entry = next(LocalStore(folder).entries())
    path = Path(entry.location)
    path.write_bytes(path.read_bytes()[:-1])
    result = run("cache", "--dir", str(folder), "verify")
    assert result.exit_code == 1
    assert "1 intact, 1 damaged" in result.output


def test_cache_mappings_shows_and_writes_what_searches_found(folder: Path, tmp_path: Path) -> None:
    store = LocalStore(folder)
    spec = TritonKernel(
        name="softmax_a1",
        source="",
        entry="softmax_a1",
        args=(),
        arg_names=(),
        grid=("1",),
        configs=({"XBLOCK": 64},),
        versions=(KernelVersion(mapping="tile x0 by ?XBLOCK in 64 128\nwarps 4"),),
    )
    proposed = Trial(config={"XBLOCK": 64}, milliseconds=0.3)
    best = Trial(config={"XBLOCK": 128}, milliseconds=0.2)
    found = SearchResult(best=best, proposed=(proposed,), tried=(best,))
    remember(store, spec, "a GPU", [1000], found)
    wanted = (
        "# softmax_a1 on a GPU for sizes like 1000: 1.50 times as fast as proposed\ntile x0 by 128\nwarps "
        "4\n\n"
    )
    assert run("cache", "--dir", str(folder), "mappings").output == wanted
    written = tmp_path / "mine"
    assert run("cache", "--dir", str(folder), "mappings", "--write", str(written)).output == wanted
    chosen = resolve(options={"mappings": str(written)}, environ={}).mappings
    assert chosen == (("softmax_a1", "tile x0 by 128\nwarps 4\n"),)


def test_the_cache_is_cleared_by_kind(folder: Path) -> None:
    assert "removed 0 entries" in run("cache", "--dir", str(folder), "clear", "--kind", "graph").output
    assert "removed 2 entries" in run("cache", "--dir", str(folder), "clear").output


def test_cache_export_and_import(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "kernels.archive"
    assert "exported 2 entries" in run("cache", "--dir", str(folder), "export", str(archive)).output
    other = tmp_path / "other"
    assert "imported 2 entries" in run("cache", "--dir", str(other), "import", str(archive)).output
    assert len(list(LocalStore(other).entries())) == 2


def test_bench_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    script, target = tmp_path / "mine.py", tmp_path / "found.json"
    script.write_text("import torch\ndef doubled():\n    return (lambda x: x * 2), (torch.ones(8),)\n")
    result = run("bench", f"{script}:doubled", "--backends", "eager", "--json", str(target))
    assert result.exit_code == 0, result.output
    assert "| eager |" in result.output
    (found,) = json.loads(target.read_text())["backends"]
    assert found["fewest_bytes"] == 64 and found["error"] == 0.0 and found["speedup"] == 1.0


def test_bench_fails_with_its_backends(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.touch()
    result = run("bench", f"{script}:case", "--backends", "eager")
    assert result.exit_code == 1
    assert "AttributeError: module 'empty' has no attribute 'case'" in result.output


def test_bench_refuses_what_it_could_not_finish_before_it_measures(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    for arguments, said in (
        (("no_colon.py",), "not of the form FILE.py:FUNCTION"),
        ((f"{script}:case",), "there is no file"),
        (("module:case", "--json", str(tmp_path / "absent" / "found.json")), "there is no folder"),
    ):
        result = run("bench", *arguments)
        assert result.exit_code == 2 and said in result.output


def test_expected_errors_are_told_without_a_traceback(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("no archive")
    for arguments, said in (
        (("--dir", str(tmp_path / "cache"), "import", str(other)), "Error: ArchiveError[bad-archive]"),
        (("--dir", str(other), "stats"), "Error: RootUnavailableError[root-unavailable]"),
        (("--dir", str(tmp_path / "cache"), "export", str(tmp_path / "absent" / "x")), "Error: No such file"),
    ):
        result = run("cache", *arguments)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert said in result.output


def test_the_version_is_the_packages() -> None:
    assert run("--version").output == f"coilwork, version {coilwork.__version__}\n"


def test_executor_is_built_and_loaded() -> None:
    result = run("executor")
    assert result.exit_code == 0
    assert all(word in result.output for word in ("build", "load", "size", "comes with the package"))
