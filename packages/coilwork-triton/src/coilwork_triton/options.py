"""The generator's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Literal

from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import GivenMappings, read_option

IndexChoice = Literal["auto", "i32", "i64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    """Settings of `TritonCodegen.emit`. All of them change the text, hence belong in a cache key.

    Attributes:
        index_dtype: type of offsets and sizes. `auto` takes 32 bits where every offset provably fits, else
            64. `i32` is the caller's promise that they fit at run time (say, by a guard on sizes).
        max_configs: most candidates to offer; 1 gives the best guess alone.
        persistent_limit: longest reduction, in elements, kept in registers as one tile.
        batch_invariant: what a row gives is the same to the bit whatever rows are beside it: one launch
            configuration per kind of kernel that reduces or multiplies, whatever the sizes, and nothing for a
            search to vary.
        mappings: how kernels run, by their names or patterns of names, as text
            (`coilwork_ir.mapping.user_mappings`).
        likely: what the sizes of the kernel likely are, one number for each of its size symbols: they likely
            do not exceed it, and are multiples of 16 where it is one. 0 if nothing is known of a size. A
            mapping is proposed by it; results are the same.
        candidates: how the template that made the kernel, a product, wants it to run: texts of directives,
            best guess first (`coilwork_ir.kernels.Proposal`). Not under `batch_invariant`, which has one
            launch for all sizes.
    """

    index_dtype: IndexChoice = "auto"
    max_configs: int = 3
    persistent_limit: int = 65536
    batch_invariant: bool = False
    mappings: GivenMappings = ()
    likely: tuple[int, ...] = ()
    candidates: tuple[str, ...] = ()


def parse_options(options: Mapping[str, object]) -> TritonOptions:
    """Settings by name.

    Raises:
        EmitError: an unknown name (the nearest known one is suggested) or a value of the wrong kind.
    """
    known = tuple(f.name for f in fields(TritonOptions))
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise EmitError("unknown-option", f"the Triton generator has no option {name!r}", remedy=hint)
    index_dtype = options.get("index_dtype", "auto")
    if index_dtype == "auto" or index_dtype == "i32" or index_dtype == "i64":
        choice: IndexChoice = index_dtype
    else:
        raise EmitError("option-value", f"index_dtype is 'auto', 'i32' or 'i64', not {index_dtype!r}")
    invariant = options.get("batch_invariant", False)
    if not isinstance(invariant, bool):
        raise EmitError("option-value", f"batch_invariant is True or False, not {invariant!r}")
    return TritonOptions(
        batch_invariant=invariant,
        index_dtype=choice,
        max_configs=_positive(options, "max_configs", TritonOptions().max_configs),
        persistent_limit=_positive(options, "persistent_limit", TritonOptions().persistent_limit),
        mappings=read_option(options.get("mappings", ())),
        likely=_numbers(options, "likely"),
        candidates=_texts(options, "candidates"),
    )


def check_likely(kernel: Kernel, options: TritonOptions) -> tuple[int, ...]:
    """Return the likely sizes of `kernel` by `options`, one number for each size.

    Raises:
        EmitError: they are not as many numbers as it has sizes.
    """
    if options.likely and len(options.likely) != len(kernel.sizes):
        raise EmitError(
            "option-value",
            f"likely is {options.likely}, and kernel {kernel.name} has {len(kernel.sizes)} sizes",
            remedy="give one number for each size symbol, 0 where nothing is known",
        )
    return options.likely


def _numbers(options: Mapping[str, object], name: str) -> tuple[int, ...]:
    value = options.get(name, ())
    if isinstance(value, tuple | list):
        numbers = tuple(n for n in value if isinstance(n, int) and not isinstance(n, bool) and n >= 0)
        if len(numbers) == len(value):
            return numbers
    raise EmitError("option-value", f"{name} is a list of numbers, 0 or more, not {value!r}")


def _texts(options: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = options.get(name, ())
    if isinstance(value, tuple | list):
        texts = tuple(text for text in value if isinstance(text, str))
        if len(texts) == len(value):
            return texts
    raise EmitError("option-value", f"{name} is a list of texts, not {value!r}")


def _positive(options: Mapping[str, object], name: str, default: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EmitError("option-value", f"{name} is a positive integer, not {value!r}")
    return value
