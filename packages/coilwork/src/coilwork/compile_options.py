"""Every option of a compilation, in one frozen dataclass.

Help texts, checks, environment variables, cache keys and warnings follow from the fields
(`coilwork_frontend.option_table`). `coilwork_frontend.option_sources` says where settings come from besides
the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from coilwork.registries import WRAPPERS
from coilwork_cache.local_store import DEFAULT_MAX_BYTES
from coilwork_cache.tiered_store import SECRET
from coilwork_frontend.compile_captured import Promises
from coilwork_frontend.option_table import (
    Choice,
    Code,
    Items,
    Need,
    OptionInfo,
    Options,
    OptionTable,
    Texts,
    option,
)
from coilwork_frontend.user_passes import GraphPass
from coilwork_ir.device_traits import CUBLAS, list_types
from coilwork_lowering.options import Accumulation, ConvolutionLayout, Numerics, Random, Sorting
from coilwork_lowering.rewrites import Rewrite
from coilwork_runtime.executor.choice import Convolutions, Executor, Products
from coilwork_tools.check_mode.checks import CheckedValues, Checks
from coilwork_tools.explain.trace_folder import MAPPING_SUFFIX
from coilwork_wrapper import FxEmitter, is_emitter
from coilwork_wrapper.module_wrapper import can_restore, choose_executor

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Contractions = Literal["auto", "aten", "generated"]

_DRIVEN: Final = Need(
    who="the wrapper python",
    is_met=lambda o: o.chosen_executor == o.executor,
    otherwise="wrapper={o.wrapper!r} says who drives the kernels",
)
_NATIVE: Final = Need(
    who="the native executor",
    is_met=lambda o: o.runs_natively,
    otherwise="the native executor alone does this, and wrapper={o.wrapper!r}, executor={o.executor!r} runs "
    "without it",
)
_ON_GPUS: Final = Need(who="GPUs", device_types=list_types(CUBLAS), otherwise="its tensors are on {devices}")
_PACKED: Final = Need(
    is_met=lambda o: o.wrapper == "package", otherwise="programs that run here are compiled for what is here"
)
_UNWATCHED: Final = Need(
    is_met=lambda o: o.check_nan == "off",
    otherwise="check_nan={o.check_nan!r} looks at each launch",
)
_SEARCHING: Final = Need(
    who="the modes max-autotune*",
    is_met=lambda o: o.mode.startswith("max-autotune"),
    otherwise="mode={o.mode!r} searches for no configurations",
)
_FUSED: Final = Need(
    is_met=lambda o: o.fusion,
    otherwise="fusion=False makes every operation a kernel of its own",
)
_NO_GRAPHS: Final = (
    "CUDA graphs of whole calls are not built yet; stretches of work that repeat go to the driver as "
    "graphs in every mode"
)
_UNBUILT: Final[Mapping[object, str]] = MappingProxyType(
    {
        "reduce-overhead": _NO_GRAPHS,
        "max-autotune": (
            f"{_NO_GRAPHS}; the best configuration of each Triton kernel is searched for in its first call"
        ),
    }
)
# A row's bits may not depend on what is fused, so intermediates are rounded as if nothing were.
_INVARIANT: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType(
    {"numerics": ("eager", "strict"), "contractions": ("generated",), "conv_layout": ("captured",)}
)
_CALLABLES: Final = Items(holds="callables", is_item=callable, is_code=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions(Options):
    """Settings of one `torch.compile`; `coilwork options` prints these fields."""

    mode: Mode = option(
        "default",
        "max-autotune* searches for the best configuration of each Triton kernel in its first call; "
        "reduce-overhead and max-autotune ask for CUDA graphs",
        key=True,
        unbuilt=_UNBUILT,
    )
    strict: bool = option(False, "raise when a graph cannot be compiled, instead of warning and falling back")
    numerics: Numerics = option(
        "fast",
        "fast keeps fused intermediates in f32; eager rounds where eager rounds; strict also forbids "
        "contraction and approximations",
        key=True,
    )
    batch_invariant: bool = option(
        False,
        "results of a row have the same bits whatever rows are beside it: numerics are at least "
        "eager, reductions run in one order, and products run in generated kernels, which are slower "
        "than torch's; an operator that cannot promise this is an error",
        key=True,
        brings=_INVARIANT,
        why="what is fused, and so not rounded, depends on sizes",
    )
    wrapper: str = option(
        "python",
        "what drives the kernels: python (see executor), the native executor, a torch.fx graph, C++, or what "
        "another package registers",
        key=True,
        kind=Choice(WRAPPERS.names),
    )
    fx_emitter: type[FxEmitter] | None = option(
        None,
        "the class that makes the graphs of wrapper=fx, and may compile them further",
        kind=Code(holds="a subclass of coilwork_wrapper.FxEmitter", is_item=is_emitter),
        brings=MappingProxyType({"wrapper": ("fx",)}),
        why="no other wrapper makes a graph",
    )
    executor: Executor = option(
        "auto",
        "who runs a program with wrapper=python: native, a small extension that is built once per "
        "machine; or Python, which interprets the same bytes; auto is native where it loads",
        needs=(_DRIVEN,),
    )
    check_lifetimes: bool = option(
        False,
        "verify each allocation and free while the program runs, fill memory that is not written yet "
        "or freed with nan, and name what leaks; slow, for debugging",
        needs=(_NATIVE,),
    )
    fallback: tuple[str, ...] = option(
        (),
        "operators (aten.cumsum) that run as torch's own kernels instead of generated code",
        key=True,
    )
    conv_layout: ConvolutionLayout = option(
        "auto",
        "auto runs convolutions in channels-last where that saves memory traffic, on CPUs in f32 only "
        "those whose weights are small beside their images; captured never (nor does auto with "
        "numerics=strict), channels_last always",
        key=True,
    )
    accumulation: Accumulation = option(
        "auto",
        "how floats are added at positions from tensors, as in the gradient of an embedding: sorted "
        "gives the same bits every time, and so does fixed, which adds single elements as integers; "
        "atomic adds in any order; auto is fixed on GPUs",
        key=True,
    )
    sorting: Sorting = option(
        "auto",
        "sorts and largest elements of rows: in kernels, fused with what surrounds them, or as "
        "torch's own kernels; auto: in kernels, but for long rows that lie across memory on GPUs, and "
        "first elements of 64 bits on CPUs",
        key=True,
    )
    random: Random = option(
        "auto",
        "dropout and other random numbers: generated in the kernels that use them, or drawn by ATen "
        "as in eager; auto generates on GPUs",
        key=True,
    )
    contractions: Contractions = option(
        "auto",
        "matrix products: torch's own kernels (aten), or generated kernels, which also compute what is "
        "before and behind a product (generated); auto generates those for which a model of the device "
        "says that this is faster, and calls torch for the others",
        key=True,
    )
    freezing: bool = option(
        False,
        "in inference, compute once what depends on parameters and buffers alone, such as a batch norm "
        "behind a convolution, and again whenever one of them has changed; writes that torch does "
        "not count, through .data or NumPy, go unseen",
        key=True,
    )
    skip_rewrites: tuple[str, ...] = option((), "rewrites of graphs that are not done, by name", key=True)
    rewrites: tuple[Rewrite, ...] = option(
        (),
        "rewrites of your own, beside those of Coilwork",
        key=True,
        kind=Items(holds="Rewrite", is_item=lambda item: isinstance(item, Rewrite), is_code=True),
    )
    joint_passes: tuple[GraphPass, ...] = option(
        (),
        "functions that change the joint graph of forward and backward before it is partitioned, and "
        "inference graphs",
        key=True,
        kind=_CALLABLES,
    )
    passes: tuple[GraphPass, ...] = option(
        (),
        "functions that change each graph that is compiled: forward, backward or inference",
        key=True,
        kind=_CALLABLES,
    )
    products: Products = option(
        "auto",
        "on GPUs, matrix products that no kernel does: through ATen's operators, or from cuBLASLt "
        "itself, whose descriptors and algorithm are looked up once per shape; the last bits may "
        "differ, so auto is cublaslt with numerics=fast where it can be opened, and else aten",
        needs=(_NATIVE, _ON_GPUS),
        quiet=("auto", "aten"),
    )
    convolutions: Convolutions = option(
        "auto",
        "on GPUs, convolutions and their gradients: through ATen's operators, or from cuDNN itself, "
        "whose engine is looked up once per shape among those that give the same bits in every call; "
        "the last bits may differ, so auto is cudnn with numerics=fast where it can be opened, and "
        "else aten",
        needs=(_NATIVE, _ON_GPUS),
        quiet=("auto", "aten"),
    )
    replay: bool = option(
        True,
        "on GPUs, stretches of launches that are the same in call after call go to the driver as one "
        "graph; each call is compared first, so inputs, sizes and memory may change as without",
        needs=(_NATIVE, _UNWATCHED),
    )
    fusion: bool = option(True, "off, every operation is a kernel of its own; for debugging", key=True)
    combine: bool = option(
        True,
        "on GPUs, small kernels of one kind that do not wait for each other share a launch",
        key=True,
        needs=(_FUSED,),
    )
    reuse: bool = option(True, "let the memory planner reuse buffers", key=True)
    pools: bool = option(
        True,
        "place buffers that never leave a graph in a few shared allocations, for 64 KiB more of "
        "memory at most, 1 MiB in graphs that have little; spares the host most of what allocations "
        "cost with the native executor",
        key=True,
    )
    chunk_products: bool = option(
        True,
        "compute products that are much larger than their factors, such as logits that end in a loss, chunk "
        "by chunk, if only generated code and further products read them; they are never in memory as a "
        "whole. In training this is done for 8192 rows and 512 MiB or more (the forward computes their "
        "gradients, up to a factor), and for what fills a considerable part of the memory (computed twice)",
        key=True,
    )
    repeat: bool = option(
        True,
        "lower and schedule one of many equal layers in a row, and copy the result for the others, if the "
        "copies are proved to be right; off, each layer is compiled by itself, which takes longer",
        key=True,
    )
    size_asserts: bool = option(
        True,
        "compare types, devices, sizes and strides of the inputs of each call with those that a graph was "
        "compiled for; off, a call with others gives wrong results or reads foreign memory. Guards of "
        "torch.compile, alignment, and checks that the model makes stay",
        key=True,
    )
    verify: bool = option(False, "check every IR between stages")
    check: bool = option(
        False,
        "run every call beside eager and float64; the first result that differs is an error that "
        "names its kernel and source lines; several times slower than eager",
    )
    check_nan: CheckedValues = option(
        "off",
        "NaN is an error: in what is computed for the caller (results, views of inputs, inputs that "
        "are written; torch returns an input that is only handed through by itself), or in what any "
        "kernel reads or writes, one launch at a time",
    )
    check_inf: CheckedValues = option("off", "as check_nan, for infinities")
    cache: bool = option(True, "use the on-disk caches")
    cache_dir: str = option("", "folder of the caches; empty for the platform's user cache folder")
    max_bytes: int = option(
        DEFAULT_MAX_BYTES, "size of the on-disk caches, of which the least recently used goes", least=1
    )
    max_age_days: int = option(0, "days without use after which an entry goes; 0 for never", least=0)
    redis_url: str = option(
        "",
        "Redis server (redis://, rediss://, unix://) behind the on-disk caches, for several machines; "
        "entries are signed with the secret in COILWORK_REDIS_KEY; needs coilwork[redis]",
    )
    trace: str = option("", "folder to write every stage's text to; empty for none")
    progress: bool = option(
        True, "on a terminal, a line on standard error shows what is compiled, after two seconds of it"
    )
    workers: int = option(0, "processes that build kernels; 0 for one per core, at most 16", least=0)
    autotune_budget: int = option(
        64,
        "configurations that max-autotune* may build per Triton kernel beyond the proposed ones; 0 for none",
        least=0,
        needs=(_SEARCHING, _ON_GPUS),
    )
    mappings: tuple[tuple[str, str], ...] = option(
        (),
        "how kernels run: texts of directives by names of kernels or patterns of names, or a folder "
        "with a file NAME.mapping.txt for each, as a trace has them",
        key=True,
        kind=Texts(suffix=MAPPING_SUFFIX),
    )
    target: str = option(
        "",
        "what coilwork.export compiles for; empty for the devices that are here",
        key=True,
        needs=(_PACKED,),
    )
    triton_on_cpu: bool = option(
        False,
        "run Triton kernels on CPU tensors through Triton's interpreter (TRITON_INTERPRET=1); for testing",
        key=True,
    )

    @property
    def chosen_executor(self) -> Executor | None:
        """The executor of the wrapper's program; None if the wrapper makes neither a module nor bytes."""
        return choose_executor(WRAPPERS.find(self.wrapper), self.executor)

    @property
    def keeps_graphs(self) -> bool:
        """True if compiled graphs are cached. That is for wrappers that restore programs, and checks need the
        program's instructions, which most entries lack."""
        return self.cache and can_restore(WRAPPERS.find(self.wrapper)) and not self.checks.has_any

    @property
    def keeps_traces(self) -> bool:
        """True if records of traced graphs are cached, too."""
        return not self.tracing_reason

    @property
    def tracing_reason(self) -> str:
        """The reason why each process traces its graphs with these options; empty if none has to."""
        reasons = {
            "the cache is off": not self.cache,
            "the wrapper keeps no program": not can_restore(WRAPPERS.find(self.wrapper)),
            "a check of calls needs the graph": self.checks.has_any,
            "an option has no text for a key": bool(self.unkeyed_names),
            "frozen parameters are in no record": self.freezing,
            "a trace shows every stage": bool(self.trace),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    @property
    def runs_natively(self) -> bool:
        """True if the native executor is tried."""
        return self.chosen_executor not in (None, "python")

    @property
    def promises(self) -> Promises:
        """The guarantees of the compilation."""
        return Promises(strict=self.strict, is_batch_invariant=self.batch_invariant)

    @property
    def checks(self) -> Checks:
        """The checks of calls that the options ask for."""
        return Checks(against_eager=self.check, nan=self.check_nan, inf=self.check_inf)


OPTIONS: Final = OptionTable(
    cls=CompileOptions,
    prefix="COILWORK_",
    # COILWORK_PURE_WHEEL is read by the build of the runtime's wheel
    others=frozenset({SECRET, "COILWORK_PURE_WHEEL"}),
    command="`coilwork options`",
)


def list_options() -> tuple[OptionInfo, ...]:
    """Return every option, in order."""
    return OPTIONS.list()
