"""Capture regions: which stretches of a program are in one, what ends them, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from wrapper_programs import DOUBLE, RELU_ADD

from coilwork_ir.program.nodes import Launch, Program, Region
from coilwork_ir.program.regions import flatten_regions, inline_regions, outline_regions
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_wrapper import emit_native
from coilwork_wrapper.native.emit import mark_captures
from coilwork_wrapper.native.wire_format import Code

GPU = "@cuda:0"
COLLECTIVE = "_c10d_functional.all_reduce.default"
LAUNCHES = "\n  ".join(["launch @double (%x) sizes [8]"] * 4)
PRODUCTS = "\n  ".join(['extern "aten.mm.out" (%m, %m) implements "product" out ("out" %n)'] * 4)
CUTS = {
    'extern "aten.sin_.default" (%x)': "torch does aten.sin_.default",
    'extern "aten._local_scalar_dense.default" (%i) implements "product" defines (size u0 in [0, inf])': (
        "sizes are read of what aten._local_scalar_dense.default returns"
    ),
    'extern "aten.mul_.Scalar" (%x, item %i) implements "product"': (
        "the host reads a number for aten.mul_.Scalar"
    ),
    f'extern "{COLLECTIVE}" (%h, "sum", "0") defines (%r: f32[8]) in_flight (%h, %r) until (%r)': (
        f"{COLLECTIVE} goes on behind its call"
    ),
    "copy %x to %h": "torch does a copy",
    "launch @double (%h) sizes [8]": "work on cpu",
    'fork %s "cuda:0"\n  join %s': "streams part or meet",
    "region partition () {\n}": "a subprogram is called",
    f"""cond %b (%x) defines (%c: f32[8] {GPU}) {{
      program @then {{ input %a: f32[8] {GPU} return (%a) }}
      program @otherwise {{ input %a: f32[8] {GPU} return (%a) }}
    }}""": "the host decides on a branch or loop",
}


def program(*lines: str) -> Program:
    body = "\n  ".join(lines)
    text = f"""program @p {{
  input %x: f32[8] {GPU}
  input %m: f32[8, 8] {GPU}
  input %i: i64[] {GPU}
  input %b: bool[] {GPU}
  input %h: f32[8]
  {RELU_ADD}
  {DOUBLE}
  check %x
  alloc %n: f32[8, 8] {GPU}
  {body}
  free (%n)
  return (%x)
}}
"""
    made = parse_program(text)
    verify_program(made)
    return made


def regions(made: Program) -> list[Region]:
    return [one for one in made.instructions if isinstance(one, Region) and one.kind == "capture"]


def test_work_without_a_cut_is_one_region_from_the_first_to_the_last() -> None:
    made = mark_captures(program(LAUNCHES, PRODUCTS))
    verify_program(made)
    (region,) = regions(made)
    assert len(region.body) == 8 and region.inputs == ("x", "m", "n") and region.outputs == ()
    assert region.why == "the program ends"
    assert parse_program(format_program(made)) == made


@pytest.mark.parametrize("cut, why", CUTS.items(), ids=list(CUTS.values()))
def test_what_the_host_takes_part_in_splits_regions_and_they_say_so(cut: str, why: str) -> None:
    before = program(LAUNCHES, cut, LAUNCHES)
    made = mark_captures(before)
    verify_program(made)
    assert [region.why for region in regions(made)] == [why, "the program ends"]
    assert inline_regions(made) == outline_regions(before)


def test_launches_of_the_users_kernels_are_inside() -> None:
    launch = 'extern "coilwork_kernels.scale_1.default" (%x, 8) implements "user launch"'
    (region,) = regions(mark_captures(program(LAUNCHES, launch, launch)))
    assert len(region.body) == 6


def test_a_program_that_has_regions_keeps_those() -> None:
    before = program(LAUNCHES, 'region capture () why "so" {\n}', LAUNCHES)
    assert mark_captures(before) == before


def test_other_devices_have_regions_of_their_own() -> None:
    text = format_program(program(LAUNCHES, "launch @double (%h) sizes [8]", LAUNCHES))
    for number, device in enumerate(("@cuda:1", "")):
        lines = text.replace("input %h: f32[8]\n", f"input %h: f32[8] {device}\n")
        if device:
            lines = lines.replace(
                "launch @double (%h) sizes [8]", "\n".join(["launch @double (%h) sizes [8]"] * 4)
            )
        made = mark_captures(parse_program(lines))
        verify_program(made)
        assert [len(region.body) for region in regions(made)] == [4, 4, 4][number:]


@pytest.mark.parametrize(
    "lines", [[], ["launch @double (%x) sizes [8]"] * 3, ["launch @double (%h) sizes [8]"] * 9]
)
def test_little_work_and_the_hosts_is_in_none(lines: Sequence[str]) -> None:
    before = program(*lines)
    assert mark_captures(before) == before


def test_memory_between_work_is_inside_and_what_is_defined_there_is_left() -> None:
    made = mark_captures(
        program(
            "launch @double (%x) sizes [8]",
            f"alloc %y: f32[8] {GPU}",
            "launch @relu_add (%x, %x, %y) sizes [8]",
            f"alloc %z: f32[8] {GPU}",
            "launch @relu_add (%x, %y, %z) sizes [8]",
            "free (%y)",
            "launch @double (%z) sizes [8]",
            "free (%z)",
        )
    )
    verify_program(made)
    (region,) = regions(made)
    assert region.inputs == ("x",) and region.outputs == ("z",)
    assert sum(isinstance(one, Launch) for one in flatten_regions(made.instructions)) == 4


def test_the_bytes_have_two_marks_for_each_region_and_none_on_the_host() -> None:
    def marks(data: bytes) -> int:
        return data.count(b"capture region")

    with_regions = emit_native(program(LAUNCHES, 'extern "aten.sin_.default" (%x)', LAUNCHES))
    # texts are shared: that of the beginning is one, and those of the two ends differ
    assert marks(with_regions) == 3 and with_regions.count(bytes((Code.REGION,))) >= 4
    assert marks(emit_native(program("launch @double (%h) sizes [8]"))) == 0
