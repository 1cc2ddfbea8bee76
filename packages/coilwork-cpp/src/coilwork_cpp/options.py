"""Settings of the generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

from coilwork_ir.errors import EmitError
from coilwork_ir.mapping import GivenMappings, read_option


@dataclass(frozen=True, slots=True, kw_only=True)
class CppOptions:
    """The settings that a caller may choose. Every field changes the text, so all belong in a cache key.

    Attributes:
        vector_math: call the vector functions of glibc's libmvec (2.35 or later, x86-64); otherwise libm, one
            element at a time.
        split_elements: reductions with few results are computed in pieces of this many elements, so that
            threads can share them; 0: never.
        batch_invariant: what a row gives is the same to the bit whatever rows are beside it: reductions
            combine their elements in one order that the reduced ranges alone decide, and functions are libm's
            at every element.
        mappings: how kernels run, by their names or patterns of names, as text
            (`coilwork_ir.mapping.user_mappings`).
        candidates: how the template that made the kernel wants it to run: texts of directives, best guess
            first (`coilwork_ir.kernels.Proposal`). Not under `batch_invariant`, which has one order for all
            sizes.
    """

    vector_math: bool = True
    split_elements: int = 16384
    batch_invariant: bool = False
    mappings: GivenMappings = ()
    candidates: tuple[str, ...] = ()


def parse_options(settings: Mapping[str, object]) -> CppOptions:
    """Return the options named by `settings`.

    Raises:
        EmitError: an unknown name, or a value of another type than the field's.
    """
    known = {field.name: field for field in fields(CppOptions)}
    default = CppOptions()
    for name, value in settings.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise EmitError("unknown-option", f"no option {name!r}", remedy=remedy)
        if name in ("mappings", "candidates"):
            continue
        wanted = int if name == "split_elements" else bool
        if type(value) is not wanted:
            raise EmitError("option-type", f"option {name!r} takes {wanted.__name__}, got {value!r}")
    vector_math = settings.get("vector_math", default.vector_math)
    split_elements = settings.get("split_elements", default.split_elements)
    invariant = settings.get("batch_invariant", default.batch_invariant)
    assert isinstance(vector_math, bool) and isinstance(split_elements, int) and isinstance(invariant, bool)
    return CppOptions(
        vector_math=vector_math,
        split_elements=split_elements,
        batch_invariant=invariant,
        mappings=read_option(settings.get("mappings", ())),
        candidates=_read_texts(settings.get("candidates", ())),
    )


def _read_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, tuple | list):
        texts = tuple(text for text in value if isinstance(text, str))
        if len(texts) == len(value):
            return texts
    raise EmitError("option-type", f"candidates are texts of directives, not {value!r}")
