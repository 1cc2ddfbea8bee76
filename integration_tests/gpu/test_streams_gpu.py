"""Programs on a GPU's streams: results are the interpreter's, and torch's current stream stays."""

from __future__ import annotations

import pytest
import torch

from coilwork_ir.program.interpreter import interpret_program
from integration_tests.stream_programs import (
    BESIDE,
    FAILING,
    draw_program,
    inputs_on,
    make_drivers,
    program_on,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

# A kernel that waits about a tenth of a second on one stream, and one on the call's own.
LATE = """
program @late {
  input %x: f32[64, 64] AT
  input %w: f32[64, 64] AT
  alloc %a: f32[64, 64] AT
  alloc %b: f32[64, 64] AT
  alloc %h: f32[64, 64]
  fork %s "DEVICE"
  extern "coilwork_test.sleep_.default" (%w) on %s
  extern "aten.mm.out" (%x, %w) out ("out" %a) on %s
  copy %a to %h nonblocking on %s
  extern "aten.neg.out" (%x) out ("out" %b)
  record %done "DEVICE" on %s
  await %done
  await %done on host
  free (%a)
  alloc %c: f32[64, 64] AT
  extern "aten.neg.out" (%b) out ("out" %c)
  join %s
  return (%b, %c, %h)
}
"""


@pytest.fixture(scope="module")
def sleeping() -> object:
    library = torch.library.Library("coilwork_test", "FRAGMENT")
    library.define("sleep_(Tensor(a!) x) -> ()")
    library.impl("sleep_", lambda x: torch.cuda._sleep(200_000_000), "CUDA")
    library.impl("sleep_", lambda x: None, "CPU")
    return library


def test_all_drivers_agree_with_the_interpreter() -> None:
    program = program_on("cuda:0", BESIDE)
    wanted = interpret_program(program, inputs_on("cpu"))
    before = torch.cuda.current_stream()
    for name, call in make_drivers(program).items():
        for _ in range(20):
            found = call(inputs_on("cuda:0"))
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(
                    one.cpu(), other, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
                )
        assert torch.cuda.current_stream() == before


def test_random_programs_agree() -> None:
    for seed in range(60):
        program = draw_program("cuda:0", seed)
        wanted = interpret_program(program, inputs_on("cpu"))
        for name, call in make_drivers(program).items():
            for _ in range(3):
                for one, other in zip(call(inputs_on("cuda:0")), wanted, strict=True):
                    error = float((one.cpu() - other).abs().max())
                    assert error <= 1e-4, (seed, name)


@pytest.mark.parametrize("driver", ["native", "python", "module", "fx"])
def test_work_is_late_on_its_stream_and_its_memory_is_kept_until_then(sleeping: object, driver: str) -> None:
    program = program_on("cuda:0", LATE)
    x, w = inputs_on("cuda:0")
    call = make_drivers(program)[driver]
    wanted = (-x, x, x @ w)
    for _ in range(3):
        found = call([x, w])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.cpu(), other.cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("driver", ["native", "python", "module", "fx"])
def test_a_call_that_fails_on_a_stream_leaves_the_current_one_as_it_was(driver: str) -> None:
    call = make_drivers(program_on("cuda:0", FAILING))[driver]
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        call([torch.zeros(64, 64, device="cuda"), torch.zeros(3, 3, device="cuda")])
    assert torch.cuda.current_stream() == before
