"""Weights and activations in few bits: packed, looked up in tables, scaled by powers of two."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.memory_bound.case import Arguments, Case, Make
from benchmarks.memory_bound.cases.codes import near_eager
from benchmarks.memory_bound.cases.inputs import normal

F32, U8 = torch.float32, torch.uint8


def scaled_rows(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.near_one(n, dtype=F32)


def packed_in_4_bits(x: Tensor, inverse: Tensor) -> Tensor:
    codes = ((x.float() * inverse[:, None] * 3).round().clamp(-8, 7) + 8).to(U8)
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def table_inputs(make: Make, n: int, m: int) -> Arguments:
    codes = make.integers(n, m // 2, below=256, dtype=U8)
    return codes, make.normal(16, dtype=F32), make.near_one(n, m // 64, dtype=F32)


def looked_up(codes: Tensor, table: Tensor, scales: Tensor) -> Tensor:
    places = torch.stack([codes >> 4, codes & 15], -1).view(codes.shape[0], -1, 64)
    weights = table[places.long()] * scales[..., None]
    return weights.view(codes.shape[0], -1).to(torch.bfloat16)


def shared_exponents(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.float().view(x.shape[0], -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    exponent = torch.floor(torch.log2(largest)) - 8
    codes = (blocks * torch.exp2(-exponent)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.view(x.shape), (exponent + 127).to(U8).squeeze(-1)


CASES = (
    Case(
        name="packed in 4 bits 16384x8192",
        function=packed_in_4_bits,
        inputs=scaled_rows,
        size=(16384, 8192),
        tiny=(5, 8),
        set="further",
    ),
    Case(
        name="4-bit weights of a table 16384x8192",
        function=looked_up,
        inputs=table_inputs,
        size=(16384, 8192),
        tiny=(5, 128),
        set="further",
    ),
    Case(
        name="fp8 in blocks of 32 with shared exponents 16384x8192",
        function=shared_exponents,
        inputs=normal,
        size=(16384, 8192),
        tiny=(5, 64),
        check=near_eager(shared_exponents),
        set="further",
    ),
)
