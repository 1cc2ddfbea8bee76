"""The comparison of kernel texts: what counts as a difference, and one case that a tree's process writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kernel_texts import (
    Launched,
    Step,
    describe_difference,
    list_model_launches,
    main,
    normalize_text,
    read_json,
    to_json,
)

TEXT = '''
@triton.jit
def sum_{digest}_part(own):
    pass

"""A kernel for line {line}."""

@triton.jit
def sum_{digest}(in0, XBLOCK: tl.constexpr):
    # a comment
    x0 = tl.program_id(0) * {factor}
    tl.store(in0 + x0, 0)
'''


def step(digest: str, *, line: int = 1, factor: int = 2, launch: str = "grid (1,)") -> Step:
    text = TEXT.format(digest=digest, line=line, factor=factor)
    return Step(name=f"sum_{digest}", text=text, launch=f"{launch} of @sum_{digest}")


def case(*steps: Step) -> Launched:
    return Launched(set="main", steps=steps)


CALL = Step(name="aten.mm.default")


def test_comments_and_names_are_ignored() -> None:
    assert not describe_difference(case(step("ab", line=7), CALL), case(step("cd", line=9), CALL))
    lines = normalize_text(step("ab").text, ["sum_ab"]).splitlines()
    assert "def KERNEL(in0, XBLOCK: tl.constexpr):" in lines


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (case(step("cd", factor=3), CALL), "1 texts"),
        (case(step("cd", launch="grid (2,)"), CALL), "1 launches"),
        (case(step("cd"), step("ef")), "1 kernels and 1 calls are 2 and 0"),
        (case(CALL, step("cd")), "order: sum_ab is aten.mm.default"),
        (
            case(step("cd"), replace(CALL, name="aten.bmm.default")),
            "order: aten.mm.default is aten.bmm.default",
        ),
        (Launched(set="main", failure="ValueError: no"), "failed: ValueError: no"),
    ],
)
def test_differences_are_summarised(new: Launched, said: str) -> None:
    assert describe_difference(case(step("ab"), CALL), new) == said


def test_texts_round_trip() -> None:
    found = {"a": case(step("ab"), CALL), "b": Launched(set="", failure="x")}
    assert read_json(to_json(found)) == found


def test_a_case_is_written_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    assert main(["write", str(old), "softmax 4096x8192, open sizes"]) == 0
    found = read_json(old.read_text())
    ((name, launched),) = found.items()
    assert (launched.set, len(launched.steps)) == ("open", 1)
    assert "otherwise:" in launched.steps[0].launch and "tl.load" in launched.steps[0].text
    changed = replace(launched.steps[0], text=launched.steps[0].text.replace("tl.store", "tl.stored"))
    new.write_text(to_json({name: replace(launched, steps=(changed,))}))
    capsys.readouterr()
    assert main(["compare", str(old), str(old)]) == 0
    assert main(["compare", str(old), str(new), "--diff"]) == 1
    told = capsys.readouterr().out
    assert told.splitlines()[0] == f"open\t{name}\t1 texts" and "+    tl.stored" in told
    assert json.loads(old.read_text()).keys() == {name}


def test_a_models_launches_and_calls_are_listed() -> None:
    found = list_model_launches("gpt2", "sm_90", train=False, dtype="bf16", size="reduced")
    assert any(one.text for one in found.steps) and any(not one.text for one in found.steps)
