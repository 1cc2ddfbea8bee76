"""The models that torch keeps as cases of `torch.export`, from packages that a fresh process loads.

    python -m integration_tests.exported_cases [NAME...]

Each case of `torch._export.db` is exported with its open sizes, packaged, and called with its inputs and with
its others, if it has some; values and their nesting are eager's. Prints a line per case and exits with 1 if
any is wrong or raises. "torch": torch does not export the case, or its program is not what eager gives.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from integration_tests.modules.checks import Outcome

MODULE: Final = "integration_tests.exported_cases"
TIMEOUT_S: Final = 600.0


def list_cases() -> dict[str, Any]:
    """Torch's cases by name."""
    from torch._export.db.examples import all_examples

    return dict(sorted(all_examples().items()))


def check_cases(names: Sequence[str]) -> list[Outcome]:
    """The outcome of each case: "ok", "wrong", "raises" (ours) or "torch"."""
    cases = list_cases()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = {one: _write(cases[one], folder / one) for one in names}
        subprocess.run([sys.executable, "-m", MODULE, "--load", name], check=True, timeout=TIMEOUT_S)
        return [made[one] or _judge(one, folder / one) for one in names]


def _list_calls(case: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """New copies of the arguments, which a model may write to."""
    calls = [(case.example_args, case.example_kwargs)]
    extra = [] if case.extra_args is None else [(case.extra_args, case.example_kwargs)]
    return copy.deepcopy([*calls, *extra])


def _write(case: Any, folder: Path) -> Outcome | None:
    """Write the package, inputs, and what eager gives; an outcome where there is none to compare."""
    from coilwork import export

    folder.mkdir()
    torch.manual_seed(0)
    try:
        wanted = [case.model(*arguments, **keywords) for arguments, keywords in _list_calls(case)]
        program = torch.export.export(
            case.model, *_list_calls(case)[0], dynamic_shapes=case.dynamic_shapes, strict=False
        )
        module = program.module()
        for (arguments, keywords), expected in zip(_list_calls(case), wanted, strict=True):
            torch.testing.assert_close(module(*arguments, **keywords), expected)
    except Exception as error:  # noqa: BLE001  whatever torch raises, there is no program
        return Outcome(sample=case.name, status="torch", detail=_describe(error))
    torch.save(_list_calls(case), folder / "calls.pt")
    torch.save(wanted, folder / "wanted.pt")
    try:
        export(program, path=folder / "model.cw")
    except Exception as error:  # noqa: BLE001  a case is an outcome, whatever happens
        return Outcome(sample=case.name, status="raises", detail=_describe(error))
    return None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]


def _judge(name: str, folder: Path) -> Outcome:
    if (folder / "error.txt").exists():
        return Outcome(sample=name, status="raises", detail=(folder / "error.txt").read_text())
    found = torch.load(folder / "found.pt", weights_only=True)
    wanted = torch.load(folder / "wanted.pt", weights_only=True)
    try:
        torch.testing.assert_close(found, wanted)
    except AssertionError as error:
        return Outcome(sample=name, status="wrong", detail=_describe(error))
    return Outcome(sample=name, status="ok")


def load_all(folder: Path) -> None:
    """The fresh process: call every package in `folder`."""
    from coilwork_aot import load

    for path in sorted(folder.glob("*/model.cw")):
        try:
            model = load(path)
            calls = torch.load(path.with_name("calls.pt"), weights_only=True)
            found = [model(*arguments, **keywords) for arguments, keywords in calls]
            torch.save(found, path.with_name("found.pt"))
        except Exception as error:  # noqa: BLE001  the parent tells it
            path.with_name("error.txt").write_text(_describe(error))


def main(words: Sequence[str]) -> int:
    """Check the cases that are named, or all."""
    if words[:1] == ["--load"]:
        load_all(Path(words[1]))
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_cases(words or list(list_cases()))
    for one in found:
        print(f"{one.sample:<32} {one.status:<7} {one.detail}")
    print(
        ", ".join(f"{count} {status}" for status, count in sorted(Counter(o.status for o in found).items()))
    )
    return int(any(one.status in ("wrong", "raises") for one in found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
