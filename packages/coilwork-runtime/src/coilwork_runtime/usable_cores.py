"""Count the cores that this process may keep busy: those that it may run on, and no more than its time is
worth.

In a container, the system shows all cores of the machine; a quota of cgroups says how much time per period
the processes of a group get together. Documented in cgroups(7), and in the kernel's admin guide: `cpu.max` of
version 2, `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1. A group's quota holds for those below it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

PROC: Final = Path("/proc/self")
# That of time on processors.
CONTROLLER: Final = "cpu"


def count_usable_cores() -> int:
    """Return how many cores this process may keep busy; 1 at least."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = read_cpu_quota()
    # of one and a half cores two workers make use
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def read_cpu_quota(proc: Path = PROC) -> float | None:
    """Return the cores' worth of time that cgroups allow, the least of all groups around this process; None
    for no limit.

    `proc` is the folder of this process in the file system of processes.
    """
    quotas: list[float] = []
    for folder in _list_groups(proc):
        quota = _read_quota(folder)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def _list_groups(proc: Path) -> Iterator[Path]:
    """Yield the folders of the groups that this process is in, and of those around them, as they are
    mounted.
    """
    try:
        groups = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    paths: dict[str, PurePosixPath] = {}
    for line in groups:
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        # version 2 names no controllers
        if not controllers or CONTROLLER in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = PurePosixPath(place)
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, described = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(described) < 3 or described[0] not in paths:
            continue
        kind, options = described[0], described[2].split(",")
        if kind == "cgroup" and CONTROLLER not in options:
            continue
        root, mounted = PurePosixPath(fields[3]), Path(fields[4])
        path = paths[kind]
        # in a container the mount may begin at the group itself, and paths in it may begin above
        inside = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
        yield from (mounted.joinpath(*inside.parts[:depth]) for depth in range(len(inside.parts) + 1))


def _read_quota(group: Path) -> float | None:
    """Return the cores' worth of time of one group; None if it sets no limit."""
    try:
        if (group / "cpu.max").exists():
            quota, _, period = (group / "cpu.max").read_text().strip().partition(" ")
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        if quota in ("max", "-1"):
            return None
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
