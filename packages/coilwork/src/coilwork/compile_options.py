"""Every setting of a compilation, in one frozen value.

`given_options.py` says where they come from besides the defaults here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from coilwork.wrappers import wrapper_names
from coilwork_frontend.user_passes import GraphPass, keys_of, without_uuid
from coilwork_lowering.rewrites import Rewrite
from coilwork_tools.check_mode.checks import CheckedValues, Checks

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
Executor = Literal["auto", "native", "python"]
Numerics = Literal["fast", "eager", "strict"]
ConvolutionLayout = Literal["auto", "captured", "channels_last"]
Accumulation = Literal["auto", "fixed", "sorted", "atomic"]
Sorting = Literal["auto", "kernels", "calls"]
Products = Literal["auto", "aten", "cublaslt"]
Convolutions = Literal["auto", "aten", "cudnn"]
Contractions = Literal["auto", "aten", "generated"]
Random = Literal["auto", "generated", "eager"]

ENVIRONMENT_PREFIX: Final = "COILWORK_"
# The type of the option that texts by names are.
GIVEN_MAPPINGS: Final = tuple[tuple[str, str], ...]


def _about(
    effect: str,
    *,
    key: bool = False,
    least: int | None = None,
    names: Callable[[], tuple[str, ...]] | None = None,
) -> dict[str, object]:
    """What is told of an option; `key` if it changes what is compiled, and so belongs in the cache key.

    `least` is the least value of a number. `names` lists the values there are where packages register them.
    """
    return {"effect": effect, "key": key, "least": least, "names": names}


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
    wrapper: str = field(
        default="python",
        metadata=_about(
            "what drives the kernels: a Python module or who runs it (see executor), the native executor, a "
            "torch.fx graph, C++ (CPU), or what another package registers",
            key=True,
            names=wrapper_names,
        ),
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
            "bits every time, and so does fixed, which adds single elements as integers; atomic adds in any order; auto is "
            "fixed on GPUs",
            key=True,
        ),
    )
    sorting: Sorting = field(
        default="auto",
        metadata=_about(
            "sorts and largest elements of rows: in kernels, fused with what surrounds them, or as torch's own kernels; "
            "auto: in kernels, but for long rows that lie across memory on GPUs, and first elements of 64 bits on CPUs",
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
            "included, and again whenever one of them has changed; writes that torch does not count, through .data or NumPy, go "
            "unseen",
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
    replay: bool = field(
        default=True,
        metadata=_about(
            "with the native executor on GPUs, stretches of launches that are the same in call after call go to the driver as one "
            "graph; each call is compared first, so inputs, sizes and memory may change as without"
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
            "place buffers that never leave a graph in a few shared allocations, for 64 KiB more of memory at most, 1 MiB in graphs that have little; "
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
            "NaN is an error: in what is computed for the caller (results, views of inputs, inputs that are written; torch returns "
            "an input that is only handed through by itself), or in what any kernel reads or writes, one launch at a time"
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
    mappings: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=_about(
            "how kernels run: texts of directives by names of kernels or patterns of names, or a folder with a file NAME.mapping.txt "
            "for each, as a trace has them",
            key=True,
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
        return keys_of(found) if name in HOLDING_CODE else repr(found)

    @property
    def checks(self) -> Checks:
        """The checks of calls that are asked for."""
        return Checks(against_eager=self.check, nan=self.check_nan, inf=self.check_inf)

    @property
    def unkeyed(self) -> tuple[str, ...]:
        """Names of passes and rewrites that have no `uuid`, which keep what is compiled out of the cache."""
        return without_uuid([item for name in HOLDING_CODE for item in getattr(self, name)])


# Options that hold code, and how their elements are called in messages.
HOLDING_CODE: Final[Mapping[str, str]] = {
    "rewrites": "list of Rewrite",
    "joint_passes": "list of callables",
    "passes": "list of callables",
}


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


def list_options() -> tuple[OptionInfo, ...]:
    """Every option, in order."""
    types = option_types()
    return tuple(
        OptionInfo(
            name=f.name,
            values=HOLDING_CODE.get(f.name) or _values(types[f.name], f.metadata["names"]),
            default=repr(f.default),
            effect=f.metadata["effect"],
        )
        for f in fields(CompileOptions)
    )


def _values(expected: Any, names: Callable[[], tuple[str, ...]] | None) -> str:
    if names is not None:
        return ", ".join(names())
    if get_origin(expected) is Literal:
        return ", ".join(get_args(expected))
    if expected == GIVEN_MAPPINGS:
        return "dict of str, or folder"
    if get_origin(expected) is tuple:
        return "list of str" if get_args(expected)[0] is str else "list"
    return str(expected.__name__)


@functools.cache
def option_types() -> Mapping[str, Any]:
    """The type of each option; reading them takes a millisecond."""
    return MappingProxyType(get_type_hints(CompileOptions))
