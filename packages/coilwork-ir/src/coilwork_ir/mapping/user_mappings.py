"""Mappings that users and templates give to kernels: how generators find, read and refuse them.

A generator's option `mappings` says, by the name of a kernel or a pattern of names, how it is to run: as a
text of directives, or as what a trace shows of the kernel, `mapping @k for cuda { … }` for each of its
pieces, with the text of pieces between them. A template names candidates (`coilwork_ir.kernels.Proposal`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingOf
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from coilwork_ir.errors import CoilworkIRError, EmitError, ParseError
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.mapping.nodes import Mapping, Versions, make_single_version
from coilwork_ir.mapping.text import parse_mapping, parse_versions
from coilwork_ir.mapping.verify import find_fault

# ---- Mappings of users ----


# Names of kernels, or patterns of names, and texts.
GivenMappings: TypeAlias = tuple[tuple[str, str], ...]

_BLOCK: Final = re.compile(r"^(?:mapping|kernel) @", re.MULTILINE)
_TARGET: Final = re.compile(r"mapping @\S+ for (\w+)")


def read_option(value: object) -> GivenMappings:
    """Return the option `mappings`: texts by names, or pairs of both.

    Raises:
        EmitError: it is something else.
    """
    pairs: Iterable[object] = (
        value.items()
        if isinstance(value, MappingOf)
        else value
        if isinstance(value, tuple | list)
        else [None]
    )
    texts: list[tuple[str, str]] = []
    for pair in pairs:
        match pair:
            case (str(name), str(text)):
                texts.append((name, text))
            case _:
                raise EmitError(
                    "option-value",
                    f"mappings are texts by names of kernels, not {value!r}",
                    remedy="{'softmax_*': 'tile x0 by 4 …'}",
                )
    return tuple(texts)


def find_given(given: GivenMappings, kernel: Kernel) -> str | None:
    """Return the text that is given for `kernel`: under its name, or else the first pattern that fits."""
    named = next((text for name, text in given if name == kernel.name), None)
    return named or next((text for name, text in given if fnmatchcase(kernel.name, name)), None)


def parse_given(text: str, kernel: Kernel, target: str) -> tuple[Versions, ...]:
    """Parse the versions that `text` gives to the pieces of `kernel` on devices of kind `target`, in order.

    There are none if it is for other devices alone.

    Raises:
        EmitError: it is no text of mappings.
    """
    try:
        if not _BLOCK.search(text):
            return (make_single_version(kernel.name, target, parse_mapping(text)),)
        return tuple(
            parse_versions(block, kernel.sizes)
            for block in _split_mappings(text)
            if (told := _TARGET.search(block)) is None or told[1] == target
        )
    except ParseError as error:
        raise refuse_given(kernel, error) from error


def _split_mappings(text: str) -> Iterator[str]:
    """Yield the parts of `text` that are mappings, with its lines before them left empty, so that errors name
    the right line.
    """
    starts = [found.start() for found in _BLOCK.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        if text.startswith("mapping", start):
            yield "\n" * text.count("\n", 0, start) + text[start:end]


def check_given(kernel: Kernel, piece: Kernel, mapping: Mapping, proposed: Mapping | None = None) -> None:
    """Check that `mapping`, given to `kernel`, may be said of `piece`, which is it or a part of it.

    What a generator has `proposed` itself it knows to be right. Of open numbers some choice is.

    Raises:
        EmitError: the first directive whose rule is broken, by its name.
    """
    fault = find_fault(piece, mapping)
    if fault is None or (proposed is not None and fault[0] in proposed.directives):
        return
    directive, reason = fault
    raise EmitError(
        "mapping" if directive is None else f"mapping-{directive.keyword()}",
        f"the mapping given for kernel {kernel.name} is not legal",
        node="" if directive is None else directive.text,
        origins=kernel.origins,
        reason=reason,
        remedy=_REMEDY,
    )


def check_closed(kernel: Kernel, mapping: Mapping) -> None:
    """Check that `mapping`, given to `kernel`, leaves nothing open.

    Raises:
        EmitError: it leaves a number open.
    """
    for number in mapping.open_numbers:
        raise EmitError(
            "mapping-open",
            f"the mapping given for kernel {kernel.name} leaves ?{number.name} open",
            node=f"kernel @{kernel.name}",
            origins=kernel.origins,
            remedy=f"choose one of {', '.join(map(str, number.values))}",
        )


_REMEDY: Final = (
    "begin with the mapping that a trace shows of the kernel (kernels/NAME.mapping.txt), and change that"
)


def refuse_given(kernel: Kernel, error: CoilworkIRError) -> EmitError:
    """Return the error that says of the mapping given for `kernel` what `error` says."""
    return EmitError(
        error.code if error.code.startswith("mapping") else "mapping-text",
        f"the mapping given for kernel {kernel.name} cannot be used",
        node=error.node,
        origins=kernel.origins,
        reason=": ".join(part for part in (error.what, error.reason) if part),
        remedy=error.remedy or _REMEDY,
    )


# ---- Candidates of templates ----


def refuse_candidate(kernel: Kernel, text: str, error: CoilworkIRError) -> EmitError:
    """Return the error that says of a candidate of `kernel`, which is `text`, what `error` says."""
    keyword = error.code.removeprefix("mapping-")
    return EmitError(
        f"candidate-{keyword}",
        f"a template's candidate for kernel {kernel.name} cannot be used",
        node=text,
        origins=kernel.origins,
        reason=": ".join(part for part in (error.what, error.reason) if part),
        remedy="have the template name blocks that its generator writes (docs/how-to/add-a-template.md)",
    )
