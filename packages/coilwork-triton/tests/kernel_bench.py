"""What the tests of this package share: a small kernel builder, and Triton in a process of its own."""

from __future__ import annotations

import functools
import math
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, evaluate, substitute, symbol
from coilwork_ir.kernel_source import Config, KernelSource
from coilwork_ir.kernels import Kernel, Range, TensorArg
from coilwork_ir.kernels.nodes import ArgRole, RangeKind
from coilwork_ir.scalar import const, index_value, op, substitute_ranges
from coilwork_triton.text.language import TRITON_TYPES

POINTERS = {
    DType.F64: "*fp64", DType.F32: "*fp32", DType.F16: "*fp16", DType.BF16: "*bf16", DType.F8E4M3: "*fp8e4nv",
    DType.F8E5M2: "*fp8e5", DType.I64: "*i64", DType.I32: "*i32", DType.I16: "*i16", DType.I8: "*i8",
    DType.U64: "*u64", DType.U32: "*u32", DType.U16: "*u16", DType.U8: "*u8", DType.BOOL: "*i1",
}  # fmt: skip
assert set(POINTERS) == set(TRITON_TYPES)
TARGETS = {"sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
# Without instructions for 8-bit floats, of which Triton then has no type either.
OLDER_TARGETS = {"sm_80": ("cuda", 80, 32)}
# Options with which rows stay in registers, or go through them block by block, however short they are.
WALKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"persistent": MappingProxyType({}), "looped": MappingProxyType({"persistent_limit": 1})}
)


def along(name: str, extent: Expr | int, kind: RangeKind = "parallel") -> Range:
    """A range `name` over `extent` points."""
    return Range(symbol=symbol(name, extent=extent), kind=kind)


def arg(name: str, dtype: DType, span: Expr | int, *, aligned: bool = True) -> TensorArg:
    """A tensor argument whose role follows from its name: `in0`, `out0`, `io0`."""
    role: ArgRole = "out" if name.startswith("out") else "inout" if name.startswith("io") else "in"
    return TensorArg(name=name, dtype=dtype, role=role, span=as_expr(span), aligned=aligned)


def declare_topk_range(kernel: Kernel, first: Expr | None) -> Kernel:
    """`kernel` for the interpreter, whose IR has no range of the `first` elements of sorted rows: they are
    stored along rows, under a mask.
    """
    if first is None:
        return kernel
    row, stores = kernel.ranges[-1].symbol, []
    for store in kernel.stores:
        (value,) = substitute_ranges([store.value], {first: row})
        index = substitute(store.index, {first: row})
        mask = store.mask
        if first in store.index.free_symbols:
            mask = op("lt", index_value(row), const(int(str(first.extent)), DType.I64))
        stores.append(replace(store, value=value, index=index, mask=mask))
    return replace(kernel, stores=tuple(stores))


class TritonProcess:
    """A worker process with Triton in it; one request at a time."""

    def __init__(self, *, interpret: bool, cache: Path) -> None:
        self.interprets = interpret
        self._env = dict(os.environ, TRITON_CACHE_DIR=str(cache), TRITON_INTERPRET="1" if interpret else "0")
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("triton_worker.py")
        command = [sys.executable, str(script)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._env)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def ask(self, request: dict[str, Any]) -> Any:
        """The reply to `request`. Raises RuntimeError with the worker's traceback.

        Nobody waits any more for what a test that was stopped has asked for: the next one gets a worker of
        its own.
        """
        try:
            return self._reply(request)
        except (KeyboardInterrupt, pytest.fail.Exception):
            self._process.kill()
            self._process.communicate()
            self._process = self._started()
            raise

    def _reply(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        data = pickle.dumps(request)
        self._process.stdin.write(struct.pack("<Q", len(data)) + data)
        self._process.stdin.flush()
        header = self._process.stdout.read(8)
        if len(header) < 8:
            raise RuntimeError(f"the worker died: {self._process.wait()}")
        status, reply = pickle.loads(self._process.stdout.read(struct.unpack("<Q", header)[0]))
        if status != "ok":
            raise RuntimeError(f"{reply}\n{request['text']}")
        return reply


def build_options(config: Config) -> dict[str, int]:
    """What of `config` is for Triton's compiler."""
    return {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "enable_fp_fusion": config.fp_fusion,
    }


def allowed(source: KernelSource, config: Config) -> bool:
    """True if `config` is in the space that `source` declares."""
    names = dict(config.meta) | {"num_warps": config.num_warps, "num_stages": config.num_stages}
    inside = all(names[name] in values for name, values in source.space.values)
    return inside and all(evaluate(a, names) <= evaluate(b, names) for a, b in source.space.limits)


@functools.lru_cache(maxsize=128)
def everything(source: KernelSource) -> tuple[Config, ...]:
    """All configurations that `source` allows."""
    found = [source.configs[0]]
    for name, values in source.space.values:
        found = [moved(config, name, value) for config in found for value in values]
    return tuple(config for config in found if allowed(source, config))


def moved(config: Config, name: str, value: int) -> Config:
    """`config` with another value of the parameter `name`."""
    match name:
        case "num_warps":
            return replace(config, num_warps=value)
        case "num_stages":
            return replace(config, num_stages=value)
        case _:
            return replace(config, meta=tuple((n, value if n == name else v) for n, v in config.meta))


def corners(source: KernelSource) -> list[Config]:
    """A few configurations in which each parameter is once the least and once the most that it can be.

    Each has as many extremes that those before it lack as possible; of equals the nearest to the best guess.
    """
    names = [name for name, _ in source.space.values]
    known = {config: [value_of(config, name) for name in names] for config in everything(source)}
    extremes = [(min(values), max(values)) for values in zip(*known.values(), strict=True)]
    has = {
        config: {(name, value) for name, value, ends in zip(names, values, extremes) if value in ends}
        for config, values in known.items()
    }
    missing = set[tuple[str, int]]().union(*has.values())
    found: list[Config] = []
    while missing:
        most = max(len(missing & of) for of in has.values())
        best = [config for config, of in has.items() if len(missing & of) == most]
        found.append(min(best, key=lambda config: distance(source, config)))
        missing -= has[found[-1]]
    return found


def value_of(config: Config, name: str) -> int:
    """The value of the parameter `name`."""
    return {**dict(config.meta), "num_warps": config.num_warps, "num_stages": config.num_stages}[name]


def elements_of_a_thread(config: Config) -> int:
    """What a thread's part of the work grows with, and the machine code with it: elements of all blocks for a
    warp.
    """
    extents = [value for name, value in config.meta if name.endswith("BLOCK") or name == "RUN"]
    return math.prod(extents) // config.num_warps


def distance(source: KernelSource, config: Config) -> int:
    """Steps between `config` and the best guess."""
    return sum(
        abs(values.index(value_of(config, name)) - values.index(value_of(source.configs[0], name)))
        for name, values in source.space.values
    )


def grid_of(source: KernelSource, config: Config, sizes: Sequence[int]) -> list[int]:
    """Extents of the launch grid."""
    names = [a.name for a in source.args if a.role == "size"]
    env = dict(zip(names, sizes)) | dict(config.meta)
    return [evaluate(extent, env) for extent in source.grid]


def run_source(
    process: TritonProcess,
    source: KernelSource,
    tensors: Sequence[Any],
    sizes: Sequence[int] = (),
    config: int = 0,
    *,
    debug: bool = False,
) -> list[Any]:
    """The tensors after launching `source` with candidate number `config`; with `debug`, its assertions are
    made.
    """
    chosen = source.configs[config]
    found: list[Any] = process.ask(
        {
            "do": "run",
            "text": source.text,
            "entry": source.entry,
            "tensors": list(tensors),
            "sizes": list(sizes),
            "meta": dict(chosen.meta),
            "grid": grid_of(source, chosen, sizes),
            "options": build_options(chosen),
            "debug": debug,
        }
    )
    return found


def compile_source(
    process: TritonProcess,
    source: KernelSource,
    target: str,
    config: int = 0,
    *,
    debug: bool = False,
    ones: tuple[str, ...] = (),
    machine_code: bool = True,
) -> str:
    """Machine text of `source` for `target`, where `ones` are sizes of 1 that Triton takes for constants;
    without `machine_code` LLVM's text, which is Triton's own part of the way.
    """
    chosen = source.configs[config]
    signature = {a.name: "i64" if a.role == "size" and a.dtype is DType.I64 else "i32" for a in source.args}
    signature |= {a.name: POINTERS[a.dtype] for a in source.args if a.role != "size"}
    constants = {**dict(chosen.meta), **dict.fromkeys(ones, 1)}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {(k,): [["tt.divisibility", 16]] for k, a in enumerate(source.args) if a.aligned}
    found: str = process.ask(
        {
            "do": "compile",
            "text": source.text,
            "entry": source.entry,
            "signature": signature,
            "constexprs": constants,
            "attrs": aligned,
            "target": (TARGETS | OLDER_TARGETS)[target],
            "options": {**build_options(chosen), "debug": debug},
            "machine_code": machine_code,
        }
    )
    return found
