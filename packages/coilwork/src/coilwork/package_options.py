"""The settings of each package, from the options and from what torch allows at the moment."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork.targets import model_of_device
from coilwork_frontend.torch_compat.operators import convolutions_use_tf32
from coilwork_ir.device_traits import CUBLAS, DRIVER_GRAPHS, list_types
from coilwork_lowering import LayoutOptions, LoweringOptions, RewriteOptions
from coilwork_lowering.rewrites import Rewrite, choose_rewrites
from coilwork_lowering.rewrites.rewrite import Level
from coilwork_runtime import Search
from coilwork_runtime.executor.choice import ExecutorOptions
from coilwork_runtime.triton_kernels.descent import Trial
from coilwork_scheduler import ScheduleOptions

SCHEDULED: Final = ("cuda", "cpu")
"""Types of devices whose convolutions the scheduler's pass lays out, in inference and in training."""


def make_lowering_options(options: CompileOptions, fallback: tuple[str, ...]) -> LoweringOptions:
    """The settings of lowering. `fallback` are operators to leave to ATen."""
    return LoweringOptions(
        fallback=fallback,
        numerics=options.numerics,
        accumulation=options.accumulation,
        random=options.random,
        sorting=options.sorting,
        sorts_in_memory=not options.triton_on_cpu,
        decompose_sdpa=options.batch_invariant,
        sum_products=options.batch_invariant,
        updates_in_place=options.reuse,
        find_model=cache(model_of_device),
    )


def make_layout_options(options: CompileOptions, *, joins_scheduler: bool = False) -> LayoutOptions:
    """Return what decides layouts of convolutions and products now. It reads torch's TF32 setting, so it
    belongs in cache keys as a whole.

    With strict numerics, kernels are those of the captured layout: another layout's sum in another order.
    With `batch_invariant` layouts stay as well, since which are best depends on how many rows there are.
    Where lowering `joins_scheduler`, whose pass decides over the graph that follows, or both of a training
    step, convolutions are the scheduler's to lay out, on GPUs if their library follows its operands.
    """
    layout = options.conv_layout
    if layout == "auto" and (options.numerics == "strict" or options.batch_invariant):
        layout = "captured"
    is_scheduled = joins_scheduler and torch.version.hip is None
    return LayoutOptions(
        layout=layout,
        scheduled_devices=SCHEDULED if is_scheduled else (),
        tf32_convolutions=convolutions_use_tf32(),
        # a kernel of ours stores rows of any length
        pad_products=options.numerics != "strict" and options.contractions != "generated",
        by_rows=options.contractions == "aten" or torch.version.hip is not None,
        find_model=cache(model_of_device),
    )


def list_rewrites(level: Level, options: CompileOptions, *, on_gpu: bool = False) -> tuple[Rewrite, ...]:
    """The rewrites of `level`, Coilwork's and the user's own."""
    return choose_rewrites(level, make_rewrite_options(options, on_gpu=on_gpu), options.rewrites)


def make_rewrite_options(options: CompileOptions, *, on_gpu: bool = False) -> RewriteOptions:
    """Return which rewrites of graphs are allowed.

    Random numbers are drawn otherwise than in eager where the option `random` lets generated code draw them.
    Batch invariance and deterministic algorithms are promises about the captured operators: then nothing that
    rounds otherwise is done.
    """
    numerics = "eager" if _keeps_operators(options) and options.numerics == "fast" else options.numerics
    return RewriteOptions(
        numerics=numerics,
        random=draws_its_own(options, on_gpu),
        skip=options.skip_rewrites,
        find_model=cache(model_of_device),
    )


def draws_its_own(options: CompileOptions, on_gpu: bool) -> bool:
    """Tell if random numbers may be others than eager's."""
    return options.random == "generated" or (options.random == "auto" and on_gpu)


def packs_weights(options: CompileOptions) -> bool:
    """Tell if frozen weights are packed for oneDNN, which rounds sums otherwise than captured calls do."""
    return options.freezing and options.numerics == "fast" and not _keeps_operators(options)


def _keeps_operators(options: CompileOptions) -> bool:
    return options.batch_invariant or torch.are_deterministic_algorithms_enabled()


def make_schedule_options(options: CompileOptions, *, apart: frozenset[str] = frozenset()) -> ScheduleOptions:
    """The settings of the scheduler. `apart` are calls that share no kernel with others.

    It reads torch's TF32 setting, as `layout_options` does.
    """
    return ScheduleOptions(
        numerics=options.numerics,
        inline=options.fusion,
        fuse=options.fusion,
        combine=options.fusion and options.combine,
        contractions=options.contractions,
        convolution_layouts=options.conv_layout != "captured",
        tf32_convolutions=convolutions_use_tf32(),
        batch_invariant=options.batch_invariant,
        apart=apart,
    )


def make_generator_settings(options: CompileOptions) -> dict[str, object]:
    """The settings of code generators; those of other packages need not know one that nobody asks for."""
    asked: dict[str, object] = {"batch_invariant": True} if options.batch_invariant else {}
    if options.mappings:
        asked["mappings"] = options.mappings
    return asked


def make_executor_options(options: CompileOptions) -> ExecutorOptions:
    """The settings of who runs programs."""
    return ExecutorOptions(
        executor=options.chosen_executor or options.executor,
        strict=options.strict,
        check_lifetimes=options.check_lifetimes,
        products=options.products,
        convolutions=options.convolutions,
        rounds_freely=options.numerics == "fast" and not options.batch_invariant,
        replay=options.replay and options.check_nan == "off",
        graph_devices=list_types(DRIVER_GRAPHS),
        library_devices=list_types(CUBLAS),
    )


def make_search(options: CompileOptions, told: Callable[[str, int, Trial], None]) -> Search | None:
    """The search that `options` ask for; `told` hears of its progress."""
    if not options.mode.startswith("max-autotune") or not options.autotune_budget:
        return None
    return Search(most=options.autotune_budget, told=told)
