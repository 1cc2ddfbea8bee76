"""Calling: errors, leaks, threads."""

from __future__ import annotations

import gc
import resource
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hand_programs import RELU_ADD, RELU_ADD_SOURCE, SPECS, compiled, program_of, specs_of

from coilwork_cpp_wrapper import build_cpp, emit_cpp
from coilwork_runtime import LayoutError

MISMATCH = """program @p {
  symbol s0 in [1, inf]
  symbol s1 in [1, inf]
  input %x: f32[s0, 128]
  input %w: f32[s1, 128]
  bind s0 in [1, inf] size %x 0
  bind s1 in [1, inf] size %w 0
  alloc %a: f32[s0, 128]
  extern "aten.cat.default" ([%x, %x]) defines (%b: f32[2*s0, 128])
  extern "aten.linear.default" (%b, %b) defines (%c: f32[2*s0, 2*s0])
  extern "aten.bmm.default" (%x, %w) defines (%y: f32[s0, s1]) loc("bmm" "aten.bmm" "model.py":12 \
"y = x @ w" "")
  return (%y, %a, %c)
}"""
FINE = MISMATCH.replace('extern "aten.bmm.default" (%x, %w)', 'extern "aten.linear.default" (%x, %w)')


def resident_bytes() -> int:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def test_an_error_in_an_operator_names_instruction_and_source_line(capfd: pytest.CaptureFixture[str]) -> None:
    call = compiled(MISMATCH)
    with pytest.raises(RuntimeError) as caught:
        call([torch.randn(2, 128), torch.randn(3, 128)])
    message = str(caught.value)
    assert "node    extern aten.bmm.default" in message
    assert "source  model.py:12   y = x @ w" in message
    # before 2.13 torch's C interface prints the operator's words instead of handing them out
    assert "3D tensor" in message or "3D tensor" in capfd.readouterr().err


# A failing operator costs 25 ms, because torch looks up the names of its stack.
@pytest.mark.parametrize(("text", "times"), [(FINE, 1000), (MISMATCH, 200)], ids=["success", "failure"])
def test_many_calls_leak_nothing(text: str, times: int, capfd: pytest.CaptureFixture[str]) -> None:
    call = compiled(text)

    def once() -> None:
        x, w = torch.from_numpy(memory), torch.randn(256, 128)
        if text is FINE:
            call([x, w])
            return
        with pytest.raises(RuntimeError):
            call([x, w])

    memory = np.ones((256, 128), dtype=np.float32)
    idle = sys.getrefcount(memory)
    for _ in range(times // 10):
        once()
    gc.collect()
    before = resident_bytes()
    for _ in range(times):
        once()
    gc.collect()
    # the smallest result has 128 KiB, so losing one tensor per call would lose 25 MiB or more
    assert resident_bytes() - before < 16 << 20
    assert sys.getrefcount(memory) == idle
    capfd.readouterr()


def test_inputs_are_freed_when_the_program_says_so() -> None:
    text = """program @p {
      input %x: f32[4]
      extern "aten.neg.default" (%x) defines (%y: f32[4])
      free (%x)
      extern "coilwork_cpp_wrapper_probe.look.default" (%y) defines (%z: f32[4])
      return (%z)
    }"""
    states: list[bool] = []

    @torch.library.custom_op("coilwork_cpp_wrapper_probe::look", mutates_args=())
    def look(y: torch.Tensor) -> torch.Tensor:
        gc.collect()
        states.append(sys.getrefcount(memory) == idle)
        return y.clone()

    call = compiled(text)
    memory = np.ones(4, dtype=np.float32)
    idle = sys.getrefcount(memory)
    boxed = [torch.from_numpy(memory)]
    assert sys.getrefcount(memory) > idle
    call(boxed)
    assert states == [True]
    assert look is not None


def test_constants_are_held_and_released_with_the_program() -> None:
    memory = np.ones(4, dtype=np.float32)
    idle = sys.getrefcount(memory)
    held = [
        compiled('program @p {\n constant "w" %w: f32[4]\n return (%w)\n}', {"w": torch.from_numpy(memory)})
    ]
    gc.collect()
    assert sys.getrefcount(memory) > idle
    assert torch.equal(torch.as_tensor(held[0]([])[0]), torch.ones(4))
    held.clear()
    gc.collect()
    assert sys.getrefcount(memory) == idle


def test_two_threads_at_once() -> None:
    call, failing = compiled(FINE), compiled(MISMATCH.replace("model.py", "other.py"))
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for turn in range(100):
            n = 1 + (seed + turn) % 7
            x, w = torch.randn(n, 128, generator=generator), torch.randn(3, 128, generator=generator)
            y, *_ = call([x, w])
            if not torch.allclose(torch.as_tensor(y), x @ w.t(), atol=1e-4):
                wrong.append(f"result of thread {seed}")
            try:
                failing([x, w])
            except RuntimeError as error:
                if "other.py:12" not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_wrong_number_or_kind_of_inputs() -> None:
    call = compiled(FINE)
    for boxed in ([], [torch.randn(2, 128)], [torch.randn(2, 128), 3]):
        kept = list(boxed)
        with pytest.raises(LayoutError, match=r"takes \(x, w\)"):
            call(boxed)
        assert boxed == kept


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ("IndexError: index out of range", IndexError, "index out of range"),
        ("RuntimeError: not sorted", RuntimeError, "not sorted"),
        ("plain words", RuntimeError, "plain words"),
    ],
)
def test_checks_in_kernels(message: str, kind: type[Exception], words: str) -> None:
    source = replace(
        RELU_ADD_SOURCE,
        text='extern "C" long kernel(float* a, float* b, float* c, long n) { return a[0] < 0 ? 2 : 0; }',
        checks=("another", message),
    )
    program = program_of(
        f"""program @p {{
          input %x: f32[4]
          {RELU_ADD}
          launch @relu_add (%x, %x, %x) sizes [4] loc("e" "aten.embedding" "m.py":5 "self.table(ids)" "")
          return (%x)
        }}"""
    )
    call = build_cpp(emit_cpp(program, specs_of(source)), workers=1)
    call([torch.ones(4)])
    with pytest.raises(kind, match=rf"(?s){words} \(in kernel relu_add\).*m.py:5   self.table\(ids\)"):
        call([-torch.ones(4)])


def test_gradients_are_not_recorded() -> None:
    call = compiled(
        """program @p {
          input %x: f32[4, 4]
          alloc %y: f32[4, 4]
          extern "aten.mm.out" (%x, %x) out ("out" %y)
          extern "aten.neg.default" (%y) defines (%z: f32[4, 4])
          return (%z)
        }"""
    )
    x = torch.randn(4, 4, requires_grad=True)
    with torch.enable_grad():
        (z,) = call([x])
        assert torch.is_grad_enabled()
    assert isinstance(z, torch.Tensor)
    assert not z.requires_grad


def test_many_sizes_from_one_build() -> None:
    program = program_of(
        """program @p {
          symbol s0 in [0, inf]
          input %x: f32[s0]
          RELU_ADD
          bind s0 in [0, inf] size %x 0
          alloc %y: f32[s0]
          launch @relu_add (%x, %x, %y) sizes [s0]
          return (%y, `s0`)
        }"""
    )
    call = build_cpp(emit_cpp(program, SPECS), workers=1)
    for n in (0, 1, 2, 3, 1000):
        x = torch.randn(n)
        y, extent = call([x])
        assert extent == n
        assert torch.equal(torch.as_tensor(y), torch.relu(x) + x)
