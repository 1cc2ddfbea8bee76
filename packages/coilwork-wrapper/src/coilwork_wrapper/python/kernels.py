"""Kernel sources as the specifications that a generated module hands to the runtime."""

from __future__ import annotations

from coilwork_ir.index import format_expr
from coilwork_ir.kernel_source import Config, KernelSource, SourceArg
from coilwork_ir.mapping import Version, format_mapping
from coilwork_wrapper.python.tree import Listing, Rows


def spec_rows(source: KernelSource, text_name: str) -> Rows:
    """`rt.CppKernel(...)` or `rt.TritonKernel(...)`; the text itself is the constant `text_name`."""
    kind = "CppKernel" if source.language == "cpp" else "TritonKernel"
    rows: list[str | Listing | Rows] = [
        f"name={source.name!r},",
        f"source={text_name},",
        f"entry={source.entry!r},",
        _tuple("args", [repr(argument_spec(a)) for a in source.args]),
        _tuple("arg_names", [repr(a.name) for a in source.args]),
    ]
    if source.language == "triton":
        rows.append(_tuple("grid", [repr(format_expr(g)) for g in source.grid]))
        rows.append(_tuple("configs", [config_text(c) for c in source.configs]))
        if source.versions is not None:
            versions = tuple(map(_version_rows, source.versions.versions))
            rows.append(Rows("versions=(", versions, "),"))
    if source.checks:
        rows.append(_tuple("checks", [repr(c) for c in source.checks]))
    if source.features:
        rows.append(_tuple("features", [repr(f) for f in source.features]))
    if source.read_bytes is not None and source.write_bytes is not None:
        rows.append(f"bytes={format_expr(source.read_bytes + source.write_bytes)!r},")
    rows.append(f"target={source.target!r},")
    return Rows(f"rt.{kind}(", tuple(rows), "),")


def _tuple(field: str, items: list[str]) -> Listing:
    return Listing(f"{field}=(", tuple(items), "),", single=True)


def argument_spec(arg: SourceArg) -> str:
    """`"*in:f32:16"`, `"size:i64"`, `"*scratch:f32=4*n0"`."""
    pointer = "" if arg.role == "size" else "*"
    aligned = ":16" if arg.aligned else ""
    elements = "" if arg.elements is None else f"={format_expr(arg.elements)}"
    return f"{pointer}{arg.role}:{arg.dtype.text}{aligned}{elements}"


def config_text(config: Config) -> str:
    """A dictionary display: compile-time parameters, then warps and stages."""
    entries = [f'"{name}": {value}' for name, value in config.meta]
    entries += [f'"num_warps": {config.num_warps}', f'"num_stages": {config.num_stages}']
    if not config.fp_fusion:
        entries.append('"enable_fp_fusion": False')
    return "{" + ", ".join(entries) + "}"


def _version_rows(version: Version) -> Rows:
    """`rt.KernelVersion(...)`; the mapping is a string literal for each of its lines."""
    guard = () if version.guard is None else (f"guard={format_expr(version.guard.distance)!r},",)
    lines = tuple(repr(line) for line in format_mapping(version.mapping).splitlines(keepends=True))
    mapping = Rows("mapping=(", lines, "),") if lines else "mapping='',"
    return Rows("rt.KernelVersion(", (*guard, mapping), "),")
