"""The versions of a Triton kernel, and their mappings: text whose open numbers a configuration closes.

    tile x0 by ?XBLOCK in 512 256 1024
    warps ?num_warps in 4 8
    limit `32*num_warps` at most `XBLOCK`

With the numbers of a configuration a mapping is closed: `tile x0 by 512`, `warps 4`; that is what is
remembered of a choice. `coilwork_ir.mapping` describes the language and parses both forms. A kernel may have
versions for some sizes and one for all; each configuration belongs to one version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from coilwork_runtime.manifest.kernel_manifest import KernelSpec

_NUMBER: Final = re.compile(r"\?(\w+) in (\d+(?: \d+)*)")
_LIMIT: Final = re.compile(r"limit `([^`]*)` at most `([^`]*)`")
_TIED: Final = re.compile(r"choose (\w+(?:, \w+)*) as ")


def read_values(mapping: str) -> dict[str, tuple[int, ...]]:
    """Return the values of each open number of `mapping` that a search may choose by itself, ascending."""
    tied = {name for names in _TIED.findall(mapping) for name in names.split(", ")}
    return {
        name: tuple(sorted(map(int, values.split())))
        for name, values in _NUMBER.findall(mapping)
        if name not in tied
    }


def close_mapping(mapping: str, config: Mapping[str, int]) -> str:
    """Return `mapping` with the numbers of `config`.

    Raises:
        KeyError: `config` lacks one.
    """
    return "\n".join(
        _NUMBER.sub(lambda number: str(config[number[1]]), line) for line in _directives(mapping)
    )


def read_choice(mapping: str, closed: str) -> dict[str, int] | None:
    """Return the numbers with which `mapping` is `closed`; None if it never is."""
    seen: set[str] = set()
    match = re.fullmatch(_pattern("\n".join(_directives(mapping)), seen), closed)
    return None if match is None else {name: int(match[name]) for name in seen}


def _directives(mapping: str) -> Iterator[str]:
    """Return the directives of `mapping` that closed ones have, too."""
    return (line for line in mapping.splitlines() if not (_LIMIT.fullmatch(line) or _TIED.match(line)))


def _pattern(text: str, seen: set[str]) -> str:
    """Return a regular expression for `text` with numbers in the place of open ones, whose names `seen`
    gets.
    """
    parts: list[str] = []
    at = 0
    for number in _NUMBER.finditer(text):
        name = number[1]
        parts.append(re.escape(text[at : number.start()]))
        parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>\\d+)")
        seen.add(name)
        at = number.end()
    return "".join((*parts, re.escape(text[at:])))


# ---- versions ----


# The compile-time parameter that tells versions apart: how many there are behind one.
_VERSION: Final = "VERSION"
_T = TypeVar("_T")


def get_version(spec: KernelSpec, config: Mapping[str, int]) -> int:
    """Return the number of the version of `spec` that a configuration is of; they are counted as
    `spec.versions` are.
    """
    count = len(spec.guards)
    # of a version that was selected all configurations are
    return count - 1 - config.get(_VERSION, 0) if count > 1 else 0


def select_version(spec: KernelSpec, number: int) -> KernelSpec:
    """`spec` as the one version of it that has this number."""
    return replace(
        spec,
        configs=tuple(config for config in spec.configs if get_version(spec, config) == number),
        versions=tuple(replace(one, guard=None) for one in spec.versions[number : number + 1]),
    )


def keep_versions(spec: KernelSpec, guesses: Sequence[_T]) -> tuple[_T, ...]:
    """Return the first of `guesses`, one for each configuration of `spec`, of each version; that of the first
    configuration leads.
    """
    firsts: dict[int, _T] = {}
    for guess, config in zip(guesses, spec.configs, strict=True):
        firsts.setdefault(get_version(spec, config), guess)
    return tuple(firsts.values())


def format_mapping(spec: KernelSpec, config: Mapping[str, int]) -> str | None:
    """Return the closed mapping of `spec` in `config`; None if the kernel tells none."""
    number = get_version(spec, config)
    return close_mapping(spec.versions[number].mapping, config) if spec.versions else None
