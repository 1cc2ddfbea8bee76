"""Streams, events and copies: programs that pass the verifier give the same results whatever runs first."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from ir_cases import COPY, UPDATE

from coilwork_ir.errors import VerifyError
from coilwork_ir.inflight_memory import HOST, InFlight
from coilwork_ir.program.interpreter import Hooks, interpret_program
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.streams import Copy, ForkStream, JoinStream, RecordEvent, WaitEvent

ON_GPU = "@cuda:0"


def test_memory_is_in_use_until_its_home_waited_for_the_stream() -> None:
    uses: InFlight[str] = InFlight()
    uses.follow(ForkStream(stream="s", device="cuda:0"))
    assert uses.use("s", ("read",), ("written",)) == ()
    assert "read" in uses and "written" in uses and set(uses.memory()) == {"read", "written"}
    uses.follow(RecordEvent(event="e", device="cuda:0", stream="s"))
    assert uses.use("s", ("late",), ()) == ()
    assert set(uses.follow(WaitEvent(event="e"))) == {"read", "written"}
    assert "late" in uses
    assert uses.follow(JoinStream(stream="s")) == ("late",)
    assert uses.memory() == ()


def test_two_readers_race_with_nobody_and_a_writer_with_both() -> None:
    uses: InFlight[str] = InFlight()
    uses.follow(ForkStream(stream="s", device="cuda:0"))
    assert uses.use("s", ("x",), ()) == () and uses.use("", ("x",), ()) == ()
    assert uses.use("", (), ("x",)) == ("x",)


def test_order_passes_through_streams_in_between() -> None:
    uses: InFlight[str] = InFlight()
    uses.follow(ForkStream(stream="s", device="cuda:0"))
    uses.follow(ForkStream(stream="t", device="cuda:0"))
    uses.use("s", (), ("x",))
    uses.follow(RecordEvent(event="e", device="cuda:0", stream="s"))
    uses.follow(WaitEvent(event="e", stream="t"))
    assert uses.use("t", ("x",), ()) == ()
    uses.follow(JoinStream(stream="t"))
    assert "x" not in uses


def test_a_copy_that_blocks_is_done_and_one_that_does_not_is_the_hosts_to_wait_for() -> None:
    uses: InFlight[str] = InFlight()
    for key in ("one", "two"):
        uses.place_on_host(key)
    uses.copy(Copy(source="x", target="two", non_blocking=True), "x", "two")
    assert "two" in uses and "x" not in uses
    uses.copy(Copy(source="x", target="one"), "x", "one")
    # who waits for a copy has waited for those before it on its stream
    assert "one" not in uses and "two" not in uses
    uses.copy(Copy(source="x", target="two", non_blocking=True), "x", "two")
    assert uses.use(HOST, ("two",), ()) == ("two",)


def test_work_without_streams_is_not_followed() -> None:
    uses: InFlight[str] = InFlight()
    assert uses.use("", ("x",), ("y",)) == () and "x" not in uses and uses.memory() == ()


@dataclass(slots=True)
class Writer:
    """A random program on streams: its lines and what there is. Some waits are missing."""

    rng: Random
    careful: float
    lines: list[str] = field(default_factory=list)
    alive: list[str] = field(default_factory=lambda: ["x"])
    host: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def on(self, stream: str) -> str:
        return f" on %{stream}" if stream else ""

    def add(self, line: str) -> None:
        self.lines.append(line)

    def order(self, stream: str | None) -> None:
        """`stream`, or the host, waits for the others, or for some."""
        for other in ("", *self.streams):
            if other != stream and self.rng.random() < self.careful:
                event = self.name("e")
                self.add(f'record %{event} "cuda:0"{self.on(other)}')
                self.add(f"await %{event}" + (" on host" if stream is None else self.on(stream)))

    def step(self) -> None:
        rng = self.rng
        stream = rng.choice(("", *self.streams))
        match rng.randrange(9):
            case 0 if len(self.streams) < 3:
                made = self.name("s")
                after = f" after %{stream}" if stream else ""
                self.add(f'fork %{made} "cuda:0"{after}')
                self.streams.append(made)
            case 1 if stream:
                self.streams.remove(stream)
                into = rng.choice(("", *self.streams))
                self.add(f"join %{stream}" + (f" into %{into}" if into else ""))
            case 2 if len(self.alive) > 2:
                self.order("")
                gone = rng.choice(self.alive[1:])
                self.alive.remove(gone)
                self.add(f"free (%{gone})")
            case 3 if len(self.alive) > 2:
                self.order("")
                gone, made = rng.choice(self.alive[1:]), self.name("b")
                self.alive.remove(gone)
                self.add(f"reuse %{made}: f32[4] {ON_GPU} of %{gone}")
                self.alive.append(made)
                self.write(stream, made)
            case 4:
                made = self.name("h")
                self.add(f"alloc %{made}: f32[4]")
                self.order(stream)
                kind = rng.choice(("", " nonblocking"))
                self.add(f"copy %{rng.choice(self.alive)} to %{made}{kind}{self.on(stream)}")
                self.host.append(made)
            case 5 if self.host:
                self.order(None)
                self.add(f"launch @update (%{rng.choice(self.host)}) sizes [4]")
            case 6:
                self.order(stream)
                self.add(f"launch @update (%{rng.choice(self.alive)}) sizes [4]{self.on(stream)}")
            case 7:
                self.order(stream)
                given, into = rng.choice(self.alive), rng.choice(self.alive)
                self.add(f'extern "aten.cos.out" (%{given}) out ("out" %{into}){self.on(stream)}')
            case _:
                made = self.name("b")
                self.add(f"alloc %{made}: f32[4] {ON_GPU}")
                self.alive.append(made)
                self.write(stream, made)

    def write(self, stream: str, made: str) -> None:
        self.order(stream)
        self.add(f"launch @copy (%{self.rng.choice(self.alive[:-1])}, %{made}) sizes [4]{self.on(stream)}")

    def text(self) -> str:
        for _ in range(self.rng.randint(4, 16)):
            self.step()
        for stream in self.streams:
            self.add(f"join %{stream}")
        self.streams = []
        self.order(None)
        returned = ", ".join(f"%{name}" for name in (*self.alive, *self.host))
        body = "\n  ".join(self.lines)
        kernels = f"{COPY}\n  {UPDATE}"
        return (
            f"program @p {{\n  input %x: f32[4] {ON_GPU}\n  {kernels}\n  {body}\n  return ({returned})\n}}\n"
        )


def verdict(program: Program) -> str:
    """The rule that `program` breaks, or nothing."""
    try:
        verify_program(program)
    except VerifyError as error:
        return error.code
    return ""


def results(program: Program, turns: Random | None) -> list[torch.Tensor]:
    found = interpret_program(program, [torch.tensor([0.1, 0.2, -0.3, 4.0])], hooks=Hooks(turns=turns))
    return [value for value in found if isinstance(value, torch.Tensor)]


def test_programs_that_pass_depend_on_no_order_and_many_of_the_others_do() -> None:
    passed = refused = caught = 0
    for seed in range(400):
        careful = (0.97, 0.6)[seed % 2]
        program = parse_program(Writer(Random(seed), careful).text())
        assert parse_program(format_program(program)) == program
        code = verdict(program)
        assert code in ("", "in-flight"), (code, format_program(program))
        passed += code == ""
        refused += code != ""
        wanted = results(program, None)
        for turn in range(4):
            found = results(program, Random(f"{seed} {turn}"))
            same = all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
            assert same or code, format_program(program)
            caught += not same
    assert passed > 60 and refused > 60 and caught > 40, (passed, refused, caught)


@pytest.mark.parametrize("word", ["join %s", "await %e on host", "await %e"])
def test_a_program_without_one_of_its_waits_is_refused(word: str) -> None:
    text = f"""
program @p {{
  input %x: f32[4] {ON_GPU}
  {COPY}
  alloc %y: f32[4] {ON_GPU}
  alloc %h: f32[4]
  alloc %z: f32[4]
  fork %s "cuda:0"
  launch @copy (%x, %y) sizes [4] on %s
  copy %y to %h nonblocking on %s
  record %e "cuda:0" on %s
  await %e
  free (%y)
  await %e on host
  launch @copy (%h, %z) sizes [4]
  join %s
  return (%z)
}}
"""
    verify_program(parse_program(text))
    left = "\n".join(line for line in text.split("\n") if line.strip() != word)
    with pytest.raises(VerifyError, match=r"in-flight|stream-joined"):
        verify_program(parse_program(left))
