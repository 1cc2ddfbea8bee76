"""One list of options: what follows from a field."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import pytest

from coilwork_frontend.errors import IgnoredOptionWarning, NotBuiltYetWarning, OptionError
from coilwork_frontend.option_table import Choice, Items, Need, Options, OptionTable, option, suggest

FAST = Need(
    who="the fast engine", is_met=lambda o: o.engine == "fast", otherwise="engine={o.engine!r} is slow"
)
AWAY = Need(who="GPUs", device_types=("cuda",), otherwise="its tensors are on {devices}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Options):
    engine: Literal["fast", "slow"] = option("fast", "who runs it", key=True)
    tries: int = option(3, "how often", least=1)
    library: str = option(
        "auto", "who computes", kind=Choice(lambda: ("auto", "aten", "blas")), needs=(FAST, AWAY)
    )
    exact: bool = option(
        False, "to the bit", key=True, brings=MappingProxyType({"engine": ("slow",)}), why="it rounds"
    )
    names: tuple[str, ...] = option((), "of what")
    code: tuple[object, ...] = option(
        (), "yours", kind=Items(holds="callables", is_item=callable, is_code=True)
    )
    graphs: bool = option(False, "record", unbuilt=MappingProxyType({True: "graphs are not built yet"}))


TABLE = OptionTable(cls=Own, prefix="OWN_", others=frozenset({"OWN_SECRET"}), command="`own options`")


def test_values_come_from_python_and_from_the_environment() -> None:
    assert TABLE.check({"tries": 5, "names": ["a"]}, source="here") == {"tries": 5, "names": ("a",)}
    environ = {"OWN_TRIES": "2", "OWN_NAMES": "a, b", "OWN_GRAPHS": "on", "OWN_SECRET": "x", "HOME": "/"}
    assert TABLE.read_environment(environ) == {"tries": 2, "names": ("a", "b"), "graphs": True}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("trise", 1, "did you mean 'tries'"),
        ("tries", 0, "at least 1"),
        ("tries", "2", "of type int"),
        ("engine", "fats", "did you mean 'fast'"),
        ("library", "blass", "did you mean 'blas'"),
        ("names", "a", "a list of str"),
        ("code", [1], "a list of callables"),
    ],
)
def test_what_an_option_cannot_be_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        TABLE.check({name: value}, source="here")
    assert "here" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("OWN_TRIES", "many", "not a number"),
        ("OWN_EXACT", "maybe", "not a boolean"),
        ("OWN_CODE", "print", "cannot hold code"),
    ],
)
def test_a_variable_that_holds_no_value_is_named(variable: str, text: str, said: str) -> None:
    with pytest.raises(OptionError, match=f"{variable}.*{said}"):
        TABLE.read_environment({variable: text})


def test_a_variable_that_is_no_option_is_warned_of() -> None:
    with pytest.warns(IgnoredOptionWarning, match="did you mean OWN_TRIES"):
        assert TABLE.read_environment({"OWN_TRIE": "2"}) == {}


def test_an_option_that_nobody_honours_says_why() -> None:
    with pytest.warns(IgnoredOptionWarning, match="library='blas' has no effect: engine='slow' is slow"):
        TABLE.warn(Own(library="blas", engine="slow"), {"library"})
    with pytest.warns(IgnoredOptionWarning, match="in graph g: its tensors are on cpu"):
        TABLE.warn_of_devices(Own(library="blas"), "g", ("cpu",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TABLE.warn(Own(library="blas", engine="slow"), set())
        TABLE.warn(Own(library="auto", engine="slow"), {"library"})
        TABLE.warn_of_devices(Own(library="blas"), "g", ("cpu", "cuda:0"))
        TABLE.warn_of_devices(Own(), "g", ("cpu",))


def test_what_is_not_built_yet_is_said_once() -> None:
    with pytest.warns(NotBuiltYetWarning, match="graphs are not built yet"):
        TABLE.warn(Own(graphs=True), set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TABLE.warn(Own(graphs=True), set())


def test_an_option_brings_what_it_needs_of_others() -> None:
    assert TABLE.settle(Own(exact=True), {"exact"}).engine == "slow"
    assert TABLE.settle(Own(), set()) == Own()
    with pytest.raises(OptionError, match="engine='fast' cannot go with exact=True") as caught:
        TABLE.settle(Own(exact=True), {"exact", "engine"})
    assert "it rounds" in str(caught.value)


def test_the_list_tells_all() -> None:
    listed = {one.name: one for one in TABLE.list()}
    assert tuple(listed) == TABLE.names
    library = listed["library"]
    assert (library.values, library.variable, library.honoured_by) == (
        "auto, aten, blas",
        "OWN_LIBRARY",
        "the fast engine, GPUs",
    )


def test_the_key_has_what_changes_the_code() -> None:
    assert Own().key_text() == Own(tries=9).key_text() != Own(engine="slow").key_text()
    assert Own(code=(print,)).unkeyed_names == ("print",)


def test_without_a_similar_name_the_known_ones_are_listed() -> None:
    assert suggest("zzz", ("a", "b")) == "known: a, b"
    assert suggest("zzz", ("a", "b"), "none") == "none"
