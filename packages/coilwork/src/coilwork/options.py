"""Every setting of a compilation, in one frozen value.

Settings come from three places, later ones win: the defaults below, `COILWORK_<NAME>` environment variables, and
`torch.compile(..., mode=..., options={...})`. Unknown names are refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from coilwork.caching.shared_cache import SECRET
from coilwork.errors import OptionError
from coilwork.passes import GraphPass, keys_of, without_uuid
from coilwork_lowering.rewrites import Rewrite

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
Wrapper = Literal["python", "fx", "cpp"]
Executor = Literal["auto", "native", "python"]
Numerics = Literal["fast", "eager", "strict"]
ConvolutionLayout = Literal["auto", "captured", "channels_last"]
Accumulation = Literal["auto", "sorted", "atomic"]
Sorting = Literal["auto", "kernels", "calls"]
Products = Literal["auto", "aten", "cublaslt"]
Convolutions = Literal["auto", "aten", "cudnn"]
Contractions = Literal["auto", "aten", "generated"]
Random = Literal["auto", "generated", "eager"]
CheckedValues = Literal["off", "results", "kernels"]

ENVIRONMENT_PREFIX: Final = "COILWORK_"


def _about(effect: str, *, key: bool = False, least: int | None = None) -> dict[str, object]:
    """What is told of an option; `key` if it changes what is compiled, and so belongs in the cache key.

    `least` is the least value of a number.
    """
    return {"effect": effect, "key": key, "least": least}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """Settings of one `torch.compile`; `coilwork options` prints what stands here."""

    mode: Mode = field(
        default="default",
        metadata=_about(
            "max-autotune* searches for the best configuration of each Triton kernel in its first call; reduce-overhead "
            "and max-autotune ask for CUDA graphs",
            key=True,
        ),
    )
    strict: bool = field(
        default=False,
        metadata=_about("raise when a graph cannot be compiled, instead of warning and falling back"),
    )
    numerics: Numerics = field(
        default="fast",
        metadata=_about(
            "fast keeps fused intermediates in f32; eager rounds where eager rounds; "
            "strict also forbids contraction and approximations",
            key=True,
        ),
    )
    batch_invariant: bool = field(
        default=False,
        metadata=_about(
            "what is computed for a row does not depend on the rows beside it, to the bit: numerics are eager's at least, reductions "
            "run in one order, and products in generated kernels, slower than torch's; operators of which "
            "that cannot be promised are an error",
            key=True,
        ),
    )
    wrapper: Wrapper = field(
        default="python",
        metadata=_about("what drives the kernels: a Python module, a torch.fx graph, or C++ (CPU)", key=True),
    )
    executor: Executor = field(
        default="auto",
        metadata=_about(
            "who runs a program with wrapper=python: native, a small extension that is built once per machine; or the "
            "Python module, which says the same in text; auto is native where it loads"
        ),
    )
    check_lifetimes: bool = field(
        default=False,
        metadata=_about(
            "with the native executor: verify each allocation and free while the program runs, fill memory that is not "
            "written yet or freed with nan, and name what leaks; slow, for debugging"
        ),
    )
    fallback: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "operators (aten.cumsum) that run as torch's own kernels instead of generated code", key=True
        ),
    )
    conv_layout: ConvolutionLayout = field(
        default="auto",
        metadata=_about(
            "auto runs convolutions in channels-last where that saves memory traffic, on CPUs in f32 only those whose "
            "weights are small beside their images; captured never (nor does auto with numerics=strict), "
            "channels_last always",
            key=True,
        ),
    )
    accumulation: Accumulation = field(
        default="auto",
        metadata=_about(
            "how floats are added at positions from tensors, as in the gradient of an embedding: sorted gives the same "
            "bits every time, atomic adds in any order without a sort; auto sorts on GPUs",
            key=True,
        ),
    )
    sorting: Sorting = field(
        default="auto",
        metadata=_about(
            "sorts and largest elements of short rows: in kernels, fused with what surrounds them, or as torch's own kernels; "
            "auto: in kernels on GPUs, but for long rows that lie across memory",
            key=True,
        ),
    )
    random: Random = field(
        default="auto",
        metadata=_about(
            "dropout and other random numbers: generated in the kernels that use them, or drawn by ATen as in eager; "
            "auto generates on GPUs",
            key=True,
        ),
    )
    contractions: Contractions = field(
        default="auto",
        metadata=_about(
            "matrix products: torch's own kernels (aten), or kernels that also do what is before and behind them (generated); "
            "auto generates, on NVIDIA GPUs, those of few rows whose weights are widened from fewer bits",
            key=True,
        ),
    )
    freezing: bool = field(
        default=False,
        metadata=_about(
            "in inference, compute once what depends on parameters and buffers alone, batch norms behind convolutions "
            "included, and again whenever one of them has changed",
            key=True,
        ),
    )
    skip_rewrites: tuple[str, ...] = field(
        default=(), metadata=_about("rewrites of graphs that are not done, by name", key=True)
    )
    rewrites: tuple[Rewrite, ...] = field(
        default=(), metadata=_about("rewrites of your own, beside those of Coilwork", key=True)
    )
    joint_passes: tuple[GraphPass, ...] = field(
        default=(),
        metadata=_about(
            "functions that change the joint graph of forward and backward before it is partitioned, and inference graphs",
            key=True,
        ),
    )
    passes: tuple[GraphPass, ...] = field(
        default=(),
        metadata=_about(
            "functions that change each graph that is compiled: forward, backward or inference", key=True
        ),
    )
    products: Products = field(
        default="auto",
        metadata=_about(
            "with the native executor on GPUs, matrix products that no kernel does: through ATen's operators, or from "
            "cuBLASLt itself, whose descriptors and algorithm are looked up once per shape; the last bits may differ, so "
            "auto is cublaslt with numerics=fast where it can be opened, and else aten"
        ),
    )
    convolutions: Convolutions = field(
        default="auto",
        metadata=_about(
            "with the native executor on GPUs, convolutions and their gradients: through ATen's operators, or from cuDNN "
            "itself, whose engine is looked up once per shape among those that give the same bits in every call; the last "
            "bits may differ, so auto is cudnn with numerics=fast where it can be opened, and else aten"
        ),
    )
    fusion: bool = field(
        default=True, metadata=_about("off, every operation is a kernel of its own; for debugging", key=True)
    )
    combine: bool = field(
        default=True,
        metadata=_about(
            "on GPUs, small kernels of one kind that do not wait for each other share a launch",
            key=True,
        ),
    )
    reuse: bool = field(default=True, metadata=_about("let the memory planner reuse buffers", key=True))
    pools: bool = field(
        default=True,
        metadata=_about(
            "place buffers that never leave a graph in a few shared allocations, for at most 1 MiB more of memory; "
            "spares the host most of what allocations cost with the native executor",
            key=True,
        ),
    )
    verify: bool = field(default=False, metadata=_about("check every IR between stages"))
    check: bool = field(
        default=False,
        metadata=_about(
            "run every call beside eager and float64; the first result that differs is an error that names its kernel and "
            "source lines; several times slower than eager"
        ),
    )
    check_nan: CheckedValues = field(
        default="off",
        metadata=_about(
            "NaN is an error: in what is returned, or in what any kernel reads or writes, one launch at a time"
        ),
    )
    check_inf: CheckedValues = field(default="off", metadata=_about("the same for infinities"))
    cache: bool = field(default=True, metadata=_about("use the on-disk caches"))
    cache_dir: str = field(
        default="", metadata=_about("folder of the caches; empty for the platform's user cache folder")
    )
    redis_url: str = field(
        default="",
        metadata=_about(
            "Redis server (redis://, rediss://, unix://) behind the on-disk caches, for several machines; entries are signed with "
            "the secret in COILWORK_REDIS_KEY; needs coilwork[redis]"
        ),
    )
    trace: str = field(default="", metadata=_about("folder to write every stage's text to; empty for none"))
    workers: int = field(
        default=0,
        metadata=_about("processes that build kernels; 0 for one per core, at most 16", least=0),
    )
    autotune_budget: int = field(
        default=64,
        metadata=_about(
            "configurations that max-autotune* may build per Triton kernel beyond the proposed ones; 0 for none",
            least=0,
        ),
    )
    triton_on_cpu: bool = field(
        default=False,
        metadata=_about(
            "run Triton kernels on CPU tensors through Triton's interpreter (TRITON_INTERPRET=1); for testing",
            key=True,
        ),
    )

    def key_text(self) -> str:
        """The settings that change what is compiled, as canonical text."""
        chosen = sorted(f.name for f in fields(self) if f.metadata.get("key"))
        return ";".join(f"{name}={self._key_of(name)}" for name in chosen)

    def _key_of(self, name: str) -> str:
        found = getattr(self, name)
        return keys_of(found) if name in _CODE else repr(found)

    @property
    def unkeyed(self) -> tuple[str, ...]:
        """Names of passes and rewrites that have no `uuid`, which keep what is compiled out of the cache."""
        return without_uuid([item for name in _CODE for item in getattr(self, name)])


# Options that hold code, and how their elements are called in messages.
_CODE: Final[Mapping[str, str]] = {
    "rewrites": "list of Rewrite",
    "joint_passes": "list of callables",
    "passes": "list of callables",
}


def resolve(
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> CompileOptions:
    """The settings for one compilation.

    Raises:
        OptionError: unknown name or mode, or a value of the wrong type; the message names the nearest known one.
    """
    chosen = _from_environment(os.environ if environ is None else environ)
    if mode is not None:
        chosen["mode"] = _coerce("mode", mode, source="torch.compile")
    for name, value in (options or {}).items():
        known = _known(name, source="options")
        chosen[known] = _coerce(known, value, source="options")
    return _with_invariance(replace(CompileOptions(), **chosen), frozenset(chosen))


# What a row's bits may not depend on the batch for, and what it excludes.
_INVARIANT: Final[Mapping[str, str]] = {"contractions": "generated", "conv_layout": "captured"}


def _with_invariance(options: CompileOptions, chosen: frozenset[str]) -> CompileOptions:
    """`options` with what `batch_invariant` needs of others.

    What is fused with what depends on sizes. So intermediates are rounded as if nothing were fused, and nothing is contracted.
    """
    if not options.batch_invariant:
        return options
    for name, wanted in _INVARIANT.items():
        if name in chosen and getattr(options, name) != wanted:
            raise OptionError(
                "bad-option",
                f"{name}={getattr(options, name)!r} cannot go with batch_invariant=True",
                remedy=f"{name}={wanted!r}, or leave it out",
            )
    if "numerics" in chosen and options.numerics == "fast":
        raise OptionError(
            "bad-option",
            "numerics='fast' cannot go with batch_invariant=True: what is fused, and so not rounded, depends on sizes",
            remedy="numerics='eager', or leave it out",
        )
    numerics: Numerics = "strict" if options.numerics == "strict" else "eager"
    return replace(options, numerics=numerics, contractions="generated", conv_layout="captured")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionInfo:
    """One option as help texts show it."""

    name: str
    values: str
    default: str
    effect: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{ENVIRONMENT_PREFIX}{self.name.upper()}"


def option_list() -> tuple[OptionInfo, ...]:
    """Every option, in order."""
    hints = _hints()
    return tuple(
        OptionInfo(
            name=f.name,
            values=_CODE.get(f.name) or _values(hints[f.name]),
            default=repr(f.default),
            effect=f.metadata["effect"],
        )
        for f in fields(CompileOptions)
    )


def _values(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return ", ".join(get_args(expected))
    if get_origin(expected) is tuple:
        return "list of str" if get_args(expected)[0] is str else "list"
    return str(expected.__name__)


def _names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(CompileOptions))


def _known(name: str, *, source: str) -> str:
    names = _names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        raise OptionError("unknown-option", f"{source}: there is no option {name!r}", remedy=hint)
    return name


@functools.cache
def _hints() -> Mapping[str, Any]:
    """The type of each option; reading them takes a millisecond."""
    return MappingProxyType(get_type_hints(CompileOptions))


def _coerce(name: str, value: object, *, source: str) -> object:
    expected = _hints()[name]
    if get_origin(expected) is Literal:
        allowed = get_args(expected)
        if value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(map(repr, allowed))}"
            code = "unknown-mode" if name == "mode" else "bad-option"
            raise OptionError(code, f"{source}: {name} cannot be {value!r}", remedy=hint)
        return value
    if get_origin(expected) is tuple:
        if isinstance(value, (list, tuple)) and all(_is_item(name, item) for item in value):
            return tuple(value)
    elif type(value) is expected:
        _check_least(name, value, source=source)
        return value
    kind = (
        "a list of strings"
        if get_origin(expected) is tuple
        else f"of type {getattr(expected, '__name__', expected)}"
    )
    kind = f"a {_CODE[name]}" if name in _CODE else kind
    raise OptionError(
        "bad-option", f"{source}: {name}={value!r} has the wrong type", remedy=f"it must be {kind}"
    )


def _is_item(name: str, item: object) -> bool:
    """Whether `item` may stand in the list that is option `name`."""
    if name == "rewrites":
        return isinstance(item, Rewrite)
    return callable(item) if name in _CODE else isinstance(item, str)


def _check_least(name: str, value: object, *, source: str) -> None:
    least = next(f.metadata["least"] for f in fields(CompileOptions) if f.name == name)
    if least is not None and isinstance(value, int) and value < least:
        raise OptionError(
            "bad-option", f"{source}: {name} cannot be {value}", remedy=f"it is at least {least}"
        )


# Variables with the prefix that are no options.
_OTHER_VARIABLES: Final = frozenset({SECRET})


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    hints = _hints()
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _OTHER_VARIABLES:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        _known(name, source=f"environment variable {variable}")
        if name in _CODE:
            raise OptionError(
                "bad-option",
                f"environment variable {variable} cannot hold code",
                remedy=f"torch.compile(..., options={{{name!r}: [...]}})",
            )
        chosen[name] = _coerce(
            name, _parse(variable, text, hints[name]), source=f"environment variable {variable}"
        )
    return chosen


def _parse(variable: str, text: str, expected: object) -> object:
    if expected is bool:
        lowered = text.strip().lower()
        if lowered in ("1", "true", "on", "yes"):
            return True
        if lowered in ("0", "false", "off", "no", ""):
            return False
        raise OptionError(
            "bad-option", f"environment variable {variable}={text!r} is not a boolean", remedy="0 or 1"
        )
    if expected is int:
        try:
            return int(text)
        except ValueError as error:
            raise OptionError(
                "bad-option", f"environment variable {variable}={text!r} is not a number"
            ) from error
    if get_origin(expected) is tuple:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    return text
