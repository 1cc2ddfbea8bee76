"""The base of directives: their numbers, their text, and what legality rules look at.

A number is closed, or open: then it has a name and the values that a search may choose from, `?rows in
1 2 4 8`. Two open numbers of one name are one choice.

One template prints and parses a directive, so both agree by construction. It is a line such as
`loop {ranges:names} by {by:number} [stages {stages:number}] [{backward:flag}]`. Words stand for themselves.
`{field:kind}` is a field of the dataclass; kinds are

- `names`: names of ranges, arguments or values, separated by commas
- `name`: one of them
- `number`: closed or open; `numbers`: several, separated by commas
- `whole`: an integer that is never open; `wholes`: several, separated by commas
- `expr`: an index expression over open numbers, in backquotes
- `flag`: the field's own name if it is true, nothing if it is false
- anything else: one of the words that it lists, `{to:program|warp|thread}`

What stands between brackets is left out if its fields have their defaults; it begins with a word or is a
flag. Legality rules see the ranges, accesses and values of a kernel by name.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, TypeAlias

from coilwork_ir.index import Expr, find_stride, format_expr, symbol
from coilwork_ir.index import as_int as number_in
from coilwork_ir.kernels.nodes import Kernel, Range, Store
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.scalar import Contraction, Load, Reduce, Scalar, Scan, Sort, iterate_postorder
from coilwork_ir.text.reader import Reader

# ---- Numbers ----


@dataclass(frozen=True, slots=True)
class Open:
    """A number that is not chosen yet: `name`, and the values that it may take, best guess first."""

    name: str
    values: tuple[int, ...]


Number: TypeAlias = int | Open


def format_number(number: Number) -> str:
    """`8`, or `?rows in 1 2 4 8`."""
    if isinstance(number, Open):
        return f"?{number.name} in {' '.join(map(str, number.values))}"
    return str(number)


def parse_number(reader: Reader) -> Number:
    """Return the number that `format_number` wrote."""
    if not reader.accept("?"):
        return reader.integer()
    name = reader.name()
    reader.expect("in")
    values = [reader.integer()]
    while reader.text[reader.at : reader.at + 1].isdigit():
        values.append(reader.integer())
    return Open(name, tuple(values))


def list_values(number: Number) -> tuple[int, ...]:
    """Return every value that `number` may take."""
    return number.values if isinstance(number, Open) else (number,)


# ---- Text templates ----


_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_TOKEN: Final = re.compile(r"\[|\]|\{(\w+):([^}]+)\}|[^\s\[\]{}]+")


@dataclass(frozen=True, slots=True)
class Word:
    """A word that stands for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a field."""

    field: str
    kind: str


@dataclass(frozen=True, slots=True)
class Group:
    """A part that is left out where its fields have their defaults."""

    items: tuple[Word | Slot, ...]


Item: TypeAlias = Word | Slot | Group


@cache
def parse_template(template: str) -> tuple[Item, ...]:
    """Return the items of `template`; the first one is the directive's keyword."""
    found: list[Item] = []
    group: list[Word | Slot] | None = None
    for token in _TOKEN.finditer(template):
        match token[0]:
            case "[":
                group = []
            case "]":
                assert group is not None, template
                found.append(Group(tuple(group)))
                group = None
            case _:
                item = Slot(token[1], token[2]) if token[1] else Word(token[0])
                (found if group is None else group).append(item)
    return tuple(found)


def print_form(template: str, value: Any) -> str:
    """Return the text of the dataclass `value` by `template`."""
    defaults = {f.name: f.default for f in fields(value)} if "[" in template else {}

    def format_item(item: Word | Slot) -> str:
        if isinstance(item, Word):
            return item.text
        field = getattr(value, item.field)
        if item.kind == "flag":
            return item.field if field else ""
        return _PRINTERS.get(item.kind, str)(field)

    parts: list[str] = []
    for item in parse_template(template):
        if isinstance(item, Group):
            slots = [part for part in item.items if isinstance(part, Slot)]
            if any(getattr(value, slot.field) != defaults[slot.field] for slot in slots):
                parts += map(format_item, item.items)
        else:
            parts.append(format_item(item))
    return " ".join(part for part in parts if part)


def read_form(template: str, reader: Reader) -> dict[str, Any]:
    """Return the fields that `reader` spells by `template`, whose keyword has been read; those left out are
    not among them.
    """
    found: dict[str, Any] = {}
    for item in parse_template(template)[1:]:
        if not isinstance(item, Group):
            _read_item(item, reader, found)
            continue
        first, *rest = item.items
        lead = first.text if isinstance(first, Word) else first.field
        if not reader.accept(lead):
            continue
        if isinstance(first, Slot):
            found[first.field] = True
        for part in rest:
            _read_item(part, reader, found)
    return found


def _read_item(item: Word | Slot, reader: Reader, found: dict[str, Any]) -> None:
    if isinstance(item, Word):
        reader.expect(item.text)
    elif item.kind in _READERS:
        found[item.field] = _READERS[item.kind](reader)
    else:
        found[item.field] = reader.choice(tuple(item.kind.split("|")), f"the {item.field}")


def _print_list(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda values: ", ".join(map(show, values))


def _read_list(read: Callable[[Reader], Any]) -> Callable[[Reader], tuple[Any, ...]]:
    def apply(reader: Reader) -> tuple[Any, ...]:
        found = [read(reader)]
        while reader.accept(","):
            found.append(read(reader))
        return tuple(found)

    return apply


def _read_expr(reader: Reader) -> Expr:
    reader.expect("`")
    piece = reader.text[reader.at : reader.text.find("`", reader.at)]
    names = {name: symbol(name, lo=1) for name in _NAME.findall(piece) if name not in ("min", "max")}
    value = reader.index(names, "`")
    reader.expect("`")
    return value


_PRINTERS: Final[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "names": _print_list(str),
        "number": format_number,
        "numbers": _print_list(format_number),
        "wholes": _print_list(str),
        "expr": lambda value: f"`{format_expr(value)}`",
    }
)
_READERS: Final[Mapping[str, Callable[[Reader], Any]]] = MappingProxyType(
    {
        "name": Reader.name,
        "names": _read_list(Reader.name),
        "number": parse_number,
        "numbers": _read_list(parse_number),
        "whole": Reader.integer,
        "wholes": _read_list(Reader.integer),
        "expr": _read_expr,
    }
)


# ---- Directives ----


@dataclass(frozen=True, slots=True)
class Directive:
    """One thing that a mapping says about how a kernel runs.

    A directive is a value; what it may be said of is `why_illegal`. Each class has its text form in
    `TEMPLATE`, whose first word is the directive's keyword, and in the first line of its docstring what it
    means.
    """

    # no `ABC`, of whose classes `isinstance` takes ten times as long: mappings are searched by class
    TEMPLATE: ClassVar[str]
    # its rule looks values up by name, which are names in the text of the whole kernel, not of a nest's part
    # of it
    NAMES_VALUES: ClassVar[bool] = False

    @classmethod
    def keyword(cls) -> str:
        """Return the word that the directive begins with."""
        return cls.TEMPLATE.split(" ", 1)[0]

    @property
    def text(self) -> str:
        """Its canonical text."""
        return print_form(self.TEMPLATE, self)

    @abstractmethod
    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Return why it may not be said of `kernel`; None if it may.

        `directives` are those of its scope, itself among them.
        """

    @property
    def open_numbers(self) -> tuple[Open, ...]:
        """Its numbers that are not chosen."""
        numbers: list[Open] = []
        for field in fields(self):
            value = getattr(self, field.name)
            numbers += [part for part in (value if isinstance(value, tuple) else (value,)) if _is_open(part)]
        return tuple(numbers)

    def close(self, chosen: dict[str, int]) -> Self:
        """Return the directive with its open numbers replaced by those that `chosen` has for their names."""
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                changed: Any = tuple(_choose(part, chosen) for part in value)
            else:
                changed = _choose(value, chosen)
            if changed is not value and changed != value:
                changes[field.name] = changed
        return replace(self, **changes) if changes else self


def _is_open(value: object) -> bool:
    return isinstance(value, Open)


def _choose(value: Any, chosen: dict[str, int]) -> Any:
    return chosen.get(value.name, value) if isinstance(value, Open) else value


# Kernels as rules see them


def index_ranges(kernel: Kernel) -> dict[str, Range]:
    """Return the ranges of `kernel`; of a combined one those of its body."""
    return {r.symbol.name: r for r in get_body(kernel).ranges}


def get_body(kernel: Kernel) -> Kernel:
    """Return the computation of each member of a combined kernel; any other kernel itself."""
    return kernel if kernel.combined is None else kernel.combined.body


def list_kernel_values(kernel: Kernel) -> tuple[Scalar, ...]:
    """Return every value of `kernel`, operands first."""
    return tuple(iterate_postorder(list_kernel_roots(get_body(kernel))))


def list_ordered_operations(kernel: Kernel, name: str) -> list[Scan | Sort]:
    """Return the scans and sorts that run along the range `name`."""
    return [v for v in list_kernel_values(kernel) if isinstance(v, Scan | Sort) and v.axis.name == name]


def list_reductions(kernel: Kernel) -> list[Reduce | Contraction]:
    """Return the reductions and contractions of `kernel`."""
    return [v for v in list_kernel_values(kernel) if isinstance(v, Reduce | Contraction)]


def has_combination(kernel: Kernel) -> bool:
    """Tell if `kernel` reduces, contracts, scans or sorts, or has a core that does."""
    return get_body(kernel).core is not None or any(
        isinstance(v, Reduce | Contraction | Scan | Sort) for v in list_kernel_values(kernel)
    )


def list_loads(kernel: Kernel, arg: str) -> list[Load]:
    """Return the loads of the argument `arg`."""
    return [v for v in list_kernel_values(kernel) if isinstance(v, Load) and v.buffer == arg]


def list_stores(kernel: Kernel, arg: str) -> list[Store]:
    """Return the stores to the argument `arg`."""
    return [store for store in get_body(kernel).stores if store.buffer == arg]


def is_dense_along(kernel: Kernel, symbol: Expr) -> bool:
    """Tell if something is accessed at unit stride along `symbol`."""
    places = [v.index[0] for v in list_kernel_values(kernel) if isinstance(v, Load)]
    places += [store.index for store in get_body(kernel).stores]
    return any(_step(place, symbol) == 1 for place in places)


def _step(place: Expr, symbol: Expr) -> int | None:
    step = find_stride(place, symbol)
    return None if step is None else number_in(step)


# Reasons that several rules give


def explain_no_ranges(
    kernel: Kernel, names: Iterable[str], kinds: Sequence[str] = ("parallel", "sequential", "reduction")
) -> str | None:
    """Return why `names` are not distinct ranges of `kernel`, each of one of `kinds`; None if they are.

    Where nothing combines along them, reduced ranges are parallel ones: a nest may store what others reduce.
    """
    known = index_ranges(kernel)
    if "parallel" in kinds and not has_combination(kernel):
        kinds = (*kinds, "reduction")
    seen: set[str] = set()
    for name in names:
        entry = known.get(name)
        if entry is None:
            return f"the kernel has no range {name}"
        if entry.kind not in kinds:
            return f"{name} is a {entry.kind} range, not a {' or '.join(kinds)} one"
        if name in seen:
            return f"{name} occurs twice"
        seen.add(name)
    return None


def explain_not_positive(number: Number, what: str) -> str | None:
    """Return why `number`, called `what`, is none that a directive counts by; None if it is."""
    if not list_values(number):
        return f"{what} has no value to choose"
    return None if min(list_values(number)) >= 1 else f"{what} is {min(list_values(number))}, less than 1"


def explain_duplicate(
    directive: Directive, names: Iterable[str], directives: Sequence[Directive]
) -> str | None:
    """Return why another directive of the same class in `beside` already says it of one of the ranges
    `names`; None if none does.
    """
    wanted = set(names)
    for other in directives:
        if type(other) is type(directive) and other != directive:
            for name in getattr(other, "ranges", ()):
                if name in wanted:
                    return f"`{other.text}` has {name} already"
    return None
