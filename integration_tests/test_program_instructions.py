"""The table of docs/how-to/add-a-program-instruction.md: where an instruction has a case, all have one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, get_args

import pytest

from coilwork_ir.program.nodes import Instruction

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "docs" / "how-to" / "add-a-program-instruction.md"
FILES: Final = re.findall(r"^\| `(coilwork_[^`]+)` \|", TABLE.read_text(), re.MULTILINE)
# The first two ask what an instruction defines, or uses memory for: most say nothing. `parser.py` leaves the
# instructions on streams to `coilwork_ir.text.atoms`.
PARTIAL: Final = ("walk.py", "verify_inflight.py", "parser.py")


@pytest.mark.parametrize("path", FILES)
def test_every_instruction_has_a_case_in_each_file_of_the_table(path: str) -> None:
    package = path.split("/")[0].replace("_", "-")
    text = (ROOT / "packages" / package / "src" / path).read_text()
    missing = [
        kind.__name__ for kind in get_args(Instruction) if not re.search(rf"\b{kind.__name__}\b", text)
    ]
    assert not missing or path.endswith(PARTIAL)


def test_the_tables_count_their_files() -> None:
    text = " ".join(TABLE.read_text().split())
    assert len(FILES) == 13 and "thirteen files" in text
    executors = ROOT / "packages" / "coilwork-runtime" / "src" / "coilwork_runtime" / "executor"
    found = re.findall(r"^\| `([a-z_/]+\.(?:hpp|py))` \|", TABLE.read_text(), re.MULTILINE)
    own = [name for name in found if not name.startswith("coilwork_")]
    assert len(own) == 6 and "these six files" in text
    assert all((executors / name).is_file() for name in own)
