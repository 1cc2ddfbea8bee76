"""The native executor's C++ is read from the bottom up: a room includes what is in it and in those below."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from coilwork_runtime.executor.native_program import FOLDER
from coilwork_runtime.native_build import list_source_files

ROOMS = ("containers", "interfaces", "program", "call", "libraries", "replay", "running", ".")


def height(name: str) -> int:
    return ROOMS.index(str(PurePosixPath(name).parent))


def test_rooms_include_those_below() -> None:
    files = list_source_files(FOLDER)
    included = {name: re.findall(r'#include "([^"]+)"', path.read_text()) for name, path in files.items()}
    assert {str(PurePosixPath(name).parent) for name in files} == set(ROOMS)
    assert {name for names in included.values() for name in names} <= set(files)
    upward = [
        (name, other) for name, names in included.items() for other in names if height(other) > height(name)
    ]
    assert not upward


def test_every_header_is_included() -> None:
    files = list_source_files(FOLDER)
    texts = "".join(path.read_text() for path in files.values())
    assert [name for name in files if name.endswith(".hpp") and f'#include "{name}"' not in texts] == []
