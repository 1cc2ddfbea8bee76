"""Programs on streams as text, and every driver for one: native, Python, FX and, on the host, C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from coilwork_cpp_wrapper import build_cpp, emit_cpp
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.regions import find_outline_refusal, inline_regions, make_region
from coilwork_ir.program.text import parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.program.walk import index_buffers
from coilwork_runtime import generated, load_interpreted, load_native
from coilwork_runtime.module_loader import execute_module
from coilwork_wrapper import emit_fx, emit_native, emit_python

Call = Callable[[list[Any]], Sequence[Any]]

# Two products beside each other, of which one is copied to the host while the other is used.
BESIDE = """
program @beside {
  input %x: f32[64, 64] AT
  input %w: f32[64, 64] AT
  alloc %a: f32[64, 64] AT
  alloc %b: f32[64, 64] AT
  alloc %h: f32[64, 64]
  fork %s "DEVICE"
  fork %t "DEVICE" after %s
  extern "aten.mm.out" (%x, %w) out ("out" %a) on %s
  copy %a to %h nonblocking on %s
  record %copied "DEVICE" on %s
  extern "aten.mm.out" (%w, %x) out ("out" %b) on %t
  extern "aten.neg_.default" (%b) on %t
  join %t into %s
  await %copied on host
  extern "aten.mul.Tensor" (%h, %h) defines (%twice: f32[64, 64])
  join %s
  extern "aten.add.Tensor" (%a, %b) defines (%sum: f32[64, 64] AT)
  free (%a)
  alloc %last: f32[64, 64] AT
  copy %sum to %last
  free (%b, %h)
  return (%sum, %twice, %last)
}
"""
FAILING = """
program @failing {
  input %x: f32[64, 64] AT
  input %w: f32[3, 3] AT
  alloc %a: f32[64, 64] AT
  fork %s "DEVICE"
  extern "aten.mm.out" (%x, %w) out ("out" %a) on %s
  join %s
  return (%a)
}
"""


def program_on(device: str, text: str) -> Program:
    """The verified program that `text` spells for `device`."""
    at = "" if device == "cpu" else f"@{device}"
    program = parse_program(text.replace("AT", at).replace("DEVICE", device))
    verify_program(program)
    return program


def draw_program(device: str, seed: int) -> Program:
    """A random verified program on `device`: operators and copies on streams, waits, reuse and a region."""
    rng = Random(seed)
    at = "" if device == "cpu" else f"@{device}"
    lines, alive, streams, events = [], ["x", "w"], [], 0
    for number in range(rng.randint(6, 20)):
        stream, kind, made = rng.choice(("", *streams)), rng.random(), f"b{number}"
        on = f" on %{stream}" if stream else ""
        if kind < 0.15 and len(streams) < 3:
            after = f" after %{stream}" if stream else ""
            lines.append(f'fork %s{number} "{device}"{after}')
            streams.append(f"s{number}")
            continue
        source = rng.choice(alive)
        gone = rng.choice(alive[2:]) if len(alive) > 4 and kind < 0.4 else ""
        # what is reused is at rest, and what `stream` reads or writes was written: it waits for all others
        waiting = ["", stream] if gone else [stream]
        for one in waiting:
            for other in {"", *streams} - {one}:
                events += 1
                lines.append(f'record %e{events} "{device}"' + (f" on %{other}" if other else ""))
                lines.append(f"await %e{events}" + (f" on %{one}" if one else ""))
        if gone and gone != source:
            alive.remove(gone)
            lines.append(f"reuse %{made}: f32[64, 64] {at} of %{gone}")
        else:
            lines.append(f"alloc %{made}: f32[64, 64] {at}")
        events += 1
        lines += [f'record %e{events} "{device}"', f"await %e{events}{on}"] if stream else []
        work = (
            f'extern "aten.cos.out" (%{source}) out ("out" %{made}){on}',
            f'extern "aten.maximum.out" (%{source}, %w) out ("out" %{made}){on}',
            f"copy %{source} to %{made}{rng.choice(('', ' nonblocking'))}{on}",
        )
        lines.append(rng.choice(work))
        alive.append(made)
    lines += [f"join %{stream}" for stream in streams]
    body = "\n  ".join(lines)
    results = ", ".join(f"%{name}" for name in alive[2:])
    inputs = "".join(f"  input %{name}: f32[64, 64] {at}\n" for name in ("x", "w"))
    drawn = parse_program(f"program @drawn {{\n{inputs}  {body}\n  return ({results})\n}}\n")
    verify_program(drawn)
    start = rng.randrange(len(drawn.instructions) - 1)
    end = rng.randint(start, len(drawn.instructions) - 1)
    before, inside, behind = (drawn.instructions[a:b] for a, b in ((0, start), (start, end), (end, None)))
    region = make_region(rng.choice(("partition", "nested")), inside, "drawn")
    if find_outline_refusal(region, index_buffers(drawn)):
        return drawn
    divided = replace(drawn, instructions=(*before, region, *behind))
    verify_program(divided)
    assert inline_regions(divided) == drawn
    return divided


def _refuse() -> Call:
    raise AssertionError("the native executor left a call to Python")


def make_drivers(program: Program, *, cpp: bool = True) -> dict[str, Call]:
    """`program`, which has no kernels, by each driver that its device has; C++ takes long to build."""
    module = execute_module(emit_python(program, {}), program.name)
    native = load_native(emit_native(program), launchers={}, constants={}, fallback=_refuse)
    graph = emit_fx(program, {}, runtime=generated)
    found: dict[str, Call] = {
        "native": native.call,
        "python": load_interpreted(emit_native(program), launchers={}, constants={}),
        "module": module.make_call({}, {}),
        "fx": lambda args: graph(*args),
    }
    inputs = (entry for entry in program.inputs if not hasattr(entry, "free_symbols"))
    if cpp and all(entry.device == "cpu" for entry in inputs):
        found["cpp"] = build_cpp(emit_cpp(program, {}), constants={}, workers=1)
    return found


def inputs_on(device: str) -> list[torch.Tensor]:
    """Inputs of `BESIDE`."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(64, 64, generator=generator).to(device) for _ in range(2)]
