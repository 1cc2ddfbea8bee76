"""Mappings across packages: what the IR prints, the runtime reads alike, and what a trace shows, a user hands in."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.planner import Planner
from coilwork.errors import OptionError
from coilwork_ir.index import format_expr
from coilwork_ir.kernel_source import KernelSource, search_space
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import format_mapping, parse_mapping
from coilwork_ir.syntax.python_printer import print_expression
from coilwork_ir.target import target
from coilwork_runtime import generated
from coilwork_runtime.specs import TritonKernel
from coilwork_runtime.triton_kernels.open_mapping import (
    close_mapping,
    read_choice,
    read_limits,
    read_values,
)
from coilwork_runtime.triton_kernels.versions import mapping_text, version_of
from coilwork_triton import TritonCodegen
from coilwork_wrapper.python.kernels import specification

OPEN = """kernel @softmax fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range x0: `n0` parallel x 0.0
  range r0: `n1` reduction r 1.0
  arg in0: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n0*n1` aligned
  body {
    t0 = load %in0[n1*x0 + r0] : f32
    t1 = reduce online_softmax 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    store %out0[n1*x0 + r0] = t3
  }
}
"""


def several(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(-1), x.cumsum(0), x.topk(8, dim=-1).values, (x - x.mean(-1, keepdim=True)) * w


def spec_of(source: KernelSource) -> TritonKernel:
    """What a generated module says of `source`."""
    spec = eval(print_expression(specification(source, "TEXT")), {"rt": generated, "TEXT": source.text})
    assert isinstance(spec, TritonKernel)
    return spec


def kernels() -> list[TritonKernel]:
    """Those of closed sizes, and one of open ones."""
    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    torch.compile(several, backend=planner, dynamic=False)(torch.randn(96, 320), torch.randn(320))
    emit, options = TritonCodegen().emit, {"likely": (16, 64)}
    found = [emit(kernel, target("sm_90"), {}) for kernel in planner.programs[0].kernels]
    return [spec_of(source) for source in (*found, emit(parse_kernel(OPEN), target("sm_90"), options))]


def test_the_runtime_reads_mappings_as_the_ir_does() -> None:
    found = kernels()
    assert len(found) >= 3 and {len(spec.versions) for spec in found} >= {1, 4}
    seen = 0
    for spec in found:
        for version in spec.versions:
            mapping = parse_mapping(version.mapping)
            space = search_space(mapping)
            assert format_mapping(mapping) == version.mapping
            assert read_values(version.mapping) == dict(space.values)
            limits = tuple(f"{format_expr(a)} <= {format_expr(b)}" for a, b in space.limits)
            assert read_limits(version.mapping) == limits
        for config in spec.configs:
            told = spec.versions[version_of(spec, config)].mapping
            mapping = parse_mapping(told)
            chosen = {number.name: config[number.name] for number in mapping.open_numbers}
            closed = format_mapping(mapping.close(chosen))
            assert close_mapping(told, config) == mapping_text(spec, config) == closed
            assert read_choice(told, closed) == chosen
            seen += len(chosen)
    assert seen > 8


def normalise(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.softmax(-1), x.sum(0)


def test_what_a_trace_shows_is_handed_in_changed(tmp_path: Path) -> None:
    x = torch.randn(64, 200)

    def compiled(**options: object) -> tuple[Tensor, Tensor]:
        torch._dynamo.reset()
        call = torch.compile(
            normalise, backend="coilwork", options={"strict": True, "cache": False, **options}
        )
        found: tuple[Tensor, Tensor] = call(x)
        return found

    def shown(folder: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in (tmp_path / folder).rglob("*.mapping.txt")}

    compiled(trace=str(tmp_path / "first"))
    first = shown("first")
    assert first and any("accumulators 64 pass 0" in text for text in first.values())
    for name, text in first.items():
        (tmp_path / "mine" / name).parent.mkdir(exist_ok=True)
        changed = text.replace("accumulators 64", "accumulators 16").replace(
            "functions vector", "functions exact"
        )
        (tmp_path / "mine" / name).write_text(changed)
    got = compiled(mappings=str(tmp_path / "mine"), trace=str(tmp_path / "second"))
    second = shown("second")
    assert second.keys() == first.keys() and second != first
    assert any("accumulators 16 pass 0" in text and "functions exact" in text for text in second.values())
    torch.testing.assert_close(got, normalise(x))


@pytest.mark.parametrize("strict", [False, True])
def test_a_mapping_that_is_not_legal_is_the_users_to_hear_of(strict: bool) -> None:
    torch._dynamo.reset()
    options = {"mappings": {"*": "threads over x0 accumulators 48 pass 0"}, "strict": strict, "cache": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no power of two") as caught:
            torch.compile(lambda x: x.softmax(-1), backend="coilwork", options=options)(torch.randn(64, 200))
    error = caught.value.inner_exception
    assert isinstance(error, OptionError) and error.code == "mapping-accumulators"
    assert "exp" in error.what and "trace" in error.remedy
