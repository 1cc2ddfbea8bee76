"""What a code generator returns: source text and everything a launcher must know about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.mapping import Choose, Guard, Limit, Mapping, Version, Versions, find_all

Role = Literal["in", "out", "inout", "size", "scratch"]

# The compile-time parameter that says which version of a kernel a configuration is of: the number of versions
# behind it, so that 0 is the last one, which is for all sizes.
VERSION: Final = "VERSION"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArg:
    """One argument of the entry, in order.

    Attributes:
        name: parameter name in the source.
        role: `in`, `out`, `inout` are pointers to `dtype`; `size` is an integer (`i32` or `i64`); `scratch`
            is a pointer to uninitialised memory of `elements` elements that the launcher provides.
        dtype: element type behind a pointer, or the integer type of a size.
        aligned: the pointer is known to be a multiple of 16 bytes, or the size a multiple of 16.
        elements: scratch only: number of elements, over the size arguments' names.
    """

    name: str
    role: Role
    dtype: DType
    aligned: bool = False
    elements: Expr | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One candidate way to launch, which a closed mapping says in words: the values of its open numbers, by
    name.

    These are a kernel's compile-time parameters, and a GPU's warps and pipeline stages.
    `fp_fusion`: the device's compiler may contract `a * b + c` to one rounding.
    """

    meta: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int = 1
    fp_fusion: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Configurations beyond the proposed ones for which a kernel's text is right, too: an open mapping's
    numbers.

    Attributes:
        values: what each parameter may be, ascending: names of `Config.meta`, `num_warps`, `num_stages`. A
            parameter that is not named stays as the candidates have it. Empty: only the candidates will do.
        limits: pairs of expressions over the parameters' names; in a configuration each left one is at most
            the right one.
    """

    values: tuple[tuple[str, tuple[int, ...]], ...] = ()
    limits: tuple[tuple[Expr, Expr], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """The text of one kernel.

    Attributes:
        name: unique name of the kernel in its schedule.
        language: who builds and launches it: `cpp`, `triton`, or a back end's own word.
        text: complete source; building it needs nothing else of ours.
        entry: function to call.
        args: its run-time arguments, in order: tensors, then sizes, then scratch. Triton's `constexpr`
            parameters follow them in `text` and come from `Config.meta`.
        grid: up to three extents as expressions over the size arguments' names and the names in
            `Config.meta`; empty for C++, whose entry runs the whole iteration space.
        configs: candidates, best guess first; never empty for Triton.
        versions: how it runs: an open mapping for each kind of sizes, most particular first. What `configs`
            choose of it, and what a search may try beside them, are its open numbers. One configuration gives
            the same bits in every run; two may add in different orders. None for C++, whose mappings leave
            nothing open.
        checks: messages of the kernel's run-time checks, `IndexError: …`, `RuntimeError: …` or
            `ZeroDivisionError: …`. With any, a C++ entry returns 0 or 1 + the number of the one that failed;
            Triton checks use `tl.device_assert`.
        target: name of the target it was emitted for.
        features: instruction set features the builder must enable.
        suffix: of files that hold `text`, for people.
        read_bytes, write_bytes: minimal traffic over the size arguments, for bandwidth reports.
    """

    name: str
    language: str
    text: str
    entry: str
    args: tuple[SourceArg, ...]
    grid: tuple[Expr, ...] = ()
    configs: tuple[Config, ...] = ()
    versions: Versions | None = None
    checks: tuple[str, ...] = ()
    target: str = ""
    features: tuple[str, ...] = ()
    read_bytes: Expr | None = None
    write_bytes: Expr | None = None
    suffix: str = "txt"

    @property
    def space(self) -> SearchSpace:
        """Return what a search may try: the open numbers of the most particular version."""
        return SearchSpace() if self.versions is None else search_space(self.versions.versions[0].mapping)

    @property
    def guards(self) -> tuple[Guard | None, ...]:
        """The sizes that each version is for; None: all."""
        return (None,) if self.versions is None else tuple(one.guard for one in self.versions.versions)

    def version_of(self, config: Config) -> Version | None:
        """The version that `config` is of; None if no mapping is told."""
        if self.versions is None:
            return None
        found = self.versions.versions
        return found[len(found) - 1 - dict(config.meta).get(VERSION, 0)]

    def mapping_of(self, config: Config) -> Mapping | None:
        """The closed mapping that is launched by `config`; None if no mapping is told."""
        version = self.version_of(config)
        if version is None:
            return None
        known = {**dict(config.meta), "num_warps": config.num_warps, "num_stages": config.num_stages}
        return version.mapping.close(
            {number.name: known[number.name] for number in version.mapping.open_numbers}
        )


def search_space(mapping: Mapping) -> SearchSpace:
    """Return what a search may choose of the open `mapping`: numbers of their own, and the limits between
    them.
    """
    tied = {name for one in find_all(mapping.directives, Choose) for name in one.names}
    return SearchSpace(
        values=tuple(
            (number.name, tuple(sorted(number.values)))
            for number in mapping.open_numbers
            if number.name not in tied
        ),
        limits=tuple((one.left, one.right) for one in find_all(mapping.directives, Limit)),
    )
