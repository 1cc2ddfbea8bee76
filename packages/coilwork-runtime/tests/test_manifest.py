"""Manifests of kernels: written, read in Python and in the native executor, and refused by name."""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime_sample_kernels import (
    checked_kernel,
    cpp_kernel,
    joined_kernel,
    moments_kernel,
    positive_kernel,
    product_kernel,
    rewrite,
    rounding_kernel,
    triton_kernel,
    version,
)

import coilwork_runtime.manifest
from coilwork_cache import MemoryStore
from coilwork_runtime.executor.native_program import find_executor_extension
from coilwork_runtime.manifest.kernel_manifest import (
    ARGUMENT_FIELDS,
    MAGIC,
    MANIFEST_FIELDS,
    VERSION_FIELDS,
    KernelArgument,
    KernelManifest,
    KernelSpec,
    decode_kernels,
    decode_manifest,
    encode_kernels,
    encode_manifest,
)
from coilwork_runtime.manifest.readable import cpp_kernel as CppKernel
from coilwork_runtime.manifest.size_bytecode import Op, SizeBytecode
from coilwork_runtime.manifest.wire_format import block, text, u32, write_list

LIMITED = rewrite(
    triton_kernel(blocks=(64, 128)),
    grid=("(n0 + XBLOCK - 1) // XBLOCK", "min(n0, 7)", "2"),
    versions=[
        version({"XBLOCK": (64, 128)}, ("XBLOCK", "64*num_warps"), guard="n0 % 16"),
        version({"XBLOCK": (64, 128)}),
    ],
)
SCRATCH = CppKernel(
    name="scratch",
    source="int x;",
    entry="run",
    args=("*in:f32:16", "*out:f32", "*scratch:bf16=4*n0 + 1", "size:i64:16", "size:i32"),
    arg_names=("a", "b", "s", "n0", "n1"),
    checks=("IndexError: out of range", "RuntimeError: é"),
    features=("avx2", "fma"),
    target="x86",
    bytes="8*n0",
)
SAMPLES: tuple[KernelSpec, ...] = (
    cpp_kernel(),
    triton_kernel(),
    LIMITED,
    SCRATCH,
    replace(SCRATCH, origins=("model.py:3 y = x + 1", "")),
    checked_kernel(),
    positive_kernel(),
    rounding_kernel(),
    product_kernel(),
    joined_kernel(2, 4, 0, backwards=False),
    moments_kernel(8),
)


@pytest.fixture(scope="module")
def extension() -> Any:
    return find_executor_extension(MemoryStore())


def plain(value: Any) -> Any:
    """A manifest's fields as the native executor shows them."""
    if isinstance(value, SizeBytecode):
        return tuple((int(op), operand) for op, operand in value.steps)
    if isinstance(value, KernelManifest):
        return {name: plain(getattr(value, name)) for name in MANIFEST_FIELDS}
    if isinstance(value, Mapping):
        return tuple(value.items())
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if hasattr(value, "__dataclass_fields__"):
        table = ARGUMENT_FIELDS if isinstance(value, KernelArgument) else VERSION_FIELDS
        return tuple(plain(getattr(value, name)) for name in table)
    return value


def test_what_is_written_is_read_by_both(extension: Any) -> None:
    for spec in SAMPLES:
        data = encode_manifest(spec)
        manifest = decode_manifest(data)
        assert encode_manifest(manifest) == data
        assert plain(manifest) == plain(spec) == extension.read_manifest(data)


def test_kernels_keep_their_texts() -> None:
    assert decode_kernels(encode_kernels(SAMPLES)) == SAMPLES
    assert decode_kernels(encode_kernels(())) == ()


def record(*fields: tuple[str, bytes]) -> bytes:
    return write_list(fields, lambda one: text(one[0]) + block(one[1]))


NAMED = (("name", b"k"), ("language", b"cpp"), ("entry", b"k"))
ARGUMENT = (("name", b"a"), ("role", b"in"), ("dtype", b"f32"))


def args(*more: tuple[str, bytes], of: tuple[tuple[str, bytes], ...] = ARGUMENT) -> tuple[str, bytes]:
    return "args", write_list([record(*of, *more)], block)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ((*NAMED, args(), ("colour", b"")), "colour"),
        ((*NAMED, args(("shade", b""))), "shade"),
        ((*NAMED, args(), ("versions", write_list([record(("depth", b""))], block))), "depth"),
        ((*NAMED, args(), ("name", b"k")), "name"),
        (NAMED, "args"),
        ((*NAMED[:2], args()), "entry"),
        ((*NAMED, args(of=ARGUMENT[:2])), "dtype"),
        ((*NAMED, args(of=(*ARGUMENT[:1], ("role", b"idle"), *ARGUMENT[2:]))), "role"),
        ((*NAMED, args(of=(*ARGUMENT[:1], ("role", b"scratch"), *ARGUMENT[2:]))), "scratch"),
        (
            (*NAMED, args(), ("grid", write_list([SizeBytecode(((Op.SIZE, 0),))], SizeBytecode.encode))),
            "size",
        ),
        ((*NAMED, args(), ("traffic", SizeBytecode(((Op.CONSTANT, 0),)).encode() + b"!")), "traffic"),
    ],
)
def test_fields_are_refused_by_name(fields: tuple[tuple[str, bytes], ...], told: str, extension: Any) -> None:
    for read in (decode_manifest, extension.read_manifest):
        with pytest.raises(ValueError, match=told):
            read(record(*fields))


def survives(read: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        read(data)
    except ValueError:
        return False
    return True


def test_damaged_bytes_are_refused_or_read_alike(extension: Any) -> None:
    draw = random.Random(3)
    for spec in SAMPLES:
        data = encode_manifest(spec)
        for _ in range(60):
            changed = bytearray(data[: draw.randrange(len(data))] if draw.random() < 0.3 else data)
            for _ in range(draw.randrange(3) if changed else 0):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            damaged = bytes(changed)
            read_natively = survives(extension.read_manifest, damaged)
            # texts are decoded as UTF-8 in Python at once, and natively when they are shown
            assert survives(decode_manifest, damaged) == read_natively, damaged


def test_files_of_other_schemas_are_refused() -> None:
    data = encode_kernels(SAMPLES[:1])
    for bad, reason in (
        (b"", "too early"),
        (b"x" * 40, "do not begin"),
        (MAGIC + u32(99) + data[len(MAGIC) + 4 :], "schema 99"),
        (data + b"!", "follows the last kernel"),
        (data[:-3], "too early"),
    ):
        with pytest.raises(ValueError, match=reason):
            decode_kernels(bad)


def test_versions_are_chosen_by_their_guards() -> None:
    assert [LIMITED.first_version((size,)) for size in (16, 17, 0)] == [0, 1, 0]
    assert triton_kernel().first_version((5,)) == 0


def test_manifests_need_nothing_but_python() -> None:
    folder = Path(coilwork_runtime.manifest.__file__).parent
    own = "coilwork_runtime.manifest"
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert module.startswith(own) or module.partition(".")[0] in sys.stdlib_module_names, path


@pytest.mark.parametrize("word", ["", "in:f32", "*size:i64", "*in", "*in:f32:8", "*else:f32"])
def test_other_words_are_no_arguments(word: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        CppKernel(name="k", source="", entry="k", args=(word,))


def test_words_are_arguments() -> None:
    assert [(one.role, one.dtype, one.aligned) for one in SCRATCH.args] == [
        ("in", "f32", True),
        ("out", "f32", False),
        ("scratch", "bf16", False),
        ("size", "i64", True),
        ("size", "i32", False),
    ]
    assert SCRATCH.args[2].elements == SizeBytecode(
        ((Op.CONSTANT, 4), (Op.SIZE, 0), (Op.MULTIPLY, 0), (Op.CONSTANT, 1), (Op.ADD, 0))
    )
