"""A program as files of a folder, and its constants as bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from executor_assembly import sample_program
from runtime_sample_kernels import cpp_kernel

from coilwork_runtime.manifest.kernel_manifest import encode_kernels
from coilwork_runtime.saved_program import (
    SavedProgram,
    decode_constant,
    describe_constant,
    encode_constant,
    read_saved_program,
    write_program,
)


def test_a_program_comes_back_as_it_was_written(tmp_path: Path) -> None:
    saved = SavedProgram(
        name="sample",
        program=sample_program(),
        kernels=encode_kernels([cpp_kernel()]),
        constants={"c": torch.arange(8.0), "empty": torch.empty(0, 3), "odd": torch.randn(6)[1::2]},
        refusal="a thing that cannot be",
        rounds_freely=True,
    )
    write_program(tmp_path / "a" / "b", saved, module="# to read")
    back = read_saved_program(tmp_path / "a" / "b")
    for key, value in saved.constants.items():
        assert torch.equal(back.constants[key], value) and back.constants[key].stride() == value.stride()
    names = ("name", "program", "kernels", "refusal", "rounds_freely")
    assert [getattr(back, one) for one in names] == [getattr(saved, one) for one in names]
    assert (tmp_path / "a" / "b" / "module.py").read_text() == "# to read"
    # a trace has no more than this
    (tmp_path / "a" / "b" / "facts.json").unlink()
    assert read_saved_program(tmp_path / "a" / "b") == SavedProgram(
        name="b", program=saved.program, kernels=saved.kernels
    )


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(6)[1::2],
        torch.randn(5).expand(3, 5),
        torch.tensor(2.5, dtype=torch.float64),
        torch.empty(0, 3),
        torch.randn(7).bfloat16(),
        torch.tensor([True, False]),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4).to(torch.float8_e4m3fn),
    ],
    ids=["plain", "transposed", "strided", "expanded", "scalar", "empty", "bf16", "bool", "conj", "f8"],
)
def test_constants_keep_values_and_layout(value: torch.Tensor) -> None:
    description = json.loads(json.dumps(describe_constant(value)))
    back = decode_constant(description, encode_constant(value))
    assert back.dtype == value.dtype and back.stride() == value.stride()
    assert torch.equal(back.to(torch.complex128), value.to(torch.complex128))


def test_a_constant_of_the_wrong_length() -> None:
    with pytest.raises(ValueError, match="has 3 bytes"):
        decode_constant(describe_constant(torch.ones(2)), b"abc")
