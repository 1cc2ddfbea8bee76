"""Damaged and hostile packages, which both loaders have to refuse by a code, doing nothing else.

    python -m integration_tests.hostile_packages --files 10000 --seed 0

A small model is exported, and files are made of its package, by chance and as attackers do (`FAMILIES`).
Python's loader and the C++ library open each of them, in child processes that a crash ends alone. A file
fails if a loader crashes, raises anything but a refusal with a code, takes a file whose bytes it should have
refused, or takes longer than `SLOWEST_S`; if the loaders name different codes; or if something starts a
process, opens a file to write, or appears in the folder. Files of the family `rehashed` have right hashes:
they may load, and then nothing else may happen. Needs Linux, and g++ where the wheel has no library.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import torch

import coilwork_runtime
from coilwork_aot import PackageError, TargetError, load
from coilwork_aot.archive import Archive, encode_archive, read_archive
from coilwork_aot.cpp_library import LIBRARY, build_library
from coilwork_aot.errors import CODES
from coilwork_aot.manifest import DIGEST, MANIFEST
from coilwork_aot.record_hashes import hash_record
from coilwork_runtime import native_build

SLOWEST_S: Final = 5.0
MOST_BYTES: Final = 6 << 30
BATCH: Final = 200
TORCH: Final = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
PATHS: Final = (
    "../../../../tmp/x",
    "/etc/passwd",
    "..",
    ".",
    "a//b",
    "a\\..\\b",
    "C:/x",
    "a/../b",
    "\0",
    "~/x",
)
SIZES: Final = (
    0,
    1,
    63,
    1 << 16,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 62) + 1,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
KINDS: Final = (stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, 0)
VALUES: Final = (None, -1, 1 << 70, 1e308, "", "?", "../x", "\0", [], {}, [[]], True, ["x"] * 9, {"x": {}})
# What no loader may do, whatever the file.
FORBIDDEN: Final = frozenset(
    "os.exec os.fork os.forkpty os.posix_spawn os.spawn os.system pickle.find_class socket.connect "
    "subprocess.Popen".split()
)
# What it may do in a folder of its own if all hashes are right, as it loads machine code from there.
WRITING: Final = frozenset(
    "os.link os.mkdir os.remove os.rename os.rmdir os.symlink os.truncate shutil.rmtree".split()
)

# ---- files ----


@dataclass(frozen=True, slots=True)
class Originals:
    """Two packages, as bytes, and the records of the first."""

    one: bytes
    other: bytes
    records: Mapping[str, bytes]


def flip(originals: Originals, chance: random.Random) -> bytes:
    data = bytearray(originals.one)
    for _ in range(chance.choice((1, 1, 1, 2, 8, 64))):
        place = chance.randrange(len(data) * 8)
        data[place // 8] ^= 1 << place % 8
    return bytes(data)


def flip_headers(originals: Originals, chance: random.Random) -> bytes:
    """Bits of the directory at the end."""
    data = bytearray(originals.one)
    start = data.index(b"PK\x01\x02")
    for _ in range(chance.choice((1, 2, 4))):
        data[chance.randrange(start, len(data))] = chance.randrange(256)
    return bytes(data)


def cut(originals: Originals, chance: random.Random) -> bytes:
    data = originals.one
    at, to = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
    return chance.choice(
        (data[:at], data[at:], data[:at] + data[to:], data[: len(data) - chance.randrange(1, 200)])
    )


def insert(originals: Originals, chance: random.Random) -> bytes:
    data, at = originals.one, chance.randrange(len(originals.one) + 1)
    return data[:at] + chance.randbytes(chance.choice((1, 2, 64, 4096))) + data[at:]


def mix(originals: Originals, chance: random.Random) -> bytes:
    at, to = sorted(chance.randrange(len(originals.one)) for _ in range(2))
    return originals.one[:at] + originals.other[at:to] + originals.one[to:]


def make_noise(originals: Originals, chance: random.Random) -> bytes:
    head = chance.choice((b"", b"PK\x03\x04", originals.one[: chance.randrange(400)]))
    return head + chance.randbytes(chance.randrange(4096))


def rename(originals: Originals, chance: random.Random) -> bytes:
    """Names that lead elsewhere, or that another record has."""
    name = chance.choice([*originals.records]).encode()
    to = chance.choice((*PATHS, *originals.records)).encode()
    to = (to * len(name))[: len(name)] if len(to) < len(name) else to[: len(name)]
    return originals.one.replace(name, to)


def change_kind(originals: Originals, chance: random.Random) -> bytes:
    """Links, devices, folders; compressed, encrypted and streamed records."""
    data = bytearray(originals.one)
    at = chance.choice(find_entries(data))
    if chance.random() < 0.5:
        mode = (chance.choice(KINDS) | chance.choice((0o777, 0o4755, 0))) << 16
        data[at + 38 : at + 42] = mode.to_bytes(4, "little")
    else:
        place = at + chance.choice((8, 10))
        data[place : place + 2] = chance.choice((1, 8, 9, 12, 14, 99)).to_bytes(2, "little")
    return bytes(data)


def change_size(originals: Originals, chance: random.Random) -> bytes:
    """Sizes and places beyond the file, in the directory and in the end of it."""
    data = bytearray(originals.one)
    size = chance.choice(SIZES).to_bytes(8, "little")
    if chance.random() < 0.6:
        at = chance.choice(find_entries(data))
        extra = at + 46 + int.from_bytes(data[at + 28 : at + 30], "little") + 4
        for place in chance.choice(((0,), (8,), (16,), (0, 8), (0, 8, 16))):
            data[extra + place : extra + place + 8] = size
    else:
        at = data.rindex(b"PK\x06\x06") + chance.choice((24, 32, 40, 48))
        data[at : at + 8] = size
    return bytes(data)


def make_bomb(originals: Originals, chance: random.Random) -> bytes:
    """Archives of other writers: much in little, archives in archives, records one over the other."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in [*originals.records.items()][: chance.randrange(1, 6)]:
            big = bytes(chance.choice((1 << 16, 1 << 20, 1 << 22)))
            method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
            archive.writestr(name, chance.choice((data, big, originals.one)), method)
        archive.comment = chance.randbytes(chance.choice((0, 20, 60000)))
    made = file.getvalue()
    tail = originals.one[originals.one.rindex(b"PK\x06\x06") :]
    return chance.choice((made, made + tail, originals.one + made, made + originals.one))


def rehash(originals: Originals, chance: random.Random) -> bytes:
    """Contents that nobody wrote, with right hashes. Machine code stays: it is to be run."""
    records = dict(originals.records)
    names = [name for name in records if not records[name].startswith(b"\x7fELF") and name != DIGEST]
    name = chance.choice((MANIFEST, MANIFEST, *names))
    if name == MANIFEST and chance.random() < 0.8:
        records[name] = json.dumps(change_manifest(json.loads(records[name]), chance)).encode()
    else:
        data = bytearray(records[name])
        for _ in range(chance.choice((1, 1, 2, 8))):
            if data:
                data[chance.randrange(len(data))] = chance.choice(
                    (0, 1, 127, 128, 255, chance.randrange(256))
                )
        records[name] = bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data)
    return seal(records)


def change_manifest(manifest: Any, chance: random.Random) -> Any:
    inner = manifest
    while True:
        keys = [*inner] if isinstance(inner, dict) else [*range(len(inner))]
        if not keys:
            return manifest
        key = chance.choice(keys)
        value = inner[key]
        if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
            inner[key] = chance.choice((*VALUES, *map(int, SIZES)))
            if chance.random() < 0.1:
                del inner[key]
            return manifest
        inner = value


def seal(records: Mapping[str, bytes]) -> bytes:
    """A package of these records, with right sizes and hashes as far as the manifest can be read."""
    parts = dict(records)
    with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
        manifest = json.loads(parts[MANIFEST])
        for name, facts in manifest["records"].items():
            if name in parts and isinstance(facts, dict) and {*facts} == {"size", "sha256"}:
                facts |= {"size": len(parts[name]), "sha256": hash_record(parts[name])}
        parts[MANIFEST] = json.dumps(manifest, separators=(",", ":")).encode()
    parts[DIGEST] = hashlib.sha256(parts[MANIFEST]).hexdigest().encode()
    return encode_archive({name: (data,) for name, data in parts.items()})


def find_entries(data: bytes | bytearray) -> list[int]:
    """Where entries of the directory begin."""
    found, at = [], data.index(b"PK\x01\x02")
    while data[at : at + 4] == b"PK\x01\x02":
        found.append(at)
        sizes = [int.from_bytes(data[at + k : at + k + 2], "little") for k in (28, 30, 32)]
        at += 46 + sum(sizes)
    return found


Maker = Callable[[Originals, random.Random], bytes]
FAMILIES: Final[Mapping[str, Maker]] = {
    "flipped": flip,
    "directory": flip_headers,
    "cut": cut,
    "inserted": insert,
    "mixed": mix,
    "noise": make_noise,
    "path": rename,
    "kind": change_kind,
    "size": change_size,
    "bomb": make_bomb,
    "rehashed": rehash,
}


def make_special(path: Path, number: int) -> None:
    """What is no regular file, or has no bytes."""
    makers: tuple[Callable[[], object], ...] = (
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("/nowhere/at/all"),
        lambda: os.mkfifo(path),
        path.mkdir,
        path.touch,
        lambda: (path.touch(), os.truncate(path, 1 << 40)),
        lambda: None,
    )
    makers[number % len(makers)]()


# ---- loading ----


class Opener(Protocol):
    """Loads a package, and says by which code it is refused; empty if it is not."""

    def open(self, path: Path, /) -> str: ...


class CppLibrary:
    """The part of the C interface that opens packages."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.coilwork_error_code.restype = ctypes.c_char_p
        self._library.coilwork_model_open.restype = ctypes.c_void_p

    def open(self, path: Path) -> str:
        """The code of the refusal, empty if there is none."""
        model = ctypes.c_void_p()
        error = self._library.coilwork_model_open(str(path).encode(), None, ctypes.byref(model))
        if not error:
            self._library.coilwork_model_close(model)
            return ""
        code: bytes = self._library.coilwork_error_code(ctypes.c_void_p(error))
        self._library.coilwork_error_delete(ctypes.c_void_p(error))
        return code.decode()


@dataclass(slots=True)
class Watch:
    """What Python's audit hooks say while a file is loaded."""

    events: list[str] = field(default_factory=list)
    active: bool = False
    may_write: bool = False

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        writes = event in WRITING
        if event == "open" and isinstance(args[2], int):
            writes = bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if event in FORBIDDEN or (writes and not self.may_write):
            self.events.append(f"{event} {args!r}"[:200])


def load_by_python(path: Path, watch: Watch) -> str:
    """The code of Python's refusal, empty if there is none."""
    watch.active = True
    try:
        load(path, device="cpu")
    except (PackageError, TargetError) as error:
        return error.code
    finally:
        watch.active = False
    return ""


def judge(path: Path, library: Opener, watch: Watch, *, is_hashed: bool) -> tuple[str, str]:
    """The code of a file, and what is wrong about how it was refused, or nothing.

    `is_hashed`: all of its hashes are right, so it may load.
    """
    watch.may_write = is_hashed
    before = {*os.listdir(path.parent)}
    began = time.monotonic()
    python = load_by_python(path, watch)
    cpp = library.open(path)
    seconds = time.monotonic() - began
    faults = [f"took {seconds:.1f} s"] if seconds > SLOWEST_S else []
    faults += [f"an unknown code {code}" for code in (python, cpp) if code and code not in CODES]
    faults += watch.events
    watch.events.clear()
    if {*os.listdir(path.parent)} != before:
        faults.append("files have appeared")
    if python != cpp and not is_hashed:
        faults.append(f"Python says {python or 'nothing'}, C++ {cpp or 'nothing'}")
    if not python and not is_hashed:
        faults.append("it was loaded")
    return python or "loaded", "; ".join(faults)


def run_batch(numbers: range, seed: int, originals: Originals, library: Path, folder: Path, to: int) -> None:
    """Judge these files in this process; write a line for each to the descriptor `to`."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES + (64 << 30), resource.RLIM_INFINITY))
    opened, watch = CppLibrary(library), Watch()
    sys.addaudithook(watch.hear)
    out = os.fdopen(to, "w", buffering=1)
    path = folder / "hostile.cw"
    for number in numbers:
        family, data = make_file(number, seed, originals)
        out.write(json.dumps({"begun": number, "family": family}) + "\n")
        try:
            if data is None:
                make_special(path, number)
            else:
                path.write_bytes(data)
            is_hashed = family == "rehashed" or data == originals.one
            code, fault = judge(path, opened, watch, is_hashed=is_hashed)
        except BaseException as error:  # noqa: BLE001  whatever it is, it should have been a refusal
            watch.active = False
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            code, fault = "", f"{type(error).__name__}: {error} ({place})"[:300]
        out.write(json.dumps({"number": number, "family": family, "code": code, "fault": fault}) + "\n")
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


def make_file(number: int, seed: int, originals: Originals) -> tuple[str, bytes | None]:
    """The family and the bytes of file `number`; no bytes for what is no regular file."""
    if number % 100 == 99:
        return "special", None
    chance = random.Random(f"{seed} {number}")
    family = [*FAMILIES][number % len(FAMILIES)]
    return family, FAMILIES[family](originals, chance)


# ---- the command ----


def export_originals(folder: Path) -> Originals:
    """Packages of a small model with weights of its own, a buffer, a product and kernels."""
    from coilwork import export

    parts = (torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    rows = torch.export.Dim("rows", min=2, max=64)
    made = []
    for name, layers in (("one", parts), ("other", parts[:3])):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*layers).eval()
        export(model, (torch.randn(3, 8),), dynamic_shapes=({0: rows},), path=folder / f"{name}.cw")
        made.append((folder / f"{name}.cw").read_bytes())
    return Originals(made[0], made[1], list_records(read_archive(folder / "one.cw")))


def list_records(archive: Archive) -> dict[str, bytes]:
    return {name: archive.read(name) for name in archive.records}


def find_library(folder: Path) -> Path:
    """The C++ library: that of the wheel, or built here."""
    path = folder / LIBRARY.name
    if LIBRARY.exists():
        shutil.copyfile(LIBRARY, path)
        return path
    data = build_library(native_build, Path(coilwork_runtime.__file__).parent, "g++", ("-O1",))
    if data is None:
        raise SystemExit("the C++ library does not compile here")
    path.write_bytes(data)
    return path


def run(files: range, seed: int, originals: Originals, library: Path, folder: Path) -> list[dict[str, Any]]:
    """A record for each file: number, family, code and fault."""
    found: list[dict[str, Any]] = []
    at = files.start
    while at < files.stop:
        batch = range(at, min(at + BATCH, files.stop))
        (folder / "in").mkdir(exist_ok=True)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                run_batch(batch, seed, originals, library, folder / "in", write)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as lines:
            told = [json.loads(line) for line in lines]
        _, status = os.waitpid(child, 0)
        done = [one for one in told if "number" in one]
        found += done
        at += len(done)
        if len(done) < len(batch):
            how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else status
            family = told[-1]["family"] if told else "?"
            fault = f"the process ended: {how}"
            found.append({"number": at, "family": family, "code": "", "fault": fault})
            at += 1
            shutil.rmtree(folder / "in")
    return found


def report(found: list[dict[str, Any]]) -> str:
    """Codes by family, then the faults."""
    lines = []
    for family in dict.fromkeys(one["family"] for one in found):
        codes = Counter(one["code"] or "FAULT" for one in found if one["family"] == family)
        told = ", ".join(f"{code} {count}" for code, count in codes.most_common())
        lines.append(f"{family:10s} {sum(codes.values()):6d}  {told}")
    faults = [one for one in found if one["fault"]]
    lines += [f"FAULT {one['number']} {one['family']}: {one['fault']}" for one in faults[:50]]
    return "\n".join([*lines, f"{len(found)} files, {len(faults)} faults"])


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder = Path(name)
        originals = export_originals(folder)
        library = find_library(folder)
        # found in the process by its name, as a C++ program would have it
        ctypes.CDLL(str(TORCH), mode=ctypes.RTLD_GLOBAL)
        files = range(chosen.first, chosen.first + chosen.files)
        found = run(files, chosen.seed, originals, library, folder)
    print(report(found))
    return int(any(one["fault"] for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
