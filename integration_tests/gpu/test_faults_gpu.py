"""On a GPU a kernel that cannot be generated, or does not build, costs the calls at fault and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork import stages
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning
from coilwork.registries import find_codegen
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.target import Capabilities, Target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
COS = "aten.cos.default"
MUL = "aten.mul.Tensor"


class Broken:
    """A generator that stumbles over kernels that compute all of `operators`, or writes nonsense for them."""

    def __init__(self, real: Any, operators: set[str], *, emits: bool) -> None:
        self.real = real
        self.operators = operators
        self.emits = emits

    @property
    def name(self) -> str:
        return "broken"

    def supports(self, target: Target) -> bool:
        return bool(self.real.supports(target))

    def capabilities(self, target: Target) -> Capabilities:
        found: Capabilities = self.real.capabilities(target)
        return found

    def emit(self, kernel: Kernel, target: Target, options: Any) -> KernelSource:
        source: KernelSource = self.real.emit(kernel, target, options)
        if not self.operators <= {origin.op for origin in kernel.origins}:
            return source
        if not self.emits:
            raise IndexError("injected")
        return replace(source, text=source.text.replace("tl.store", "tl.there_is_no_store"))


def waves(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.sin(x) * 2 + y
    b = torch.cos(a) - x
    y.mul_(2).add_(1)
    return a.tanh() + b, torch.exp(b).sum(0)


@pytest.mark.parametrize("emits", [False, True], ids=["generator", "build"])
@pytest.mark.parametrize(("operators", "calls"), [((COS,), 1), ((COS, MUL), 0)], ids=["one call", "fused"])
def test_one_call_is_left_out(
    operators: tuple[str, ...], calls: int, emits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def choose(target: Target) -> Broken:
        return Broken(find_codegen(target), set(operators), emits=emits)

    monkeypatch.setattr(stages, "find_codegen", choose)
    torch._dynamo.reset()
    x, y = torch.randn(64, 32, device="cuda"), torch.randn(64, 32, device="cuda")
    again = y.clone()
    compiled = torch.compile(waves, backend=backend, options={"trace": str(tmp_path), "cache": False})
    with pytest.warns(CoilworkFallbackWarning) as said:
        results = compiled(x, again)
    torch.testing.assert_close((*results, again), (*waves(x, y), y))
    assert len([one for one in said if one.category is CoilworkFallbackWarning]) == 1
    (report,) = (json.loads(path.read_text()) for path in tmp_path.glob("*/report.json"))
    assert (report["fallback"], report["extern_calls"]) == ("", calls)
