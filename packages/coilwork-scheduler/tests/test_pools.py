"""Which buffers go into pools, which do not, and what sizes in symbols do."""

from __future__ import annotations

from allocator_simulation import measured_peak
from declared import schedule

from coilwork_ir.index import as_int, evaluate
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.program.nodes import Alloc, AllocPool, Free, Instruction, PoolView, Program
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.memory import PlanOptions, plan

TARGET = get_target("sm_90")


def planned(
    text: str, *, pools: bool = True, reuse: bool = True, slack: int = 1 << 20, small_slack: int = 0
) -> Program:
    scheduled = schedule(parse_graph(text), TARGET, ScheduleOptions(fuse=False, inline=False))
    options = PlanOptions(
        pools=pools, reuse=reuse, pool_slack_bytes=slack, small_pool_slack_bytes=small_slack
    )
    program = plan(scheduled, options)
    verify_program(program)
    return program


def of(program: Program, kind: type[Instruction]) -> list[Instruction]:
    return [one for one in program.instructions if isinstance(one, kind)]


def chain(shape: str, length: int, *, symbols: tuple[str, ...] = ()) -> str:
    """Products, each of the one before with itself."""
    lines = ["graph @chain {", *symbols, f"  input %b0: f32[{shape}]"]
    for k in range(length):
        lines.append(
            f'  extern "aten.mm.default" (%b{k}, %b{k}) aten defines (%b{k + 1}: f32[{shape}]) '
            'out "aten.mm.out" ("out")'
        )
    return "\n".join([*lines, f"  return (%b{length})", "}"])


def test_one_allocation_instead_of_many() -> None:
    program = planned(chain("64, 64", 10), reuse=False)
    (pool,) = of(program, AllocPool)
    assert len(of(program, PoolView)) == 9 and len(of(program, Alloc)) == 1
    assert isinstance(pool, AllocPool) and as_int(pool.size_bytes) == 2 * 64 * 64 * 4
    assert measured_peak(program) == measured_peak(planned(chain("64, 64", 10), pools=False)) + 64 * 64 * 4
    freed = [name for one in of(program, Free) if isinstance(one, Free) for name in one.names]
    assert freed[-1] == "pool0"
    assert parse_program(format_program(program)) == program


def test_results_and_single_buffers_stay_as_they_are() -> None:
    text = chain("64, 64", 2)
    assert planned(text) == planned(text, pools=False)


def test_a_pool_ends_where_there_is_no_room_for_it() -> None:
    # the first result is alive until the large one, which is the peak, is there
    lines = ["graph @g {", "  input %x: f32[64, 64]"]
    for k in range(6):
        source = "x" if k == 0 else f"b{k - 1}"
        lines.append(
            f'  extern "aten.mm.default" (%{source}, %x) aten defines (%b{k}: f32[64, 64]) out '
            '"aten.mm.out" ("out")'
        )
    lines.append(
        '  extern "aten.mm.default" (%b5, %x) aten defines (%y: f32[64, 100000]) out "aten.mm.out" ("out")'
    )
    program = planned("\n".join([*lines, "  return (%y)", "}"]), reuse=False, slack=0)
    names = [one.buffer.name for one in of(program, Alloc) if isinstance(one, Alloc)]
    assert "y" in names and len(names) + len(of(program, PoolView)) == 7
    assert len(of(program, PoolView)) >= 5
    assert program.peak_bytes is not None
    assert as_int(program.peak_bytes) == measured_peak(program) == 4 * 64 * (64 + 100000)


def test_the_peak_stays_where_it_is() -> None:
    # one pool for all products would keep the middle ones' 900 KB until the large one is there, at 5 % more
    lines = ["graph @g {", "  input %b0: f32[480, 480]"]
    for k in range(6):
        lines.append(
            f'  extern "aten.mm.default" (%b{k}, %b{k}) aten defines (%b{k + 1}: f32[480, 480]) '
            'out "aten.mm.out" ("out")'
        )
    lines.append(
        '  extern "aten.mm.default" (%b6, %b6) aten defines (%y: f32[480, 9000]) out "aten.mm.out" ("out")'
    )
    text = "\n".join([*lines, "  return (%y)", "}"])
    plain = measured_peak(planned(text, pools=False, reuse=False))
    slack = PlanOptions().pool_slack_bytes
    pooled = planned(text, reuse=False, slack=slack)
    assert of(pooled, AllocPool)
    assert measured_peak(pooled) <= plain + slack


def test_little_memory_may_become_more_where_that_saves_most_allocations() -> None:
    # layers of a transformer: attention's result is memory of its operator, beside a pool that is full when
    # the widest value is there
    def layers(width: int) -> str:
        lines = ["graph @g {", f"  input %x: f32[64, {width}]", f"  input %y: f32[64, {width}]"]
        one, other = "x", "y"
        for k in range(6):
            steps = (
                ((one, other), f"norm{k}", 1),
                ((f"norm{k}",), f"qkv{k}", 3),
                ((f"mixed{k}",), f"heads{k}", 1),
                ((f"heads{k}", one, other), f"sum{k}", 1),
                ((f"sum{k}",), f"wide{k}", 4),
                ((f"wide{k}",), f"narrow{k}", 1),
            )
            for read, made, times in steps:
                given = ", ".join(f"%{name}" for name in read)
                lines.append(
                    f'  extern "aten.addmm.default" ({given}) aten defines (%{made}: f32[64, '
                    f'{times * width}]) out "aten.addmm.out" ("out")'
                )
                if made == f"qkv{k}":
                    lines.append(
                        f'  extern "aten.exp.default" (%qkv{k}) aten defines (%mixed{k}: f32[64, {width}])'
                    )
            one, other = f"sum{k}", f"narrow{k}"
        return "\n".join([*lines, f"  return (%{one}, %{other})", "}"])

    small, large = layers(1024), layers(1 << 15)
    plain = measured_peak(planned(small, pools=False, reuse=False))
    held = planned(small, reuse=False, slack=0)
    pooled = planned(small, reuse=False, slack=0, small_slack=1 << 20)
    assert 2 * len(of(held, PoolView)) < 33 <= len(of(pooled, PoolView))
    assert measured_peak(held) <= plain < measured_peak(pooled) <= plain + plain // 2
    assert planned(large, reuse=False, slack=0, small_slack=1 << 20) == planned(large, reuse=False, slack=0)


def test_a_pool_is_as_large_as_what_is_beside_it_allows() -> None:
    # all would not fit beside what the operators between them have made; the wide ones are then allocated by
    # themselves
    lines = ["graph @g {", "  input %x: f32[64, 1024]"]
    before = "x"
    for k in range(6):
        steps = (
            ((before,), f"qkv{k}", 3),
            ((f"mixed{k}",), f"heads{k}", 1),
            ((f"heads{k}", before), f"sum{k}", 1),
            ((f"sum{k}",), f"wide{k}", 4),
            ((f"wide{k}",), f"narrow{k}", 1),
            ((f"narrow{k}", f"sum{k}"), f"out{k}", 1),
        )
        for read, made, times in steps:
            given = ", ".join(f"%{name}" for name in read)
            lines.append(
                f'  extern "aten.addmm.default" ({given}) aten defines (%{made}: f32[64, '
                f'{times * 1024}]) out "aten.addmm.out" ("out")'
            )
            if made == f"qkv{k}":
                lines.append(f'  extern "aten.exp.default" (%qkv{k}) aten defines (%mixed{k}: f32[64, 1024])')
        before = f"out{k}"
    text = "\n".join([*lines, f"  return (%{before})", "}"])
    pooled = planned(text, reuse=False, slack=0)
    assert len(of(pooled, PoolView)) >= 25
    assert measured_peak(pooled) == measured_peak(planned(text, pools=False, reuse=False))


def test_sizes_in_symbols() -> None:
    text = chain("s0, 64", 8, symbols=("  symbol s0 in [2, 1000]",))
    program = planned(text, reuse=False)
    pools = [one for one in of(program, AllocPool) if isinstance(one, AllocPool)]
    (symbol,) = program.symbols
    # two that end one after the other: one of twice the size would still be there when the result is
    assert [evaluate(pool.size_bytes, {symbol.name: 7}) for pool in pools] == [7 * 64 * 4] * 2
    assert len(of(program, PoolView)) == 7 and len(of(program, Alloc)) == 1
    assert program.peak_bytes is planned(text, pools=False, reuse=False).peak_bytes


def test_a_size_that_may_leave_an_uneven_offset_is_allocated() -> None:
    program = planned(chain("s0, 3", 8, symbols=("  symbol s0 in [2, 1000]",)), reuse=False)
    assert not of(program, AllocPool)


def test_what_counts_from_the_start_of_a_storage_is_allocated() -> None:
    text = """graph @g {
  input %x: f32[64, 64]
  extern "aten.mm.default" (%x, %x) aten defines (%a: f32[64, 64]) out "aten.mm.out" ("out")
  extern "aten.mm.default" (%a, %x) aten defines (%b: f32[64, 64]) out "aten.mm.out" ("out")
  %v: f32[64, 64]{1, 64} = view %b offset `0`
  extern "aten.as_strided_scatter.default" (%v, %x, [64, 64], [64, 1], 0) aten defines (%c: f32[64, 64])
  extern "aten.mm.default" (%a, %c) aten defines (%d: f32[64, 64]) out "aten.mm.out" ("out")
  extern "aten.mm.default" (%d, %d) aten defines (%y: f32[64, 64]) out "aten.mm.out" ("out")
  return (%y)
}"""
    program = planned(text, reuse=False)
    placed = {one.buffer.name for one in of(program, PoolView) if isinstance(one, PoolView)}
    assert placed == {"a", "d"}


def test_what_an_operator_might_keep_is_allocated() -> None:
    text = """graph @g {
  input %x: f32[64, 64]
  extern "mine.first.default" (%x) custom defines (%a: f32[64, 64]) out "mine.first.out" ("out")
  extern "aten.mm.default" (%a, %a) aten defines (%b: f32[64, 64]) out "aten.mm.out" ("out")
  extern "aten.mm.default" (%b, %b) aten defines (%c: f32[64, 64]) out "aten.mm.out" ("out")
  extern "aten.exp.default" (%c) aten defines (%d: f32[64, 64])
  extern "aten.mm.default" (%d, %d) aten defines (%e: f32[64, 64]) out "aten.mm.out" ("out")
  extern "aten.mm.default" (%e, %e) aten defines (%f: f32[64, 64]) out "aten.mm.out" ("out")
  extern "aten.mm.default" (%f, %f) aten defines (%y: f32[64, 64]) out "aten.mm.out" ("out")
  return (%y)
}"""
    program = planned(text, reuse=False)
    placed = {one.buffer.name for one in of(program, PoolView) if isinstance(one, PoolView)}
    assert placed == {"b", "c", "e", "f"}


def test_a_pool_ends_while_what_was_given_is_there() -> None:
    # Two wide values, one after the other, beside what was given; a result as wide is there when they are
    # gone. Later, with nothing beside them, two wide values at once: as much as that is no peak there.
    wide, given, out = "f32[64, 1024]", "f32[1024, 1024]", 'out "aten.mm.out" ("out")'
    steps = [
        ("x", "given", "a", wide),
        ("a", "given", "b", wide),
        ("b", "given", "first", wide),
        ("first", "w", "c", wide),
        ("c", "w", "d", wide),
        ("d", "w", "e", wide),
        ("e", "w", "second", wide),
    ]
    lines = [f"  input %x: {wide}", f"  input %w: {given}", f"  input %given: {given}"]
    lines += [
        f'  extern "aten.mm.default" (%{one}, %{two}) aten defines (%{made}: {shape}) {out}'
        for one, two, made, shape in steps
    ]
    text = "\n".join(["graph @g {", *lines, "  return (%first, %second)", "}"])
    scheduled = schedule(parse_graph(text), TARGET, ScheduleOptions(fuse=False, inline=False))
    for donated in ((), ("given",)):
        plain, pooled = (
            plan(
                scheduled,
                PlanOptions(
                    pools=pools,
                    pool_slack_bytes=0,
                    small_pool_slack_bytes=0,
                    reuse=False,
                    donated_inputs=donated,
                ),
            )
            for pools in (False, True)
        )
        # the one pool for all of them would be there from first to last
        assert measured_peak(pooled, counted=donated) == measured_peak(plain, counted=donated)
        assert bool(of(pooled, AllocPool))
