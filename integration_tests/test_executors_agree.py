"""The native executor, the interpreter and the Python module do the same, one by one: results, updates of
inputs, allocations, releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.stages import run_stages
from coilwork_cache import MemoryStore
from coilwork_frontend.calling_convention.convention import Role
from coilwork_ir.errors import EmitError
from coilwork_ir.index import as_int
from coilwork_ir.program.text import parse_program
from coilwork_runtime import Builder, LifetimeChecker, load_interpreted, load_native
from coilwork_runtime.executor import program_reader
from coilwork_runtime.module_loader import execute_module
from coilwork_wrapper import emit_native, emit_python, encode_program
from coilwork_wrapper.native import wire_format
from integration_tests.all_levels import Call, clone
from integration_tests.aot_backend import compile_by_role
from integration_tests.memory_events import NativeRecorder, allocator_events, recording
from integration_tests.test_wrappers_agree import CASES, Case

RUNTIME = "integration_tests.memory_events"


class BothExecutors:
    """A torch.compile backend that runs every graph by both executors and as a module, and by the native one
    again under the lifetime checker."""

    def __init__(self, store: MemoryStore, *, pools: bool = False) -> None:
        self.store = store
        self.options = CompileOptions(strict=True, pools=pools)
        self.calls = 0
        self.events = 0
        self.peaks: list[tuple[int | None, int]] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
        return compile_by_role(gm, example_inputs, self._compile)

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role) -> Any:
        job = open_job(gm, example_inputs, role=role, options=self.options)
        compiled = run_stages(job, fallback=())
        data = emit_native(compiled.program)
        assert data == compiled.written.program
        text = emit_python(compiled.program, compiled.sources, runtime=RUNTIME)
        module = execute_module(text, job.graph_id)
        launchers = Builder(self.store).build(module.specs)
        python = module.make_call(launchers, compiled.written.constants)
        interpreted = load_interpreted(data, launchers=launchers, constants=compiled.written.constants)
        recorder, checker = NativeRecorder(), LifetimeChecker()
        unwatched, native, checked = (
            load_native(
                data,
                launchers=launchers,
                constants=compiled.written.constants,
                fallback=lambda: interpreted,
                store=self.store,
                watch=watch,
            )
            for watch in (None, recorder, checker)
        )

        def call(args: list[Any]) -> Sequence[Any]:
            given = list(args)
            args.clear()
            with recording() as heard:
                expected = self._run(python, given)
                events = list(heard.events)
            for one in (unwatched.call, native.call, checked.call, interpreted):
                _same(self._run(one, given), expected)
            assert recorder.recorder.events == events
            # a program that is not watched settles who holds memory when it is loaded, so torch's allocator
            # is asked
            blocks = _allocator_events(python, given)
            assert _allocator_events(unwatched.call, given) == blocks
            assert _allocator_events(interpreted, given) == blocks
            self.events += len(events)
            self.calls += 1
            peak = compiled.program.peak_bytes
            self.peaks.append((None if peak is None else as_int(peak), checker.peak_bytes))
            return python(given)

        call._boxed_call = True
        return call

    @staticmethod
    def _run(call: Call, given: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        inputs = [clone(value) for value in given]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return call(list(inputs)), inputs


def _allocator_events(call: Call, given: Sequence[Any]) -> list[int]:
    """Blocks of one call, its inputs aside; single numbers are left out: a scalar becomes a tensor on its way
    to an operator.
    """
    inputs = [clone(value) for value in given]
    results: list[Any] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        events = allocator_events(lambda: results.append(call(list(inputs))))
    return [size for size in events if abs(size) > 8]


def _same(ours: tuple[Sequence[Any], Sequence[Any]], theirs: tuple[Sequence[Any], Sequence[Any]]) -> None:
    for one, other in zip((*ours[0], *ours[1]), (*theirs[0], *theirs[1]), strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, check_stride=True)
        else:
            assert one == other


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def test_both_readers_know_the_same_instructions() -> None:
    known = {code.name: code.value for code in program_reader.Code}
    assert known == {code.name: code.value for code in wire_format.Code}


BEYOND = """program @beyond {
  symbol s0 in [0, inf]
  input %x: f32[s0]
  bind s0 in [0, inf] size %x 0
  check %x
  extern "aten.add.Scalar" (%x, `s0 + 4722366482869645213696 - 4722366482869645213695`) defines (%y: f32[s0])
  return (%y, `s0 + 4722366482869645213696`, `s0 - 4722366482869645213697`)
}"""


def test_python_runs_what_the_native_executor_refuses() -> None:
    program = parse_program(BEYOND)
    encoded = encode_program(program)
    assert encoded.refusal is not None and "4722366482869645213696" in str(encoded.refusal)
    with pytest.raises(EmitError):
        emit_native(program)
    interpreted = load_interpreted(encoded.data, launchers={}, constants={})
    module = execute_module(emit_python(program, {}), "beyond").make_call({}, {})
    for count in (0, 3):
        found, expected = interpreted([torch.ones(count)]), module([torch.ones(count)])
        assert torch.equal(found[0], expected[0]) and found[0].tolist() == [count + 2.0] * count
        assert found[1:] == expected[1:] == (count + (1 << 72), count - (1 << 72) - 1)


@pytest.mark.parametrize("pools", [False, True], ids=["single", "pools"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_executors_agree(case: Case, pools: bool, store: MemoryStore) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    both = BothExecutors(store, pools=pools)
    compiled = torch.compile(case.make(), backend=both)
    case.run(compiled)
    assert both.calls == len(case.calls) * len(case.graphs)
    assert both.events
    # what operators allocate for their results is predicted, too, and the checker does not see it
    assert all(predicted is None or measured <= predicted for predicted, measured in both.peaks)
