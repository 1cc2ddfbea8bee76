"""The options of a back end as one list: a frozen dataclass whose fields say what each option does.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class MyOptions(Options):
        strict: bool = option(False, "raise instead of falling back")
        replay: bool = option(True, "repeat launches as one graph", needs=(NATIVE,))

    TABLE = OptionTable(cls=MyOptions, prefix="MINE_")
    settings = MyOptions(**TABLE.check({"strict": True}, source="torch.compile"))

Help texts, checks of values, environment variables, cache keys and warnings of options without effect follow
from the fields. An unknown name is an error that names the nearest known one. An unknown variable is only
warned of, since it may be somebody else's.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from coilwork_frontend.errors import (
    IgnoredOptionWarning,
    NotBuiltYetWarning,
    OptionError,
    UncachedPassWarning,
    warn_user,
)
from coilwork_frontend.user_passes import list_unkeyed, make_key_text

_ABOUT: Final = "about"
_QUIET: Final = (False, "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A condition under which an option has an effect.

    Attributes:
        who: who honours the option, for help texts; may be empty.
        is_met: tells if the condition holds, from all options.
        device_types: the option has an effect on graphs with a device of one of these types; empty: on all.
        otherwise: why the option has no effect, as a format of the options `o`, or of a graph's `devices`.
    """

    who: str = ""
    is_met: Callable[[Any], bool] = lambda _: True
    device_types: tuple[str, ...] = ()
    otherwise: str


class Kind(Protocol):
    """The values that an option takes."""

    @property
    def values(self) -> str:
        """The values, for help texts."""

    def take(self, value: object) -> object:
        """Return the setting that `value`, given in Python, stands for.

        Raises:
            UnfitValueError: none.
        """

    def parse(self, text: str) -> object:
        """Return the value that `text` of an environment variable stands for; `take` gets it next.

        Raises:
            UnfitValueError: none.
        """


class UnfitValueError(Exception):
    """An option cannot have a value; `what` stands behind the option's name in messages."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def refuse_type(value: object, wanted: str) -> UnfitValueError:
    """Return the error for a `value` of another type than `wanted`."""
    return UnfitValueError(f"={value!r} has the wrong type", f"it must be {wanted}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words; a function lists them if packages register them."""

    words: tuple[str, ...] | Callable[[], tuple[str, ...]]

    @property
    def registered_words(self) -> tuple[str, ...]:
        """The words, as registered now."""
        return self.words() if callable(self.words) else self.words

    @property
    def values(self) -> str:
        return ", ".join(self.registered_words)

    def take(self, value: object) -> object:
        if value in self.registered_words:
            return value
        hint = suggest(str(value), self.registered_words, " ")
        remedy = f"{hint} one of {', '.join(map(repr, self.registered_words))}".strip()
        raise UnfitValueError(f" cannot be {value!r}", remedy)

    def parse(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class Plain:
    """A value of one of Python's types; `least` is the least number."""

    type: type
    least: int | None = None

    @property
    def values(self) -> str:
        return self.type.__name__

    def take(self, value: object) -> object:
        if type(value) is not self.type:
            raise refuse_type(value, f"of type {self.type.__name__}")
        if self.least is not None and isinstance(value, int) and value < self.least:
            raise UnfitValueError(f" cannot be {value}", f"it is at least {self.least}")
        return value

    def parse(self, text: str) -> object:
        if self.type is bool:
            word = text.strip().lower()
            if word in ("1", "true", "on", "yes"):
                return True
            if word in ("0", "false", "off", "no", ""):
                return False
            raise UnfitValueError(" is not a boolean", "0 or 1")
        if self.type is not int:
            return text
        try:
            return int(text)
        except ValueError as error:
            raise UnfitValueError(" is not a number") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list of `holds`, which `is_item` recognises. Lists of code have no text form."""

    holds: str = "str"
    is_item: Callable[[object], bool] = lambda item: isinstance(item, str)
    is_code: bool = False

    @property
    def values(self) -> str:
        return f"list of {self.holds}"

    def take(self, value: object) -> object:
        if isinstance(value, list | tuple) and all(map(self.is_item, value)):
            return tuple(value)
        raise refuse_type(value, f"a {self.values}")

    def parse(self, text: str) -> object:
        if self.is_code:
            raise UnfitValueError(" cannot hold code", "torch.compile(..., options={...: [...]})")
        return tuple(item.strip() for item in text.split(",") if item.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code of the user's: `holds`, which `is_item` recognises, or None. It has no text form."""

    holds: str
    is_item: Callable[[object], bool]

    @property
    def values(self) -> str:
        return self.holds

    def take(self, value: object) -> object:
        if value is None or self.is_item(value):
            return value
        raise refuse_type(value, self.values)

    def parse(self, text: str) -> object:
        raise UnfitValueError(" cannot hold code", "torch.compile(..., options={...: ...})")


def _holds_code(kind: Kind) -> bool:
    return isinstance(kind, Code) or (isinstance(kind, Items) and kind.is_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    effect: str
    key: bool
    least: int | None
    kind: Kind | None
    needs: tuple[Need, ...]
    quiet: tuple[object, ...]
    unbuilt: Mapping[Any, str]
    brings: Mapping[str, tuple[object, ...]]
    why: str


def option(
    default: Any,
    effect: str,
    *,
    key: bool = False,
    least: int | None = None,
    kind: Kind | None = None,
    needs: tuple[Need, ...] = (),
    quiet: tuple[object, ...] = _QUIET,
    unbuilt: Mapping[Any, str] = MappingProxyType({}),
    brings: Mapping[str, tuple[object, ...]] = MappingProxyType({}),
    why: str = "",
) -> Any:
    """Return a field of an options class.

    Args:
        default: its value, if nobody gives one.
        effect: what it does, for help texts.
        key: it changes what is compiled, and so belongs in the cache key.
        least: the least value of a number.
        kind: the values that it takes. Default: those of the field's type.
        needs: conditions for an effect; the first that does not hold is the reason in the warning.
        quiet: values that ask for nothing, so there is no warning that they have no effect.
        unbuilt: by value, the part of it that has no effect yet; warned of once per process.
        brings: by name, the values of other options that it needs when it is on; the first is the default.
        why: the reason for that, in the error if the user chose another value.
    """
    about = _About(
        effect=effect,
        key=key,
        least=least,
        kind=kind,
        needs=needs,
        quiet=quiet,
        unbuilt=unbuilt,
        brings=brings,
        why=why,
    )
    return field(default=default, metadata={_ABOUT: about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts by names: a dictionary, pairs, or a folder of files whose names end in `suffix`."""

    suffix: str
    values: str = "dict of str, or folder"

    def take(self, value: object) -> object:
        if isinstance(value, str | Path):
            files = sorted(Path(value).rglob(f"*{self.suffix}"))
            if not files:
                remedy = f"a folder with files NAME{self.suffix}, such as a trace's"
                raise UnfitValueError(f"={str(value)!r} holds no files NAME{self.suffix}", remedy)
            return tuple((path.name.removesuffix(self.suffix), path.read_text()) for path in files)
        pairs = tuple(value.items()) if isinstance(value, Mapping) else value
        if isinstance(pairs, list | tuple) and all(map(_is_pair_of_texts, pairs)):
            return tuple((pattern, text) for pattern, text in pairs)
        raise refuse_type(value, "a dictionary of texts by names, or a folder")

    def parse(self, text: str) -> object:
        return text


def _is_pair_of_texts(pair: object) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the nearest of `known` names as a hint; if none is near, `otherwise`, or all names."""
    names = tuple(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"known: {', '.join(names)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The base of options classes."""

    def key_text(self) -> str:
        """Return the settings that change what is compiled, as canonical text."""
        kinds = _kinds(type(self))
        chosen = sorted(f.name for f in fields(self) if f.metadata[_ABOUT].key)
        return ";".join(f"{name}={_key_of(kinds[name], getattr(self, name))}" for name in chosen)

    def list_changed(self) -> dict[str, Any]:
        """Return the settings that change what is compiled and are not the defaults, by name."""
        keyed = (one for one in fields(self) if one.metadata[_ABOUT].key)
        values = {one.name: (getattr(self, one.name), one.default) for one in keyed}
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def unkeyed_names(self) -> tuple[str, ...]:
        """Names of passes and rewrites that have no `uuid`, which keep what is compiled out of the cache."""
        code = (name for name, kind in _kinds(type(self)).items() if isinstance(kind, Items) and kind.is_code)
        return list_unkeyed([item for name in code for item in getattr(self, name)])


def _key_of(kind: Kind, value: Any) -> str:
    return make_key_text(value) if isinstance(kind, Items) and kind.is_code else repr(value)


def _kinds(cls: Any) -> Mapping[str, Kind]:
    """Return what each option of `cls` takes."""
    return _read_kinds(cls)


# reading the types takes a millisecond
@cache
def _read_kinds(cls: Any) -> Mapping[str, Kind]:
    types = get_type_hints(cls)
    return MappingProxyType({f.name: f.metadata[_ABOUT].kind or _kind(f, types[f.name]) for f in fields(cls)})


def _kind(option_field: Any, expected: Any) -> Kind:
    if get_origin(expected) is Literal:
        return Choice(get_args(expected))
    return Items() if get_origin(expected) is tuple else Plain(expected, option_field.metadata[_ABOUT].least)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionInfo:
    """One option as help texts show it.

    Attributes:
        variable: the environment variable that sets it; empty: it holds code, which no text stands for.
        honoured_by: under which conditions it has an effect; empty: always.
    """

    name: str
    values: str
    default: str
    effect: str
    variable: str
    honoured_by: str


_O = TypeVar("_O", bound=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable(Generic[_O]):
    """The options of `cls`.

    Attributes:
        prefix: prefix of the environment variables.
        others: variables with the prefix that are no options.
        command: a command that lists the options, for messages.
    """

    cls: type[_O]
    prefix: str
    others: frozenset[str] = frozenset()
    command: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all options, in order."""
        return tuple(f.name for f in fields(self.cls))

    def list(self) -> tuple[OptionInfo, ...]:
        """Return every option, in order."""
        kinds = _kinds(self.cls)
        return tuple(
            OptionInfo(
                name=f.name,
                values=kinds[f.name].values,
                default=repr(f.default),
                effect=f.metadata[_ABOUT].effect,
                variable="" if _holds_code(kinds[f.name]) else self._variable(f.name),
                honoured_by=", ".join(need.who for need in f.metadata[_ABOUT].needs if need.who),
            )
            for f in fields(self.cls)
        )

    def _variable(self, name: str) -> str:
        return f"{self.prefix}{name.upper()}"

    def check(self, values: Mapping[str, object], *, source: str) -> dict[str, Any]:
        """Return the settings that `values` stand for. `source` says in messages where they come from.

        Raises:
            OptionError: unknown name, or a value of the wrong type; the message names the nearest known one.
        """
        settings = {}
        for name, value in values.items():
            if name not in self.names:
                hint = suggest(name, self.names)
                raise OptionError("unknown-option", f"{source}: there is no option {name!r}", remedy=hint)
            settings[name] = self._take(name, value, source)
        return settings

    def _take(self, name: str, value: object, source: str) -> object:
        kind = _kinds(self.cls)[name]
        try:
            return kind.take(value)
        except UnfitValueError as error:
            code = "unknown-mode" if name == "mode" and isinstance(kind, Choice) else "bad-option"
            raise OptionError(code, f"{source}: {name}{error.what}", remedy=error.remedy) from None

    def read_environment(self, environ: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings in environment variables.

        Raises:
            OptionError: an option's variable holds no value of it.

        Warns:
            IgnoredOptionWarning: a variable with the prefix that is no option.
        """
        kinds, settings = _kinds(self.cls), {}
        for variable, text in environ.items():
            if not variable.startswith(self.prefix) or variable in self.others:
                continue
            name = variable.removeprefix(self.prefix).lower()
            if name not in kinds:
                near = difflib.get_close_matches(name, self.names, n=1)
                hint = f"did you mean {self._variable(near[0])}?" if near else f"{self.command} lists them"
                warn_user(
                    f"environment variable {variable} has no effect, it is no option: {hint}",
                    IgnoredOptionWarning,
                )
                continue
            source = f"environment variable {variable}"
            try:
                value = kinds[name].parse(text)
            except UnfitValueError as error:
                what = f"{source}={text!r}{error.what}"
                raise OptionError("bad-option", what, remedy=error.remedy) from None
            settings[name] = self._take(name, value, source)
        return settings

    def settle(self, settings: _O, chosen: Set[str]) -> _O:
        """Return `settings` with the values of options that other options need (`brings`).

        Raises:
            OptionError: the user has `chosen` another value for one of them.
        """
        for item in fields(self.cls):
            about: _About = item.metadata[_ABOUT]
            for name, allowed in about.brings.items() if _is_on(getattr(settings, item.name)) else ():
                value = getattr(settings, name)
                if value in allowed:
                    continue
                if name in chosen:
                    raise OptionError(
                        "bad-option",
                        f"{name}={value!r} cannot go with {item.name}={_show(getattr(settings, item.name))}",
                        reason=about.why,
                        remedy=f"{name}={allowed[0]!r}, or leave it out",
                    )
                changed: Any = {name: allowed[0]}
                settings = replace(settings, **changed)
        return settings

    def warn(self, settings: _O, chosen: Set[str]) -> None:
        """Warn of options that the user has `chosen` and that have no effect, or none yet."""
        for item in fields(self.cls):
            about, value = item.metadata[_ABOUT], getattr(settings, item.name)
            if item.name in chosen and value not in about.quiet:
                why = next((n.otherwise for n in about.needs if not n.is_met(settings)), None)
                if why is not None:
                    text = f"{item.name}={value!r} has no effect: {why.format(o=settings)}"
                    warn_user(text, IgnoredOptionWarning)
            if about.unbuilt and value in about.unbuilt:
                _announce(f'{item.name}="{value}": {about.unbuilt[value]}')

    def warn_of_devices(self, settings: _O, graph: str, devices: Sequence[str]) -> None:
        """Warn of options that are not at their default and have no effect on `graph`, which is on
        `devices`."""
        types = {device.partition(":")[0] for device in devices}
        for item in fields(self.cls):
            about, value = item.metadata[_ABOUT], getattr(settings, item.name)
            if value == item.default or value in about.quiet:
                continue
            for need in about.needs:
                if need.device_types and types.isdisjoint(need.device_types):
                    why = need.otherwise.format(devices=", ".join(devices) or "no device")
                    text = f"{item.name}={value!r} has no effect in graph {graph}: {why}"
                    warn_user(text, IgnoredOptionWarning)


def _is_on(value: object) -> bool:
    """Tell if an option asks for something, by its value."""
    return value is not None and value is not False


def _show(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else repr(value)


def warn_of_unkeyed(options: Options) -> None:
    """Warn that graphs are not cached if a pass or rewrite has no `uuid`."""
    if options.unkeyed_names:
        warn_user(
            f"graphs are not cached: {', '.join(options.unkeyed_names)} has no uuid. Give it an attribute or "
            "method `uuid` "
            "that changes whenever it does",
            UncachedPassWarning,
        )


# Remembers the warnings of this process. Python's registry of warnings does not: Dynamo changes the filters
# while it works, which empties it.
@cache
def _announce(text: str) -> None:
    warn_user(text, NotBuiltYetWarning)
