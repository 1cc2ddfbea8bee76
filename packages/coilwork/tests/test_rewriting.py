"""Rewrites as users meet them: what is done by default, what the report says, and how to add or skip one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork.backend import check_settings
from coilwork.compile_options import CompileOptions
from coilwork.errors import OptionError
from coilwork.stage_settings import list_rewrites
from coilwork_lowering.rewrites import Rewrite, call, tensor

Compile = Callable[..., Callable[..., Any]]
aten = torch.ops.aten


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.25, dim=-1) @ v


def operands(length: int = 600) -> tuple[Tensor, ...]:
    """Such that scores are large enough: 8 MiB."""
    return tuple(torch.randn(2, 3, length, 16) for _ in range(3))


def report_of(folder: Path, role: str = "inference") -> dict[str, Any]:
    (path,) = folder.glob(f"{role}_*/report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_the_report_says_what_was_rewritten_and_where(strictly: Compile, tmp_path: Path) -> None:
    inputs = operands()
    found = strictly(attention, trace=str(tmp_path), cache=False)(*inputs)
    torch.testing.assert_close(found, attention(*inputs), rtol=1e-5, atol=1e-5, check_stride=True)
    done = {item["name"]: item for item in report_of(tmp_path)["rewrites"]}
    line = attention.__code__.co_firstlineno + 1
    assert done["attention"] == {
        "name": "attention",
        "level": "captured",
        "count": 1,
        "sources": [f"{__file__}:{line}"],
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_softshrink_is_rounded_once(strictly: Compile, dtype: torch.dtype, numerics: str) -> None:
    """Torch takes it apart before decompositions of ours are asked. Gradients at the bound are eager's, too,
    whose bound has 16 bits.
    """
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)

    def first(x: Tensor) -> Tensor:
        return F.softshrink(x, 0.1)

    def second(x: Tensor) -> Tensor:
        return torch.nn.Softshrink(0.3)(x)

    for shrunk in (first, second):
        results = []
        for function in (shrunk, strictly(shrunk, numerics=numerics, cache=False)):
            x = every.clone().requires_grad_()
            found = function(x)
            results.append((found, *torch.autograd.grad(found.nan_to_num(0, 0, 0).sum(), x)))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)


def test_training_is_rewritten_before_autograd(strictly: Compile, tmp_path: Path) -> None:
    gradients = []
    inputs = operands(1700)
    for function in (attention, strictly(attention, trace=str(tmp_path), cache=False)):
        leaves = [t.clone().requires_grad_() for t in inputs]
        function(*leaves).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
    assert "attention" in [item["name"] for item in report_of(tmp_path, "forward")["rewrites"]]


@pytest.mark.parametrize("how", [{"numerics": "eager"}, {"skip_rewrites": ["attention"]}])
def test_not_with_other_numerics_nor_where_skipped(
    strictly: Compile, tmp_path: Path, how: dict[str, Any]
) -> None:
    strictly(attention, trace=str(tmp_path), cache=False, **how)(*operands())
    assert "attention" not in [item["name"] for item in report_of(tmp_path)["rewrites"]]


def test_random_numbers_are_those_of_eager_unless_generated() -> None:
    def names(on_gpu: bool, **how: Any) -> set[str]:
        return {r.name for r in list_rewrites("captured", CompileOptions(**how), on_gpu=on_gpu)}

    assert "attention-with-dropout" not in names(False)
    assert "attention-with-dropout" in names(True)
    assert "attention-with-dropout" in names(False, random="generated")
    assert "attention-with-dropout" not in names(True, random="eager")


def test_other_promises_keep_the_captured_operators() -> None:
    assert "attention" in {r.name for r in list_rewrites("captured", CompileOptions())}
    assert "attention" not in {
        r.name for r in list_rewrites("captured", CompileOptions(batch_invariant=True))
    }
    torch.use_deterministic_algorithms(True)
    try:
        assert "attention" not in {r.name for r in list_rewrites("captured", CompileOptions())}
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_does_not_exist_cannot_be_skipped() -> None:
    with pytest.raises(OptionError, match=r"no rewrite 'atention'(.|\n)*did you mean 'attention'"):
        check_settings(None, {"skip_rewrites": ("atention",)})


SINE_OF_NEGATIVE = Rewrite(
    name="sine-of-negative",
    doc="sin(-x) is -sin(x).",
    pattern=call("aten.sin.default", self=call("aten.neg.default", self=tensor("x"))),
    replacement=lambda x: aten.neg.default(aten.sin.default(x)),
    uuid="1",
)


def test_a_rewrite_of_ones_own(strictly: Compile, tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sin(-x) + 1

    x = torch.randn(9)
    found = strictly(function, rewrites=[SINE_OF_NEGATIVE], trace=str(tmp_path))(x)
    torch.testing.assert_close(found, function(x))
    assert [item["name"] for item in report_of(tmp_path)["rewrites"]] == ["sine-of-negative"]


def test_rewrites_are_values_of_their_class() -> None:
    from coilwork.backend import resolve

    with pytest.raises(OptionError, match="it must be a list of Rewrite"):
        resolve(options={"rewrites": [torch.sin]}, environ={})
    with pytest.raises(OptionError, match="cannot hold code"):
        resolve(environ={"COILWORK_PASSES": "print"})
