"""Mappings across packages: the runtime reads them, users give them, those of benchmarks are legal."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.memory_bound.case import Make, call_of
from benchmarks.memory_bound.cases import find_case
from benchmarks.planner import Planner
from coilwork.errors import OptionError
from coilwork_ir.index import evaluate
from coilwork_ir.kernel_source import search_space
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Unit, format_mapping, parse_mapping, verify_versions
from coilwork_ir.target import get_target
from coilwork_runtime.triton_kernels.versions import close_mapping, get_version, read_choice, read_values
from coilwork_runtime.triton_kernels.versions import format_mapping as mapping_text
from coilwork_triton import TritonCodegen
from coilwork_triton.codegen import find_mapping
from coilwork_triton.options import TritonOptions
from integration_tests.emitted_kernels import kernels


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
            for config in spec.configs:
                values = spec.values_of(config)
                read = [(a.evaluate((), values), b.evaluate((), values)) for a, b in version.limits]
                assert read == [(evaluate(a, config), evaluate(b, config)) for a, b in space.limits]
        for config in spec.configs:
            told = spec.versions[get_version(spec, config)].mapping
            mapping = parse_mapping(told)
            chosen = {number.name: config[number.name] for number in mapping.open_numbers}
            closed = format_mapping(mapping.close(chosen))
            assert close_mapping(told, config) == mapping_text(spec, config) == closed
            assert read_choice(told, closed) == chosen
            seen += len(chosen)
    assert seen > 8


def normalise(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.softmax(-1), x.sum(0)


def test_a_traced_mapping_may_be_changed_and_given_back(tmp_path: Path) -> None:
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
def test_an_illegal_user_mapping_is_an_error(strict: bool) -> None:
    torch._dynamo.reset()
    options = {"mappings": {"*": "threads over x0 accumulators 48 pass 0"}, "strict": strict, "cache": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no power of two") as caught:
            torch.compile(lambda x: x.softmax(-1), backend="coilwork", options=options)(torch.randn(64, 200))
    error = caught.value.inner_exception
    assert isinstance(error, OptionError) and error.code == "mapping-accumulators"
    assert "exp" in error.what and "trace" in error.remedy


H200 = get_target("sm_90")
# Rows in registers, in loops, that begin anywhere, walked, shared, in place, scanned, sorted, counted, in
# steps, of data's length.
SAMPLE = (
    "softmax 4096x8192",
    "cross-entropy fwd+bwd 8192x50304",
    "layer norm fwd+bwd 16384x4096",
    "Adafactor 8192x8192 f32",
    "cumsum 64x1048576 f32",
    "one of 64 experts with capacity, 1048576 tokens f32",
    "top 64 of 16384x4096",
    "upsample bilinear 16x64x128x128",
    "embedding fwd+bwd 50257x768, 16384 tokens",
)


def kernels_of(name: str) -> list[Kernel]:
    """What would be launched for the benchmark `name`."""
    case = find_case(name)
    inputs = case.make(Make(device=torch.device("cpu"), values=False), tiny=False)
    torch._dynamo.reset()
    planner = Planner(target="sm_90")
    call_of(case, torch.compile(case.function, backend=planner, dynamic=False), inputs)()
    return [kernel for program in planner.programs for kernel in program.kernels]


def statements(text: str) -> list[str]:
    """The lines of a module from its imports on, without comments, which show the kernel before passes."""
    return [line for line in text[text.index("import triton") :].splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("name", SAMPLE)
def test_benchmark_mappings_are_legal_and_determine_the_text(name: str) -> None:
    generator = TritonCodegen()
    for kernel in kernels_of(name):
        for most in (1, 3):
            found = find_mapping(kernel, H200, TritonOptions(max_configs=most))
            verify_versions(found.kernel, found.versions)
        one = find_mapping(kernel, H200, TritonOptions(max_configs=1))
        mapping = one.versions.general
        if kernel.combined is not None or mapping.find(Unit) is not None:
            continue
        source = generator.emit(kernel, H200, {"max_configs": 1})
        again = generator.emit_mapping(one.kernel, parse_mapping(format_mapping(mapping)), H200)
        assert statements(again.text) == statements(source.text)
        assert (again.configs, again.grid) == (source.configs, source.grid)


SMALL = {
    "positions": (lambda x: x.argmax(0), torch.zeros(2, 17, 5, dtype=torch.int64)),
    "positions of bytes": (lambda x: x.argmax(0), torch.zeros(64, dtype=torch.int8)),
    "a scan and a sum": (lambda x: x.cumsum(0) + x.cos().sum(0, keepdim=True), torch.zeros(3, 129)),
    "scaled and scanned": (lambda x: (x / (x.norm(dim=0, keepdim=True) + 1)).cumsum(0), torch.zeros(16)),
}


@pytest.mark.parametrize("name", SMALL)
def test_likely_small_dynamic_sizes_are_planned(name: str) -> None:
    """Candidates may have more threads than a search would try: they are launched all the same."""
    function, x = SMALL[name]
    torch._dynamo.reset()
    planner = Planner(target="sm_90")
    torch.compile(function, backend=planner, dynamic=True)(x)
    (program,), (likely,) = planner.programs, planner.likely
    assert program.kernels and likely.keys() == {kernel.name for kernel in program.kernels}
    for kernel in program.kernels:
        for gpu in ("sm_90", "gfx942"):
            source = TritonCodegen().emit(kernel, get_target(gpu), {"likely": likely[kernel.name]})
            assert all(source.mapping_of(config).is_closed for config in source.configs)
