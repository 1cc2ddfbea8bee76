"""The settings of lowering."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from coilwork_ir.device_traits import CPU_LIBRARIES, CUDNN, SEQUENTIAL_RANDOM, has_trait, list_types
from coilwork_ir.machine import FindModel, find_like_model
from coilwork_ir.target import TARGETS

Numerics = Literal["fast", "eager", "strict"]
ConvolutionLayout = Literal["auto", "captured", "channels_last"]
Accumulation = Literal["auto", "fixed", "sorted", "atomic"]
Random = Literal["auto", "generated", "eager"]
Sorting = Literal["auto", "kernels", "calls"]

_H200: Final = TARGETS["sm_90"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringOptions:
    """Settings of lowering. All fields change the result, so all belong in a cache key.

    Attributes:
        fallback: operators that become calls of ATen although they have a lowering: `"aten.cumsum"` (every
            overload) or `"aten.cumsum.default"`. Default: none.
        fallback_nodes: pairs of one of `fallback`'s operators and the name of a node: of such an operator
            these calls alone become calls of ATen. Default: none.
        numerics: `fast` computes 16 bit and 8 bit floats in `f32` inside a node; every node still rounds its
            result to the captured type, so the three levels differ only in what later stages may remove.
            Default: `fast`.
        decompose_sdpa: let fused attention operators decompose to matrix products instead of calling the
            fused kernel. Default: False.
        sum_products: let matrix products of `f64` decompose to sums of products, which kernels add in one
            order whatever the sizes. Default: False.
        keep: operators that are not decomposed, in the same notation as `fallback`. Default: none.
        max_cat_inputs: `aten.cat` of more tensors than this calls ATen, because the generated body would test
            one condition per tensor and element; on GPUs up to 64 whose parts are whole vectors of 16 bytes
            are generated all the same, with one condition per vector. Default: 8 tensors.
        checks: emit run-time checks for indices that come from tensors. Without them an index out of range is
            undefined behaviour. Default: True.
        accumulation: how floats are added at positions that come from tensors, as in the gradient of an
            embedding. `sorted` sorts the positions and sums what belongs together in one order: equal inputs
            give equal bits. `fixed` does the same for rows, and adds single elements in fixed point, where
            every order gives the same bits. `atomic` adds floats into memory in any order. `auto` is `fixed`
            on accelerators, while on a CPU one thread adds in order, much faster than it would sort. Default:
            `auto`.
        random: how dropout and other random numbers are drawn. `generated` makes them in the kernels that use
            them, other numbers than eager's from one seed per call; `eager` calls ATen. `auto` generates on
            accelerators. Default: `auto`.
        sorting: `kernels` sorts in kernels, with what makes rows and what follows, where the target can: rows
            of known length that fit on chip on accelerators, all rows on a CPU. `calls` leaves all sorts to
            ATen. `auto` is `kernels`, but for what ATen does faster: long rows that lie across memory on
            accelerators, and some elements by rank on a CPU. Default: `auto`.
        sorts_in_memory: kernels on a CPU sort rows of any length and type; otherwise they are those of an
            accelerator. Default: True.
        updates_in_place: let updates of tensors whose old contents nobody needs overwrite them. Default:
            True.
        chunk_products: a backward computes large products again that a scheduler computes in chunks, instead
            of reading all of them. Default: True.
        max_index_size: nodes of an index expression, written out, up to which a view is a map of coordinates;
            one with a longer map is laid out in memory.
        resident_bytes: how much of what is combined with in memory, where data say, stays in an accelerator's
            cache meanwhile: its `Target.resident_bytes`. Default: those of an H200, 24 MiB.
        find_model: what is measured of a device, by its name, such as `"cuda:0"`. A target's description is
            in cache keys anyway. Default: the figures of a device like it.
        repeat: lower one of many equal layers in a row, and copy its loops for the others. Default: True.
    """

    fallback: tuple[str, ...] = ()
    fallback_nodes: tuple[tuple[str, str], ...] = ()
    numerics: Numerics = "fast"
    decompose_sdpa: bool = False
    sum_products: bool = False
    keep: tuple[str, ...] = ()
    max_cat_inputs: int = 8
    checks: bool = True
    accumulation: Accumulation = "auto"
    random: Random = "auto"
    sorting: Sorting = "auto"
    sorts_in_memory: bool = True
    updates_in_place: bool = True
    chunk_products: bool = True
    max_index_size: int = 256
    resident_bytes: int = _H200.resident_bytes
    find_model: FindModel = field(default=find_like_model, repr=False, compare=False)
    repeat: bool = True

    def falls_back(self, target: str, node: str = "") -> bool:
        """Tell if `target`, e.g. `"aten.cumsum.default"`, is left to ATen: for `node`, if that is given."""
        if not is_listed(self.fallback, target):
            return False
        nodes = [place for operator, place in self.fallback_nodes if operator == target]
        return not nodes or not node or node in nodes

    def draws(self, device_type: str) -> bool:
        """Tell if generated code draws random numbers on devices of `device_type`, such as `"cuda"`."""
        return self.random == "generated" or (
            self.random == "auto" and not has_trait(device_type, SEQUENTIAL_RANDOM)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Options of the memory layout of convolutions and matrix products. All fields change the result, so
    all belong in a cache key.

    Attributes:
        layout: what the scheduler, which lays out convolutions, is told: `auto` takes channels-last where
            that saves memory traffic, `captured` never, `channels_last` whatever it costs. Default: `auto`.
        devices: types of devices with kernels for matrix units, which read dense operands and rows of 16
            bytes. Default: `cuda`.
        scheduled_devices: types of devices whose convolutions the scheduler lays out, so that weights are
            copied for it. Default: `cuda` and `cpu`.
        tf32_convolutions: whether convolutions in `f32` may round their operands to TF32, as
            `torch.backends.cudnn` says; only then do their kernels prefer channels-last. Default: True, as in
            torch.
        multiplies_patches: compute convolutions in 16 bit floats on `devices` whose windows lie side by side
            as products, unless layouts are `captured`. Default: True.
        pad_products: pad matrix products on `devices`: sizes in 16 bit floats to multiples of 8 where that
            saves more than its copies cost, and rows to multiples of 16 bytes where the graph is free to
            choose. Default: True.
        by_rows: compute products that cannot be padded, since their results must be dense, by blocks of rows.
            Off where kernels store such rows themselves. Default: True.
        find_model: as in `LoweringOptions`.
    """

    layout: ConvolutionLayout = "auto"
    devices: tuple[str, ...] = list_types(CUDNN)
    scheduled_devices: tuple[str, ...] = (*list_types(CUDNN), *list_types(CPU_LIBRARIES))
    tf32_convolutions: bool = True
    multiplies_patches: bool = True
    pad_products: bool = True
    by_rows: bool = True
    find_model: FindModel = field(default=find_like_model, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """Options that say which rewrites of graphs are allowed. All fields change the result, so all belong in a
    cache key.

    Attributes:
        numerics: with anything but `fast`, none that round otherwise than the captured calls. Default:
            `fast`.
        random: whether random numbers may be drawn otherwise than in eager. Default: False.
        skip: names of rewrites that are not done. Default: none.
        find_model: as in `LoweringOptions`.
    """

    numerics: Numerics = "fast"
    random: bool = False
    skip: tuple[str, ...] = ()
    find_model: FindModel = field(default=find_like_model, repr=False, compare=False)


def is_listed(listed: tuple[str, ...], target: str) -> bool:
    """Tell whether `listed` holds the overload `target` or its packet."""
    return target in listed or target.rpartition(".")[0] in listed
