"""C++ identifiers for the names of a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coilwork_ir.fresh_names import FreshNames

KEYWORDS: Final = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class
    compl concept const const_cast constexpr consteval constinit continue co_await co_return co_yield decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if
    inline int int16_t int32_t int64_t int8_t long mutable namespace new noexcept not not_eq nullptr operator
    or or_eq private protected public register reinterpret_cast requires return short signed sizeof size_t
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
    typename uint16_t uint32_t uint64_t uint8_t union unsigned using virtual void volatile wchar_t while xor
    xor_eq linux unix""".split()
)
RESERVED: Final = frozenset(
    {"rt", "std", "main", "constants", "args", "sizes", "results", "result_sizes", "TORCH_VERSION", "NULL"}
)
# What emitted code calls its own temporaries and functions, and torch its own.
PREFIXES: Final = (
    "aoti_", "torch_", "coilwork_", "run_", "call_", "parts_", "scratch_", "checks_", "operands_", "extents_",
    "verdict_", "results_",
)  # fmt: skip


def identifiers(names: Iterable[str], taken: Iterable[str] = ()) -> Mapping[str, str]:
    """A distinct valid identifier for each of `names`, the name itself where that is one that nothing else
    uses.

    Names with two underscores in a row, or an underscore and a capital in front, belong to the compiler.
    """
    fresh = FreshNames({*KEYWORDS, *RESERVED, *taken})
    chosen: dict[str, str] = {}
    for name in names:
        if name in chosen:
            continue
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
        while "__" in base:
            base = base.replace("__", "_")
        base = base.lstrip("_") or "v"
        if base[0].isdigit() or base.startswith(PREFIXES):
            base = f"v{base}" if base[0].isdigit() else f"v_{base}"
        chosen[name] = fresh.close_to(base)
    return chosen
