"""Calls made from good ones by changing one argument: another rank, size, type, device, number, word or
position.

Some of them are as good as what they are made of. What eager says of each is for the caller to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from integration_tests.operators.database import Sample

# Types to try in the place of a tensor's own.
_OTHER_TYPES: Final = (
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float64,
    torch.float16,
    torch.float8_e4m3fn,
    torch.uint16,
    torch.float32,
    torch.int32,
)
_OTHER_NUMBERS: Final = (-1, 0, 100, 1.5, "x", None)
_OTHER_FLOATS: Final = (-1.5, 0.0, 2.5, float("nan"), 1j, "x")
# Beside which another number more or less leaves the type.
_EXTREMES: Final = (2**63 - 1, -(2**63))
# A tensor of more elements than this is not enlarged.
_MOST_ELEMENTS: Final = 100_000


def mutated(sample: Sample, *, outputs: tuple[Tensor, ...] = ()) -> Iterator[tuple[str, Sample]]:
    """Calls beside `sample`, each with a few words on what was changed.

    `outputs`, what the call returns, is for calls that are to write into tensors of another type or device.
    """
    leaves, structure = pytree.tree_flatten((sample.arguments, sample.keywords))
    for position, leaf in enumerate(leaves):
        for what, other in _others(leaf):
            arguments, keywords = pytree.tree_unflatten(
                [*leaves[:position], other, *leaves[position + 1 :]], structure
            )
            changed = replace(sample, arguments=arguments, keywords=keywords, differentiable=())
            yield f"argument {position}: {what}", changed
        for what, other in _extremes(leaf):
            arguments, keywords = pytree.tree_unflatten(
                [*leaves[:position], other, *leaves[position + 1 :]], structure
            )
            changed = replace(sample, arguments=arguments, keywords=keywords, differentiable=())
            yield f"argument {position}, extreme: {what}", changed
    yield from _changed_alike(sample)
    yield from _shortened(sample)
    if len(outputs) == 1:
        for what, out in _outputs(outputs[0]):
            yield f"out: {what}", replace(sample, keywords={**sample.keywords, "out": out})


def _changed_alike(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The calls whose tensors of the first one's type are all changed: to another type, to no elements along
    a dimension, or to one dimension more.
    """
    leaves, structure = pytree.tree_flatten((sample.arguments, sample.keywords))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
    if not tensors or any(leaf.is_nested or leaf.numel() > _MOST_ELEMENTS for leaf in tensors):
        return
    first = tensors[0].dtype
    alike = [isinstance(leaf, Tensor) and leaf.dtype is first for leaf in leaves]
    if sum(alike) < 2:
        return

    def changed(change: Callable[[Tensor], Tensor]) -> Sample:
        others = [change(leaf) if chosen else leaf for leaf, chosen in zip(leaves, alike)]
        arguments, keywords = pytree.tree_unflatten(others, structure)
        return replace(sample, arguments=arguments, keywords=keywords, differentiable=())

    for dtype in _OTHER_TYPES:
        if dtype is not first:
            yield f"all alike: {dtype} for {first}", changed(lambda leaf, dtype=dtype: leaf.to(dtype))
    yield "all alike: a dimension more", changed(lambda leaf: leaf.unsqueeze(0).clone())
    yield "all alike: no elements", changed(lambda leaf: leaf.flatten()[:0] if leaf.dim() < 2 else leaf[:0])


def _shortened(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The calls whose lists are shorter, longer, or say the first item twice, and which lack the last
    argument.
    """
    for position, value in enumerate(sample.arguments):
        if isinstance(value, list | tuple):
            before, after = sample.arguments[:position], sample.arguments[position + 1 :]
            for what, other in _other_lists(value):
                yield (
                    f"argument {position}: {what}",
                    replace(sample, arguments=(*before, other, *after), differentiable=()),
                )
    for name, value in sample.keywords.items():
        if isinstance(value, list | tuple):
            for what, other in _other_lists(value):
                yield (
                    f"{name}: {what}",
                    replace(sample, keywords={**sample.keywords, name: other}, differentiable=()),
                )
    if len(sample.arguments) > 1:
        yield "one argument less", replace(sample, arguments=sample.arguments[:-1], differentiable=())


def _other_lists(value: list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    make = type(value)
    if make not in (list, tuple):
        return
    yield "an empty list", make(())
    if value:
        yield "a shorter list", make(value[:-1])
        yield "a longer list", make((*value, value[-1]))
    if len(value) > 1:
        yield "the first item twice", make((value[0], value[0], *value[2:]))


def _others(leaf: object) -> Iterator[tuple[str, Any]]:
    if isinstance(leaf, Tensor):
        if leaf.layout is torch.strided and not leaf.is_nested:
            yield from _other_tensors(leaf)
    elif isinstance(leaf, bool):
        yield "a word", "x"
    elif isinstance(leaf, int):
        yield from (
            (f"{other!r} for {leaf}", other) for other in (leaf + 1, *_OTHER_NUMBERS) if other != leaf
        )
    elif isinstance(leaf, float):
        yield from ((f"{other!r} for {leaf}", other) for other in _OTHER_FLOATS)
    elif isinstance(leaf, str):
        yield "an unknown word", f"{leaf}x"
        yield "no word", ""
    elif isinstance(leaf, torch.dtype):
        yield from ((f"{other} for {leaf}", other) for other in _OTHER_TYPES if other is not leaf)
    elif isinstance(leaf, torch.device):
        yield "another device", torch.device("meta")


def _extremes(leaf: object) -> Iterator[tuple[str, Any]]:
    """The largest and the smallest numbers of the type in the place of a number, of a tensor's first and of
    all of its elements.
    """
    if isinstance(leaf, int) and not isinstance(leaf, bool):
        yield from ((f"{other} for {leaf}", other) for other in _EXTREMES)
    elif isinstance(leaf, float):
        yield from ((f"{other!r} for {leaf}", other) for other in (float("inf"), -1e308))
    elif isinstance(leaf, Tensor) and leaf.layout is torch.strided and not leaf.is_nested and leaf.numel():
        if leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype is torch.bool:
            return
        limits = torch.iinfo(leaf.dtype)
        for what, value in (("the largest", limits.max), ("the smallest", limits.min)):
            other = leaf.clone(memory_format=torch.contiguous_format)
            other.view(-1)[0] = value
            yield f"the first is {what}", other
            yield f"all are {what}", torch.full_like(leaf, value)


def _other_tensors(leaf: Tensor) -> Iterator[tuple[str, Any]]:
    if leaf.numel() > _MOST_ELEMENTS:
        return
    yield "a dimension more", leaf.unsqueeze(0).clone()
    yield "a dimension more at the end", leaf.unsqueeze(-1).expand(*leaf.shape, 2).clone()
    yield "two dimensions more", leaf[None, None].clone()
    if leaf.numel() > 0:
        yield "no dimension", leaf.flatten()[0].clone()
        if leaf.dim() > 1:
            yield "a dimension less", leaf.select(0, 0).clone()
            yield "one dimension", leaf.flatten().clone()
    for dim in {0, leaf.dim() - 1} if leaf.dim() else ():
        size = leaf.shape[dim]
        if size:
            yield f"one more in dimension {dim}", torch.cat((leaf, leaf.narrow(dim, 0, 1)), dim)
            yield f"one less in dimension {dim}", leaf.narrow(dim, 0, size - 1).clone()
            yield f"none in dimension {dim}", leaf.narrow(dim, 0, 0).clone()
    for dtype in _OTHER_TYPES:
        if dtype is not leaf.dtype:
            yield f"{dtype} for {leaf.dtype}", leaf.to(dtype)
    yield "on another device", leaf.to("meta")
    yield "no tensor", None
    if leaf.numel() > 0 and leaf.dtype is not torch.bool and not _is_of_8_bits(leaf):
        yield from _other_values(leaf)


def _is_of_8_bits(leaf: Tensor) -> bool:
    """Tell if it holds floats that eager cannot even negate."""
    return leaf.dtype.is_floating_point and leaf.dtype.itemsize == 1


def _other_values(leaf: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Positions and parameters that may be out of bounds."""

    def first(value: float) -> Tensor:
        made = leaf.clone()
        made.view(-1)[0] = value
        return made

    def last(value: float) -> Tensor:
        made = leaf.clone()
        made.view(-1)[-1] = value
        return made

    leaf = leaf.contiguous()
    signed = leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype.is_signed
    if signed:
        yield "the first is -1", first(-1)
        yield "the last is -100", last(-100)
        yield "all negative", -leaf.abs() - 1
    if not leaf.dtype.is_complex:
        yield "the first is 100", first(100)
        yield "the last is 100", last(100)
        yield "sorted down", leaf.flatten().sort(descending=True).values.reshape(leaf.shape)
    yield "all the same", leaf.flatten()[-1].expand(leaf.shape).clone()
    yield "all 0", torch.zeros_like(leaf)
    if leaf.dtype.is_floating_point or leaf.dtype.is_complex:
        yield "the first is NaN", first(float("nan"))


def _outputs(result: Tensor) -> Iterator[tuple[str, Tensor]]:
    for dtype in (torch.int64, torch.bool, torch.float32, torch.complex64, torch.float16, torch.float64):
        if dtype is not result.dtype:
            yield f"{dtype} for {result.dtype}", torch.empty(result.shape, dtype=dtype, device=result.device)
    yield "on another device", torch.empty(result.shape, dtype=result.dtype, device="meta")
