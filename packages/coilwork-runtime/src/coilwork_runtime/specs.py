"""What a generated module says about its kernels: plain data, the runtime's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role = Literal["in", "out", "inout", "size", "scratch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CppKernel:
    """A C++ kernel: an `extern "C"` function over pointers, then `int64_t` sizes.

    Attributes:
        name: unique among the kernels built together.
        source: complete translation unit.
        entry: function to call.
        args: one specification per parameter, see `parse_argument`.
        arg_names: their names.
        checks: messages of run-time checks. With any, the entry returns 0 or 1 + the number of the failed one.
        features: instruction set extensions to enable.
        bytes: traffic of one call as a Python expression over size names, or `""`.
        target: name of the target it was generated for.
    """

    name: str
    source: str
    entry: str
    args: tuple[str, ...]
    arg_names: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    bytes: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVersion:
    """How a kernel may run for some sizes.

    Attributes:
        guard: a Python expression over size names, 0 where it is for them; empty: it is for all sizes.
        mapping: directives, one a line; its open numbers are names of a configuration
            (`triton_kernels/open_mapping.py`).
    """

    guard: str = ""
    mapping: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernel:
    """A Triton kernel.

    Attributes are those of `CppKernel`, and:
        grid: up to three extents, Python expressions over size names and a configuration's names.
        configs: candidate configurations: compile-time parameters, `num_warps`, `num_stages`; best guess
            first. `VERSION` among them is how many versions come behind the one that they are of.
        versions: how it may run, most particular sizes first, the last for all of them; a call takes the
            first whose guard holds. None are told of a kernel with one version of which nothing is open.
    """

    name: str
    source: str
    entry: str
    args: tuple[str, ...]
    arg_names: tuple[str, ...]
    grid: tuple[str, ...]
    configs: tuple[Mapping[str, int], ...]
    versions: tuple[KernelVersion, ...] = ()
    checks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    bytes: str = ""
    target: str = ""

    @property
    def guards(self) -> tuple[str, ...]:
        """The guards of its versions."""
        return tuple(one.guard for one in self.versions) or ("",)

    @property
    def is_open(self) -> bool:
        """True if there is something to search for."""
        return any("?" in one.mapping for one in self.versions)


KernelSpec: TypeAlias = CppKernel | TritonKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One parameter of a kernel.

    `aligned`: a pointer that is a multiple of 16 bytes, or a size that is a multiple of 16. `elements`: for scratch,
    how many elements, as a Python expression over size names.
    """

    role: Role
    dtype: str
    aligned: bool = False
    elements: str = ""

    @property
    def is_pointer(self) -> bool:
        """True unless it is a size."""
        return self.role != "size"


def parse_argument(text: str) -> Argument:
    """Read `"*in:f32:16"`, `"size:i64"`, `"*scratch:f32=4*n0"`.

    Raises:
        ValueError: the text has another form.
    """
    head, _, elements = text.partition("=")
    role, _, rest = head.removeprefix("*").partition(":")
    dtype, _, alignment = rest.partition(":")
    match role:
        case "in" | "out" | "inout" | "size" | "scratch":
            if dtype and alignment in ("", "16") and head.startswith("*") == (role != "size"):
                return Argument(role=role, dtype=dtype, aligned=alignment == "16", elements=elements)
        case _:
            pass
    raise ValueError(f"malformed kernel argument {text!r}")
