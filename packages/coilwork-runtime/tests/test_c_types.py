"""C types of an operator's parameters, beside what torch's headers declare."""

from __future__ import annotations

import pytest

from coilwork_runtime.c_shim import declarations, find_schema, list_c_types, parse_type


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Tensor", ("AtenTensorHandle",)),
        ("SymInt", ("int64_t",)),
        ("number", ("double",)),
        ("Optional[float]", ("double*",)),
        ("List[SymInt]", ("const int64_t*", "int64_t")),
        ("List[Tensor]", ("const AtenTensorHandle*", "int64_t")),
        ("Optional[Device]", ("int32_t*", "int32_t")),
        ("Generator", None),
        ("List[Optional[Tensor]]", None),
    ],
)
def test_c_types_of_a_signature_are_found(kind: str, expected: tuple[str, ...] | None) -> None:
    assert list_c_types(parse_type(kind)) == expected


def test_a_whole_operator_as_torch_declares_it() -> None:
    schema = find_schema("aten.convolution.default")
    assert schema is not None
    kinds = [kind for parameter in schema.parameters for kind in list_c_types(parameter.type) or ()]
    assert (*kinds, "AtenTensorHandle*") == declarations("cpu")["aoti_torch_cpu_convolution"]
