"""A program takes whatever it is given: it runs, or torch's operators do, or it says what is wrong; the
process lives on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import foreign_inputs
import pytest
import torch
from foreign_inputs import FITTING, FORMS, MODES, NUMBERS, OTHERS, WITHOUT_MEMORY
from hypothesis import given, settings
from hypothesis import strategies as st

from coilwork_runtime import ExecutorUnavailableError, LayoutError, collect_kinds
from coilwork_runtime.executor import native_program as program_module
from coilwork_runtime.tensor_kinds import PLAIN
from coilwork_runtime.torch_compat import dispatch_keys, make_kind_samples

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


class Child:
    """A process that calls a program; another one after it crashed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What became of a call."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            code, self._process = process.wait(), None
            self._errors.seek(0)
            pytest.fail(f"the process ended with code {code}: {self._errors.read()[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            script = Path(__file__).with_name("foreign_inputs.py")
            self._process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=os.environ,
            )
            assert self._process.stdout is not None
            assert self._process.stdout.readline()
        return self._process


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


def question(*tensors: str, number: str = "7", mode: str = "none", form: str = "list") -> dict[str, Any]:
    return {"tensors": tensors, "numbers": [number], "mode": mode, "form": form}


@pytest.mark.parametrize("form", FORMS)
def test_tensors_in_memory_are_read(child: Child, form: str) -> None:
    for name in FITTING:
        answer = child.ask(question(name, "plain", form=form))
        assert answer["found"].startswith("Tensor torch.float32 cpu") and answer["same"], name


@pytest.mark.parametrize("form", FORMS)
def test_other_tensors_get_what_eager_gives(child: Child, form: str) -> None:
    """Alone, beside plain ones, and beside others of their kind."""
    operators_run = {
        "meta",
        "fake",
        "functional",
        "functional object",
        "wrapper",
        "zeros without memory",
        "sparse",
    }
    for name in OTHERS:
        for tensors in ((name, name), (name, "plain"), ("plain", name)):
            answer = child.ask(question(*tensors, form=form))
            refused = answer["found"] in ("raised LayoutError", "raised TypeError", "raised RuntimeError")
            assert answer["found"] == answer["expected"] or (refused and name not in operators_run), (
                tensors,
                answer,
            )


@pytest.mark.parametrize("form", FORMS)
def test_memory_that_was_given_back_is_not_read(child: Child, form: str) -> None:
    for name in WITHOUT_MEMORY:
        for tensors in ((name, "plain"), ("plain", name)):
            for mode in ("none", "fake", "fake beside real", "functional", "flops"):
                answer = child.ask(question(*tensors, mode=mode, form=form))
                assert answer["found"] == "raised LayoutError", (tensors, mode)


@pytest.mark.parametrize("form", FORMS)
def test_modes_see_operators(child: Child, form: str) -> None:
    for mode in ("fake", "fake beside real", "flops", "silent", "functional"):
        answer = child.ask(question("plain", "plain", mode=mode, form=form))
        assert answer["found"] == answer["expected"] and answer["same"], (mode, answer)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_every_kind_get_what_eager_gives(child: Child, form: str) -> None:
    for name in NUMBERS:
        answer = child.ask(question("plain", "plain", number=name, form=form))
        found, expected = (re.sub(r"u\d+", "u", answer[key]) for key in ("found", "expected"))
        assert found == expected and answer["same"], (name, answer)


everything = st.fixed_dictionaries(
    {
        "tensors": st.lists(st.sampled_from([*FITTING, *OTHERS, *WITHOUT_MEMORY]), min_size=0, max_size=3),
        "numbers": st.lists(st.sampled_from([*NUMBERS]), min_size=0, max_size=2),
        "mode": st.sampled_from([*MODES]),
        "form": st.sampled_from(FORMS),
    }
)


@given(everything)
@settings(max_examples=300, deadline=None)
def test_no_input_ends_the_process(child: Child, asked: dict[str, Any]) -> None:
    answer = child.ask(asked)
    plain = set(asked["tensors"]) <= {*FITTING} and asked["numbers"] == ["7"]
    if plain and len(asked["tensors"]) == 2 and asked["mode"] in ("none", "inference", "gradients"):
        assert answer["found"] == answer["expected"] and answer["same"]


def test_lists_that_are_no_calls_are_refused() -> None:
    program = foreign_inputs.make_program()
    for wrong in ([], [1], [torch.ones(2)] * 9):
        with pytest.raises(ValueError, match="values to unpack"):
            program.call(wrong)
        with pytest.raises(ValueError, match="values to unpack"):
            program.direct(*wrong)


def test_kinds_that_a_program_was_compiled_for_are_taken() -> None:
    sparse = torch.eye(3).to_sparse()
    assert collect_kinds([torch.ones(2), 3, None]) == PLAIN
    kinds = collect_kinds([torch.ones(2), sparse])
    assert dispatch_keys(sparse) & ~kinds.allowed == 0 and dispatch_keys(sparse) & kinds.required
    assert dispatch_keys(sparse) & PLAIN.required == 0
    weight = torch.eye(3).to_mkldnn()
    packed = collect_kinds([torch.ones(2)], packed=True)
    assert dispatch_keys(weight) & ~packed.allowed == 0 and dispatch_keys(weight) & packed.required
    assert dispatch_keys(weight) & ~PLAIN.allowed
    fake = foreign_inputs.value_of("fake")
    assert collect_kinds([fake]) == PLAIN and dispatch_keys(fake) & ~PLAIN.allowed


def test_samples_have_nothing_in_common() -> None:
    """Otherwise a tensor's keys, or where its memory is, could be taken for something else."""
    _, *facts = zip(*make_kind_samples(), strict=True)
    for numbers in facts:
        known = [number for number in numbers if number]
        assert len(set(known)) == len(known) >= 4


def test_tensors_that_nothing_is_known_of_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    class Extension:
        learn = staticmethod(lambda samples: True)
        learn_kinds = staticmethod(lambda *facts: False)

    monkeypatch.setattr(program_module, "load_own_extension", lambda name, store, **rest: Extension)
    with pytest.raises(ExecutorUnavailableError, match="cannot tell what tensors of this torch are"):
        program_module.find_executor_extension(None)


def test_without_operators_such_calls_are_refused() -> None:
    from coilwork_runtime.tensor_kinds import refuse_operators

    with pytest.raises(LayoutError, match="given tensors without"):
        refuse_operators([foreign_inputs.value_of("fake"), 3])
    with pytest.raises(TypeError, match="Tensor on cpu, str"):
        refuse_operators([torch.ones(2), "text"])
