"""Kernels' manifests: what the compiler writes, the runtime reads in Python, in C++ and as text."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import coilwork.stages
from benchmarks.planner import Planner
from coilwork.stages import Compiled
from coilwork_cache import open_local_store
from coilwork_ir import index
from coilwork_ir.index import Expr, evaluate, floordiv, maximum, minimum, mod
from coilwork_ir.kernel_source import encode_size, write_kernels
from coilwork_ir.target import get_target
from coilwork_runtime.executor.native_program import find_executor_extension
from coilwork_runtime.manifest.kernel_manifest import (
    ARGUMENT_FIELDS,
    MANIFEST_FIELDS,
    VERSION_FIELDS,
    KernelArgument,
    KernelManifest,
    KernelSpec,
    ManifestReader,
    encode_kernels,
    encode_manifest,
)
from coilwork_runtime.manifest.size_bytecode import SizeBytecode
from coilwork_runtime.module_loader import execute_module, load_kernels
from coilwork_triton import TritonCodegen
from integration_tests.emitted_kernels import sources, spec_of

EDGES = (0, 1, 2, 3, 7, 15, 16, 17, 100, 4096)


@pytest.fixture(scope="module")
def extension() -> Any:
    return find_executor_extension(open_local_store(None))


def plain(value: Any) -> Any:
    """A manifest's fields as the native executor shows them."""
    if isinstance(value, SizeBytecode):
        return tuple((int(op), operand) for op, operand in value.steps)
    if isinstance(value, KernelManifest):
        return {name: plain(getattr(value, name)) for name in MANIFEST_FIELDS}
    if isinstance(value, Mapping):
        return tuple((name, int(number)) for name, number in value.items())
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if hasattr(value, "__dataclass_fields__"):
        table = ARGUMENT_FIELDS if isinstance(value, KernelArgument) else VERSION_FIELDS
        return tuple(plain(getattr(value, name)) for name in table)
    return value


def codes_by_name(spec: KernelManifest) -> list[tuple[str, SizeBytecode]]:
    found = [(f"grid {axis}", code) for axis, code in enumerate(spec.grid)]
    found += [(f"elements of {one.name}", one.elements) for one in spec.args if one.elements is not None]
    found += [(f"guard {k}", guard) for k, guard in enumerate(spec.guards) if guard is not None]
    for k, version in enumerate(spec.versions):
        found += [(f"limit {k}", code) for limit in version.limits for code in limit]
    return found if spec.traffic is None else [*found, ("traffic", spec.traffic)]


def assert_equal_kernels(spec: KernelSpec, readable: KernelSpec, extension: Any) -> None:
    """Both say the same; expressions may be written otherwise, and have the same values."""
    data = encode_manifest(spec)
    assert extension.read_manifest(data) == plain(spec)
    for name in ("name", "language", "entry", "configs", "checks", "features", "target"):
        assert getattr(spec, name) == getattr(readable, name), name
    # in a module the text begins on a line of its own
    assert spec.source == readable.source.removeprefix("\n")
    for one, other in zip(spec.args, readable.args, strict=True):
        assert (one.name, one.role, one.dtype, one.aligned) == (
            other.name,
            other.role,
            other.dtype,
            other.aligned,
        )
    assert [one.mapping for one in spec.versions] == [one.mapping for one in readable.versions]
    draw = random.Random(5)
    pairs = list(zip(codes_by_name(spec), codes_by_name(readable), strict=True))
    for _ in range(12):
        sizes = tuple(draw.choice(EDGES) for _ in spec.sizes)
        for config in spec.configs[:3] or ({},):
            # limits name what a search may choose, which candidates have, too
            known = {name: config.get(name, 3) for name in (*spec.parameters, *readable.parameters)}
            values, others = spec.values_of(known), readable.values_of(known)
            for (name, code), (other_name, other) in pairs:
                assert name == other_name
                value = code.evaluate(sizes, values)
                assert value == other.evaluate(sizes, others), (spec.name, name, sizes)
                assert value == extension.evaluate_code(code.encode(), sizes, values)


def assert_program(compiled: Compiled, extension: Any) -> int:
    specs = load_kernels(compiled.written.kernels)
    # the runtime writes what the compiler wrote, to the byte
    assert encode_kernels(specs) == compiled.written.kernels
    readable = execute_module(compiled.written.module, compiled.program.name).specs
    assert len(specs) == len(readable)
    for spec, other in zip(specs, readable, strict=True):
        assert_equal_kernels(spec, other, extension)
        assert spec.origins and all(" aten." in line or "." in line for line in spec.origins)
    return len(specs)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


PROGRAMS: Mapping[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "pointwise": (lambda x, y: (torch.relu(x) * y + 1, x.sum()), (torch.randn(8, 5), torch.randn(8, 5))),
    "reductions": (
        lambda x: (x.softmax(-1), x.var(0), x.cumsum(1), x.amax(1), x.argmax(0)),
        (torch.randn(33, 70),),
    ),
    "gathers": (
        lambda x, i: (x[i], x.index_add(0, i, torch.ones(i.numel(), x.shape[1])), x.sort(-1)),
        (torch.randn(20, 6), torch.randint(0, 20, (9,))),
    ),
    "attention": (Attention(), (torch.randn(2, 7, 16),)),
    "convolution": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        (torch.randn(2, 3, 8, 8),),
    ),
    "random": (lambda x: nn.functional.dropout(x, 0.3) + torch.rand_like(x), (torch.randn(40),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_manifests_of_programs(dynamic: bool, monkeypatch: pytest.MonkeyPatch, extension: Any) -> None:
    """Every kernel of a broad sample, forward and backward, is read alike by all."""
    seen: list[Compiled] = []
    run = coilwork.stages.run_stages

    def note(*args: Any, **kwargs: Any) -> Compiled:
        seen.append(run(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr("coilwork.compile_graph.run_stages", note)
    for name, (function, tensors) in PROGRAMS.items():
        torch._dynamo.reset()
        options = {"cache": False}
        compiled = torch.compile(function, backend="coilwork", dynamic=dynamic, options=options)
        is_float = tensors[0].is_floating_point() and name != "random"
        inputs = [tensors[0].clone().requires_grad_(is_float), *tensors[1:]]
        results = compiled(*inputs)
        del results
    assert len(seen) >= len(PROGRAMS)
    assert sum(assert_program(one, extension) for one in seen) >= 2 * len(PROGRAMS)


@pytest.mark.parametrize("dynamic", [False, True])
def test_manifests_of_triton_kernels(dynamic: bool, extension: Any) -> None:
    planner = Planner(target="sm_90")
    for function, tensors in PROGRAMS.values():
        torch._dynamo.reset()
        torch.compile(function, backend=planner, dynamic=dynamic)(*tensors)
    kernels = [kernel for program in planner.programs for kernel in program.kernels]
    emitted = [TritonCodegen().emit(kernel, get_target("sm_90"), {}) for kernel in kernels]
    assert len(emitted) >= len(PROGRAMS)
    versions = 0
    for source in (*emitted, *sources()):
        data = write_kernels([(source, ())])
        (spec,) = load_kernels(data)
        assert encode_kernels([spec]) == data
        assert_equal_kernels(spec, spec_of(source), extension)
        versions = max(versions, len(spec.versions))
    assert versions >= 4


SYMBOLS = {name: index.symbol(name, lo=0) for name in ("n0", "n1", "XBLOCK")}
SIZES = ("n0", "n1")


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from(list(SYMBOLS.values())) | st.integers(-9, 40).map(index.as_expr)

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        positive = inner.map(lambda e: maximum(e, 1))
        return st.one_of(
            st.builds(lambda a, b: a + b, inner, inner),
            st.builds(lambda a, b: a - b, inner, inner),
            st.builds(lambda a, b: a * b, inner, inner),
            st.builds(floordiv, inner, positive),
            st.builds(mod, inner, positive),
            st.builds(lambda a, b: minimum(a, b), inner, inner),
            st.builds(lambda a, b: maximum(a, b), inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=8)


@settings(max_examples=400, deadline=None)
@given(expr=expressions(), n0=st.integers(0, 300), n1=st.integers(0, 9), block=st.sampled_from((1, 64, 1024)))
def test_code_has_the_values_of_expressions(expr: Expr, n0: int, n1: int, block: int) -> None:
    extension = find_executor_extension(open_local_store(None))
    parameters: list[str] = []
    data = encode_size(expr, SIZES, parameters)
    code = ManifestReader(data).code()
    values = tuple({"XBLOCK": block}[name] for name in parameters)
    expected = evaluate(expr, {"n0": n0, "n1": n1, "XBLOCK": block})
    assert code.evaluate((n0, n1), values) == expected
    assert extension.evaluate_code(data, (n0, n1), values) == expected
