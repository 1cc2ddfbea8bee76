"""The numbers of a mapping as the parameters of a launch: their names, and places in its signature.

    tile x0 by 1                XBLOCK
    tile x1 by 16               YBLOCK: tiles are the axes of the grid, innermost first
    loop r0 by 1024 stages 3    R0_BLOCK, STAGES
    warps 4                     what the launcher is told beside them

An open mapping that a user gives is a search space. `plan_choices` renames its open numbers to the parameters
that they are, chooses the first candidates, and has the choices checked: `loop r0 by ?rows in 512 1024` is
`?R0_BLOCK in 512 1024`. A number that stands in two places is two parameters, which are chosen together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from itertools import islice, product
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.errors import EmitError, VerifyError
from coilwork_ir.index import Expr, substitute, symbol
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Choose,
    Contract,
    Directive,
    Keep,
    Limit,
    Loop,
    Mapping,
    Number,
    Order,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Tile,
    Warps,
    find_all,
)
from coilwork_ir.mapping.directive import Open, list_values
from coilwork_triton.facts.kernel_analysis import is_segmented_reduction, list_roots
from coilwork_triton.iteration.refusals import refuse
from coilwork_triton.launch.parameters import (
    BLOCKS,
    GROUP,
    RUN,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
    STAGES,
    WARPS,
    round_up_to_power_of_two,
)
from coilwork_triton.launch.search_space import search_limits

# Parameters


# The parameters that directives' numbers are, by class and field; those of tiles follow from their order.
_FIELDS: Final[MappingOf[type[Directive], tuple[tuple[str, str], ...]]] = MappingProxyType(
    {
        Sequential: ((BLOCKS["w"], "by"), (STAGES, "stages")),
        Keep: ((BLOCKS["r"], "by"),),
        Loop: ((BLOCKS["r"], "by"), (STAGES, "stages")),
        Share: ((BLOCKS["r"], "by"),),
        Runs: ((RUN, "by"),),
        Sort: ((SORT_THREADS, "threads"), (SORT_WIDTH, "width")),
        Select: (
            (SORT_SHARE, "share"),
            (SORT_GROUPS, "groups"),
            (SORT_ROOM, "room"),
            (SORT_SPREAD, "spread"),
        ),
        Order: ((GROUP, "by"),),
        Warps: ((WARPS, "count"),),
    }
)
# A kernel's signature; that of a product is `contraction_plan.list_product_parameters`.
_SIGNATURE: Final = (
    *(BLOCKS[letter] for letter in "zyxwr"),
    STAGES,
    RUN,
    SORT_THREADS,
    SORT_WIDTH,
    SORT_SHARE,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SPREAD,
)


@dataclass(frozen=True, slots=True)
class ParameterPlace:
    """The number of a mapping that is the parameter `name` of a launch: in the field `field` of directive
    `at`.
    """

    name: str
    at: int
    field: str


def iterate_parameter_places(mapping: Mapping) -> Iterator[ParameterPlace]:
    """Yield the numbers of `mapping` that are parameters, in the order of its directives."""
    letters = iter("xyz")
    for at, one in enumerate(mapping.directives):
        if isinstance(one, Tile):
            letter = next(letters, None)
            if letter is not None:
                yield ParameterPlace(BLOCKS[letter], at, "by")
        for name, field in _FIELDS.get(type(one), ()):
            yield ParameterPlace(name, at, field)


def launch_parameters(kernel: Kernel, mapping: Mapping) -> dict[str, Number]:
    """Return the parameters of `kernel` as `mapping` runs it, in the order of its signature."""
    found: dict[str, Number] = {}
    for place in iterate_parameter_places(mapping):
        found[place.name] = getattr(mapping.directives[place.at], place.field)
    share = mapping.find(Share)
    if share is not None:
        found[BLOCKS["r"]] = round_up_to_power_of_two(get_single_value(share.by))
    if STAGES in found and mapping.find(Loop) is not None and is_segmented_reduction(list_roots(kernel)):
        # a loop that data end has none: how many blocks are ahead is not known
        del found[STAGES]
    return {name: found[name] for name in _SIGNATURE if name in found}


def make_mapping_config(kernel: Kernel, mapping: Mapping) -> Config:
    """Return the configuration that launches `kernel` as the closed `mapping` says."""
    return launch_config(
        {name: get_single_value(number) for name, number in launch_parameters(kernel, mapping).items()},
        mapping,
    )


def launch_config(meta: MappingOf[str, int], mapping: Mapping) -> Config:
    """Return the configuration with these parameters, and what the closed `mapping` says beside them."""
    warps = mapping.find(Warps)
    return Config(
        meta=tuple(meta.items()),
        num_warps=1 if warps is None else get_single_value(warps.count),
        num_stages=1,
        fp_fusion=mapping.find(Contract) is not None,
    )


def get_single_value(number: Number) -> int:
    """Return the one value of `number`.

    Raises:
        ValueError: it may have others.
    """
    found = set(list_values(number))
    if len(found) != 1:
        raise ValueError(f"{number} is not chosen")
    return found.pop()


# Open numbers of given mappings


# Pairs of expressions of which the first is at most the second.
Limits: TypeAlias = tuple[tuple[Expr, Expr], ...]

# Choices that are looked through for one that no limit forbids, and that are each checked.
_MOST_TRIED: Final = 1 << 14
_MOST_CHECKED: Final = 64


def plan_choices(
    kernel: Kernel,
    mapping: Mapping,
    *,
    places: tuple[ParameterPlace, ...],
    launch: Callable[[Mapping], Config],
    limits: Callable[[Mapping, tuple[Config, ...]], Limits],
    check: Callable[[Mapping], None],
    max_configs: int,
) -> tuple[Mapping, tuple[Config, ...]]:
    """`mapping` of `kernel` as launches take it, and its candidates, `max_configs` of them.

    `places` are the parameters among its numbers, `launch` gives the configuration of a closed mapping,
    `limits` those of a search around candidates, and `check` judges closed mappings.

    Raises:
        EmitError: a number is no parameter, or a choice is not legal, by the name of the directive.
    """
    if mapping.is_closed:
        return mapping, (launch(mapping),)
    named = _name_numbers(kernel, mapping, places)
    first = _first_choices(kernel, named, max_configs)
    configs = tuple(launch(named.close(choice)) for choice in first)
    numbers = {place.name: getattr(named.directives[place.at], place.field) for place in places}
    free = SearchSpace(
        values=tuple((number.name, number.values) for number in named.open_numbers),
        limits=limits(named, configs),
    )
    more = (one for one in search_limits(numbers, configs, free) if one not in named.directives)
    found = replace(named, directives=(*named.directives, *more))
    for choice in _choices_to_check(found, first[0]):
        try:
            check(found.close(choice))
        except (EmitError, VerifyError) as error:
            raise _name_choice(error, choice) from error
    return found, configs


def _name_numbers(kernel: Kernel, mapping: Mapping, places: Iterable[ParameterPlace]) -> Mapping:
    """`mapping` of `kernel` with its open numbers called as the parameters that they are, which are at
    `places`.

    Raises:
        EmitError: a number is no parameter of a launch, by the name of its directive.
    """
    changed = list(mapping.directives)
    names: dict[str, list[str]] = {}
    values: dict[str, tuple[int, ...]] = {}
    for place in places:
        directive = changed[place.at]
        number = getattr(directive, place.field)
        if isinstance(number, Open) and not isinstance(directive, Share):
            names.setdefault(number.name, []).append(place.name)
            known = values.get(number.name, number.values)
            values[number.name] = tuple(n for n in known if n in number.values)
    for place in places:
        number = getattr(changed[place.at], place.field)
        if isinstance(number, Open) and number.name in names:
            changes: dict[str, object] = {place.field: Open(place.name, values[number.name])}
            changed[place.at] = _replace(changed[place.at], changes)
    for before, after in zip(mapping.directives, changed, strict=True):
        kept = [one.name for one in after.open_numbers if before is after]
        if kept:
            raise refuse(
                kernel, before.keyword(), f"?{kept[0]} is no parameter of a launch, and is to be chosen"
            )
    return Mapping(directives=tuple(_rename_limits(changed, names, values)))


def _replace(directive: Directive, changes: dict[str, object]) -> Directive:
    return replace(directive, **changes)


def _rename_limits(
    directives: Iterable[Directive],
    names: MappingOf[str, Sequence[str]],
    values: MappingOf[str, tuple[int, ...]],
) -> Iterator[Directive]:
    chosen = set[str]()
    for one in directives:
        if isinstance(one, Limit):
            yield Limit(left=_rename(one.left, names), right=_rename(one.right, names))
        elif isinstance(one, Choose):
            chosen.update(one.names)
            pairs = [(new, n) for old, n in zip(one.names, one.values, strict=True) for new in names[old]]
            yield Choose(names=tuple(new for new, _ in pairs), values=tuple(n for _, n in pairs))
        else:
            yield one
    for name, parameters in names.items():
        if len(parameters) > 1 and name not in chosen:
            for value in values[name]:
                yield Choose(names=tuple(parameters), values=(value,) * len(parameters))


def _rename(expr: Expr, names: MappingOf[str, Sequence[str]]) -> Expr:
    return substitute(expr, {s: symbol(names[s.name][0], lo=1) for s in expr.free_symbols if s.name in names})


def _first_choices(kernel: Kernel, mapping: Mapping, limit: int) -> tuple[dict[str, int], ...]:
    """At most `limit` choices of the open numbers of `mapping` to begin with: for each way of those that are
    chosen together, the first values that all limits allow.

    Raises:
        EmitError: there is none.
    """
    ways: dict[tuple[str, ...], list[dict[str, int]]] = {}
    for one in find_all(mapping.directives, Choose):
        ways.setdefault(one.names, []).append(dict(zip(one.names, one.values, strict=True)))
    tied = {name for names in ways for name in names}
    free = [number for number in mapping.open_numbers if number.name not in tied]
    found: list[dict[str, int]] = []
    for way in islice(product(*ways.values()), _MOST_TRIED):
        together = {name: value for part in way for name, value in part.items()}
        for values in islice(product(*(number.values for number in free)), _MOST_TRIED):
            choice = together | {number.name: n for number, n in zip(free, values, strict=True)}
            if mapping.allows(choice):
                found.append(choice)
                break
        if len(found) == limit:
            break
    if not found:
        raise refuse(
            kernel, "limit" if mapping.find(Choose) is None else "choose", "nothing is left to choose"
        )
    return tuple(found)


def _choices_to_check(mapping: Mapping, first: dict[str, int]) -> Iterator[dict[str, int]]:
    """Choices of the open numbers of `mapping`, if they are few; else those that differ from the `first` in
    one number.
    """
    numbers = mapping.open_numbers
    count = 1
    for number in numbers:
        count *= len(number.values)
    if count <= _MOST_CHECKED:
        for values in product(*(number.values for number in numbers)):
            choice = {number.name: n for number, n in zip(numbers, values, strict=True)}
            if mapping.allows(choice):
                yield choice
        return
    yield first
    for number in numbers:
        for value in number.values:
            choice = first | {number.name: value}
            if choice != first and mapping.allows(choice):
                yield choice


def _name_choice(error: EmitError | VerifyError, choice: MappingOf[str, int]) -> EmitError | VerifyError:
    """`error` of one choice of open numbers, which it names."""
    told = ", ".join(f"{name} = {value}" for name, value in choice.items())
    return type(error)(
        error.code,
        error.what,
        node=error.node,
        origins=error.origins,
        reason=f"{error.reason} (with {told})" if error.reason else f"with {told}",
        remedy=error.remedy,
    )
