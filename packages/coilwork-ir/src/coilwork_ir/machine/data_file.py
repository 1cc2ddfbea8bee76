"""Reads the data files of `tuning/`: figures with unit and source, and the model that the figures make.

A file is TOML of one shape, a line per figure, so that reading one takes a fraction of a millisecond.
(Importing `tomllib` takes fourteen, and reading two hundred figures with it seven. A test reads each file
both ways.)

    [launches]
    bound = { value = 1.5, unit = "launches", source = "memory-set" }

Comments are lines of their own. `[stand-in]` says of subjects whose figures serve for those that were not
measured on this device: `scans = "sm_90"`; `rest` is the device whose figures serve for all that is left
out. What the file itself says is this device's own, and `list_borrowed` says what is not. A device that
stands in has a file beside this one, or here in `tuning/`. `[sources]` is the last table: what each source
is, for people.

Lowering runs before graphs have targets and knows devices as torch names them: it is given a `FindModel`.
`find_like_model` is one that needs no compiler, for a package's own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.machine.model import MachineModel

# ---- Data files ----


TUNING: Final = Path(__file__).parent / "tuning"
"""The folder of the data files of devices that are measured here."""

STAND_IN: Final = "stand-in"
REST: Final = "rest"
SOURCES: Final = "sources"
_VALUE: Final = " = { value = "
_UNIT: Final = ', unit = "'
_SOURCE: Final = '", source = "'
_END: Final = '" }'


class MachineFileError(ValueError):
    """A data file of a machine that cannot be used: it names the file, and the figure or the line."""


class Entry(NamedTuple):
    """One figure, as its file says it."""

    value: int | float
    unit: str
    source: str


class MachineFile(NamedTuple):
    """A data file as it is written.

    Attributes:
        subjects: figures by name, by subject.
        stand_ins: subject -> the device whose figures stand in for those that are left out.
    """

    subjects: Mapping[str, Mapping[str, Entry]]
    stand_ins: Mapping[str, str]


@cache
def read_model(path: Path) -> MachineModel:
    """Return the model in the data file at `path`. A file is read once in a process.

    Raises:
        MachineFileError: a line has another shape, a figure is unknown, missing, or of another type.
    """
    read = read_file(path)
    known = get_type_hints(MachineModel)
    said = {*read.subjects, *read.stand_ins} - {REST}
    unknown = [name for name in said if name not in known or name == "name"]
    if unknown:
        raise MachineFileError(f"{path}: no subject is called {', '.join(sorted(set(unknown)))}")
    subjects = {name: _subject(path, name, kind, read) for name, kind in known.items() if name != "name"}
    return MachineModel(name=path.stem, **subjects)


def list_borrowed(path: Path) -> Mapping[str, str]:
    """Return the figures that the data file at `path` lacks, by `subject.name`, each with the device that it
    has it from.
    """
    read, own = read_file(path), read_entries(path)
    kinds = {name: kind for name, kind in get_type_hints(MachineModel).items() if name != "name"}
    names = [f"{subject}.{field.name}" for subject, kind in kinds.items() for field in fields(kind)]
    rest = read.stand_ins.get(REST, "")
    return {n: read.stand_ins.get(n.partition(".")[0], rest) for n in names if n not in own}


def read_entries(path: Path) -> Mapping[str, Entry]:
    """Return the figures that stand in the data file at `path`, each with unit and source, by `subject.name`.

    Raises:
        MachineFileError: a line has another shape.
    """
    subjects = read_file(path).subjects.items()
    return {f"{subject}.{name}": entry for subject, entries in subjects for name, entry in entries.items()}


@cache
def read_file(path: Path) -> MachineFile:
    """Return the data file at `path`, as it is written.

    Raises:
        MachineFileError: a line has another shape.
    """
    subjects: dict[str, dict[str, Entry]] = {}
    stand_ins: dict[str, str] = {}
    table = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line[0] == "#":
            continue
        if line[0] == "[":
            table = line[1:-1]
            if table == SOURCES:
                break
            if table in subjects:
                raise MachineFileError(f"{path}:{number}: a second table [{table}]")
            if table != STAND_IN:
                subjects[table] = {}
        elif table == STAND_IN:
            subject, _, device = line.partition(" = ")
            stand_ins[subject] = device.strip('"')
        else:
            name, entry = _entry(line, f"{path}:{number}")
            if table not in subjects or name in subjects[table]:
                raise MachineFileError(f"{path}:{number}: {name} stands in no table, or twice in [{table}]")
            subjects[table][name] = entry
    return MachineFile(subjects, stand_ins)


def _entry(line: str, where: str) -> tuple[str, Entry]:
    name, is_entry, rest = line.partition(_VALUE)
    value, has_unit, rest = rest.partition(_UNIT)
    unit, has_source, rest = rest.partition(_SOURCE)
    source, has_end, behind = rest.partition(_END)
    if not (is_entry and has_unit and has_source and has_end and unit and source) or behind:
        raise MachineFileError(
            f"{where}: a figure is written `name{_VALUE}1.5{_UNIT}bytes{_SOURCE}memory-set{_END}`"
        )
    try:
        number: int | float = int(value) if value.replace("_", "").isdecimal() else float(value)
    except ValueError:
        raise MachineFileError(f"{where}: the value of {name} is no number: {value}") from None
    return name, Entry(number, unit, source)


def _subject(path: Path, name: str, kind: type[Any], read: MachineFile) -> Any:
    """Return the figures of subject `name`, of the class `kind`."""
    given = read.subjects.get(name, {})
    types = {field.name: field.type for field in fields(kind)}
    values: dict[str, int | float] = {}
    device = read.stand_ins.get(name) or read.stand_ins.get(REST)
    if device is not None:
        beside = path.with_name(f"{device}.toml")
        other = beside if beside.exists() else TUNING / beside.name
        rest = read_file(other)
        if name in rest.stand_ins and not given.keys() >= types.keys():
            raise MachineFileError(
                f"{path}: {other.stem} cannot stand in for {name}: it has a stand-in itself"
            )
        values.update(_values(other, name, types, rest.subjects.get(name, {})))
    values.update(_values(path, name, types, given))
    missing = [figure for figure in types if figure not in values]
    if missing:
        raise MachineFileError(f"{path}: [{name}] says nothing of {', '.join(missing)}")
    return kind(**values)


def _values(
    path: Path, name: str, types: Mapping[str, Any], given: Mapping[str, Entry]
) -> dict[str, int | float]:
    """Return the figures that are `given` of subject `name`, each known and of its type."""
    for figure, entry in given.items():
        if figure not in types:
            raise MachineFileError(f"{path}: [{name}] knows no figure {figure}")
        if types[figure] == "int" and not isinstance(entry.value, int):
            raise MachineFileError(f"{path}: [{name}] {figure} is a whole number, not {entry.value}")
    return {figure: entry.value for figure, entry in given.items()}


# ---- Figures by device name ----


FindModel: TypeAlias = Callable[[str], MachineModel]
"""From a device, `"cuda:0"` or only its type, to what is measured of it."""


def find_like_model(device: str) -> MachineModel:
    """Return the figures of a device like `device`: a CPU's where kernels are loops of a processor, or an
    H200's.
    """
    return read_model(TUNING / ("cpu.toml" if has_trait(device, PROCESSOR) else "sm_90.toml"))
