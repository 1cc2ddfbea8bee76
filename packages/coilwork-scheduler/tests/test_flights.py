"""Memory that operators go on using after their calls: who gets it, when it is freed, and what comes before
and after.
"""

from __future__ import annotations

import pytest
from declared import schedule

from coilwork_ir.errors import VerifyError
from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops.nodes import Extern
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.program.nodes import (
    ExternCall,
    Free,
    Instruction,
    Launch,
    PoolView,
    Program,
    Reinterpret,
    Return,
    Reuse,
)
from coilwork_ir.program.verify import verify_program
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.memory import PlanOptions, plan

CPU = get_target("x86-64-avx512")

START = '"_c10d_functional.all_gather_into_tensor.default"'
WAIT = '"_c10d_functional.wait_tensor.default"'


def cosine(result: str, of: str, into: str = "") -> str:
    taken = f" into %{into}" if into else ""
    return f"""
  %{result}: f32[64, 64] = pointwise [i0: 64, i1: 64]{taken} {{
    t0 = load %{of}[i0, i1] : f32
    t1 = cos(t0)
    yield t1
  }}"""


def product(result: str, of: str) -> str:
    return f"""
  extern "aten.mm.default" (%{of}, %{of}) aten defines (%{result}: f32[64, 64]) out "aten.mm.out" ("out")"""


def start(result: str, of: str, until: str = "") -> str:
    flight = f"in_flight (%{of}, %{result}) until (%{until or result})"
    return f"""
  extern {START} (%{of}, 2, "0") collective defines (%{result}: f32[128, 64]) effect {flight}"""


def wait(result: str, of: str) -> str:
    return f"""
  extern {WAIT} (%{of}) collective defines (_) mutates (%{result}: f32[128, 64] of %{of}) effect waits \
(%{of})"""


def graph(*nodes: str, returns: str) -> str:
    return "graph @g {\n  input %x: f32[64, 64]" + "".join(nodes) + f"\n  return ({returns})\n}}\n"


def planned(text: str, *, donated: tuple[str, ...] = ()) -> Program:
    scheduled = schedule(parse_graph(text), CPU, ScheduleOptions())
    return plan(scheduled, PlanOptions(donated_inputs=donated))


def place(program: Program, kind: type[Instruction], word: str) -> int:
    (found,) = [k for k, i in enumerate(program.instructions) if isinstance(i, kind) and word in repr(i)]
    return found


OVERLAPPING = graph(
    product("z", "x"),
    start("g", "z"),
    cosine("u", "z"),
    product("v", "u"),
    cosine("t", "v"),
    wait("h", "g"),
    returns="%h, %t",
)


def test_an_operand_keeps_its_memory_until_the_wait() -> None:
    program = planned(OVERLAPPING)
    verify_program(program)
    waits = place(program, ExternCall, "wait_tensor")
    frees = place(program, Free, "'z'")
    assert frees > waits
    # u takes over nothing; v, of which nobody but t knows, gives its memory to t
    assert not any(isinstance(i, Reuse | Reinterpret) and i.source == "z" for i in program.instructions)
    assert any(isinstance(i, Reuse | Reinterpret) and i.source in ("u", "v") for i in program.instructions)


def test_work_between_start_and_wait_stays_between_them() -> None:
    """Although the wait frees memory."""
    program = planned(OVERLAPPING)
    waits = place(program, ExternCall, "wait_tensor")
    assert place(program, ExternCall, "'v'") < waits
    assert all(k < waits for k, i in enumerate(program.instructions) if isinstance(i, Launch))


def test_a_program_without_that_is_refused() -> None:
    """Planned as if the call were done when it returns, then told that it is not."""
    text = OVERLAPPING
    blind = text.replace(" in_flight (%z, %g) until (%g)", "").replace(" waits (%g)", "")
    program = planned(blind)
    assert any(isinstance(i, Reuse | Reinterpret) and i.source == "z" for i in program.instructions)
    seeing = tuple(
        ExternCall(
            target=i.target, args=i.args, outputs=i.outputs,
            in_flight=("z", "g") if "gather" in i.target else (),
            until=("g",) if "gather" in i.target else (),
            waits=("g",) if "wait" in i.target else (),
        )
        if isinstance(i, ExternCall) and "c10d" in i.target
        else i
        for i in program.instructions
    )  # fmt: skip
    with pytest.raises(VerifyError, match=r"\[in-flight\]"):
        verify_program(Program(
            name="p", inputs=program.inputs, kernels=program.kernels, instructions=seeing
        ))  # fmt: skip


def test_behind_the_wait_others_get_the_memory() -> None:
    program = planned(
        graph(product("z", "x"), start("g", "z"), wait("h", "g"), product("v", "x"), returns="%h, %v")
    )
    verify_program(program)
    assert any(
        isinstance(i, Reuse) and i.source == "z" and i.buffer.name == "v" for i in program.instructions
    )


def test_two_waits_for_two_flights_of_one_operand() -> None:
    program = planned(
        graph(
            product("z", "x"), start("g", "z"), start("k", "z"), wait("h", "g"), product("v", "x"), wait("l",
            "k"),
            returns="%h, %v, %l",
        )
    )  # fmt: skip
    verify_program(program)
    last = max(
        k for k, i in enumerate(program.instructions) if isinstance(i, ExternCall) and "wait" in i.target
    )
    assert place(program, Free, "'z'") > last


def test_what_is_in_flight_at_the_end_is_freed_last() -> None:
    program = planned(
        graph(product("z", "x"), start("g", "z"), cosine("u", "x"), product("v", "u"), returns="%g, %v")
    )
    verify_program(program)
    assert isinstance(program.instructions[-1], Return)
    frees = place(program, Free, "'z'")
    assert all(isinstance(i, Free | Return) for i in program.instructions[frees:])


def test_inputs_are_overwritten_behind_the_wait_for_what_reads_them() -> None:
    text = graph(
        start("g", "x"), wait("h", "g"), product("v", "x"), cosine("y", "v", into="x"), returns="%h, %y"
    )
    facts = analyse(parse_graph(text))
    assert facts.before[3] == (0, 1, 2)
    assert facts.released == {1: ("x", "g")}
    verify_program(planned(text))


def test_memory_given_away_may_be_an_operand_of_another_programs_flight() -> None:
    """A saved result that is in flight when the backward program begins reads who knows which of the other
    saved values.
    """
    text = f"""graph @g {{
  input %x: f32[64, 64]
  input %k: f32[128, 64]{cosine("u", "x")}{product("v", "u")}{wait("h", "k")}{product("w", "v")}
  return (%h, %w)
}}
"""
    program = planned(text, donated=("x",))
    waits = place(program, ExternCall, "wait_tensor")
    gone = [
        k
        for k, i in enumerate(program.instructions)
        if (isinstance(i, Reuse | Reinterpret) and i.source == "x")
        or (isinstance(i, Free) and "x" in i.names)
    ]
    assert gone and all(k > waits for k in gone)


def test_an_operator_that_may_keep_its_operand_has_it_alone() -> None:
    def text(retains: str) -> str:
        call = f'\n  extern "mine.start.default" (%z) custom defines (%g: f32[64, 64]){retains}'
        return graph(product("z", "x"), call, cosine("u", "z"), product("v", "u"), returns="%g, %v")

    def takes_over(program: Program) -> bool:
        return any(isinstance(i, Reuse | Reinterpret) and i.source == "z" for i in program.instructions)

    assert takes_over(planned(text("")))
    program = planned(text(" retains"))
    assert not takes_over(program)
    # references are counted: it is given back as early as ever
    assert place(program, Free, "'z'") < place(program, ExternCall, "'v'")


def test_what_an_operator_of_torchs_keeps_is_in_no_pool() -> None:
    """A copy that does not block: what carves its operand's place out of a pool for another hands it on as
    well.
    """

    call = '\n  extern "aten._to_copy.default" (%z) aten defines (%g: f32[64, 64]) retains'
    nodes = (
        product("z", "x"),
        call,
        product("u", "x"),
        product("v", "u"),
        product("t", "v"),
        product("s", "t"),
    )
    text = graph(*nodes, returns="%g, %s")
    program = plan(schedule(parse_graph(text), CPU, ScheduleOptions()), PlanOptions(pools=True, reuse=False))
    pooled = {i.buffer.name for i in program.instructions if isinstance(i, PoolView)}
    assert pooled >= {"u", "v", "t"} and "z" not in pooled


def test_barriers_stay_where_they_are() -> None:
    def barrier(name: str) -> str:
        return f'\n  extern "streams.{name}.default" (0, 1) custom defines () effect barrier'

    text = graph(
        cosine("a", "x"), barrier("fork"), product("b", "x"), cosine("c", "b"), barrier("join"), cosine("d",
        "a"),
        returns="%c, %d",
    )  # fmt: skip
    scheduled = schedule(parse_graph(text), CPU, ScheduleOptions())
    kinds = [
        step.target.split(".")[1]
        if isinstance(step, Extern)
        else "kernel"
        if isinstance(step, KernelCall)
        else ""
        for step in scheduled.steps
    ]
    assert kinds.index("fork") < kinds.index("mm") < kinds.index("join")
    assert [kind for kind in kinds if kind] in (
        ["kernel", "fork", "mm", "kernel", "join", "kernel"],
        # what is computed behind the barrier alone may be computed there
        ["fork", "mm", "kernel", "join", "kernel"],
    )
    program = plan(scheduled, PlanOptions(pools=True))
    verify_program(program)
    # streams overlap: nobody gets memory that another stream may still use
    assert not any(isinstance(i, Reuse) for i in program.instructions)
    first_free = min(k for k, i in enumerate(program.instructions) if isinstance(i, Free))
    assert not any(isinstance(i, Launch | ExternCall) for i in program.instructions[first_free:])
