"""Operators that are given names which torch's C interface cannot pass: through operators of ours."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from hand_programs import check_against_interpreter, program_of

from coilwork_cpp_wrapper import build_cpp, emit_cpp, write_sources
from coilwork_cpp_wrapper.relays import find_target
from coilwork_ir.errors import EmitError

LIBRARY = torch.library.Library("cpp_relay_test", "DEF")
LIBRARY.define("scaled(Tensor x, int[] factors, Any group_name, *, float shift=0.5) -> Tensor")
LIBRARY.define("parts(Tensor[] x, Any group_name) -> Tensor[]")
LIBRARY.define("raised_(Tensor(a!) x, Any group_name) -> Tensor(a!)")


def scaled(x: torch.Tensor, factors: list[int], group_name: Any, *, shift: float = 0.5) -> torch.Tensor:
    return x * sum(factors) * len(group_name) + shift


LIBRARY.impl("scaled", scaled, "CompositeExplicitAutograd")
LIBRARY.impl("parts", lambda x, group_name: [one + len(group_name) for one in x], "CompositeExplicitAutograd")
LIBRARY.impl("raised_", lambda x, group_name: x.add_(len(group_name)), "CompositeExplicitAutograd")

TEXT = """program @p {
  input %x: f32[4]
  extern "cpp_relay_test.scaled.default" (%x, [2, 3], "abc") defines (%y: f32[4])
  extern "cpp_relay_test.parts.default" ([%x, %y], "ab") defines (%u: f32[4], %v: f32[4]) tuple
  extern "cpp_relay_test.raised_.default" (%v, "four") defines (_)
  return (%y, %u, %v)
}"""


def test_names_of_any_type_are_handed_on() -> None:
    cpp = emit_cpp(program_of(TEXT), {})
    assert [find_target(text).split(".")[1] for text in cpp.relayed] == ["scaled", "parts", "raised_"]
    assert '"coilwork_relays::cpp_relay_test__scaled_' in cpp.text
    check_against_interpreter(TEXT, [torch.arange(4.0)])


EVERYTHING = """program @p {
  symbol s0 in [1, inf]
  input %x: f32[s0]
  input %i: i64[s0]
  input %c: c64[s0]
  input %a: f32[]
  input %k: i64[]
  input %j: f32[5, 1]
  bind s0 in [1, inf] size %x 0
  alloc %o: i64[s0]
  extern "aten.mul.Scalar" (%i, 3) defines (%y0: i64[s0])
  extern "aten.mul.Scalar" (%i, True) defines (%y1: i64[s0])
  extern "aten.mul.Scalar" (%c, complex 1.0 -2.0) defines (%y2: c64[s0])
  extern "aten.mul.Scalar" (%i, `s0 + 1`) defines (%y3: i64[s0])
  extern "aten.add.out" (%i, %i, alpha = 2) out ("out" %o)
  extern "aten.clamp.default" (%x, none, item %a) defines (%y4: f32[s0])
  extern "aten.full.default" ([`s0`], item %k, dtype = type f32) defines (%y5: f32[s0])
  extern "aten.histogramdd.default" (%j, [3]) defines (%h: f32[3], %e: f32[4]) tuple paths ([0], [1, 0])
  extern "aten.normal.Tensor_float" (%x, 0.5, generator = none) defines (%r: f32[s0])
  extern "aten.add_.Tensor" (%y0, %y1, alpha = 5) defines (%y6: i64[s0])
  extern "aten.is_same_size.default" (%x, %x) defines (size u0 in [0, 1])
  return (%y0, %y1, %y2, %y3, %o, %y4, %y5, %h, %e, %y6, `u0`)
}"""


def test_scalars_numbers_from_data_and_lists_beside_tensors() -> None:
    """Calls that torch's C interface has no form for, as the interpreter makes them."""
    calls = [
        [
            torch.randn(n),
            torch.arange(n),
            torch.randn(n, dtype=torch.complex64),
            torch.tensor(0.25),
            torch.tensor(7),
            torch.rand(5, 1),
        ]
        for n in (4, 1)
    ]
    check_against_interpreter(EVERYTHING, *calls)


def test_only_what_c_cannot_call_goes_through_python() -> None:
    relayed = [find_target(text) for text in emit_cpp(program_of(EVERYTHING), {}).relayed]
    assert "aten.histogramdd.default" in relayed and "aten.mul.Scalar" in relayed
    assert "aten.is_same_size.default" not in relayed and "aten.normal.Tensor_float" not in relayed


def test_several_threads_load_at_once() -> None:
    cpp = emit_cpp(program_of(TEXT), {})
    calls: list[Any] = []
    threads = [Thread(target=lambda: calls.append(build_cpp(cpp))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for call in calls:
        torch.testing.assert_close(call([torch.ones(4)])[0], torch.full((4,), 15.5))
    assert len(calls) == 3


def test_without_python_they_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmitError, match=r"needs-python.*cpp_relay_test.scaled"):
        write_sources(emit_cpp(program_of(TEXT), {}), tmp_path)
