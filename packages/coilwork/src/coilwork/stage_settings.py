"""The settings of each package, from the options and from torch's global settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork.targets import find_machine_model
from coilwork_frontend.torch_compat.operators import can_convolve_in_tf32
from coilwork_ir.device_traits import CPU_LIBRARIES, CUBLAS, CUDNN, DRIVER_GRAPHS, list_types
from coilwork_lowering import LayoutOptions, LoweringOptions, RewriteOptions
from coilwork_lowering.facts.fx_nodes import CONVOLUTION
from coilwork_lowering.options import is_listed
from coilwork_lowering.rewrites import Rewrite, choose_rewrites
from coilwork_lowering.rewrites.rewrite import Level
from coilwork_lowering.torch_compat.operators import list_packed_types
from coilwork_runtime import Search
from coilwork_runtime.executor.choice import ExecutorOptions
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Trial
from coilwork_scheduler import ScheduleOptions

SCHEDULED: Final = (*list_types(CUDNN), *list_types(CPU_LIBRARIES))
"""Types of devices on which the scheduler chooses layouts of convolutions: libraries compute in several."""


def make_lowering_options(options: CompileOptions, fallback: tuple[str, ...]) -> LoweringOptions:
    """Return the settings of lowering. `fallback` are operators to leave to ATen."""
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
        chunk_products=_chunks_products(options),
        find_model=cache(find_machine_model),
        repeat=options.repeat,
    )


def make_layout_options(options: CompileOptions, *, saves_captured: bool = False) -> LayoutOptions:
    """Return the settings for layouts of convolutions and products.

    They contain torch's TF32 setting, so all of them belong in cache keys. With strict numerics layouts stay
    as captured, and convolutions are none of products, because other kernels sum in another order. With
    `batch_invariant` they stay, because the best layout depends on the number of rows. Where the forward
    graph `saves_captured` strides, a copy of a weight for both halves would lie as the weight does, so none
    is made; nor is one on AMD GPUs, whose library copies channels-last operands back.
    """
    layout = options.conv_layout
    keeps_calls = options.numerics == "strict" or options.batch_invariant
    if layout == "auto" and keeps_calls:
        layout = "captured"
    copies_weights = not saves_captured and torch.version.hip is None
    return LayoutOptions(
        layout=layout,
        scheduled_devices=SCHEDULED if copies_weights else (),
        tf32_convolutions=can_convolve_in_tf32(),
        # who leaves convolutions to ATen wants its kernels
        multiplies_patches=not keeps_calls and not is_listed(options.fallback, CONVOLUTION),
        # a kernel of ours stores rows of any length
        pad_products=options.numerics != "strict" and options.contractions != "generated",
        by_rows=options.contractions == "aten" or torch.version.hip is not None,
        find_model=cache(find_machine_model),
    )


def list_rewrites(level: Level, options: CompileOptions, *, on_gpu: bool = False) -> tuple[Rewrite, ...]:
    """Return the rewrites of `level`, Coilwork's and the user's own."""
    return choose_rewrites(level, make_rewrite_options(options, on_gpu=on_gpu), options.rewrites)


def make_rewrite_options(options: CompileOptions, *, on_gpu: bool = False) -> RewriteOptions:
    """Return the settings that say which rewrites of graphs are allowed.

    A rewrite may draw other random numbers than eager if the option `random` lets generated code draw them.
    It may not round differently with batch invariance or deterministic algorithms, which are promises about
    the captured operators.
    """
    numerics = "eager" if _keeps_operators(options) and options.numerics == "fast" else options.numerics
    return RewriteOptions(
        numerics=numerics,
        random=can_draw_own_numbers(options, on_gpu),
        skip=options.skip_rewrites,
        find_model=cache(find_machine_model),
    )


def can_draw_own_numbers(options: CompileOptions, on_gpu: bool) -> bool:
    """Tell if random numbers may differ from eager's."""
    return options.random == "generated" or (options.random == "auto" and on_gpu)


def can_pack_weights(options: CompileOptions) -> bool:
    """Tell if frozen weights are packed for oneDNN, which rounds sums differently."""
    return options.freezing and options.numerics == "fast" and not _keeps_operators(options)


def _chunks_products(options: CompileOptions) -> bool:
    """Tell if large products may be computed in chunks: sums of parts round in another order."""
    calls_libraries = options.contractions != "generated" and not options.batch_invariant
    return options.chunk_products and calls_libraries and options.numerics != "strict"


def _keeps_operators(options: CompileOptions) -> bool:
    return options.batch_invariant or torch.are_deterministic_algorithms_enabled()


def make_schedule_options(options: CompileOptions, *, apart: frozenset[str] = frozenset()) -> ScheduleOptions:
    """Return the settings of the scheduler. `apart` are calls that share no kernel with others.

    They contain torch's TF32 setting.
    """
    return ScheduleOptions(
        numerics=options.numerics,
        inline=options.fusion,
        fuse=options.fusion,
        combine=options.fusion and options.combine,
        contractions=options.contractions,
        convolution_layout=options.conv_layout,
        tf32_convolutions=can_convolve_in_tf32(),
        calls_onednn=torch.float32 in list_packed_types() and not _keeps_operators(options),
        batch_invariant=options.batch_invariant,
        chunk_products=_chunks_products(options),
        apart=apart,
        repeat=options.repeat,
    )


def make_generator_settings(options: CompileOptions) -> dict[str, object]:
    """Return the settings of code generators.

    Defaults are left out, so that generators of other packages need not know every setting.
    """
    settings: dict[str, object] = {"batch_invariant": True} if options.batch_invariant else {}
    if options.mappings:
        settings["mappings"] = options.mappings
    return settings


def make_executor_options(options: CompileOptions) -> ExecutorOptions:
    """Return the settings of executors."""
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


def make_search(options: CompileOptions, report: Callable[[str, int, Trial], None]) -> Search | None:
    """Return the search for configurations that `options` ask for, or None; `report` hears of its
    progress."""
    if not options.mode.startswith("max-autotune") or not options.autotune_budget:
        return None
    return Search(most=options.autotune_budget, told=report)
