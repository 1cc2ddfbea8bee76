"""Torch's own operator database: which operators there are, and inputs on which torch's tests try them.

The database lives in torch.testing._internal, whose import asks for `expecttest` though nothing here uses it.
Where that package is missing, its one name that is needed at import, a test case class, is put in its place.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import sys
import types
import unittest
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

MOST_SAMPLES_SEEN = 120
# Tests of torch's that compare an operator with itself computed otherwise; what they tolerate, we do.
TOLERANT_TESTS = (None, "TestCommon", "TestInductorOpInfo")


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Arguments of one call. Tensors are detached leaves; `differentiable` are positions among them, in
    pytree order.

    `finish` is applied to results before gradients are taken: it leaves what is defined, of eigenvectors for
    instance.
    """

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    differentiable: tuple[int, ...] = ()
    finish: Callable[[Any], Any] = _as_it_is

    def fresh(self, *, requires_grad: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments with their strides, for a call that may write to them."""
        arguments, keywords = copy.deepcopy((self.arguments, self.keywords))
        if requires_grad:
            tensors = tensors_of((arguments, keywords))
            for position in self.differentiable:
                tensors[position].requires_grad_()
        return arguments, keywords

    def in_float64(self) -> Sample:
        """The same call in double precision (complex numbers likewise)."""
        arguments, keywords = pytree.tree_map(_widened, (self.arguments, self.keywords))
        return replace(self, arguments=arguments, keywords=keywords)

    def describe(self) -> str:
        """Short text of the arguments, for a report."""
        return ", ".join(
            [
                *map(_text, self.arguments),
                *(f"{name}={_text(value)}" for name, value in self.keywords.items()),
            ]
        )


def tensors_of(value: object) -> list[Tensor]:
    """Every tensor in a nested value, in pytree order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def operators() -> dict[str, Any]:
    """Every OpInfo, by `name` or `name.variant`."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        vars(stand_in)["TestCase"] = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    # The import would forbid every later change of torch.backends' flags in this process.
    with mock.patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal import common_methods_invocations as database
        from torch.testing._internal import common_utils
        from torch.testing._internal.opinfo import core

    # Random operators are wrapped in a function that sets a seed, which Dynamo does not trace; callers set
    # seeds.
    vars(database)["wrapper_set_seed"] = _call
    # For every iteration over samples the whole stack is searched, with its source lines, for a test of
    # torch's own that might leave samples out. None is there; below pytest the search takes most of the time.
    for module in (core, common_utils):
        vars(module)["extract_test_fn"] = _find_no_test
    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in database.op_db}


def _find_no_test() -> None:
    return None


def _call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


def tolerance(op: Any, device: str, dtype: torch.dtype) -> tuple[float, float] | None:
    """Relative and absolute tolerance that the database states for results in `dtype`; None where it states
    none.
    """
    found: list[Any] = []
    for entry in op.decorators:
        applies = getattr(entry, "cls_name", None) in TOLERANT_TESTS
        applies = applies and getattr(entry, "device_type", None) in (None, torch.device(device).type)
        for one in getattr(entry, "decorators", [entry]) if applies else ():
            found += [getattr(one, "overrides", {}).get(dtype)]
    stated = [one for one in found if one is not None]
    return (max(one.rtol for one in stated), max(one.atol for one in stated)) if stated else None


def samples(
    op: Any, device: str, dtype: torch.dtype, *, requires_grad: bool, most: int | None
) -> list[Sample]:
    """All samples, or up to `most` that differ in kind: the first, a 0-d one, an empty one, strided inputs,
    then others.

    Where no sample has strided inputs, one of the first sample's values is added.
    """
    seen = _listed(op.sample_inputs(device, dtype, requires_grad=requires_grad), most)
    if not seen:
        return []
    if most is None:
        return seen if any(map(_is_strided, seen)) else [*seen, _strided(seen[0])]
    chosen: dict[int, Sample] = {0: seen[0]}
    for kind in (_has_scalar_tensor, _is_empty, _is_strided):
        found = next((i for i, sample in enumerate(seen) if kind(sample)), None)
        if found is not None:
            chosen[found] = seen[found]
    for index in (len(seen) - 1, *range(len(seen) // 2, len(seen)), *range(len(seen))):
        if len(chosen) >= most:
            break
        chosen[index] = seen[index]
    result = [chosen[index] for index in sorted(chosen)][:most]
    if not any(map(_is_strided, result)):
        result.append(_strided(seen[0]))
    return result


def hard_samples(op: Any, device: str, dtype: torch.dtype, *, most: int) -> list[Sample]:
    """Up to `most` of torch's reference samples: the largest, some with infinities and NaN, and a spread of
    others.
    """
    seen = _listed(op.reference_inputs(device, dtype), most)
    chosen = dict.fromkeys([max(range(len(seen)), key=lambda i: _elements(seen[i]))] if seen else [])
    special = [i for i, sample in enumerate(seen) if _has_special(sample)]
    for index in (*special[:: max(1, len(special) // 3)], *range(0, len(seen), max(1, len(seen) // most))):
        chosen.setdefault(index)
    return [seen[index] for index in chosen][:most]


def rejected_samples(op: Any, device: str) -> list[Sample]:
    """Calls that eager rejects, as the database says."""
    if op.error_inputs_func is None:
        return []
    return [_sample(one.sample_input) for one in op.error_inputs(device)]


def _listed(given: Iterable[Any], most: int | None) -> list[Sample]:
    first = given if most is None else itertools.islice(given, MOST_SAMPLES_SEEN)
    return [_sample(one) for one in first]


def _sample(given: Any) -> Sample:
    """Torch's sample as ours."""
    arguments, keywords = (given.input, *given.args), given.kwargs
    differentiable = tuple(
        position for position, tensor in enumerate(tensors_of((arguments, keywords))) if tensor.requires_grad
    )
    detached, detached_keywords = pytree.tree_map(
        lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, (arguments, keywords)
    )
    return Sample(
        arguments=detached,
        keywords=detached_keywords,
        differentiable=differentiable,
        finish=given.output_process_fn_grad or _as_it_is,
    )


def _tensors(sample: Sample) -> Iterator[Tensor]:
    yield from tensors_of((sample.arguments, sample.keywords))


def _has_scalar_tensor(sample: Sample) -> bool:
    return any(tensor.dim() == 0 for tensor in _tensors(sample))


def _is_empty(sample: Sample) -> bool:
    return any(tensor.numel() == 0 for tensor in _tensors(sample))


def _is_strided(sample: Sample) -> bool:
    return any(not tensor.is_contiguous() for tensor in _tensors(sample))


def _elements(sample: Sample) -> int:
    return sum(tensor.numel() for tensor in _tensors(sample))


def _has_special(sample: Sample) -> bool:
    return any(
        tensor.is_floating_point() and not torch.isfinite(tensor.to_dense()).all()
        for tensor in _tensors(sample)
    )


def _strided(sample: Sample) -> Sample:
    """The sample with every tensor of two or more elements spread over twice the memory."""

    def spread(leaf: object) -> object:
        if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided or leaf.numel() < 2:
            return leaf
        wide = torch.empty([*leaf.shape, 2], dtype=leaf.dtype, device=leaf.device)
        wide.copy_(leaf.unsqueeze(-1).expand(wide.shape))
        return wide[..., 0]

    arguments, keywords = pytree.tree_map(spread, (sample.arguments, sample.keywords))
    return replace(sample, arguments=arguments, keywords=keywords)


def _widened(leaf: object) -> object:
    wider = {
        torch.float32: torch.float64,
        torch.bfloat16: torch.float64,
        torch.float16: torch.float64,
        torch.complex32: torch.complex128,
        torch.complex64: torch.complex128,
    }
    if isinstance(leaf, Tensor):
        return leaf.to(wider.get(leaf.dtype, leaf.dtype))
    if isinstance(leaf, torch.dtype):
        return wider.get(leaf, leaf)
    return leaf


def _text(value: object) -> str:
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        strides = (
            "" if value.layout is not torch.strided or value.is_contiguous() else f" strides {value.stride()}"
        )
        return f"{kind}{list(value.shape)}{strides}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)[:40]
