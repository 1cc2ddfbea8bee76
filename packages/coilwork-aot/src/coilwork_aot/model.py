"""A loaded model: its entry points, their calls, and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_aot.errors import InputError, PackageError
from coilwork_aot.input_checks import check_inputs, lay_out_inputs
from coilwork_aot.manifest import Manifest, Variant
from coilwork_aot.state import ModelState
from coilwork_aot.trees import LEAF, flatten, unflatten

MAIN: Final = "forward"
"""The entry point that a call of the model runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundVariant:
    """A program that is ready to run. `call` takes one list, state before inputs, which it empties."""

    variant: Variant
    call: Callable[[list[Any]], Sequence[Any]]
    executor: str


class EntryPoint:
    """One way to call a model. Safe to use from several threads, each with a stream of its own."""

    def __init__(
        self, name: str, variants: Sequence[BoundVariant], state: ModelState, device: torch.device
    ) -> None:
        self.name = name
        self._variants = tuple(variants)
        self._state = state
        self._device = device
        self._plans = tuple(_Plan(one.variant) for one in variants)

    @property
    def executors(self) -> tuple[str, ...]:
        """The names of the executors that run its programs: `native` or `python`."""
        return tuple(one.executor for one in self._variants)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these inputs; it takes and returns what the exported model did.

        Raises:
            InputError: the inputs are not what the model was exported for.
        """
        if len(self._variants) == 1:
            return self._call(0, self._plans[0].take_apart(args, kwargs))
        errors: list[InputError] = []
        for number, plan in enumerate(self._plans):
            try:
                leaves = plan.take_apart(args, kwargs)
                check_inputs(plan.variant, leaves, self._device)
            except InputError as error:
                errors.append(error)
                continue
            return self._call(number, leaves)
        raise errors[0]

    def _call(self, number: int, leaves: list[Any]) -> Any:
        bound, plan = self._variants[number], self._plans[number]
        tensors = self._state.tensors
        try:
            plan.check_bounds(leaves)
            results = bound.call([*(tensors[one] for one in plan.state), *plan.pass_on(leaves)])
        except Exception:
            # what the program raises by itself names no argument
            differing = check_inputs(plan.variant, leaves, self._device)
            if not differing:
                raise
            leaves = lay_out_inputs(plan.variant, leaves, differing)
            results = bound.call([*(tensors[one] for one in plan.state), *plan.pass_on(leaves)])
        return plan.put_together(results)


class _Plan:
    """How inputs of a variant are taken apart, and its results put together."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.state = variant.state
        self._bounds = tuple(_list_bounds(variant))
        self._moving = tuple(number for number, leaf in enumerate(variant.inputs) if leaf.kind != "fixed")
        self._has_fixed = len(self._moving) < len(variant.inputs)
        positional, named = variant.in_tree.children
        is_flat = all(child.kind == LEAF for child in positional.children)
        self._count = len(positional.children) if is_flat and not named.children else -1
        results = variant.results
        self._is_one = variant.out_tree.kind == LEAF and results[0].kind != "fixed"
        self._is_plain = [leaf.position for leaf in results] == list(range(len(results)))
        self._is_tuple = variant.out_tree.kind == "tuple" and variant.out_tree.leaves == len(
            variant.out_tree.children
        )

    def take_apart(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        if len(args) == self._count and not kwargs:
            return [*args]
        positional, named = self.variant.in_tree.children
        leaves: list[Any] = []
        flatten(positional, args, "args", leaves)
        flatten(named, kwargs, "kwargs", leaves)
        return leaves

    def check_bounds(self, leaves: list[Any]) -> None:
        """Check sizes against the bounds of their symbols, which the program does not.

        Raises:
            InputError: one is out of bounds.
        """
        for number, dimension, low, high in self._bounds:
            value = leaves[number]
            size = value if dimension < 0 else value.shape[dimension]
            if size < low or 0 <= high < size:
                raise InputError("shape", f"a size of {self.variant.inputs[number].name} is {size}")

    def pass_on(self, leaves: list[Any]) -> list[Any]:
        """Return what the program takes."""
        if not self._has_fixed:
            return leaves
        for number, leaf in enumerate(self.variant.inputs):
            if leaf.kind == "fixed" and leaves[number] is not leaf.value:
                given = leaves[number]
                if type(given) is not type(leaf.value) or given != leaf.value:
                    raise InputError("fixed-value", f"{leaf.name} has another value than when exported")
        return [leaves[number] for number in self._moving]

    def put_together(self, results: Sequence[Any]) -> Any:
        if self._is_one:
            return results[0]
        if self._is_plain and self._is_tuple:
            return tuple(results)
        leaves = [
            leaf.value if leaf.kind == "fixed" else results[leaf.position] for leaf in self.variant.results
        ]
        return unflatten(self.variant.out_tree, leaves)


def _list_bounds(variant: Variant) -> Iterator[tuple[int, int, int, int]]:
    """Yield a place for each symbol, an input and its dimension, and the symbol's bounds."""
    seen: set[str] = set()
    for number, leaf in enumerate(variant.inputs):
        for dimension, symbol in enumerate(leaf.sizes):
            if isinstance(symbol, str) and symbol and symbol not in seen:
                seen.add(symbol)
                yield number, dimension if leaf.kind == "tensor" else -1, *variant.symbols[symbol]


class LoadedModel:
    """A model that was loaded from a package: call it as the exported one.

    Attributes:
        name: of the model.
        manifest: what the package says.
        device: where it runs.
        entries: its entry points by name.
        state: its tensors.
    """

    def __init__(
        self,
        *,
        name: str,
        manifest: Manifest,
        device: torch.device,
        entries: Mapping[str, EntryPoint],
        state: ModelState,
    ) -> None:
        self.name = name
        self.manifest = manifest
        self.device = device
        self.entries = entries
        self.state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the entry point `forward`, or the only one.

        Raises:
            InputError: the inputs are not what the model was exported for.
            PackageError: there are several entry points, and none is called `forward`.
        """
        return self.entry(MAIN if len(self.entries) > 1 else next(iter(self.entries)))(*args, **kwargs)

    def entry(self, name: str) -> EntryPoint:
        """Return the entry point `name`.

        Raises:
            PackageError: there is none.
        """
        if name not in self.entries:
            raise PackageError(
                "unknown-entry", f"there is no entry point {name!r}; there are {', '.join(self.entries)}"
            )
        return self.entries[name]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return parameters and persistent buffers, by the exported module's names and in its order."""
        return self.state.state_dict()

    def load_state_dict(self, values: Mapping[str, torch.Tensor], *, assign: bool = False) -> None:
        """Copy values into the state; with `assign`, use the tensors themselves.

        Raises:
            PackageError: names, shapes or element types differ. Nothing has changed then.
        """
        self.state.load(values, assign=assign)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the parameters by name; tied ones are one tensor under several names."""
        return self.state.iterate_named("parameter")

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers by name."""
        return self.state.iterate_named("buffer")
