"""Schemas of operators."""

from __future__ import annotations

import pytest

from coilwork_runtime.c_shim import Type, find_schema, parse_type


@pytest.mark.parametrize(
    "text", ["Tensor", "Optional[Tensor]", "List[Optional[Tensor]]", "Optional[List[int]]", "number"]
)
def test_types_print_as_they_are_read(text: str) -> None:
    assert str(parse_type(text)) == text


def test_symbolic_integers_are_integers() -> None:
    assert parse_type("List[SymInt]") == Type(name="List", element=Type(name="int"))
    assert parse_type("Optional[number]").mentions("number")
    assert not parse_type("List[int]").mentions("number")


def test_parameters_and_results() -> None:
    schema = find_schema("aten.avg_pool2d.default")
    assert schema is not None
    assert (schema.name, schema.overload) == ("aten::avg_pool2d", "")
    by_name = {p.name: p for p in schema.parameters}
    assert by_name["padding"].default == [0, 0]
    assert by_name["kernel_size"].length == 2
    assert not by_name["kernel_size"].has_default
    assert [str(r) for r in schema.results] == ["Tensor"]


def test_an_out_overload_names_its_out_arguments() -> None:
    schema = find_schema("aten.mm.out")
    assert schema is not None
    assert [p.name for p in schema.parameters if p.is_out] == ["out"]


@pytest.mark.parametrize("target", ["aten.mm.nope", "aten.nope.default", "mm", "a.b.c.d"])
def test_an_unknown_operator_has_no_schema(target: str) -> None:
    assert find_schema(target) is None
