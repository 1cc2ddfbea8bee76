"""Describe the device that the compiler compiles for: plain data, no device needed.

`Capabilities` say what a code generator can do for a target, and how its kernels run as far as costs depend
on it. The generator declares them (`Codegen.capabilities`) and decides by the same value; schedulers and
lowerings read it. So a threshold stands in one place: where the kernels are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from coilwork_ir.device_traits import ATEN_CPU, CPU_LIBRARIES, CUBLAS, CUDNN, FAST_F64, PROCESSOR
from coilwork_ir.machine import TUNING, MachineModel, read_model

# ---- Capabilities ----


TURNED_SHARE: Final = 0.1
"""Share of a kernel's bytes at unit stride along a range, and not along the innermost one, from which on it
has blocks with points of both: schedulers order ranges for that. Of a sliding window both its place and its
elements are at unit stride, and one of them will do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWalks:
    """The walks of a generator's kernels through the rows that they reduce.

    A row is `across` if neighbours in memory are of different rows: those of a reduction of columns.

    Attributes:
        kept_bytes: the longest row that a program keeps on chip from one pass over it to the next, in bytes
            of f32 values. Two values per element fit beside their sum; more of them shorten the row that
            fits.
        kept_across: points of the longest row across memory that is kept so.
        columns: rows across memory that one program reduces side by side.
        crossed_share: share of what lies across that is enough for rows to be reduced side by side, where
            the rest lies along them; None: they are if most does.
        loop_row: points of the longest row that a program keeps beside sums of its columns, while it goes
            from row to row.
        loop_threads: threads that share such a row.
        loop_elements: elements of it that each of them has at least: of shorter rows, several at a time.
        loop_sums: registers of a thread for sums of columns.
        loop_values: registers of a thread for these and what is read of a row.
    """

    kept_bytes: int = 0
    kept_across: int = 0
    columns: int = 1
    crossed_share: float | None = None
    loop_row: int = 0
    loop_threads: int = 1
    loop_elements: int = 1
    loop_sums: int = 0
    loop_values: int = 0

    @property
    def kept_points(self) -> int:
        """Points of the longest row along memory that is kept, if little of each is."""
        return self.kept_bytes // 4

    def are_across(self, *, across: float, along: float) -> bool:
        """Tell if rows are reduced in blocks of neighbours, if so many bytes lie across them and along them.

        A program that has a row to itself fetches a sector for each element that lies across it. A block
        reads whole sectors of both.
        """
        if self.crossed_share is not None and across > self.crossed_share * (across + along):
            return True
        return across > along

    def keeps(self, length: int, *, across: bool = False, values: int = 1) -> bool:
        """Tell if rows of `length` points, of each of which a program has `values` values, are kept from pass
        to pass.
        """
        if across and length > self.kept_across:
            return False
        return length <= self.kept_points // max(1, values // 2)

    def keeps_beside_sums(self, length: int, *, sums: int, reads: int) -> bool:
        """Tell if a row of `length` points of `reads` buffers is kept beside `sums` sums of every column."""
        padded = 1 << max(0, (length - 1).bit_length())
        each = max(padded // self.loop_threads, self.loop_elements)
        fits = sums * each <= self.loop_sums and (sums + reads) * each <= self.loop_values
        return length <= self.loop_row and fits

    def count_programs(self, rows: int, *, across: bool) -> int:
        """Programs of a reduction to `rows` results: one per result, or a block of columns each."""
        return max(1, rows // self.columns) if across else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting:
    """The rows that the kernels of a generator sort.

    Attributes:
        longest: elements of the longest row; None if rows of any length are sorted, in memory.
        most_bytes: size of the widest type.
        longest_whole: elements of the longest row that is best sorted so if all of it is wanted.
        short: elements of the longest row that is best sorted so even if rows are few.
        many: rows from which on they are not few.
    """

    longest: int | None
    most_bytes: int
    longest_whole: int | None = None
    short: int | None = None
    many: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities of a generator for one target. A generator that declares nothing can do the least.

    Attributes:
        rows: how its kernels go through rows.
        sorting: which rows its kernels sort; None: none.
        scans: its kernels scan rows.
        shares_rows: programs share a row of a scan through a workspace (`coilwork_ir.kernels.workspace`).
        cuts_rows: few long rows occupy the device whole: kernels cut them by themselves, if that pays.
        contracts: its kernels compute contractions by units for them.
        combines: it takes kernels that are several computations of one kind in one launch.
        opens_extents: a kernel is as fast if its extents, strides and offsets are arguments.
        versions_by_size: its kernels of open sizes have versions for some of them. It takes an option
            `likely`, per kernel, for the sizes that calls will likely have: a number for each of the kernel's
            size symbols, 0 if nothing is known of it.
        takes_candidates: it runs kernels as templates propose (`coilwork_ir.kernels.Proposal`). It takes an
            option `candidates`, per kernel: texts of directives, best guess first.
        cores: kinds of cores that it has templates for (`coilwork_ir.kernels.nodes.CoreKind`). It
            refuses kernels with others by name.
    """

    rows: RowWalks = RowWalks()
    sorting: Sorting | None = None
    scans: bool = True
    shares_rows: bool = False
    cuts_rows: bool = False
    contracts: bool = False
    combines: bool = False
    opens_extents: bool = False
    versions_by_size: bool = False
    takes_candidates: bool = False
    cores: frozenset[str] = frozenset()


LEAST = Capabilities()
"""What is expected of a generator of which nothing is known."""


# ---- Targets ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device, described. What kernels for it can do is their generator's to say:
    `coilwork_ir.target`.

    Attributes:
        name: registry name, e.g. `"sm_90"`.
        kind: which back end serves it; its own word, which nobody else compares.
        arch: architecture as the device compiler names it (`"90"`, `"gfx942"`, `"x86-64-avx512"`).
        multiprocessors: streaming multiprocessors, compute units, or CPU cores.
        warp_size: threads that execute together; 1 on a CPU.
        max_threads_per_block: upper limit of threads per block; 1 on a CPU.
        registers_per_multiprocessor: 32-bit registers; 0 on a CPU.
        shared_memory_bytes: most shared memory one block can have; L1 size on a CPU.
        l2_bytes: last-level cache.
        vector_bytes: width of one vector load or register.
        bandwidth_gb_s: main memory bandwidth in 1e9 bytes per second, read plus write.
        matrix_tflop_s: dense bf16 matrix rate in 1e12 operations per second; 0 if none is claimed.
        launch_us: host microseconds to start one kernel.
        features: instruction set names that code generators may rely on.
        traits: what else is asked of it (`coilwork_ir.device_traits`).
        model: what is measured of it; None: what the data file of its name says, or that of a device like it.
    """

    name: str
    kind: str
    arch: str
    multiprocessors: int
    warp_size: int
    max_threads_per_block: int
    registers_per_multiprocessor: int
    shared_memory_bytes: int
    l2_bytes: int
    vector_bytes: int
    bandwidth_gb_s: float
    matrix_tflop_s: float
    launch_us: float
    features: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()
    model: MachineModel | None = field(default=None, hash=False)

    @property
    def machine(self) -> MachineModel:
        """Its measured figures: `model`, or those of this package."""
        return get_machine_model(self) if self.model is None else self.model

    @property
    def key_text(self) -> str:
        """All of it as text for cache keys, the same in every process: the order of a set is not."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{k}={sorted(v) if isinstance(v, frozenset) else v!r}" for k, v in values)

    @property
    def code_text(self) -> str:
        """Do as `key_text`, of what code needs in order to run. Code for a processor is laid out for its
        number of threads, and runs with any.
        """
        return self.key_text if self.is_gpu else replace(self, multiprocessors=0).key_text

    def has(self, trait: str) -> bool:
        """Tell if it is said to have the trait, or the feature of that name."""
        return trait in self.traits or trait in self.features

    @property
    def is_gpu(self) -> bool:
        """True where kernels are grids of blocks."""
        return self.max_threads_per_block > 1

    @property
    def resident_bytes(self) -> int:
        """Bytes that stay in the last-level cache while others pass through it: two fifths of it.

        Of the 60 MiB that an H200 has, they are 24, with which this was measured; an A100's 40 MiB hold 16 of
        them.
        """
        return 2 * self.l2_bytes // 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The targets of one graph: a kernel is made for the device that its buffers are on.

    Attributes:
        main: the target of devices that are not listed; a GPU's, where there is one.
        by_device: pairs of a device and its target.
        declared: pairs of a target's name and what the generator of its kernels can do.
    """

    main: Target
    by_device: tuple[tuple[str, Target], ...] = ()
    declared: tuple[tuple[str, Capabilities], ...] = ()

    def of(self, device: str) -> Target:
        """Return the target of kernels whose buffers are on `device`."""
        return next((target for name, target in self.by_device if name == device), self.main)

    def capabilities_of(self, device: str) -> Capabilities:
        """Return the abilities of the generator of kernels whose buffers are on `device`; the least, if it
        declares nothing.
        """
        name = self.of(device).name
        return next((found for declared, found in self.declared if declared == name), LEAST)

    @property
    def have_whole_rows(self) -> bool:
        """True if kernels of some device leave few long rows whole, so that who schedules them cuts them."""
        devices = [device for device, _ in self.by_device] or [""]
        return not all(self.capabilities_of(device).cuts_rows for device in devices)

    @property
    def has_gpu(self) -> bool:
        """True if some of the kernels may be grids of blocks."""
        return self.main.is_gpu or any(target.is_gpu for _, target in self.by_device)


_MIB: Final = 1 << 20
_NVIDIA: Final = frozenset({CUBLAS, CUDNN, FAST_F64})
_PROCESSOR: Final = frozenset({PROCESSOR, ATEN_CPU, CPU_LIBRARIES})

_BUILT_IN: Final[tuple[Target, ...]] = (
    Target(
        name="sm_80",
        kind="cuda",
        arch="80",
        multiprocessors=108,
        warp_size=32,
        max_threads_per_block=1024,
        registers_per_multiprocessor=65536,
        shared_memory_bytes=163 * 1024,
        l2_bytes=40 * _MIB,
        vector_bytes=16,
        bandwidth_gb_s=1935.0,
        matrix_tflop_s=312.0,
        launch_us=4.0,
        features=("bf16", "tf32", "cp.async"),
        traits=_NVIDIA,
    ),
    Target(
        name="sm_90",
        kind="cuda",
        arch="90",
        multiprocessors=132,
        warp_size=32,
        max_threads_per_block=1024,
        registers_per_multiprocessor=65536,
        shared_memory_bytes=227 * 1024,
        l2_bytes=60 * _MIB,
        vector_bytes=16,
        bandwidth_gb_s=4250.0,
        matrix_tflop_s=990.0,
        launch_us=4.2,
        features=("bf16", "tf32", "fp8", "cp.async", "tma", "wgmma", "clusters"),
        traits=_NVIDIA,
    ),
    # of its own copy engine and matrix units nothing is known here, so that kernels use what others have, too
    Target(
        name="sm_100",
        kind="cuda",
        arch="100",
        multiprocessors=148,
        warp_size=32,
        max_threads_per_block=1024,
        registers_per_multiprocessor=65536,
        shared_memory_bytes=227 * 1024,
        l2_bytes=126 * _MIB,
        vector_bytes=16,
        bandwidth_gb_s=7700.0,
        matrix_tflop_s=2250.0,
        launch_us=4.2,
        features=("bf16", "tf32", "fp8", "cp.async"),
        traits=_NVIDIA,
    ),
    Target(
        name="gfx942",
        kind="hip",
        arch="gfx942",
        multiprocessors=304,
        warp_size=64,
        max_threads_per_block=1024,
        registers_per_multiprocessor=131072,
        shared_memory_bytes=64 * 1024,
        l2_bytes=256 * _MIB,
        vector_bytes=16,
        bandwidth_gb_s=5300.0,
        matrix_tflop_s=1307.0,
        launch_us=6.0,
        features=("bf16", "fp8", "mfma"),
    ),
    Target(
        name="x86-64-avx2",
        kind="cpu",
        arch="x86-64-avx2",
        multiprocessors=8,
        warp_size=1,
        max_threads_per_block=1,
        registers_per_multiprocessor=0,
        shared_memory_bytes=32 * 1024,
        l2_bytes=16 * _MIB,
        vector_bytes=32,
        bandwidth_gb_s=40.0,
        matrix_tflop_s=0.0,
        launch_us=1.0,
        features=("avx2", "fma", "f16c"),
        traits=_PROCESSOR,
    ),
    Target(
        name="x86-64-avx512",
        kind="cpu",
        arch="x86-64-avx512",
        multiprocessors=8,
        warp_size=1,
        max_threads_per_block=1,
        registers_per_multiprocessor=0,
        shared_memory_bytes=32 * 1024,
        l2_bytes=32 * _MIB,
        vector_bytes=64,
        bandwidth_gb_s=60.0,
        matrix_tflop_s=0.0,
        launch_us=1.0,
        features=("avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl"),
        traits=_PROCESSOR,
    ),
    Target(
        name="aarch64-neon",
        kind="cpu",
        arch="aarch64-neon",
        multiprocessors=8,
        warp_size=1,
        max_threads_per_block=1,
        registers_per_multiprocessor=0,
        shared_memory_bytes=64 * 1024,
        l2_bytes=16 * _MIB,
        vector_bytes=16,
        bandwidth_gb_s=60.0,
        matrix_tflop_s=0.0,
        launch_us=1.0,
        features=("asimd",),
        traits=_PROCESSOR,
    ),
)

TARGETS: Final[Mapping[str, Target]] = MappingProxyType({target.name: target for target in _BUILT_IN})


def get_target(name: str) -> Target:
    """Return the built-in description called `name`.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"unknown target {name!r}; built in: {', '.join(TARGETS)}") from None


# Architectures of NVIDIA GPUs with half as many units for f64 as for f32; others have few.
_FULL_F64: Final = frozenset({"80", "90", "100"})
# The target whose figures stand for those of a GPU that has none of its own.
_ANY_GPU: Final = "sm_80"


def describe_gpu_target(
    name: str, arch: str, *, multiprocessors: int = 0, shared_memory_bytes: int = 0, l2_bytes: int = 0
) -> Target:
    """Return the target of a GPU as its driver describes it; a figure of 0 is that of the built-in target."""
    base = TARGETS.get(name) or TARGETS[_ANY_GPU]
    has_fast_f64 = arch in _FULL_F64 or name in TARGETS
    return replace(
        base,
        traits=base.traits if has_fast_f64 else base.traits - {FAST_F64},
        name=name,
        arch=arch,
        multiprocessors=multiprocessors or base.multiprocessors,
        shared_memory_bytes=shared_memory_bytes or base.shared_memory_bytes,
        l2_bytes=l2_bytes or base.l2_bytes,
    )


def list_targets(kinds: tuple[str, ...]) -> Mapping[str, Target]:
    """Return the built-in targets of these kinds, by name."""
    return {name: target for name, target in TARGETS.items() if target.kind in kinds}


def get_machine_model(target: Target) -> MachineModel:
    """Return the figures in the data file that serves for `target`: of its name, or else of a device like
    it.
    """
    return read_model(_find_data_file(target.name, target.is_gpu))


@cache
def _find_data_file(name: str, is_gpu: bool) -> Path:
    own = TUNING / f"{name}.toml"
    return own if own.exists() else TUNING / ("sm_90.toml" if is_gpu else "cpu.toml")
