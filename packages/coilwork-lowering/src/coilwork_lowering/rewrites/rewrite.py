"""A rewrite: the pattern that it looks for, the conditions on a match, and the replacement.

A pattern is a small tree of calls with names at its leaves. `find_matches` tells where it fits and what it
captures, a `Condition` is a named predicate over a match, and `Rewrite` puts the parts together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import fx

from coilwork_ir.machine import FindModel, MachineModel, find_like_model
from coilwork_lowering.rewrites.call_normalization import Vocabulary
from coilwork_lowering.torch_compat.sizes import is_surely

# patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Any node of the graph, captured as `name`. Of one name, all occurrences must be one node."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An argument that is no node: a number, a type, a list of sizes; captured as `name`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list of nodes, captured as `name`: the operands of `cat`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of any of `ops`.

    Attributes:
        ops: operators as the vocabulary spells them, of which any will do.
        arguments: pairs of a parameter's name and the pattern for its argument. Parameters that are not named
            must have their defaults.
        commutes: two parameters that may also stand the other way round.
        shared: the call may have readers outside of the match; it then stays in the graph. Others must not:
            what they compute would be computed twice. Of the root of a pattern it says nothing.
        named: captures the call's result, so that other places of the pattern can ask for the same one;
            empty: it does not.
    """

    ops: tuple[str, ...]
    arguments: tuple[tuple[str, Pattern], ...]
    commutes: tuple[str, str] | None = None
    shared: bool = False
    named: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Either:
    """The first of `options` that fits, with what surrounds it."""

    options: tuple[Pattern, ...]


Pattern: TypeAlias = Tensor | Value | Items | Call | Either


def tensor(name: str) -> Tensor:
    """Any node, captured as `name`."""
    return Tensor(name=name)


def value(name: str) -> Value:
    """Any argument that is no node, captured as `name`."""
    return Value(name=name)


def items(name: str) -> Items:
    """Return a list of nodes, captured as `name`."""
    return Items(name=name)


def either(*options: Pattern) -> Either:
    """Return the first of `options` that fits."""
    return Either(options=options)


def call(
    ops: str,
    *,
    commutes: tuple[str, str] | None = None,
    shared: bool = False,
    named: str = "",
    **arguments: Pattern,
) -> Call:
    """Return a call of one of the operators in `ops`, separated by spaces."""
    pairs = tuple(arguments.items())
    return Call(ops=tuple(ops.split()), arguments=pairs, commutes=commutes, shared=shared, named=named)


def iterate_roots(pattern: Pattern) -> Iterator[Call]:
    """Yield the calls that may be the outermost of `pattern`."""
    match pattern:
        case Call():
            yield pattern
        case Either(options=options):
            for option in options:
                yield from iterate_roots(option)
        case _:
            return


def iterate_names(pattern: Pattern) -> Iterator[str]:
    """Yield the names that some match of `pattern` captures; some more than once."""
    match pattern:
        case Tensor() | Value() | Items():
            yield pattern.name
        case Call(arguments=arguments, named=named):
            if named:
                yield named
            for _, inner in arguments:
                yield from iterate_names(inner)
        case Either(options=options):
            for option in options:
                yield from iterate_names(option)


@dataclass(frozen=True, slots=True)
class Outline:
    """The outline of a call that a pattern can fit, told by operators alone: quick to compare.

    Attributes:
        ops: operators that the call may be of.
        most_operands: how many nodes it reads at most; arguments that are not named are no nodes.
        inner: per argument that has to be a call, the outlines of which that call has to have one.
    """

    ops: frozenset[str]
    most_operands: float
    inner: tuple[tuple[Outline, ...], ...]


def outline(pattern: Pattern) -> tuple[Outline, ...]:
    """Return the outlines of which a call that `pattern` fits has one."""
    return tuple(_outline_call(root) for root in iterate_roots(pattern))


def has_outline(node: fx.Node, outlines: tuple[Outline, ...], vocabulary: Vocabulary) -> bool:
    """Tell if `node` has one of `outlines`; without, no pattern that they are of fits."""
    op = vocabulary.op(node)
    operands = None
    for one in outlines:
        if op in one.ops:
            operands = node.all_input_nodes if operands is None else operands
            # `x.type_as(y)` reads as a call with the type of `y`
            if len(operands) > one.most_operands and node.op == "call_function":
                continue
            if all(
                any(has_outline(operand, inner, vocabulary) for operand in operands) for inner in one.inner
            ):
                return True
    return False


def _outline_call(pattern: Call) -> Outline:
    arguments = [argument for _, argument in pattern.arguments]
    return Outline(
        ops=frozenset(pattern.ops),
        most_operands=sum(map(_count_operands, arguments)),
        inner=tuple(outline(argument) for argument in arguments if _is_of_calls(argument)),
    )


def _count_operands(pattern: Pattern) -> float:
    """Return how many nodes an argument that `pattern` fits holds at most."""
    match pattern:
        case Tensor() | Call():
            return 1
        case Value():
            return 0
        case Items():
            return math.inf
        case Either(options=options):
            return max(map(_count_operands, options))


def _is_of_calls(pattern: Pattern) -> bool:
    """Tell if all that `pattern` fits are calls."""
    match pattern:
        case Call():
            return True
        case Either(options=options):
            return all(map(_is_of_calls, options))
        case _:
            return False


# matching


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One place where a pattern fits.

    Attributes:
        roots: the outermost calls, which are replaced.
        captures: what stands at the pattern's names: nodes, lists of nodes, arguments.
        nodes: the calls of the pattern, roots included.
        vocabulary: how to read the graph.
        memo: what conditions found out about one call, for the other matches of the run that hold it.
        find_model: what is measured of a device.
    """

    roots: tuple[fx.Node, ...]
    captures: Mapping[str, Any]
    nodes: tuple[fx.Node, ...]
    vocabulary: Vocabulary
    memo: dict[Hashable, Any] = field(default_factory=dict)
    find_model: FindModel = find_like_model

    def machine(self, name: str) -> MachineModel:
        """Return the measured figures of the device of the captured node `name`."""
        return self.find_model(str(self.value(name).device))

    def value(self, name: str) -> Any:
        """Return the fake tensor of the captured node `name`."""
        return self.vocabulary.value(self.captures[name])

    @property
    def root(self) -> fx.Node:
        """The outermost call of the first pattern."""
        return self.roots[0]

    @property
    def result(self) -> Any:
        """The fake value of the root."""
        return self.vocabulary.value(self.root)


@dataclass(frozen=True, slots=True)
class _State:
    """The captures and calls of a partial match."""

    captures: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[fx.Node, ...] = ()
    kept: tuple[fx.Node, ...] = ()  # calls that may have other readers


def find_matches(
    node: fx.Node,
    pattern: Pattern,
    also: tuple[Pattern, ...],
    vocabulary: Vocabulary,
    memo: dict[Hashable, Any],
    find_model: FindModel = find_like_model,
) -> Iterator[Match]:
    """Yield every way in which `pattern` fits with `node` as its outermost call, and `also` beside it.

    `memo` and `find_model` as in `Match`.
    """
    for state in _fit(pattern, node, _State(), vocabulary):
        for roots, whole in _extend(also, (node,), state, vocabulary):
            if _is_closed(whole, roots):
                yield Match(
                    roots=roots,
                    captures=whole.captures,
                    nodes=whole.nodes,
                    vocabulary=vocabulary,
                    memo=memo,
                    find_model=find_model,
                )


def _extend(
    also: tuple[Pattern, ...], roots: tuple[fx.Node, ...], state: _State, vocabulary: Vocabulary
) -> Iterator[tuple[tuple[fx.Node, ...], _State]]:
    """Yield the remaining roots: among the readers of what is captured."""
    if not also:
        yield roots, state
        return
    pattern, *rest = also
    captured = [item for item in state.captures.values() if isinstance(item, fx.Node)]
    readers = dict.fromkeys(user for item in captured for user in item.users if user not in state.nodes)
    for reader in readers:
        for further in _fit(pattern, reader, state, vocabulary):
            yield from _extend(tuple(rest), (*roots, reader), further, vocabulary)


def _is_closed(state: _State, roots: tuple[fx.Node, ...]) -> bool:
    """Tell if nobody outside reads what stands between leaves and roots."""
    inside = set(state.nodes)
    open_calls = inside - set(roots) - set(state.kept)
    return all(user in inside for node in open_calls for user in node.users)


def _fit(pattern: Pattern, argument: Any, state: _State, vocabulary: Vocabulary) -> Iterator[_State]:
    match pattern:
        case Tensor(name=name):
            if isinstance(argument, fx.Node):
                yield from _capture(name, argument, state)
        case Value(name=name):
            if not _holds_nodes(argument):
                yield from _capture(name, argument, state)
        case Items(name=name):
            # a list may be long, and be looked at by each of many matches
            if isinstance(argument, list | tuple) and {fx.Node}.issuperset(map(type, argument)):
                yield from _capture(name, tuple(argument), state)
        case Either(options=options):
            op = vocabulary.op(argument) if isinstance(argument, fx.Node) else None
            for option in options:
                if not isinstance(option, Call) or op in option.ops:
                    yield from _fit(option, argument, state, vocabulary)
        case Call():
            if isinstance(argument, fx.Node):
                yield from _fit_call(pattern, argument, state, vocabulary)


def _fit_call(pattern: Call, node: fx.Node, state: _State, vocabulary: Vocabulary) -> Iterator[_State]:
    if vocabulary.op(node) not in pattern.ops:
        return
    read = vocabulary.read(node)
    if read is None:
        return
    wanted = dict(pattern.arguments)
    if not wanted.keys() <= read.arguments.keys():
        return
    for name, argument in read.arguments.items():
        if name not in wanted and (
            name not in read.defaults or not _are_same_arguments(argument, read.defaults[name])
        ):
            return
    kept = (*state.kept, node) if pattern.shared else state.kept
    inside = _State(state.captures, (*state.nodes, node), kept)
    for named in _capture(pattern.named, node, inside) if pattern.named else (inside,):
        yield from _fit_orders(pattern, wanted, read.arguments, named, vocabulary)


def _fit_orders(
    pattern: Call,
    wanted: Mapping[str, Pattern],
    arguments: Mapping[str, Any],
    state: _State,
    vocabulary: Vocabulary,
) -> Iterator[_State]:
    orders = [wanted]
    if pattern.commutes is not None:
        a, b = pattern.commutes
        orders.append({**wanted, a: wanted[b], b: wanted[a]})
    for order in orders:
        yield from _fit_arguments(list(order.items()), arguments, state, vocabulary)


def _fit_arguments(
    wanted: list[tuple[str, Pattern]], arguments: Mapping[str, Any], state: _State, vocabulary: Vocabulary
) -> Iterator[_State]:
    if not wanted:
        yield state
        return
    (name, pattern), *rest = wanted
    for further in _fit(pattern, arguments[name], state, vocabulary):
        yield from _fit_arguments(rest, arguments, further, vocabulary)


_ABSENT: Final = object()


def _capture(name: str, argument: Any, state: _State) -> Iterator[_State]:
    captured = state.captures.get(name, _ABSENT)
    if captured is _ABSENT:
        yield _State({**state.captures, name: argument}, state.nodes, state.kept)
    elif _are_same_arguments(captured, argument):
        yield state


def _are_same_arguments(a: Any, b: Any) -> bool:
    """Equality of arguments, where 1, 1.0 and True are three, and symbolic numbers are themselves alone: it
    adds no guard.
    """
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_are_same_arguments(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, fx.Node | torch.SymInt | torch.SymFloat | torch.SymBool):
        return a is b
    return type(a) is type(b) and bool(a == b)


def _holds_nodes(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(_holds_nodes(item) for item in argument)
    return isinstance(argument, fx.Node)


def list_anchors(pattern: Pattern) -> tuple[str, ...]:
    """Operators at which to try `pattern`."""
    return tuple(dict.fromkeys(op for root in iterate_roots(pattern) for op in root.ops))


# conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A predicate with a name, for reports and tests."""

    name: str
    holds: Callable[[Match], bool]


def same_dtype(*names: str) -> Condition:
    """The captured tensors have one element type."""
    return Condition(
        name=f"same dtype: {', '.join(names)}",
        holds=lambda match: len({match.value(name).dtype for name in names if name in match.captures}) <= 1,
    )


def dtype_among(name: str, *dtypes: torch.dtype) -> Condition:
    """The captured tensor is of one of `dtypes`."""
    return Condition(
        name=f"dtype of {name} among {', '.join(str(d).removeprefix('torch.') for d in dtypes)}",
        holds=lambda match: match.value(name).dtype in dtypes,
    )


def has_rank(name: str, *ranks: int) -> Condition:
    """The captured tensor has one of so many dimensions."""
    return Condition(name=f"rank of {name} in {ranks}", holds=lambda match: match.value(name).dim() in ranks)


def equals(name: str, wanted: complex) -> Condition:
    """The captured argument is this number; booleans are none."""

    def holds(match: Match) -> bool:
        number = match.captures[name]
        return isinstance(number, int | float) and not isinstance(number, bool) and number == wanted

    return Condition(name=f"{name} == {wanted}", holds=holds)


def is_number(name: str) -> Condition:
    """The captured argument is a number of Python, known now."""
    return Condition(
        name=f"{name} is a number", holds=lambda match: type(match.captures[name]) in (int, float)
    )


def like_result(name: str) -> Condition:
    """The captured tensor has the type, shape, strides and device of what the match computes."""

    def holds(match: Match) -> bool:
        return is_like(match.value(name), match.result)

    return Condition(name=f"{name} is like the result", holds=holds)


def is_like(found: Any, wanted: Any, *, strides: bool = True) -> bool:
    """Tell if two fake tensors surely have type, shape, device and strides in common. Adds no guard."""
    if not isinstance(found, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return False
    if (found.dtype, found.device, found.layout) != (wanted.dtype, wanted.device, wanted.layout):
        return False
    if not same_sizes(found.shape, wanted.shape):
        return False
    return not strides or found.layout != torch.strided or _same_strides(found, wanted)


def same_sizes(found: Any, wanted: Any) -> bool:
    """Tell if two lists of sizes are surely equal. Adds no guard."""
    return len(found) == len(wanted) and all(is_surely(a == b) for a, b in zip(found, wanted, strict=True))


def has_equal_strides(found: Any, wanted: Any) -> bool:
    """Tell if two fake tensors of one shape surely have the same strides, those of dimensions of one element
    included; True if they have none. Adds no guard.
    """
    if not isinstance(found, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return True
    if found.layout != torch.strided or wanted.layout != torch.strided:
        return True
    return same_sizes(found.stride(), wanted.stride())


def _same_strides(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    # nobody steps along a dimension of one element
    return all(
        is_surely(size == 1) or is_surely(a == b)
        for size, a, b in zip(wanted.shape, found.stride(), wanted.stride(), strict=True)
    )


# rewrites


Level = Literal["captured", "aten", "frozen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One pair of pattern and replacement.

    Attributes:
        name: what reports and the option `skip_rewrites` call it.
        doc: one sentence: what it does and why that pays.
        pattern: what to look for; its outermost calls are what is replaced.
        replacement: an ordinary function of what the pattern captured, by name. Nodes come as proxies, whose
            `value` is their fake tensor; the others as they are, and names that the match did not capture as
            `None`. It returns what takes the root's place: one proxy, or for a root of several results a list
            of them, `None` for those that nobody reads. `None` instead of a proxy refuses the match. Or there
            is none, but `existing`.
        conditions: all must hold.
        existing: instead of a replacement, which captured node takes the root's place. It spares a proxy for
            each of many.
        also: further roots, which share captures with `pattern`; the replacement then returns one result per
            root.
        level: `captured` graphs hold the user's own calls, before autograd; `aten` graphs are functional:
            joint graphs before their partition, and inference graphs. `frozen` ones are inference graphs
            whose parameters are taken for constant.
        inexact: results may round otherwise than the captured calls; such a rewrite needs numerics `fast`.
        random: the replacement draws its random numbers in another way.
        restrides: the result's strides may differ, because the conditions see to it that nobody cares.
        find_model: what is measured of a device, for conditions that ask what pays there.
        uuid: of rewrites that users add: changes whenever they change. Empty: what is compiled is not cached.
    """

    name: str
    doc: str
    pattern: Pattern
    replacement: Callable[..., Any] | None = None
    conditions: tuple[Condition, ...] = ()
    existing: Callable[[Match], fx.Node] | None = None
    also: tuple[Pattern, ...] = ()
    level: Level = "aten"
    inexact: bool = False
    random: bool = False
    restrides: bool = False
    find_model: FindModel = field(default=find_like_model, repr=False, compare=False)
    uuid: str = ""

    def __post_init__(self) -> None:
        if not self.name or any(not tuple(iterate_roots(root)) for root in (self.pattern, *self.also)):
            raise ValueError(f"rewrite {self.name!r} needs a name, and calls as the roots of its patterns")
        if (self.replacement is None) is (self.existing is None):
            raise ValueError(f"rewrite {self.name!r} needs either a replacement or an existing node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """The effect of one rewrite on one graph.

    Attributes:
        name: the rewrite.
        level: the kind of graph.
        count: how many matches it replaced.
        sources: places in the user's code, `file:line`, of what was replaced; each once.
    """

    name: str
    level: str
    count: int
    sources: tuple[str, ...]
