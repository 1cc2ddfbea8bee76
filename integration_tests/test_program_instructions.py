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


def test_the_table_counts_its_files() -> None:
    assert len(FILES) == 13 and "thirteen files" in " ".join(TABLE.read_text().split())
