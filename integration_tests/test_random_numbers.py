"""Random numbers in generated C++ and in generated Triton, and eager's own: see `interpreted_random`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from benchmarks.planner import Planner
from coilwork_ir.target import TARGETS
from coilwork_triton import TritonCodegen
from integration_tests.interpreted_random import CHECKS
from integration_tests.interpreting import answers_of


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("COILWORK_CACHE_DIR", str(tmp_path))
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CHECKS)
def test_cpp_random_numbers(name: str) -> None:
    CHECKS[name]()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return answers_of("integration_tests.interpreted_random", tmp_path_factory.mktemp("random"))


@pytest.mark.interpreter
@pytest.mark.parametrize("name", CHECKS)
def test_triton_random_numbers(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == ""


# In a process of its own: where Triton's interpreter was loaded its compiler is none.
COMPILE = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

path, entry, signature, block, warps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), *map(int, \
sys.argv[4:])
spec = importlib.util.spec_from_file_location("kernel", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
source = ASTSource(
    fn=getattr(module, entry),
    signature={**signature, "XBLOCK": "constexpr"},
    constexprs={"XBLOCK": block},
    attrs={(k,): [["tt.divisibility", 16]] for k in range(len(signature))},
)
built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
print(sum(built.asm["ptx"].count(product) for product in ("mul.wide.u32", "mul.hi.u32")))
"""
POINTERS = {"bf16": "*bf16", "f32": "*fp32", "i64": "*i64"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.slow
def test_four_neighbours_share_one_counter(dtype: torch.dtype, tmp_path: Path) -> None:
    """Ten products for each counter; a counter for each element would be ten for each element."""
    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(lambda x: functional.dropout(x, 0.1), backend=planner)(
            torch.empty(1 << 22, dtype=dtype)
        )
    (program,) = planner.programs
    (kernel,) = program.kernels
    source = TritonCodegen().emit(kernel, TARGETS["sm_90"], {})
    path = tmp_path / "kernel.py"
    path.write_text(source.text)
    signature = {arg.name: POINTERS[arg.dtype.text] for arg in source.args}
    for config in source.configs:
        block = dict(config.meta)["XBLOCK"]
        command = [str(path), source.entry, json.dumps(signature), str(block), str(config.num_warps)]
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, *command], capture_output=True, text=True, check=True
        )
        elements = block // (32 * config.num_warps)
        assert 0 < int(done.stdout) <= 10 * elements // 4
