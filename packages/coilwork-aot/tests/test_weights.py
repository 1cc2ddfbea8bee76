"""Weights: each storage once, in safetensors that its library reads; tensors lie in them as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_safetensors

from coilwork_aot import PackageError
from coilwork_aot.manifest import StateEntry
from coilwork_aot.state import ModelState, open_state, read_safetensors
from coilwork_aot.weights import collect_storages, encode_weights, read_weights
from coilwork_runtime.device_copies import DeviceCopies

CPU = torch.device("cpu")


def stored(tensors: dict[str, torch.Tensor]) -> tuple[ModelState, bytes]:
    places, storages = collect_storages(tensors)
    data = b"".join(bytes(part) for part in encode_weights(storages))
    entries = [
        StateEntry(name=name, kind="parameter", is_persistent=True, place=place)
        for name, place in places.items()
    ]
    return open_state(entries, memoryview(bytearray(data)), CPU, None, DeviceCopies()), data


def test_tensors_come_back_with_their_strides_and_shared_memory() -> None:
    base = torch.arange(24.0)
    tensors = {
        "tied": base.view(4, 6),
        "weight": base.view(4, 6),
        "turned": base.view(4, 6).t(),
        "part": base[6:18],
        "half": torch.randn(3, 5).half(),
        "odd": torch.randn(7, 3)[:, 1],
        "bits": torch.tensor([True, False, True]),
        "complex": torch.randn(3, dtype=torch.complex128),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
    }
    state, _ = stored(tensors)
    loaded = state.state_dict()
    for name, value in tensors.items():
        assert torch.equal(loaded[name], value) and loaded[name].stride() == value.stride()
    assert loaded["tied"] is loaded["weight"]
    loaded["tied"].zero_()
    assert not loaded["part"].any() and not loaded["turned"].any()


def test_the_library_of_safetensors_reads_them_and_each_storage_is_there_once() -> None:
    big = torch.randn(1000)
    _, data = stored({"a": big, "b": big, "c": torch.ones(3)})
    assert len(data) < 1.2 * big.numel() * 4
    read = load_safetensors(data)
    assert torch.equal(read["a"], big) and torch.equal(read["c"], torch.ones(3))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (69).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,4]}}'[:69],
    ],
)
def test_damaged_weights_are_refused(data: bytes) -> None:
    with pytest.raises(PackageError) as caught:
        read_weights(memoryview(data))
    assert caught.value.code == "damaged-weights"


def test_a_file_of_other_weights_is_named(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pt")
    with pytest.raises(PackageError, match=r"w\.pt is no intact file of safetensors") as caught:
        read_safetensors(tmp_path / "w.pt")
    assert caught.value.code == "damaged-weights"


def test_states_are_loaded_whole_or_not_at_all() -> None:
    state, _ = stored({"a": torch.zeros(2), "b": torch.zeros(3)})
    for values in ({"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(4)}):
        with pytest.raises(PackageError) as caught:
            state.load(values, assign=False)
        assert caught.value.code == "wrong-state" and not state.tensors[0].any()
    mine = torch.ones(2)
    state.load({"a": mine, "b": torch.ones(3)}, assign=True)
    assert state.tensors[0].data_ptr() == mine.data_ptr()
