"""Calls with positions out of bounds on a GPU: where eager's kernels stop at an assertion, compiled code
gives no result either.

An assertion ends its process's context, so each call is made in a process of its own; all of them are
children of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from filelock import FileLock

from integration_tests.bad_device_calls import CALLS, FAR, TAKEN_ON_GPUS, WAYS, read_answers

pytestmark = [
    pytest.mark.gpu,
    # all calls are made in the first test, a context of the device each
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """Made once: of several workers, whose folders have one parent, the first makes all calls."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    found = folder / "bad_device_calls.jsonl"
    with FileLock(folder / "bad_device_calls.lock"):
        if not found.exists():
            command = [sys.executable, "-m", "integration_tests.bad_device_calls", "cuda"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=570)
            assert done.returncode == 0, done.stderr[-2000:]
            found.write_text(done.stdout)
    return read_answers(found.read_text().splitlines())


def test_every_call_is_made_in_every_way(answers: dict[str, dict[str, dict[str, Any]]]) -> None:
    assert {name: set(ways) for name, ways in answers.items()} == {name: set(WAYS) for name in (*CALLS, *FAR)}


@pytest.mark.parametrize("name", sorted(set(CALLS) - TAKEN_ON_GPUS))
def test_bad_calls_give_no_result(name: str, answers: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Neither where eager's kernel stops, nor where it has no assertion and reads what lies there."""
    assert answers[name]["eager"]["is"] in ("an assertion", "RuntimeError", "IndexError", "a result")
    for way in WAYS[1:]:
        assert answers[name][way]["is"] in ("an assertion", "RuntimeError", "IndexError"), answers[name]


@pytest.mark.parametrize("name", sorted(TAKEN_ON_GPUS))
def test_calls_that_eager_answers_have_eagers_result(
    name: str, answers: dict[str, dict[str, dict[str, Any]]]
) -> None:
    assert answers[name]["eager"]["is"] == "a result", answers[name]
    for way in WAYS[1:]:
        assert answers[name][way]["is"] == "a result", answers[name]
        assert answers[name][way]["values"] == answers[name]["eager"]["values"]


@pytest.mark.parametrize("name", sorted(FAR))
def test_an_assertion_comes_before_an_illegal_access(
    name: str, answers: dict[str, dict[str, dict[str, Any]]]
) -> None:
    for way in WAYS[1:]:
        assert answers[name][way]["is"] in ("an assertion", "IndexError"), answers[name]
