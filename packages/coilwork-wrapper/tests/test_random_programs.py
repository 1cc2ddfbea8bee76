"""Random programs give the same results, effects and sharing of memory in the interpreter, in Python and in
FX.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wrapper_programs import check_agreement

from coilwork_ir.program.nodes import Instruction, Program, RegionKind
from coilwork_ir.program.regions import find_outline_refusal, make_region
from coilwork_ir.program.walk import index_buffers

UNARY = ("aten.neg.default", "aten.exp.default", "aten.sin.default")
BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.maximum.default")
IN_PLACE = ("aten.neg_.default", "aten.sin_.default")
LAYOUTS = ("[s0, 4]", "[s0, 4]{1, s0}", "[4, s0]", "[4*s0]", "[2, 2*s0]")


@dataclass(slots=True)
class Writer:
    """A program being written: its lines and the buffers that are alive, by layout.

    `family` groups buffers that share memory: one that is freed or reused takes its views with it.
    """

    draw: st.DrawFn
    inputs: tuple[str, ...]
    lines: list[str] = field(default_factory=list)
    alive: dict[str, str] = field(default_factory=dict)
    count: int = 0
    streams: list[str] = field(default_factory=list)

    def fresh(self) -> str:
        """A new name."""
        self.count += 1
        return f"b{self.count}"

    def pick(self, layout: str | None = None) -> str | None:
        """One that is alive."""
        names = [name for name, has in self.alive.items() if layout in (None, has)]
        return self.draw(st.sampled_from(names)) if names else None

    def step(self) -> None:
        """Write an instruction, or none where the chosen kind finds no operand."""
        kind = self.draw(st.sampled_from(KINDS))
        getattr(self, kind)()

    def unary(self) -> None:
        source, made = self.pick(), self.fresh()
        if source is not None:
            layout = self.alive[source]
            self.define(
                f'extern "{self.draw(st.sampled_from(UNARY))}" (%{source}) defines (%{made}: f32{layout})',
                made,
                layout,
            )

    def other_layout(self) -> None:
        source, made = self.pick("[s0, 4]"), self.fresh()
        if source is not None:
            layout = "[s0, 4]{1, s0}"
            self.define(f'extern "aten.neg.default" (%{source}) defines (%{made}: f32{layout})', made, layout)

    def binary(self) -> None:
        first, made = self.pick(), self.fresh()
        if first is not None:
            layout = self.alive[first]
            second = self.pick(layout)
            operator = self.draw(st.sampled_from(BINARY))
            self.define(
                f'extern "{operator}" (%{first}, %{second}) defines (%{made}: f32{layout})', made, layout
            )

    def in_place(self) -> None:
        name = self.pick()
        if name is not None:
            self.lines.append(f'extern "{self.draw(st.sampled_from(IN_PLACE))}" (%{name}) defines (_)')

    def launch(self) -> None:
        name = self.pick()
        if name is not None:
            self.lines.append(f"launch @double (%{name}) sizes [4*s0]")

    def fused(self) -> None:
        first, second, made = self.pick("[s0, 4]"), self.pick("[s0, 4]"), self.fresh()
        if first is not None:
            self.define(f"alloc %{made}: f32[s0, 4]", made, "[s0, 4]")
            self.lines.append(f"launch @relu_add (%{first}, %{second}, %{made}) sizes [4*s0]")

    def out(self) -> None:
        layout, made = self.draw(st.sampled_from(LAYOUTS)), self.fresh()
        source = self.pick(layout)
        if source is not None:
            self.define(f"alloc %{made}: f32{layout}", made, layout)
            self.lines.append(f'extern "aten.cos.out" (%{source}) out ("out" %{made})')

    def view(self) -> None:
        source, made = self.pick(), self.fresh()
        if source is not None:
            layout = self.draw(st.sampled_from(LAYOUTS))
            self.define(f"view %{made}: f32{layout} of %{source} offset `0`", made, layout)

    def reuse(self) -> None:
        source, made = self.pick(), self.fresh()
        if source is not None and source not in self.inputs:
            layout = self.draw(st.sampled_from(LAYOUTS))
            del self.alive[source]
            self.define(f"reuse %{made}: f32{layout} of %{source}", made, layout)

    def free(self) -> None:
        name = self.pick()
        if name is not None and len(self.alive) > 1:
            del self.alive[name]
            self.lines.append(f"free (%{name})")

    def branch(self) -> None:
        source, made = self.pick(), self.fresh()
        if source is None:
            return
        layout = self.alive[source]
        then = self.draw(
            st.sampled_from(
                (
                    "return (%a)",
                    f'extern "aten.add.Scalar" (%a, `s0`) defines (%r: f32{layout}) return (%r)',
                    f"view %r: f32{layout} of %a offset `0` launch @double (%r) sizes [4*s0] return (%r)",
                )
            )
        )
        kernels = "DOUBLE" if "launch" in then else ""
        self.define(
            f"""cond %flag (%{source}) defines (%{made}: f32{layout}) {{
              program @then {{ input %a: f32{layout} {kernels} {then} }}
              program @otherwise {{
                input %a: f32{layout}
                extern "aten.neg.default" (%a) defines (%r: f32{layout})
                return (%r)
              }}
            }}""",
            made,
            layout,
        )

    def fork(self) -> None:
        made = self.fresh()
        self.lines.append(f'fork %{made} "cpu"')
        self.streams.append(made)

    def on_stream(self) -> None:
        """Work on a stream, in order behind all before and before all behind it."""
        name = self.pick()
        if name is None or not self.streams:
            return
        stream, begun, done = self.draw(st.sampled_from(self.streams)), self.fresh(), self.fresh()
        layout, other = self.alive[name], self.pick(self.alive[name])
        made = self.fresh()
        work = (
            f"launch @double (%{name}) sizes [4*s0] on %{stream}",
            f"alloc %{made}: f32{layout}\n  copy %{other} to %{made} nonblocking on %{stream}",
            f'alloc %{made}: f32{layout}\n  extern "aten.cos.out" (%{name}) out ("out" %{made}) on %{stream}',
            f'extern "aten.neg_.default" (%{name}) on %{stream}',
        )
        which = self.draw(st.integers(0, len(work) - 1))
        self.lines += [f'record %{begun} "cpu"', f"await %{begun} on %{stream}", work[which]]
        self.lines += [f'record %{done} "cpu" on %{stream}', f"await %{done} on host", f"await %{done}"]
        if "alloc" in work[which]:
            self.alive[made] = layout

    def copy(self) -> None:
        source = self.pick()
        target = None if source is None else self.pick(self.alive[source])
        if source is not None:
            self.lines.append(f"copy %{source} to %{target}")

    def define(self, line: str, name: str, layout: str) -> None:
        """Write `line`, which makes `name`."""
        self.lines.append(line)
        self.alive[name] = layout


KINDS = (
    "unary",
    "other_layout",
    "binary",
    "in_place",
    "launch",
    "fused",
    "out",
    "view",
    "reuse",
    "free",
    "branch",
    "fork",
    "on_stream",
    "on_stream",
    "copy",
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Text of a program over `%x`, `%y` and the symbol `s0`."""
    writer = Writer(draw, inputs=("x", "y"))
    writer.alive = {"x": "[s0, 4]", "y": "[s0, 4]"}
    for _ in range(draw(st.integers(1, 12))):
        writer.step()
    returned = draw(st.lists(st.sampled_from(sorted(writer.alive)), max_size=4))
    writer.lines += [f"join %{stream}" for stream in writer.streams]
    body = "\n  ".join(writer.lines)
    return f"""program @random {{
  symbol s0 in [1, inf]
  input %flag: bool[]
  input %x: f32[s0, 4]
  input %y: f32[s0, 4]
  RELU_ADD
  DOUBLE
  bind s0 in [1, inf] size %x 0
  check %flag
  check %x
  {draw(st.sampled_from(("check %y aligned", "align %y")))}
  {body}
  return ({", ".join([*(f"%{name}" for name in returned), "`s0 + 1`"])})
}}"""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.booleans(), st.integers(1, 5), st.integers(0, 1 << 30))
def test_random_programs_agree(text: str, flag: bool, rows: int, seed: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.tensor(flag), torch.randn(rows, 4), torch.randn(rows, 4)]
    check_agreement(text, inputs, change=lambda program: in_regions(program, Random(seed)))


def in_regions(program: Program, rng: Random) -> Program:
    """`program` with regions somewhere; none if it is to stay as it is."""
    *rest, last = program.instructions
    made: list[Instruction] = []
    known = index_buffers(program)
    while rest and rng.random() < 0.8:
        start = rng.randrange(len(rest))
        end = rng.randint(start, len(rest))
        body = rest[start:end]
        kind: RegionKind = rng.choice(("partition", "nested"))
        region = make_region(kind, body)
        if find_outline_refusal(region, known):
            made += rest[:end]
        elif kind == "partition" and rng.random() < 0.4:
            made += [*rest[:start], make_region(kind, [make_region("nested", body, "within")])]
        else:
            made += [*rest[:start], region]
        rest = rest[end:]
    return replace(program, instructions=(*made, *rest, last))
