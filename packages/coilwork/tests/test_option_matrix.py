"""Every option with every wrapper and executor: it has an effect, or a warning names it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from coilwork.backend import backend, resolve
from coilwork.compile_options import CompileOptions
from coilwork.errors import DivergenceError, IgnoredOptionWarning, NotBuiltYetWarning, NotFiniteError
from coilwork_lowering.rewrites import REWRITES

WRAPPERS: Final = ("python", "native", "fx", "cpp")
EXECUTORS: Final = ("auto", "native", "python")


def keep(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    return graph


# a value of each option that asks for something
ASKED: Final[Mapping[str, object]] = {
    "mode": "max-autotune-no-cudagraphs",
    "strict": True,
    "numerics": "eager",
    "batch_invariant": True,
    "fallback": ("aten.cumsum",),
    "conv_layout": "channels_last",
    "accumulation": "sorted",
    "sorting": "kernels",
    "random": "eager",
    "contractions": "aten",
    "chunk_products": False,
    "repeat": False,
    "target": "sm_90",
    "freezing": True,
    "skip_rewrites": (REWRITES[0].name,),
    "rewrites": (),
    "joint_passes": (keep,),
    "passes": (keep,),
    "check_lifetimes": True,
    "products": "cublaslt",
    "convolutions": "cudnn",
    "replay": True,
    "fusion": False,
    "combine": True,
    "reuse": False,
    "pools": False,
    "size_asserts": False,
    "verify": True,
    "check": True,
    "check_nan": "results",
    "check_inf": "results",
    "cache": False,
    "cache_dir": "somewhere",
    "max_bytes": 1 << 20,
    "max_age_days": 3,
    "redis_url": "redis://nowhere",
    "trace": "somewhere",
    "progress": False,
    "workers": 1,
    "autotune_budget": 3,
    "mappings": {"*": "warps 2"},
    "triton_on_cpu": True,
}
Setting = tuple[str, str]


def runs_natively(setting: Setting) -> bool:
    wrapper, executor = setting
    return wrapper == "native" or (wrapper == "python" and executor != "python")


# Who takes part: of all others, programs and calls are what they say, whoever drives them.
HONOURED: Final[Mapping[str, Callable[[Setting], bool]]] = {
    **dict.fromkeys(("check_lifetimes", "products", "convolutions", "replay"), runs_natively),
    # the mode of this call does not search
    "autotune_budget": lambda _: False,
    # the wrapper of packages alone
    "target": lambda _: False,
}


def told(**options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resolve(options=options, environ={})
    return [str(one.message) for one in caught if issubclass(one.category, IgnoredOptionWarning)]


def test_each_option_has_a_row() -> None:
    names = {one.name for one in fields(CompileOptions)}
    # an emitter brings its wrapper, and is an error beside another one
    assert names == {*ASKED, "wrapper", "executor", "fx_emitter"}


@pytest.mark.parametrize("option", ASKED)
def test_an_option_without_effect_is_named(option: str) -> None:
    is_honoured = HONOURED.get(option, lambda _: True)
    for setting in product(WRAPPERS, EXECUTORS):
        wrapper, executor = setting
        expected = [] if is_honoured(setting) else [option]
        if wrapper != "python" and executor != "auto" and wrapper != executor:
            expected.append("executor")
        found = told(**{"wrapper": wrapper, "executor": executor, option: ASKED[option]})
        assert sorted(text.partition("=")[0] for text in found) == sorted(expected), (setting, found)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"fusion": False, "combine": True}, "combine"),
        ({"check_nan": "kernels", "replay": True}, "replay"),
        ({"autotune_budget": 8}, "autotune_budget"),
    ],
)
def test_an_option_that_another_one_makes_idle_is_named(options: dict[str, object], named: str) -> None:
    (text,) = told(**options)
    assert text.startswith(f"{named}=")


def run(function: Callable[..., Any], *args: torch.Tensor, **options: object) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options=options)(*args)


@pytest.mark.parametrize(
    "options",
    [
        {"products": "cublaslt"},
        {"convolutions": "cudnn"},
        {"mode": "max-autotune-no-cudagraphs", "autotune_budget": 3},
    ],
)
def test_what_does_nothing_on_this_device_is_named(options: dict[str, object]) -> None:
    with pytest.warns(IgnoredOptionWarning, match=rf"^{[*options][-1]}=.*has no effect in graph"):
        run(lambda x: x + 1, torch.ones(3), **options)


DRIVERS: Final = (
    {"wrapper": "python", "executor": "native"},
    {"wrapper": "python", "executor": "python"},
    {"wrapper": "native"},
    {"wrapper": "fx"},
    {"wrapper": "cpp"},
)


@pytest.fixture(params=DRIVERS, ids=lambda one: "-".join(one.values()))
def driver(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", IgnoredOptionWarning)
        warnings.simplefilter("ignore", NotBuiltYetWarning)
        yield request.param


def test_checks_of_results_are_made_by_every_driver(driver: dict[str, str]) -> None:
    with pytest.raises(NotFiniteError):
        run(torch.log, torch.tensor([-1.0, 1.0]), check_nan="results", **driver)
    with pytest.raises(NotFiniteError):
        run(torch.reciprocal, torch.tensor([0.0, 1.0]), check_inf="results", **driver)


def test_calls_are_compared_with_eager_whoever_drives_them(driver: dict[str, str]) -> None:
    def spoil(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.sin.default:
                node.target = torch.ops.aten.cos.default
        return graph

    with pytest.raises(DivergenceError):
        run(torch.sin, torch.ones(3), check=True, passes=(spoil,), cache=False, **driver)


def test_what_is_kept_and_traced_is_so_by_every_driver(driver: dict[str, str], tmp_path: Path) -> None:
    kept, trace = tmp_path / "kept", tmp_path / "trace"
    run(torch.sin, torch.ones(3), cache_dir=str(kept), trace=str(trace), **driver)
    assert any(path.is_file() for path in kept.rglob("*"))
    assert any(path.is_file() for path in trace.rglob("*"))
