"""The state of a loaded model: parameters, buffers and constants by number, and their names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from coilwork_aot.archive import map_file
from coilwork_aot.errors import PackageError
from coilwork_aot.manifest import StateEntry
from coilwork_aot.weights import (
    StoredTensor,
    TensorPlace,
    make_tensor,
    read_weights,
    view_row,
)
from coilwork_runtime.device_copies import DeviceCopies
from coilwork_runtime.dtypes import get_torch_dtype
from coilwork_runtime.saved_program import compute_span


class ModelState:
    """The tensors of a loaded model, which its entry points share, and other models may, too.

    Tensors that lie alike in one storage are one tensor, as tied weights are.
    """

    def __init__(self, entries: Sequence[StateEntry], tensors: Sequence[torch.Tensor]) -> None:
        self.entries = tuple(entries)
        self.tensors = tuple(tensors)

    def iterate_named(self, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and tensors of one kind: `parameter`, `buffer`, `constant`."""
        for entry, value in zip(self.entries, self.tensors, strict=True):
            if entry.kind == kind:
                yield entry.name, value

    def state_dict(self) -> OrderedDict[str, torch.Tensor]:
        """Return the tensors as the exported module's `state_dict` has them: names, order, tied weights."""
        pairs = zip(self.entries, self.tensors, strict=True)
        return OrderedDict((entry.name, value) for entry, value in pairs if entry.is_persistent)

    def load(self, values: Mapping[str, torch.Tensor], *, assign: bool) -> None:
        """Copy `values` into the state by name; with `assign`, take the tensors themselves.

        Raises:
            PackageError: a name is missing or unknown, or a tensor does not fit. Nothing has changed then.
        """
        wanted = {entry.name: entry for entry in self.entries if entry.is_persistent}
        if values.keys() != wanted.keys():
            missing, unknown = wanted.keys() - values.keys(), values.keys() - wanted.keys()
            raise _state_error(f"missing: {sorted(missing)}, unknown: {sorted(unknown)}")
        for name, entry in wanted.items():
            _check_fits(entry, values[name], with_strides=assign)
        if not assign:
            with torch.no_grad():
                for entry, value in zip(self.entries, self.tensors, strict=True):
                    if entry.is_persistent:
                        value.copy_(values[entry.name])
            return
        tensors = list(self.tensors)
        for number, entry in enumerate(self.entries):
            if entry.is_persistent:
                tensors[number] = values[entry.name].detach().to(self.tensors[number].device)
        self.tensors = tuple(tensors)


def _check_fits(entry: StateEntry, value: torch.Tensor, *, with_strides: bool) -> None:
    place = entry.place
    if value.dtype != get_torch_dtype(place.dtype) or tuple(value.shape) != place.size:
        raise _state_error(
            f"{entry.name} is {value.dtype} of {list(value.shape)}, not {place.dtype} of {list(place.size)}"
        )
    if with_strides and tuple(value.stride()) != place.stride:
        raise _state_error(f"{entry.name} has the strides {tuple(value.stride())}, not {place.stride}")


def _state_error(reason: str) -> PackageError:
    return PackageError("wrong-state", "the state does not fit the model", reason=reason[:1000])


def open_state(
    entries: Sequence[StateEntry],
    weights: memoryview | None,
    device: torch.device,
    given: Mapping[str, torch.Tensor] | None,
    copies: DeviceCopies,
) -> ModelState:
    """Make the state of a package on `device`: of its weights, or of `given` tensors by name. Weights are on
    a GPU when `copies` has ended.

    On the CPU, the tensors are the mapped file itself, of which this process has its own copy of what it
    writes to.

    Raises:
        PackageError: weights are damaged or missing, or `given` do not fit.
    """
    stored = {} if weights is None else read_weights(weights)
    storages = _open_storages(entries, stored, device, given, copies)
    made: dict[TensorPlace, torch.Tensor] = {}
    tensors = []
    for entry in entries:
        place = entry.place
        if given is not None and entry.is_persistent:
            if entry.name not in given:
                raise _state_error(f"missing: {entry.name}")
            tensors.append(_take_given(entry, given[entry.name], device))
            continue
        if place.storage not in storages:
            raise PackageError(
                "missing-weights",
                f"the package brings no values for {entry.name}",
                remedy="hand them over: load(path, weights=...), a file of safetensors or tensors by name",
            )
        if place not in made:
            made[place] = make_tensor(place, storages[place.storage])
        tensors.append(made[place])
    return ModelState(entries, tensors)


def _open_storages(
    entries: Sequence[StateEntry],
    stored: Mapping[str, StoredTensor],
    device: torch.device,
    given: Mapping[str, torch.Tensor] | None,
    copies: DeviceCopies,
) -> dict[str, torch.Tensor]:
    """Return the storages on `device` that the state uses of the package's own, by name."""
    own = (entry.place.storage for entry in entries if given is None or not entry.is_persistent)
    names = [name for name in dict.fromkeys(own) if name in stored]
    rows = [view_row(stored[name].data) for name in names]
    return dict(zip(names, copies.copy(rows, device), strict=True))


def _take_given(entry: StateEntry, value: torch.Tensor, device: torch.device) -> torch.Tensor:
    _check_fits(entry, value, with_strides=False)
    moved = value.detach().to(device)
    if tuple(moved.stride()) == entry.place.stride:
        return moved
    place = entry.place
    span = compute_span(place.size, place.stride)
    laid_out = torch.empty(span, dtype=moved.dtype, device=device).as_strided(place.size, place.stride)
    return laid_out.copy_(moved)


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Map the tensors of a safetensors file.

    Raises:
        PackageError: it cannot be read, or is damaged.
    """
    tensors = read_weights(
        memoryview(map_file(path)),
        fault=f"{path} is no intact file of safetensors",
        remedy="write it by safetensors.torch.save_file, or hand over tensors by name",
    )
    return {name: _make_plain(one) for name, one in tensors.items()}


def _make_plain(stored: StoredTensor) -> torch.Tensor:
    storage = view_row(stored.data)
    return storage.view(get_torch_dtype(stored.dtype)).reshape(stored.shape)
