"""Functions that combine, as a kernel's scans have them: device functions of the kernel's own, named after
what they do.

Such a function has no neutral element. Where one is needed a flag comes behind the values, which says whether
there are any.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.scalar import Combine, Const, Op, Parameter, Scalar, Scan, iterate_postorder
from coilwork_ir.syntax.python import (
    Assign,
    Attribute,
    Binary,
    Expression,
    Function,
    If,
    Name,
    Number,
    Return,
    Statement,
    Subscript,
    While,
    call,
    method,
)
from coilwork_ir.text.scalars import format_combining
from coilwork_triton.text.device_library import has_lane_loop
from coilwork_triton.text.language import (
    define_function,
    exact_constant,
    free_constant,
    get_triton_type,
    operand_constant,
    tl,
)
from coilwork_triton.text.ops import OPERATORS, SCALAR_BUILDERS, Numerics, OpContext


def combine_name(kind: Combine, *, flagged: bool = False) -> str:
    """Return the name of the device function for `kind`; of that with a flag behind each tuple's values if
    `flagged`.
    """
    digest = sha256(format_combining(kind).encode()).hexdigest()[:8]
    return f"combine_{digest}_if_any" if flagged else f"combine_{digest}"


def make_exclusive_name(kind: Combine) -> str:
    """Return the name of the function that combines runs, with flags, and keeps what comes before each."""
    return f"exclusive_{combine_name(kind)}"


def make_stepwise_scan_name(function: str) -> str:
    """Return the name of the function that scans a block with `function`, outside of Triton's own scans."""
    return f"scan_with_{function}"


def get_accumulation_type(dtype: DType) -> DType:
    """Return the type in which values of `dtype` are combined: truth values are 0 and 1."""
    return DType.I32 if dtype.is_bool else dtype


def has_loops(kind: Combine) -> bool:
    """Tell if `kind` calls a function that loops until no lane has work."""
    called: set[str] = set()
    _define_plain(kind, "fast", called)
    return any(map(has_lane_loop, called))


def define_combine_functions(
    roots: Iterable[Scalar], numerics: Numerics, library: set[str]
) -> tuple[Function, ...]:
    """Return the device functions that scans of `roots` have and `library` names, callees first.

    Their names leave `library`; what they call of the library's functions is added to it.
    """
    kinds = dict.fromkeys(
        node.kind
        for node in iterate_postorder(tuple(roots))
        if isinstance(node, Scan) and isinstance(node.kind, Combine)
    )
    found: list[Function] = []
    for kind in kinds:
        # each calls the one before it
        names = (combine_name(kind), combine_name(kind, flagged=True), make_exclusive_name(kind))
        scans = [name for name in names if make_stepwise_scan_name(name) in library]
        asked = [number for number, name in enumerate(names) if name in library or name in scans]
        if asked:
            made = (_define_plain(kind, numerics, library), _define_flagged(kind), _define_exclusive(kind))
            found += made[: asked[-1] + 1]
            counts = dict(zip(names, (kind.count, kind.count + 1, 2 * kind.count + 2), strict=True))
            found += (_define_stepwise_scan(name, counts[name]) for name in scans)
            library.update(["places_along"] if scans else ())
            library.difference_update(names, map(make_stepwise_scan_name, scans))
    return tuple(found)


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{k}" for k in range(count)]


def _read(names: Iterable[str]) -> tuple[Name, ...]:
    return tuple(Name(name) for name in names)


def _define_plain(kind: Combine, numerics: Numerics, library: set[str]) -> Function:
    """One tuple, and one after it."""
    early, late = _names("a", kind.count), _names("b", kind.count)
    body: list[Statement] = []
    done: dict[Scalar, Expression] = {}
    for node in iterate_postorder(kind.results):
        match node:
            case Const():
                continue
            case Parameter():
                formal: Expression = Name((early + late)[node.position])
                done[node] = Binary("!=", formal, Number(0)) if node.dtype.is_bool else formal
            case Op():
                name = f"{node.op.rstrip('0123456789')}_{len(body)}"
                body.append(Assign((name,), _operation(node, done, numerics, library)))
                done[node] = Name(name)
            case _:
                raise EmitError("scalar-op", "a function that combines holds what is no operation")
    results = tuple(
        _result(node, done.get(node), Name(first)) for node, first in zip(kind.results, late, strict=True)
    )
    return define_function(combine_name(kind), early + late, (*body, Return(results)))


def _operation(node: Op, done: dict[Scalar, Expression], numerics: Numerics, library: set[str]) -> Expression:
    builder = SCALAR_BUILDERS.get(node.op)
    if builder is None:
        raise EmitError("scalar-op", f"no Triton for the scalar op {node.op!r}")
    bare = node.op in OPERATORS and not all(isinstance(operand, Const) for operand in node.operands)
    operands: list[Expression] = []
    for operand in node.operands:
        if not isinstance(operand, Const):
            operands.append(done[operand])
        elif bare and not operand.dtype.is_bool:
            operands.append(operand_constant(node.op, operand.value, operand.dtype))
        else:
            operands.append(exact_constant(operand.value, operand.dtype))
    context = OpContext(
        operand=node.operands[-1].dtype, result=node.dtype, numerics=numerics, library=library
    )
    return builder(context, tuple(operands))


def _result(node: Scalar, value: Expression | None, late: Name) -> Expression:
    """`value`, of the type in which it is combined; a constant gets the shape of what it is combined from."""
    wide = get_triton_type(get_accumulation_type(node.dtype))
    if value is None:
        assert isinstance(node, Const)
        number = free_constant(node.value, node.dtype)
        value = tl("where", Binary("==", late, late), number, number)
    elif isinstance(node, Parameter) and not node.dtype.is_bool:
        return value
    return method(value, "to", wide)


def _define_flagged(kind: Combine) -> Function:
    """Do as `_define_plain`, for tuples with flags."""
    early, late, both = (_names(letter, kind.count) for letter in "abc")
    any_early, any_late = Name("any_a"), Name("any_b")
    combined = Assign(tuple(both), call(combine_name(kind), *_read(early + late)))
    if kind.count == 1:
        combined = Assign((both[0],), combined.value)
    chosen = tuple(
        tl(
            "where",
            Binary("==", any_early, Number(0)),
            Name(b),
            tl("where", Binary("==", any_late, Number(0)), Name(a), Name(c)),
        )
        for a, b, c in zip(early, late, both, strict=True)
    )
    return define_function(
        combine_name(kind, flagged=True),
        (*early, any_early.id, *late, any_late.id),
        (combined, Return((*chosen, Binary("|", any_early, any_late)))),
    )


def _define_exclusive(kind: Combine) -> Function:
    """Combines pairs of tuples with flags: what comes before a run, and all up to its end."""
    count = kind.count + 1
    e, t, f, u = (_names(letter, count) for letter in "etfu")
    name = combine_name(kind, flagged=True)
    before, upto = _names("before", count), _names("upto", count)
    return define_function(
        make_exclusive_name(kind),
        (*e, *t, *f, *u),
        (
            Assign(tuple(before), call(name, *_read(t + f))),
            Assign(tuple(upto), call(name, *_read(t + u))),
            Return(_read(before + upto)),
        ),
    )


def _define_stepwise_scan(combining: str, count: int) -> Function:
    """Return a block's scan along AXIS with `combining`, which may loop: Triton's own scans cannot hold
    loops.

    After each step a point holds what twice as many points combine to.
    """
    own, early, late = (_names(letter, count) for letter in "vec")
    place, axis, reverse, size, step = map(Name, ("place", "AXIS", "REVERSE", "size", "step"))
    end = Binary("-", size, Number(1))
    ahead = If(
        reverse,
        (Assign(("at",), Binary("+", place, step)), Assign(("there",), Binary("<", Name("at"), size))),
        (Assign(("at",), Binary("-", place, step)), Assign(("there",), Binary(">=", Name("at"), Number(0)))),
    )
    near = tl("minimum", tl("maximum", Name("at"), Number(0)), end)
    before = [
        Assign((e,), tl("gather", Name(v), Name("near"), axis)) for e, v in zip(early, own, strict=True)
    ]
    combined = Assign(tuple(late), call(combining, *_read(early + own)))
    chosen = [
        Assign((v,), tl("where", Name("there"), Name(c), Name(v))) for v, c in zip(own, late, strict=True)
    ]
    steps = While(
        Binary("<", step, size),
        (
            ahead,
            Assign(("near",), near),
            *before,
            combined,
            *chosen,
            Assign(("step",), Binary("*", step, Number(2))),
        ),
    )
    start = (
        Assign(("size",), Subscript(Attribute(Name(own[0]), "shape"), (axis,))),
        Assign(("place",), call("places_along", Name(own[0]), axis)),
        Assign(("step",), Number(1)),
    )
    return define_function(
        make_stepwise_scan_name(combining),
        own,
        (*start, steps, Return(_read(own))),
        constants=("AXIS", "REVERSE"),
    )
