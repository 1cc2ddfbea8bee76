"""Mappings across packages: what the IR prints, the runtime reads alike, and what a trace shows, a user hands
in.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coilwork.errors import OptionError
from coilwork_ir.index import evaluate
from coilwork_ir.kernel_source import search_space
from coilwork_ir.mapping import format_mapping, parse_mapping
from coilwork_runtime.triton_kernels.versions import close_mapping, read_choice, read_values, version_of
from coilwork_runtime.triton_kernels.versions import format_mapping as mapping_text
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
