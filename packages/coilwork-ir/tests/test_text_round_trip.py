"""`parse(format(x)) == x`, and the text is canonical, for random values of all three IRs."""

from __future__ import annotations

import pytest
from random_values import Maker

from coilwork_ir.kernels.text import format_kernel, format_schedule, parse_kernel, parse_schedule
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.program.text import format_program, parse_program

SEEDS = range(80)


@pytest.mark.parametrize("seed", SEEDS)
def test_graphs_parse_back_to_equal_values(seed: int) -> None:
    graph = Maker(seed).graph(6)
    text = format_graph(graph)
    assert parse_graph(text) == graph
    assert format_graph(parse_graph(text)) == text
    bare = format_graph(graph, origins=False)
    assert "loc(" not in bare
    assert format_graph(parse_graph(bare)) == bare


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_parse_back_to_equal_values(seed: int) -> None:
    kernel = Maker(seed).kernel()
    text = format_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert format_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize("seed", SEEDS)
def test_combo_kernels_parse_back_to_equal_values(seed: int) -> None:
    kernel = Maker(seed).combined()
    text = format_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert format_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize("seed", range(40))
def test_schedules_parse_back_to_equal_values(seed: int) -> None:
    schedule = Maker(seed).schedule()
    text = format_schedule(schedule)
    assert parse_schedule(text) == schedule
    assert "decision" not in format_schedule(schedule, decisions=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_programs_parse_back_to_equal_values(seed: int) -> None:
    program = Maker(seed).program(10)
    text = format_program(program)
    assert parse_program(text) == program
    assert format_program(parse_program(text)) == text


def test_a_kernel_without_name_and_origins_depends_on_its_structure_only() -> None:
    one, two = Maker(5).kernel(), Maker(5)
    two.count = 1000
    other = two.kernel()
    assert one.name != other.name
    assert format_kernel(one, name=False, origins=False) == format_kernel(other, name=False, origins=False)
    assert parse_kernel(format_kernel(one, name=False, origins=False)).name == "_"


def test_white_space_and_comments_do_not_matter() -> None:
    graph = Maker(3).graph(3)
    lines = format_graph(graph).splitlines()
    assert parse_graph("# a comment\n" + "\n\n".join(f"    {line}   # note" for line in lines)) == graph
