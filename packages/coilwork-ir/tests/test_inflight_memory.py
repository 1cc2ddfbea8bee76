"""Memory in flight: which flights use a piece of memory, which waits end them, and programs that respect
that.
"""

from __future__ import annotations

from ir_cases import COPY

from coilwork_ir.inflight_memory import InFlight
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program


def test_a_wait_for_the_result_ends_the_use_of_the_operand() -> None:
    flights: InFlight[str] = InFlight()
    flights.start(("operand",), ("result",))
    assert "operand" in flights and "result" in flights
    assert flights.awaits("result") and not flights.awaits("operand")
    assert flights.list_waits("operand") == ("result",)
    assert flights.wait(("operand",)) == ()
    assert set(flights.wait(("result",))) == {"operand", "result"}
    assert "operand" not in flights and flights.memory() == ()


def test_two_flights_of_one_operand_end_one_by_one() -> None:
    flights: InFlight[str] = InFlight()
    flights.start(("operand",), ("one",))
    flights.start(("operand",), ("two",))
    flights.wait(("one",))
    assert "operand" in flights and flights.list_waits("operand") == ("two",)
    flights.wait(("two",))
    assert "operand" not in flights


def test_a_flight_with_several_results_ends_with_the_last() -> None:
    flights: InFlight[str] = InFlight()
    flights.start(("a", "b"), ("one", "two"))
    assert flights.wait(("two",)) == ()
    assert not flights.awaits("two") and flights.awaits("one") and "b" in flights
    assert set(flights.wait(("one",))) == {"a", "b", "one", "two"}


def test_a_result_may_be_the_operand_of_the_next() -> None:
    flights: InFlight[str] = InFlight()
    flights.start(("x",), ("one",))
    flights.wait(("one",))
    flights.start(("one",), ("two",))
    # waiting for what was waited for ends nothing
    assert flights.wait(("one",)) == () and "one" in flights


def test_what_nobody_can_wait_for_never_ends() -> None:
    flights: InFlight[str] = InFlight()
    flights.start(("x",), ())
    assert flights.wait(("x",)) == () and "x" in flights and flights.list_waits("x") == ()


PROGRAM = f"""
program @p {{
  input %x: f32[4]
  {COPY}
  alloc %y: f32[4]
  launch @copy (%x, %y) sizes [4]
  extern "_c10d_functional.all_gather_into_tensor.default" (%y, 2, "0") defines (%g: f32[8]) in_flight (%y, \
%g) until (%g)
  alloc %z: f32[4]
  launch @copy (%y, %z) sizes [4]
  extern "_c10d_functional.wait_tensor.default" (%g) defines (_) waits (%g)
  view %h: f32[8] of %g offset `0`
  reuse %u: f32[4] of %y
  launch @copy (%h, %u) sizes [4]
  extern "_c10d_functional.all_gather_into_tensor.default" (%z, 2, "0") defines (%k: f32[8]) in_flight (%z, \
%k) until (%k)
  free (%x, %g, %z)
  return (%h, %u, %k)
}}
"""


def test_what_waits_first_passes_and_so_does_what_is_left_to_the_caller() -> None:
    program = parse_program(PROGRAM)
    verify_program(program)
    assert parse_program(format_program(program)) == program


def test_graphs_say_it_in_text() -> None:
    text = (
        "graph @g {\n"
        "  input %x: f32[4]\n"
        '  extern "mine.start.default" (%x) custom defines (%g: f32[4]) retains barrier in_flight (%x, '
        "%g) until (%g)\n"
        '  extern "mine.wait.default" (%g) custom defines (_) mutates (%h: f32[4] of %g) effect waits (%g)\n'
        "  return (%h)\n"
        "}\n"
    )
    assert format_graph(parse_graph(text), origins=False) == text
