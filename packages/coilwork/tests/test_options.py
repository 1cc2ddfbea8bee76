"""Settings: where they come from, which wins, and what is said of wrong ones."""

from __future__ import annotations

import threading
from dataclasses import fields
from pathlib import Path

import pytest

import coilwork
from coilwork.backend import resolve
from coilwork.compile_options import CompileOptions, list_options
from coilwork.errors import IgnoredOptionWarning, OptionError


def test_without_settings_options_are_the_defaults() -> None:
    assert resolve(environ={}) == CompileOptions()


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="no option 'stricct'") as caught:
        resolve(options={"stricct": True}, environ={})
    assert caught.value.code == "unknown-option"
    assert "did you mean 'strict'?" in str(caught.value)


def test_unknown_option_with_nothing_near_lists_all() -> None:
    with pytest.raises(OptionError, match="known: mode, strict") as caught:
        resolve(options={"zzz": 1}, environ={})
    assert all(field.name in str(caught.value) for field in fields(CompileOptions))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strict", 1),
        ("strict", "yes"),
        ("workers", 1.5),
        ("workers", True),
        ("fallback", "aten.sin"),
        ("trace", 3),
        ("mappings", 3),
        ("mappings", {"k": 3}),
        ("mappings", ["k"]),
    ],
)
def test_wrong_types_are_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{name}=.*wrong type") as caught:
        resolve(options={name: value}, environ={})
    assert caught.value.code == "bad-option"
    assert "it must be" in str(caught.value)


def test_a_choice_outside_the_list_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'python'") as caught:
        resolve(options={"wrapper": "pyton"}, environ={})
    assert caught.value.code == "bad-option"


def test_an_unknown_mode_is_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match="did you mean 'max-autotune'") as caught:
        resolve(mode="max-autotun", environ={})
    assert caught.value.code == "unknown-mode"


def test_lists_become_tuples() -> None:
    assert resolve(options={"fallback": ["aten.sin"]}, environ={}).fallback == ("aten.sin",)


def test_mappings_are_texts_by_names_or_files_of_a_folder(tmp_path: Path) -> None:
    pairs = (("one", "warps 4"), ("two_*", "warps 8"))
    for given in (dict(pairs), pairs, [list(pair) for pair in pairs]):
        assert resolve(options={"mappings": given}, environ={}).mappings == pairs
    with pytest.raises(OptionError, match="holds no files"):
        resolve(options={"mappings": str(tmp_path)}, environ={})
    for graph, name, text in (("a", "one", "warps 4"), ("b", "two", "warps 8"), ("b", "two.kernel", "none")):
        (tmp_path / graph).mkdir(exist_ok=True)
        suffix = ".txt" if "." in name else ".mapping.txt"
        (tmp_path / graph / f"{name}{suffix}").write_text(text)
    found = resolve(options={"mappings": tmp_path}, environ={}).mappings
    assert found == (("one", "warps 4"), ("two", "warps 8"))
    assert resolve(environ={"COILWORK_MAPPINGS": str(tmp_path)}).mappings == found


def test_environment_variables_of_each_type() -> None:
    found = resolve(
        environ={
            "COILWORK_STRICT": "1",
            "COILWORK_REUSE": "off",
            "COILWORK_WORKERS": "3",
            "COILWORK_TRACE": "/some/where",
            "COILWORK_FALLBACK": "aten.sin, aten.cos",
            "COILWORK_NUMERICS": "strict",
            "HOME": "/root",
        }
    )
    assert found == CompileOptions(
        strict=True,
        reuse=False,
        workers=3,
        trace="/some/where",
        fallback=("aten.sin", "aten.cos"),
        numerics="strict",
    )


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("COILWORK_STRICT", "maybe", "not a boolean"),
        ("COILWORK_WORKERS", "many", "not a number"),
        ("COILWORK_WRAPPER", "pyton", "did you mean 'python'"),
    ],
)
def test_wrong_environment_variables_are_named(variable: str, text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        resolve(environ={variable: text})
    assert variable in str(caught.value)


def test_variables_of_other_parts_are_left_alone(recwarn: pytest.WarningsRecorder) -> None:
    environ = {"COILWORK_REDIS_KEY": "a secret", "COILWORK_PURE_WHEEL": "1"}
    assert resolve(environ=environ) == CompileOptions()
    assert not recwarn.list


@pytest.mark.parametrize(
    ("variable", "hint"),
    [("COILWORK_TRACEE", "did you mean COILWORK_TRACE?"), ("COILWORK_ZZZ", "`coilwork options` lists them")],
)
def test_an_unknown_variable_is_warned_of_and_stops_nothing(variable: str, hint: str) -> None:
    with pytest.warns(IgnoredOptionWarning, match=variable) as caught:
        found = resolve(environ={variable: "x", "COILWORK_WORKERS": "3"})
    assert found == CompileOptions(workers=3)
    assert hint in str(caught[0].message)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"wrapper": "cpp", "executor": "native"}, "executor='native'"),
        ({"wrapper": "fx", "executor": "python"}, "executor='python'"),
        ({"wrapper": "cpp", "check_lifetimes": True}, "check_lifetimes=True"),
        ({"executor": "python", "check_lifetimes": True}, "check_lifetimes=True"),
        ({"wrapper": "fx", "products": "cublaslt"}, "products='cublaslt'"),
        ({"executor": "python", "convolutions": "cudnn"}, "convolutions='cudnn'"),
        ({"wrapper": "fx", "replay": True}, "replay=True"),
        ({"check_nan": "results", "replay": True}, "replay=True"),
        ({"autotune_budget": 8}, "autotune_budget=8"),
        ({"fusion": False, "combine": True}, "combine=True"),
    ],
)
def test_an_option_without_effect_says_so(given: dict[str, object], named: str) -> None:
    with pytest.warns(IgnoredOptionWarning, match=named) as caught:
        resolve(options=given, environ={})
    assert len(caught) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"wrapper": "cpp"},
        {"wrapper": "fx", "executor": "auto", "check_lifetimes": False, "replay": False},
        {"executor": "native", "check_lifetimes": True, "products": "cublaslt", "replay": True},
        {"wrapper": "cpp", "products": "aten"},
        {"mode": "max-autotune-no-cudagraphs", "autotune_budget": 8},
        {"autotune_budget": 0, "check_nan": "results"},
        {"cache": False, "cache_dir": "/some/where", "redis_url": "redis://there"},
    ],
)
def test_options_with_an_effect_are_silent(
    given: dict[str, object], recwarn: pytest.WarningsRecorder
) -> None:
    resolve(options=given, environ={})
    assert not recwarn.list


def test_a_block_gives_options_to_what_is_compiled_in_it() -> None:
    environ = {"COILWORK_WORKERS": "2", "COILWORK_NUMERICS": "eager"}
    with coilwork.options(numerics="strict", strict=True):
        with coilwork.options(strict=False, trace="there"):
            found = resolve(options={"numerics": "fast"}, environ=environ)
        assert (found.numerics, found.strict, found.trace, found.workers) == ("fast", False, "there", 2)
        assert resolve(environ=environ) == CompileOptions(numerics="strict", strict=True, workers=2)
    assert resolve(environ={}) == CompileOptions()


def test_a_block_is_its_threads_and_ends_with_an_error() -> None:
    seen: list[CompileOptions] = []

    def fail_in_a_block() -> None:
        with coilwork.options(strict=True):
            thread = threading.Thread(target=lambda: seen.append(resolve(environ={})))
            thread.start()
            thread.join()
            raise KeyError

    with pytest.raises(KeyError):
        fail_in_a_block()
    assert seen == [CompileOptions()] and resolve(environ={}) == CompileOptions()


def test_a_block_refuses_what_is_no_option() -> None:
    with pytest.raises(OptionError, match="did you mean 'strict'"), coilwork.options(stricct=True):
        pass
    with pytest.raises(OptionError, match="wrong type"), coilwork.options(strict=1):
        pass


def test_arguments_win_over_the_environment() -> None:
    environ = {"COILWORK_STRICT": "1", "COILWORK_MODE": "reduce-overhead", "COILWORK_WORKERS": "2"}
    found = resolve(mode="default", options={"strict": False}, environ=environ)
    assert (found.mode, found.strict, found.workers) == ("default", False, 2)


def test_the_key_holds_what_changes_code_and_nothing_else() -> None:
    plain = CompileOptions()
    same = CompileOptions(strict=True, verify=True, cache=False, cache_dir="x", trace="y", workers=7)
    assert plain.key_text() == same.key_text()
    others = (
        CompileOptions(mode="max-autotune"),
        CompileOptions(numerics="strict"),
        CompileOptions(wrapper="fx"),
        CompileOptions(fallback=("aten.sin",)),
        CompileOptions(fusion=False),
        CompileOptions(reuse=False),
        CompileOptions(pools=False),
        CompileOptions(triton_on_cpu=True),
        CompileOptions(mappings=(("*", "warps 4"),)),
        CompileOptions(mappings=(("*", "warps 8"),)),
    )
    assert len({plain.key_text(), *(o.key_text() for o in others)}) == 1 + len(others)


def test_every_option_is_described() -> None:
    listed = {option.name: option for option in list_options()}
    assert list(listed) == [field.name for field in fields(CompileOptions)]
    assert all(option.effect for option in listed.values())
    assert listed["numerics"].values == "fast, eager, strict"
    assert listed["fallback"].values == "list of str"
    assert listed["cache_dir"].variable == "COILWORK_CACHE_DIR"
