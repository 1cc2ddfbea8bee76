"""`KernelManifest`: all that launching a kernel and reporting on it takes, but its text and its binary.

`KernelSpec` is a manifest with the text, for those who build kernels. The rest of what a kernel needs is of
one process (addresses, chosen configurations) and lies in `launch_forms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from coilwork_runtime.manifest.size_code import SizeCode, is_within

Role = Literal["in", "out", "inout", "size", "scratch"]
ROLES: Final = ("in", "out", "inout", "size", "scratch")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArgument:
    """One parameter of a kernel's entry.

    Attributes:
        name: as its text has it.
        role: `in`, `out`, `inout` point to `dtype`; `size` is an integer; `scratch` points to memory that the
            launcher provides.
        dtype: element type behind a pointer, or the integer type of a size.
        aligned: a pointer that is a multiple of 16 bytes, or a size that is a multiple of 16.
        elements: of scratch, how many.
    """

    name: str
    role: Role
    dtype: str
    aligned: bool = False
    elements: SizeCode | None = None

    @property
    def is_pointer(self) -> bool:
        """True unless it is a size."""
        return self.role != "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVersion:
    """How a kernel may run for some sizes.

    Attributes:
        guard: 0 for the sizes that it is for; None: it is for all sizes.
        mapping: directives, one a line; its open numbers are names of a configuration
            (`triton_kernels/open_mapping.py`), and without any it is a closed mapping.
        limits: of what may be chosen for the open numbers, each left one is at most the right one.
    """

    guard: SizeCode | None = None
    mapping: str = ""
    limits: tuple[tuple[SizeCode, SizeCode], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelManifest:
    """A kernel.

    Attributes:
        name: unique among the kernels of a program.
        language: whose builder and launcher it is for: `cpp`, `triton`, or somebody else's.
        entry: function to call.
        args: its parameters, in order: tensors and scratch, and sizes.
        parameters: names of compile-time parameters that `grid`, `limits` and `elements` read.
        grid: up to three extents; none where the entry runs the whole iteration space.
        configs: candidate configurations, best guess first: values of compile-time parameters, and for the
            compiler `num_warps`, `num_stages` and the like. `VERSION` among them is how many versions come
            behind the one that they are of.
        versions: how it may run, most particular sizes first, the last for all of them; a call takes the
            first whose guard is 0. None are told of a kernel with one version of which nothing is open.
        checks: messages of run-time checks. With any, a C++ entry returns 0 or 1 + the number of the failed
            one.
        features: instruction set extensions that it uses.
        traffic: bytes that one call moves.
        target: name of the target it was generated for.
        origins: lines of the user's that it computes.
    """

    name: str
    language: str
    entry: str
    args: tuple[KernelArgument, ...]
    parameters: tuple[str, ...] = ()
    grid: tuple[SizeCode, ...] = ()
    configs: tuple[Mapping[str, int], ...] = ()
    versions: tuple[KernelVersion, ...] = ()
    checks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    traffic: SizeCode | None = None
    target: str = ""
    origins: tuple[str, ...] = ()

    @property
    def is_triton(self) -> bool:
        """True if Triton builds it."""
        return self.language == "triton"

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of its size arguments, in order."""
        return tuple(one.name for one in self.args if one.role == "size")

    @property
    def guards(self) -> tuple[SizeCode | None, ...]:
        """The guards of its versions."""
        return tuple(one.guard for one in self.versions) or (None,)

    @property
    def is_open(self) -> bool:
        """True if there is something to search for."""
        return any("?" in one.mapping for one in self.versions)

    def values_of(self, config: Mapping[str, int]) -> tuple[int, ...]:
        """The values of `parameters` in a configuration.

        Raises:
            KeyError: `config` lacks one.
        """
        return tuple(config[name] for name in self.parameters)

    def first_version(self, sizes: Sequence[int]) -> int:
        """The number of the version that a call with these sizes takes."""
        return next(
            number for number, guard in enumerate(self.guards) if guard is None or guard.evaluate(sizes) == 0
        )

    def codes(self) -> tuple[SizeCode, ...]:
        """All code in it."""
        found = [*self.grid, *(one.elements for one in self.args), self.traffic, *self.guards]
        found += [code for version in self.versions for limit in version.limits for code in limit]
        return tuple(code for code in found if code is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec(KernelManifest):
    """A kernel that can be built: its manifest, and the text, a complete translation unit or module."""

    source: str


def check_manifest(manifest: KernelManifest) -> None:
    """Nothing, if its parts fit together.

    Raises:
        ValueError: an argument has no known role, scratch has no size, or code uses what is not there.
    """
    sizes, parameters = len(manifest.sizes), len(manifest.parameters)
    for one in manifest.args:
        if one.role not in ROLES:
            raise ValueError(f"argument {one.name} of kernel {manifest.name} has the role {one.role!r}")
        if (one.elements is None) == (one.role == "scratch"):
            raise ValueError(
                f"argument {one.name} of kernel {manifest.name} is scratch without a size, or other with one"
            )
    if len(manifest.grid) > 3:
        raise ValueError(f"kernel {manifest.name} has a grid of {len(manifest.grid)} dimensions")
    if not all(is_within(code, sizes=sizes, parameters=parameters) for code in manifest.codes()):
        raise ValueError(f"code of kernel {manifest.name} uses a size or parameter that it has not got")
