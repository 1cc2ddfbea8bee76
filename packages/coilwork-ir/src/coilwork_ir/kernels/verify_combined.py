"""The verifier of combined kernels: several computations of one kind in one launch.

`COMBINED_RULES` lists what is asked of them; the body is checked as a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import substitute
from coilwork_ir.kernels.alias_analysis import check_pairs
from coilwork_ir.kernels.nodes import Combined, Kernel, Member, TensorArg
from coilwork_ir.verification import Place, Rule

COMBINED_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "combined-alone": Rule(
            (
                "a combined kernel has no ranges, stores or checks besides its body, which is not combined "
                "itself"
            ),
            "move them into the body",
        ),
        "combined-names": Rule(
            "arguments and sizes of a combined kernel have other names than those of its body",
            "name them after the members, m0_in0, m1_in0, ...",
        ),
        "member-arity": Rule(
            "a member names one argument for each of the body's and one size for each of its symbols",
            "pass what is missing",
        ),
        "member-arg": Rule(
            "what a member passes has the type, span, alignment and role that the body declares",
            "declare the argument of the kernel as the body does",
        ),
        "member-apart": Rule(
            "what one member writes no other member touches", "run them one after the other, in two launches"
        ),
    }
)


def check_combined(kernel: Kernel, combined: Combined, place: Place) -> None:
    """Check `kernel`, which is `combined`; its body is checked elsewhere.

    Raises:
        VerifyError: the first rule that is broken.
    """
    if kernel.ranges or kernel.stores or kernel.checks or combined.body.combined is not None:
        place.fail("combined-alone", f"of {len(combined.members)} members")
    if not combined.members:
        place.fail("effect", "there is no member")
    symbols = {size.name: size for size in kernel.sizes}
    if len(symbols) != len(kernel.sizes):
        place.fail("unique-symbol", "a size symbol is listed twice")
    args = {arg.name: arg for arg in kernel.args}
    if len(args) != len(kernel.args):
        place.fail("unique-arg", "an argument is declared twice")
    formal = {a.name for a in combined.body.args} | {s.name for s in combined.body.sizes}
    for name in (*args, *symbols):
        if name in formal:
            place.fail("combined-names", f"{name} is a name of the body")
    # argument -> the first member that uses it
    users: dict[str, int] = {}
    for number, member in enumerate(combined.members):
        _check_member(member, number, combined.body, args, place)
        for size in member.sizes:
            for found in size.free_symbols:
                if symbols.get(found.name) is not found:
                    place.fail("symbol-declared", f"{found.name} in {size!r} is not declared")
        for name in dict.fromkeys(member.args):
            if users.setdefault(name, number) == number:
                continue
            if args[name].role != "in":
                place.fail("member-apart", f"{name} is written, and member {number} uses it too")
    for name in args:
        if name not in users:
            place.fail("arg-unused", f"{name} belongs to no member")
    check_pairs(kernel.aliasing, args, place)
    shared = {pair for member in combined.members for pair in member_aliasing(combined.body, member)}
    for output, source in kernel.aliasing:
        if (output, source) not in shared:
            place.fail("aliasing", f"no member may have {output} in the memory of {source}")
        if sum(source in member.args for member in combined.members) > 1:
            place.fail("aliasing", f"{output} of {source}, which several members read")


def member_aliasing(body: Kernel, member: Member) -> tuple[tuple[str, str], ...]:
    """The pairs of `body.aliasing`, by the arguments that `member` passes."""
    actual = {formal.name: name for formal, name in zip(body.args, member.args, strict=True)}
    return tuple((actual[output], actual[source]) for output, source in body.aliasing)


def _check_member(
    member: Member, number: int, body: Kernel, args: Mapping[str, TensorArg], place: Place
) -> None:
    if len(member.args) != len(body.args) or len(member.sizes) != len(body.sizes):
        place.fail("member-arity", f"member {number}: {len(member.args)} and {len(member.sizes)}")
    values = dict(zip(body.sizes, member.sizes, strict=True))
    for formal, name in zip(body.args, member.args, strict=True):
        found = args.get(name)
        if found is None:
            place.fail("member-arg", f"{name} of member {number} is not declared")
        wanted = (formal.dtype, formal.role, formal.aligned, substitute(formal.span, values))
        if (found.dtype, found.role, found.aligned, found.span) != wanted:
            place.fail("member-arg", f"{name} of member {number} is declared otherwise than {formal.name}")
    if len(set(member.args)) != len(member.args):
        place.fail("member-apart", f"member {number} passes one argument twice")
