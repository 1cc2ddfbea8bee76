"""Functions that were compiled ahead of time by `torch.compile(f).aot_compile(inputs)`, in a process that has
nothing in its cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coilwork import drop_thread_guard
from coilwork.backend import SavedGraph
from coilwork.errors import CompileError

_LOADING = """
import sys
import torch
from pathlib import Path
torch._dynamo.config.enable_aot_compile = True
torch.set_num_threads(int(sys.argv[1]))
for path in map(Path, sys.argv[2:]):
    inputs, wanted = torch.load(path.with_suffix(".inputs"))
    with path.open("rb") as file:
        function = torch.compiler.load_compiled_function(file)
    result = function(*inputs)
    results = [result]
    if result.requires_grad:
        results += torch.autograd.grad(result.sum(), [one for one in inputs if one.requires_grad])
    for one, other in zip(results, wanted, strict=True):
        assert torch.equal(one, other), (path, one, other)
    if path.stem == "open":
        torch.testing.assert_close(function(inputs[0][:3], inputs[1]), result[:3])
    print(path.stem, "coilwork.compile_graph" in sys.modules)
"""


@pytest.fixture(autouse=True)
def aot_compile() -> Iterator[None]:
    """Torch 2.11 compiles ahead of time where that is asked for."""
    with torch._dynamo.config.patch(enable_aot_compile=True):
        yield


def normalize(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x @ y, dim=-1) * 2


def total(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x).sum() * y


def shift(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x).t() + y.sum()


def save(function: object, path: Path, *inputs: Tensor, **options: object) -> bytes:
    """Compile and save `function`, and beside it what it takes and gives."""
    compiled = torch.compile(
        function,
        backend="coilwork",
        fullgraph=True,
        options={"strict": True, "guard_filter_fn": drop_thread_guard, **options},
    )
    saved = compiled.aot_compile((inputs, {}))
    result = saved(*inputs)
    results = [result]
    if result.requires_grad:
        results += torch.autograd.grad(result.sum(), [one for one in inputs if one.requires_grad])
    # without torch's mark of an open size, which a guard would see
    plain = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    torch.save((plain, [one.detach() for one in results]), path.with_suffix(".inputs"))
    saved.save_compiled_function(str(path))
    return path.read_bytes()


def test_saved_functions_run_with_an_empty_cache_and_another_number_of_threads(tmp_path: Path) -> None:
    x, y = torch.randn(4, 8), torch.randn(8, 5)
    save(normalize, tmp_path / "inference.pt", x, y)
    save(normalize, tmp_path / "training.pt", x.clone().requires_grad_(), y, numerics="eager")
    save(shift, tmp_path / "view.pt", x, y)
    # threads share the parts of such a sum
    save(total, tmp_path / "shared.pt", torch.randn(1 << 19), y)
    torch._dynamo.mark_dynamic(x, 0)
    save(normalize, tmp_path / "open.pt", x, y)
    environ = {**os.environ, "COILWORK_CACHE_DIR": str(tmp_path / "cache")}
    names = ("inference", "training", "view", "shared", "open")
    paths = [str(tmp_path / f"{name}.pt") for name in names]
    child = subprocess.run(
        [sys.executable, "-c", _LOADING, str(torch.get_num_threads() + 1), *paths],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == [text for name in names for text in (name, "True")]


def test_a_function_that_leaves_no_record_is_refused_when_it_is_saved() -> None:
    x = torch.randn(4, 8)
    compiled = torch.compile(shift, backend="coilwork", fullgraph=True, options={"cache": False})
    saved = compiled.aot_compile(((x, x), {}))
    torch.testing.assert_close(saved(x, x), shift(x, x))
    with pytest.raises(CompileError, match="not-saved"):
        type(saved).serialize(saved)


def test_other_settings_of_torch_are_refused_without_its_guard_of_threads() -> None:
    x = torch.randn(4, 8)
    options = {"guard_filter_fn": drop_thread_guard}
    compiled = torch.compile(shift, backend="coilwork", fullgraph=True, options=options)
    saved, threads = compiled.aot_compile(((x, x), {})), torch.get_num_threads()
    try:
        for torch_threads in (threads + 1, threads):
            torch.set_num_threads(torch_threads)
            torch.testing.assert_close(saved(x, x), shift(x, x))
            with torch.no_grad(), pytest.raises(CompileError, match=r"other-state(.|\n)*grad_mode"):
                saved(x, x)
    finally:
        torch.set_num_threads(threads)
    # torch's own guards are as they were for functions that are not saved
    assert compiled(x, x).requires_grad is False
    with torch.no_grad():
        assert compiled(x.clone().requires_grad_(), x).requires_grad is False
    assert compiled(x.clone().requires_grad_(), x).requires_grad is True


def test_damaged_bytes_are_refused() -> None:
    x = torch.randn(4, 8)
    saved = torch.compile(shift, backend="coilwork", fullgraph=True).aot_compile(((x, x), {}))
    data = SavedGraph.serialize_compile_artifacts(saved._artifacts.compiled_fn)
    whole = SavedGraph.deserialize_compile_artifacts(data)
    torch.testing.assert_close(whole(x)[0], shift(x, x))
    for damaged in (data[:-7], data[7:], b"", data.replace(b"settings", b"settingz")):
        with pytest.raises(CompileError, match="not-loaded"):
            SavedGraph.deserialize_compile_artifacts(damaged)
