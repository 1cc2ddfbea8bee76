"""Compile in many processes on one cache, while all that can go wrong with a cache does.

    python -m integration_tests.store_faults --runs 200

A run is a process that compiles a small program, most of them several at once, and compares its result with
eager. `FAULTS` are what happens to them. A run fails if its result is wrong, if it raises, or if it hangs: if
neither it nor a compiler of its does anything for `GRACE_S` seconds, however busy the machine is. In the end,
one more process starts, and nothing may be left of the others: no process, no temporary file, no damaged
entry. Then several processes compile the same on an empty cache, and the compiler's calls are counted.

Processes are forked from one that has imported torch: a run takes as long as it compiles. Needs Linux.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from coilwork.backend import backend
from coilwork_cache import CacheWarning, LocalStore, folder, use_counts, verify
from coilwork_cache.tiered_store import SECRET
from coilwork_runtime import folders
from coilwork_runtime.executor.native_program import find_executor_extension

GRACE_S: Final = 5.0
# Programs differ in a number, so that some find what others have built and some do not.
VARIANTS: Final = 3
# Seconds: no program takes so long on any machine.
LONGEST_S: Final = 600.0
AT_ONCE: Final = 4
PERIOD_S: Final = 0.02


# ---- programs ----


def _wave(x: torch.Tensor, k: float) -> torch.Tensor:
    return (x * k).sin().sum(-1)


def _softmax(x: torch.Tensor, k: float) -> torch.Tensor:
    return (x * k).softmax(-1)


def _norm(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (64,)) * k


def _scan(x: torch.Tensor, k: float) -> torch.Tensor:
    return x.cumsum(0) * k


def _gradient(x: torch.Tensor, k: float) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (x * k).tanh().sum().backward()
    assert x.grad is not None
    return x.grad


PROGRAMS: Final[tuple[Callable[..., torch.Tensor], ...]] = (_wave, _softmax, _norm, _scan, _gradient)


def compile_and_compare(index: int, variant: int, options: Mapping[str, object]) -> None:
    """Run a program compiled, and eager. Raises AssertionError where they differ."""
    program, k = PROGRAMS[index], 0.5 + variant
    x = torch.linspace(-2.0, 2.0, 32 * 64).reshape(32, 64)
    torch._dynamo.reset()
    if program is _gradient:
        inner = torch.compile(lambda y: (y * k).tanh().sum(), backend=backend, options=dict(options))
        y = x.detach().requires_grad_()
        inner(y).backward()
        assert y.grad is not None
        found: torch.Tensor = y.grad
    else:
        found = torch.compile(lambda y: program(y, k), backend=backend, options=dict(options))(x)
    torch.testing.assert_close(found, program(x, k), rtol=1e-4, atol=1e-4)


# ---- faults ----


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs happen: `root` is the cache, `frozen` a copy that nobody may write to."""

    root: Path
    frozen: Path
    temporary: Path


@dataclass(kw_only=True)
class Run:
    """One process to be.

    Attributes:
        options: of its compilation.
        prepare: called in the process, before it compiles.
        signal_after: a signal that it gets, and after how many seconds.
        server: the number of another process, which ends with it.
    """

    options: dict[str, object] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None
    signal_after: tuple[int, float] | None = None
    server: int | None = None


Fault = Callable[[random.Random, Place, float], Run]


def _nothing(draw: random.Random, place: Place, typical_s: float) -> Run:
    return Run()


def _killed(draw: random.Random, place: Place, typical_s: float) -> Run:
    return Run(signal_after=(signal.SIGKILL, draw.uniform(0, typical_s)))


def _terminated(draw: random.Random, place: Place, typical_s: float) -> Run:
    return Run(signal_after=(signal.SIGTERM, draw.uniform(0, typical_s)))


def _full(draw: random.Random, place: Place, typical_s: float) -> Run:
    """The disk of the cache is full from some write on, in the middle of it."""
    left = [draw.randrange(3)]

    def prepare() -> None:
        write = folder._write_all

        def fail(handle: int, data: bytes) -> None:
            left[0] -= 1
            if left[0] < 0:
                write(handle, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(handle, data)

        def append(path: Path, counts: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        _replace(folder, "_write_all", fail)
        _replace(use_counts, "_append", append)

    return Run(prepare=prepare)


def _small_files(draw: random.Random, place: Place, typical_s: float) -> Run:
    """No file may be larger than some kilobytes, those of the compiler neither."""
    limit = draw.choice((1, 4, 12, 40)) << 10

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return Run(prepare=prepare)


def _damaged(draw: random.Random, place: Place, typical_s: float) -> Run:
    damage_entries(draw, place.root)
    return Run()


def _clock(draw: random.Random, place: Place, typical_s: float) -> Run:
    """The clock jumps, and entries are from other times."""
    shift_s = draw.choice((-1, 1)) * 10 ** draw.uniform(1, 8.5)
    for path in _list_entries(place.root):
        if draw.random() < 0.2:
            then_s = max(0.0, time.time() + draw.choice((-1, 1)) * 10 ** draw.uniform(1, 8.5))
            with contextlib.suppress(OSError):
                os.utime(path, (then_s, then_s))

    def prepare() -> None:
        now = time.time
        _replace(time, "time", lambda: now() + shift_s)

    return Run(options={"max_age_days": 1, "max_bytes": 1 << 20}, prepare=prepare)


def _read_only(draw: random.Random, place: Place, typical_s: float) -> Run:
    """The folder belongs to who runs, and may not be written to."""

    def prepare() -> None:
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    return Run(options={"cache_dir": str(place.frozen)}, prepare=prepare)


def _removed(draw: random.Random, place: Place, typical_s: float) -> Run:
    """The cache goes while it is used."""
    delay_s = draw.uniform(0, typical_s)

    def prepare() -> None:
        def remove() -> None:
            time.sleep(delay_s)
            for shard in place.root.glob(f"v1/{draw.choice('0123456789abcdef')}?"):
                shutil.rmtree(shard, ignore_errors=True)
            shutil.rmtree(place.root / "v1" / "tmp", ignore_errors=True)

        threading.Thread(target=remove, daemon=True).start()

    return Run(prepare=prepare)


def _server(serve: Callable[[socket.socket, random.Random], None]) -> Fault:
    """A Redis server that does not do what it should."""

    def make(draw: random.Random, place: Place, typical_s: float) -> Run:
        listening = socket.create_server(("127.0.0.1", 0))
        port, seed = listening.getsockname()[1], draw.random()
        server = os.fork()
        if server == 0:
            while True:
                connection, _ = listening.accept()
                given = (serve, connection, random.Random(seed))
                threading.Thread(target=_quietly, args=given, daemon=True).start()
        listening.close()

        def prepare() -> None:
            os.environ[SECRET] = "a secret of the whole team"

        return Run(options={"redis_url": f"redis://127.0.0.1:{port}"}, prepare=prepare, server=server)

    return make


def _quietly(
    serve: Callable[[socket.socket, random.Random], None], connection: socket.socket, draw: random.Random
) -> None:
    with contextlib.suppress(OSError), connection:
        serve(connection, draw)


def _silent(connection: socket.socket, draw: random.Random) -> None:
    while connection.recv(4096):
        pass


def _dripping(connection: socket.socket, draw: random.Random) -> None:
    connection.recv(4096)
    connection.sendall(b"$1000000\r\n")
    while True:
        time.sleep(0.2)
        connection.sendall(b"x")


def _nonsense(connection: socket.socket, draw: random.Random) -> None:
    while connection.recv(65536):
        start = draw.choice((b"$10\r\n", b"*3\r\n", b":", b"+", b"-ERR ", b"$-9\r\n", b""))
        connection.sendall(start + draw.randbytes(draw.randrange(200)) + b"\r\n")


def _wrong(connection: socket.socket, draw: random.Random) -> None:
    """Speaks the protocol, and says that it has everything."""
    while True:
        asked = connection.recv(1 << 20)
        if not asked:
            return
        value = b"COILSIG\n" + draw.randbytes(draw.randrange(4000))
        answer = b"$%d\r\n%s\r\n" % (len(value), value)
        connection.sendall(answer if b"GET" in asked.upper() else b"+OK\r\n" * asked.count(b"*"))


def _dying(connection: socket.socket, draw: random.Random) -> None:
    """Answers as an empty server does, and dies after some bytes."""
    asked = 0
    while asked < draw.randrange(3000):
        data = connection.recv(4096)
        if not data:
            return
        asked += len(data)
        connection.sendall(b"$-1\r\n" if b"GET" in data.upper() else b"+OK\r\n" * max(1, data.count(b"*")))


FAULTS: Final[Mapping[str, Fault]] = {
    "none": _nothing,
    "kill -9": _killed,
    "terminated": _terminated,
    "full disk": _full,
    "small files": _small_files,
    "damaged entries": _damaged,
    "clock jumps": _clock,
    "read-only folder": _read_only,
    "removed folders": _removed,
    "silent server": _server(_silent),
    "dripping server": _server(_dripping),
    "nonsense of a server": _server(_nonsense),
    "wrong values of a server": _server(_wrong),
    "dying server": _server(_dying),
}
NOBODY: Final = 65534


def damage_entries(draw: random.Random, root: Path) -> None:
    """Damage about a third of the entries below `root`, each in its own way."""
    for path in _list_entries(root):
        if draw.random() < 0.3:
            with contextlib.suppress(OSError):
                data = bytearray(path.read_bytes())
                way = draw.randrange(5)
                if way == 0:
                    data = data[: draw.randrange(len(data) + 1)]
                elif way == 1 and data:
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                elif way == 2:
                    data += draw.randbytes(100)
                elif way == 3:
                    data = bytearray(len(data))
                else:
                    data = bytearray(draw.randbytes(len(data)))
                path.write_bytes(data)


def _list_entries(root: Path) -> list[Path]:
    return sorted(one for one in root.glob("v1/??/*") if one.is_file())


def _replace(module: Any, name: str, value: object) -> None:
    setattr(module, name, value)


# ---- processes ----


@dataclass(kw_only=True)
class Process:
    """A run that goes on."""

    number: int
    reports: int
    name: str
    begun_s: float
    run: Run
    is_signalled: bool = False
    activity: int = -1
    active_s: float = 0.0

    def measure_idle(self) -> float:
        """Seconds since it, or a process that it has started, did anything."""
        now_s, activity = time.monotonic(), count_activity(self.number)
        if activity != self.activity:
            self.activity, self.active_s = activity, now_s
        return now_s - self.active_s


@dataclass(kw_only=True)
class Outcome:
    """What came of all runs: how many of each kind, and what was wrong."""

    ends: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    idle_s: dict[str, float] = field(default_factory=dict)
    groups: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def start(run: Run, name: str, index: int, variant: int, place: Place) -> Process:
    """Fork the process of `run`."""
    options = {"cache_dir": str(place.root), "workers": 1, "progress": False, **run.options}
    read, write = os.pipe()
    number = os.fork()
    if number == 0:
        os.setpgid(0, 0)
        os.close(read)
        report = {"end": "right", "warned": list[str]()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run.prepare()
                compile_and_compare(index, variant, options)
            # whatever it is, is what the run is to find
            except BaseException:  # noqa: BLE001
                report["end"] = traceback.format_exc()
        report["warned"] = [
            type(one.message).__name__ for one in caught if isinstance(one.message, CacheWarning)
        ]
        with contextlib.suppress(OSError):
            os.write(write, json.dumps(report).encode()[:60_000])
        atexit._run_exitfuncs()
        os._exit(0)
    os.close(write)
    return Process(number=number, reports=read, name=name, begun_s=time.monotonic(), run=run)


def watch(running: list[Process], outcome: Outcome) -> list[Process]:
    """Signal those whose time has come, note those that ended, and return the others."""
    left = []
    for one in running:
        taken_s = time.monotonic() - one.begun_s
        planned = one.run.signal_after
        if planned is not None and not one.is_signalled and taken_s >= planned[1]:
            os.kill(one.number, planned[0])
            one.is_signalled = True
        ended, status = os.waitpid(one.number, os.WNOHANG)
        idle_s = one.measure_idle()
        outcome.idle_s[one.name] = max(outcome.idle_s.get(one.name, 0.0), idle_s)
        if not ended and idle_s <= GRACE_S and taken_s <= LONGEST_S:
            left.append(one)
            continue
        if not ended:
            outcome.problems.append(f"{one.name}: it hangs, after {taken_s:.1f} s")
            os.killpg(one.number, signal.SIGKILL)
            os.waitpid(one.number, 0)
        else:
            _note_end(one, status, taken_s, outcome)
        os.close(one.reports)
        if one.run.server is not None:
            os.kill(one.run.server, signal.SIGKILL)
            os.waitpid(one.run.server, 0)
    return left


def count_activity(group: int) -> int:
    """A number that grows while processes of `group` do anything: time of processors, in ticks, and how often
    a thread went to sleep, as those do that ask again and again.
    """
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                # own time, and that of children that have ended
                total += sum(map(int, fields[11:15]))
                total += sum(_count_sleeps(thread) for thread in process.glob("task/*"))
    return total


def _count_sleeps(thread: Path) -> int:
    lines = (thread / "status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _note_end(one: Process, status: int, taken_s: float, outcome: Outcome) -> None:
    data = b""
    while part := os.read(one.reports, 65536):
        data += part
    if one.is_signalled and os.WIFSIGNALED(status):
        outcome.ends[f"{one.name}: ended by it"] += 1
        return
    outcome.longest_s[one.name] = max(outcome.longest_s.get(one.name, 0.0), taken_s)
    if status or not data:
        outcome.problems.append(f"{one.name}: it ended with status {status}")
        return
    report = json.loads(data)
    outcome.warned.update(report["warned"])
    if len(report["warned"]) != len(set(report["warned"])) and not one.name.startswith("read-only"):
        outcome.ends[f"{one.name}: several warnings of a kind"] += 1
    if report["end"] == "right":
        outcome.ends[f"{one.name}: right"] += 1
    else:
        outcome.problems.append(f"{one.name}: {report['end']}")


def find_left(place: Place, groups: set[int]) -> list[str]:
    """What runs have left behind once another process has started, in words. Their process groups are
    `groups`; a compiler that has lost who started it may end its work.
    """
    until_s = time.monotonic() + GRACE_S
    while (left_over := list_members(groups)) and time.monotonic() < until_s:
        time.sleep(0.1)
    folders.sweep_abandoned(place.temporary)
    LocalStore(place.root)
    own = Path(folders.make_scratch_folder())
    left = [f"a process: {one}" for one in left_over]
    left += [f"temporary: {one}" for one in place.temporary.iterdir() if one != own]
    left += [f"in the cache: {one}" for one in (place.root / "v1").glob("tmp/*")]
    left += [f"in the cache: {one}" for one in (place.root / "v1").glob("counts-*")]
    verify(LocalStore(place.root))
    left += list(verify(LocalStore(place.root)).problems)
    return left


def list_members(groups: set[int]) -> list[str]:
    """The processes of process groups, by number and name."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = status.read_text().rpartition(")")
            if int(after.split()[2]) in groups:
                found.append(before)
    return found


# ---- all ----


def measure_cold(place: Place) -> float:
    """Seconds that the slowest program takes to compile without a cache, in a process of its own."""
    taken = []
    for index in range(len(PROGRAMS)):
        outcome = Outcome()
        running = [start(Run(options={"cache": False}), "none", index, VARIANTS, place)]
        while running:
            running = watch(running, outcome)
            time.sleep(PERIOD_S)
        if outcome.problems:
            raise RuntimeError(outcome.problems[0])
        taken.append(outcome.longest_s["none"])
    return max(taken)


def run_faults(runs: int, seed: int, place: Place, names: tuple[str, ...]) -> Outcome:
    """Do `runs` runs, with the faults `names` in turn, `AT_ONCE` at a time."""
    draw, outcome = random.Random(seed), Outcome()
    cold_s = measure_cold(place)
    print(f"without a cache: {cold_s:.1f} s", flush=True)
    running: list[Process] = []
    for number in range(runs):
        while len(running) >= AT_ONCE:
            running = watch(running, outcome)
            time.sleep(PERIOD_S)
        name = names[number % len(names)]
        run = FAULTS[name](draw, place, cold_s)
        running.append(start(run, name, draw.randrange(len(PROGRAMS)), draw.randrange(VARIANTS), place))
        outcome.groups.add(running[-1].number)
    while running:
        running = watch(running, outcome)
        time.sleep(PERIOD_S)
    outcome.problems += find_left(place, outcome.groups)
    return outcome


def count_compilations(processes: int, place: Place, log: Path) -> int:
    """How often the C++ compiler runs for kernels when `processes` compile the same on an empty cache."""
    log.write_text("")
    root = Path(tempfile.mkdtemp(dir=place.root.parent))
    outcome = Outcome()
    find_executor_extension(LocalStore(root))
    log.write_text("")
    options: dict[str, object] = {"cache_dir": str(root)}
    running = [start(Run(options=options), "none", 1, 0, place) for _ in range(processes)]
    while running:
        running = watch(running, outcome)
        time.sleep(PERIOD_S)
    if outcome.problems:
        raise RuntimeError(outcome.problems[0])
    return len(log.read_text().splitlines())


@contextlib.contextmanager
def open_place() -> Iterator[tuple[Place, Path]]:
    """A place with an executor in its cache, and a file with a line for each kernel that is compiled."""
    # not a TemporaryDirectory, which a forked process would remove when it ends
    base = Path(tempfile.mkdtemp(prefix="store-faults-"))
    try:
        base.chmod(0o711)
        place = Place(root=base / "cache", frozen=base / "frozen", temporary=base / "tmp")
        place.temporary.mkdir(mode=0o1777)
        place.temporary.chmod(0o1777)
        log, compiler = base / "compiled", base / "compiler"
        log.write_text("")
        real = shutil.which("g++") or "c++"
        # kernels alone are linked without the standard library
        logs = f'case "$*" in *kernel.cpp*nostdlib*) echo kernel >> {log};; esac'
        compiler.write_text(f'#!/bin/sh\n{logs}\nexec {real} "$@"\n')
        compiler.chmod(0o755)
        os.environ |= {"CXX": str(compiler), "TMPDIR": str(place.temporary)}
        tempfile.tempdir = str(place.temporary)
        os.chmod(log, 0o666)
        store = LocalStore(place.root)
        find_executor_extension(store)
        shutil.copytree(place.root, place.frozen)
        for path in (place.frozen, *place.frozen.rglob("*")):
            if os.geteuid() == 0:
                os.chown(path, NOBODY, NOBODY)
            path.chmod(0o500 if path.is_dir() else 0o400)
        yield place, log
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=8, help="that compile the same on an empty cache")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS), help="default: all")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with open_place() as (place, log):
        outcome = run_faults(chosen.runs, chosen.seed, place, tuple(chosen.faults))
        for end, count in sorted(outcome.ends.items()):
            print(f"{count:5} {end}")
        for title, seconds in (("longest", outcome.longest_s), ("idle", outcome.idle_s)):
            print(f"{title}:", ", ".join(f"{name} {taken:.1f} s" for name, taken in seconds.items()))
        print("warnings:", dict(outcome.warned))
        if chosen.processes:
            alone, together = (count_compilations(count, place, log) for count in (1, chosen.processes))
            print(f"compilers started by 1 process: {alone}, by {chosen.processes}: {together}")
            if not 0 < together <= 1.5 * alone:
                outcome.problems.append(f"{chosen.processes} processes compile {together} times, one {alone}")
    for problem in outcome.problems:
        print(problem)
    print(f"{chosen.runs} runs, {len(outcome.problems)} problems")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
