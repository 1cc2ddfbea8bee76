"""Compiled Triton kernels as stored bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coilwork_runtime.triton_kernels.compilation import GpuBinary, decode_binary, encode_binary, read_binary

BINARY = GpuBinary(image=b"\x7fELF code", name="k", shared_bytes=4096, threads=256, scratch_bytes=16)
REPLY = {
    "name": "k",
    "shared": 4096,
    "num_warps": 8,
    "num_ctas": 1,
    "warp_size": 32,
    "global_scratch_size": 16,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}


def test_an_encoded_binary_is_decoded_as_it_was() -> None:
    assert decode_binary(encode_binary(BINARY)) == BINARY
    clustered = replace(BINARY, cluster=4, cooperative=True)
    assert decode_binary(encode_binary(clustered)) == clustered
    assert b"cluster" not in encode_binary(BINARY) and b"cooperative" not in encode_binary(BINARY)


def test_from_a_workers_reply() -> None:
    assert read_binary(REPLY, b"\x7fELF code") == BINARY
    clustered = read_binary(REPLY | {"num_ctas": 2, "launch_cooperative_grid": True}, b"\x7fELF code")
    assert clustered == replace(BINARY, cluster=2, cooperative=True, scratch_bytes=32)


@pytest.mark.parametrize("cut", [0, 4, 12, 20, len(encode_binary(BINARY)) - len(BINARY.image)])
def test_a_binary_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(ValueError):
        decode_binary(encode_binary(BINARY)[:cut])


@pytest.mark.parametrize("data", [b"garbage that is long enough to be one", b"COILTRIT" + b"\xff" * 40])
def test_data_that_is_no_binary_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_binary(data)


def test_a_header_with_other_types() -> None:
    with pytest.raises(ValueError):
        decode_binary(encode_binary(BINARY).replace(b"4096", b'"4k"'))


@pytest.mark.parametrize("wish", [{"launch_pdl": True}, {"profile_scratch_size": 8}])
def test_launches_of_another_kind_are_refused(wish: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not supported"):
        read_binary(REPLY | wish, b"code")
