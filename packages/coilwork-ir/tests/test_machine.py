"""Data files of machines: what they say, what they refuse, and which one serves for a target."""

from __future__ import annotations

import time
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from coilwork_ir.machine import (
    TUNING,
    MachineFileError,
    MachineModel,
    list_borrowed,
    read_entries,
    read_model,
)
from coilwork_ir.machine.data_file import read_file
from coilwork_ir.target import TARGETS, Target

FILES = sorted(TUNING.glob("*.toml"))


def figures(model: MachineModel) -> dict[str, int | float]:
    """The figures of `model` by `subject.name`."""
    subjects = {field.name: getattr(model, field.name) for field in fields(model) if field.name != "name"}
    return {
        f"{name}.{f.name}": getattr(value, f.name) for name, value in subjects.items() for f in fields(value)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_figure_has_unit_and_source(path: Path) -> None:
    """And TOML's own reader finds in the file what ours does."""
    told = tomllib.loads(path.read_text())
    sources, stand_ins = told.pop("sources"), told.pop("stand-in", {})
    entries = read_entries(path)
    assert {f"{s}.{n}": entry for s, table in told.items() for n, entry in table.items()} == {
        name: entry._asdict() for name, entry in entries.items()
    }
    assert {entry.source for entry in entries.values()} == set(sources), "each source is told, and used"
    assert all(entry.unit.strip() and sources[entry.source].strip() for entry in entries.values())
    found = figures(read_model(path))
    assert set(entries) <= set(found)
    for name, value in found.items():
        subject = name.split(".")[0]
        said = entries if name in entries else read_entries(TUNING / f"{stand_ins[subject]}.toml")
        assert value == said[name].value


def test_others_stand_in_for_the_first_device_only_where_it_runs_nothing_alike() -> None:
    assert tomllib.loads((TUNING / "sm_90.toml").read_text())["stand-in"] == {"loops": "cpu"}


def test_a_stand_in_has_figures_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('[stand-in]\nmemory = "mine"\n')
    (tmp_path / "mine.toml").write_text('[stand-in]\nmemory = "other"\n')
    with pytest.raises(MachineFileError, match="other cannot stand in for memory"):
        read_model(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bound = {", "bond = {", r"\[launches\] knows no figure bond"),
        ("[launches]", "[launching]", "no subject is called launching"),
        ("[launches]", "[memory]", r"a second table \[memory\]"),
        ("value = 2,", "value = 2.5,", "full_programs is a whole number, not 2.5"),
        ("value = 2,", "value = two,", "the value of full_programs is no number: two"),
        (', source = "cuda-guide"', "", "a figure is written"),
        ('unit = "bytes"', 'unit = ""', "a figure is written"),
        ("[memory]", "# memory", "no subject is called fetched_bytes"),
        ('loops = "cpu"', 'lunches = "cpu"', "no subject is called lunches"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (TUNING / "sm_90.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    (tmp_path / "cpu.toml").write_text((TUNING / "cpu.toml").read_text())
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MachineFileError, match=message) as error:
        read_model(path)
    assert str(path) in str(error.value)


def test_a_missing_figure_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "cpu.toml").write_text((TUNING / "cpu.toml").read_text())
    for line in (TUNING / "sm_90.toml").read_text().splitlines():
        name, is_figure, _ = line.partition(" = { value")
        if is_figure:
            path = tmp_path / f"{name}.toml"
            path.write_text((TUNING / "sm_90.toml").read_text().replace(f"\n{line}\n", "\n"))
            with pytest.raises(MachineFileError, match=f"says nothing of {name}"):
                read_model(path)


def test_a_device_says_what_is_its_own_and_who_stands_in(tmp_path: Path) -> None:
    for name in ("sm_90.toml", "cpu.toml"):
        (tmp_path / name).write_text((TUNING / name).read_text())
    subjects = [field.name for field in fields(MachineModel) if field.name not in ("name", "loops")]
    own = '[launches]\nbound = { value = 3.0, unit = "launches", source = "here" }\n'
    mine = tmp_path / "mine.toml"
    mine.write_text('[stand-in]\nloops = "cpu"\n' + "".join(f'{name} = "sm_90"\n' for name in subjects) + own)
    model, other = read_model(mine), read_model(TUNING / "sm_90.toml")
    assert model.name == "mine" and model.launches == replace(other.launches, bound=3.0)
    assert model.memory == other.memory


def test_a_file_elsewhere_is_enough_and_says_what_it_borrows(tmp_path: Path) -> None:
    """A vendor's, with one figure of its own: the rest is that of a device of this package."""
    path = tmp_path / "theirs.toml"
    path.write_text(
        '[stand-in]\nrest = "sm_90"\nloops = "cpu"\n'
        '[launches]\nbound = { value = 3.0, unit = "launches", source = "here" }\n'
    )
    model, other = read_model(path), read_model(TUNING / "sm_90.toml")
    assert model.launches == replace(other.launches, bound=3.0) and model.grids == other.grids
    borrowed = list_borrowed(path)
    assert set(figures(model)) - set(borrowed) == {"launches.bound"}
    assert borrowed["grids.least_row"] == "sm_90" and borrowed["loops.grain"] == "cpu"
    assert set(list_borrowed(TUNING / "sm_90.toml").values()) == {"cpu"}


def test_targets_have_the_figures_of_their_name_or_of_a_device_like_them() -> None:
    assert {name: target.machine.name for name, target in TARGETS.items()} == {
        "sm_80": "sm_80",
        "sm_90": "sm_90",
        "sm_100": "sm_90",
        "gfx942": "gfx942",
        "x86-64-avx2": "cpu",
        "x86-64-avx512": "cpu",
        "aarch64-neon": "cpu",
    }
    assert replace(TARGETS["sm_90"], name="sm_120").machine.name == "sm_90"


def test_a_model_that_is_handed_in_is_the_one() -> None:
    own = replace(TARGETS["sm_90"].machine, name="mine")
    target: Target = replace(TARGETS["sm_90"], model=own)
    assert target.machine is own
    assert target != TARGETS["sm_90"] and hash(target) == hash(TARGETS["sm_90"])


def test_reading_is_quick() -> None:
    """Less than a millisecond of CPU time, once in a process."""
    times = []
    first = None
    for _ in range(5):
        read_model.cache_clear()
        read_file.cache_clear()
        start = time.process_time()
        first = read_model(TUNING / "sm_90.toml")
        times.append(time.process_time() - start)
    assert min(times) < 1e-3
    assert read_model(TUNING / "sm_90.toml") is first
