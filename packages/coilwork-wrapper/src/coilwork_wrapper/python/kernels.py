"""Kernel sources as the specifications that a generated module hands to the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import format_expr
from coilwork_ir.kernel_source import Config, KernelSource, SourceArg
from coilwork_ir.mapping import Version, format_mapping
from coilwork_ir.syntax.python import (
    Attribute,
    Call,
    Dict,
    Expression,
    Filled,
    Joined,
    Name,
    Number,
    Rows,
    Text,
    Tuple,
)
from coilwork_wrapper.python.scope import quote

FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType({"cpp": "CppKernel", "triton": "TritonKernel"})
"""By language, the function of the runtime's that describes a kernel in it; those of back ends share one."""


def specification(source: KernelSource, text_name: str) -> Rows:
    """`rt.CppKernel(...)`, `rt.TritonKernel(...)` or `rt.DeviceKernel(...)`; the text itself is the constant
    `text_name`.
    """
    kind = FUNCTIONS.get(source.language, "DeviceKernel")
    fields: list[tuple[str, Expression]] = [
        *([] if source.language in FUNCTIONS else [("language", quote(source.language))]),
        ("name", quote(source.name)),
        ("source", Name(text_name)),
        ("entry", quote(source.entry)),
        ("args", _texts(argument_spec(a) for a in source.args)),
        ("arg_names", _texts(a.name for a in source.args)),
    ]
    if source.configs:
        fields.append(("grid", _texts(format_expr(g) for g in source.grid)))
        fields.append(("configs", Filled(Tuple(tuple(map(_config, source.configs))))))
        if source.versions is not None:
            fields.append(("versions", Rows(Tuple(tuple(map(_version, source.versions.versions))))))
    if source.checks:
        fields.append(("checks", _texts(source.checks)))
    if source.features:
        fields.append(("features", _texts(source.features)))
    if source.read_bytes is not None and source.write_bytes is not None:
        fields.append(("bytes", quote(format_expr(source.read_bytes + source.write_bytes))))
    fields.append(("target", quote(source.target)))
    return _runtime_value(kind, fields)


def _runtime_value(kind: str, fields: Iterable[tuple[str, Expression]]) -> Rows:
    return Rows(Call(Attribute(Name("rt"), kind), (), tuple(fields)))


def _texts(texts: Iterable[str]) -> Filled:
    return Filled(Tuple(tuple(map(quote, texts))))


def argument_spec(arg: SourceArg) -> str:
    """`"*in:f32:16"`, `"size:i64"`, `"*scratch:f32=4*n0"`."""
    pointer = "" if arg.role == "size" else "*"
    aligned = ":16" if arg.aligned else ""
    elements = "" if arg.elements is None else f"={format_expr(arg.elements)}"
    return f"{pointer}{arg.role}:{arg.dtype.text}{aligned}{elements}"


def _config(config: Config) -> Dict:
    """Compile-time parameters, then warps and stages."""
    entries: list[tuple[str, int]] = [*config.meta]
    entries += [("num_warps", config.num_warps), ("num_stages", config.num_stages)]
    if not config.fp_fusion:
        entries.append(("enable_fp_fusion", False))
    return Dict(tuple((Text(name), Number(value)) for name, value in entries))


def _version(version: Version) -> Rows:
    """`rt.KernelVersion(...)`; the mapping is a string literal for each of its lines."""
    fields: list[tuple[str, Expression]] = []
    if version.guard is not None:
        fields.append(("guard", quote(format_expr(version.guard.distance))))
    lines = tuple(map(quote, format_mapping(version.mapping).splitlines(keepends=True)))
    fields.append(("mapping", Rows(Joined(lines)) if lines else quote("")))
    return _runtime_value("KernelVersion", fields)
