"""Operators that are given names which torch's C interface cannot pass: through operators of ours."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from hand_programs import check_against_interpreter, program_of

from coilwork_cpp_wrapper import build_cpp, emit_cpp, write_sources
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
    assert [target.split(".")[1] for target in cpp.relayed] == ["scaled", "parts", "raised_"]
    assert '"coilwork_relays::cpp_relay_test__scaled"' in cpp.text
    check_against_interpreter(TEXT, [torch.arange(4.0)])


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
