"""Kernels as the readable Python modules describe them: arguments as words, expressions as Python text.

People read and edit these modules, and run them by themselves. Whatever else loads kernels reads their
manifests from bytes, so no text is parsed there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from coilwork_runtime.manifest.kernel_manifest import (
    KernelArgument,
    KernelSpec,
    KernelVersion,
    check_manifest,
)
from coilwork_runtime.manifest.size_bytecode import PUSHES, Op, SizeBytecode, Step

_OPERATIONS: Final[Mapping[type[ast.operator], Op]] = MappingProxyType(
    {
        ast.Add: Op.ADD,
        ast.Sub: Op.SUBTRACT,
        ast.Mult: Op.MULTIPLY,
        ast.FloorDiv: Op.FLOOR_DIVIDE,
        ast.Mod: Op.MODULO,
    }
)
# The operation, and whether it takes its operands in the other order.
_COMPARISONS: Final[Mapping[type[ast.cmpop], tuple[Op, bool]]] = MappingProxyType(
    {
        ast.Eq: (Op.EQUAL, False),
        ast.NotEq: (Op.NOT_EQUAL, False),
        ast.Lt: (Op.LESS, False),
        ast.LtE: (Op.LESS_EQUAL, False),
        ast.Gt: (Op.LESS, True),
        ast.GtE: (Op.LESS_EQUAL, True),
    }
)
_SIGNS: Final[Mapping[Op, str]] = MappingProxyType(
    {
        Op.ADD: "+",
        Op.SUBTRACT: "-",
        Op.MULTIPLY: "*",
        Op.FLOOR_DIVIDE: "//",
        Op.MODULO: "%",
        Op.EQUAL: "==",
        Op.NOT_EQUAL: "!=",
        Op.LESS: "<",
        Op.LESS_EQUAL: "<=",
    }
)
_FUNCTIONS: Final[Mapping[str, Op]] = MappingProxyType({"min": Op.MINIMUM, "max": Op.MAXIMUM})
_LIMIT: Final = re.compile(r"limit `([^`]*)` at most `([^`]*)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableVersion:
    """A version of a kernel: `KernelVersion` with a guard as text, empty for all sizes."""

    guard: str = ""
    mapping: str = ""


def cpp_kernel(
    *,
    name: str,
    source: str,
    entry: str,
    args: Sequence[str],
    arg_names: Sequence[str] = (),
    checks: Sequence[str] = (),
    features: Sequence[str] = (),
    bytes: str = "",
    target: str = "",
) -> KernelSpec:
    """Return a C++ kernel: an `extern "C"` function over pointers, then `int64_t` sizes.

    `args` has a word per parameter, such as `"*in:f32:16"`, `"size:i64"` or `"*scratch:f32=4*n0"`; `bytes` is
    the traffic of one call over the names of sizes. The rest is as in `KernelManifest`.

    Raises:
        ValueError: an argument or an expression has another form.
    """
    names = Names(args, arg_names)
    return _check_spec(
        KernelSpec(
            name=name,
            language="cpp",
            entry=entry,
            args=names.arguments(),
            parameters=tuple(names.parameters),
            checks=tuple(checks),
            features=tuple(features),
            traffic=names.code(bytes) if bytes else None,
            target=target,
            source=source,
        )
    )


def triton_kernel(
    *,
    name: str,
    source: str,
    entry: str,
    args: Sequence[str],
    arg_names: Sequence[str],
    grid: Sequence[str],
    configs: Sequence[Mapping[str, int]],
    versions: Sequence[ReadableVersion] = (),
    checks: Sequence[str] = (),
    features: Sequence[str] = (),
    bytes: str = "",
    target: str = "",
) -> KernelSpec:
    """Return a Triton kernel: as `cpp_kernel`, and what it is launched with.

    `grid` has up to three extents over names of sizes and of a configuration.

    Raises:
        ValueError: an argument or an expression has another form.
    """
    names = Names(args, arg_names, [parameter for config in configs for parameter in config])
    arguments = names.arguments()
    extents = tuple(map(names.code, grid))
    read_versions = tuple(map(names.version, versions))
    return _check_spec(
        KernelSpec(
            name=name,
            language="triton",
            entry=entry,
            args=arguments,
            parameters=tuple(names.parameters),
            grid=extents,
            configs=tuple(configs),
            versions=read_versions,
            checks=tuple(checks),
            features=tuple(features),
            traffic=names.code(bytes) if bytes else None,
            target=target,
            source=source,
        )
    )


def device_kernel(
    *,
    language: str,
    name: str,
    source: str,
    entry: str,
    args: Sequence[str],
    arg_names: Sequence[str],
    grid: Sequence[str] = (),
    configs: Sequence[Mapping[str, int]] = (),
    versions: Sequence[ReadableVersion] = (),
    checks: Sequence[str] = (),
    features: Sequence[str] = (),
    bytes: str = "",
    target: str = "",
) -> KernelSpec:
    """Return a kernel in a language of a back end's: as `triton_kernel`, of which it may leave out what does
    not concern it.

    Raises:
        ValueError: an argument or an expression has another form.
    """
    spec = triton_kernel(
        name=name,
        source=source,
        entry=entry,
        args=args,
        arg_names=arg_names,
        grid=grid,
        configs=configs,
        versions=versions,
        checks=checks,
        features=features,
        bytes=bytes,
        target=target,
    )
    return replace(spec, language=language)


def format_code(code: SizeBytecode, sizes: Sequence[str], parameters: Sequence[str]) -> str:
    """Python text of `code`, which `Names.code` reads back to code of the same values."""
    stack: list[str] = []
    for op, operand in code.steps:
        if op in PUSHES:
            names = sizes if op is Op.SIZE else parameters
            stack.append(str(operand) if op is Op.CONSTANT else names[operand])
        elif op is Op.SELECT:
            other, value, condition = stack.pop(), stack.pop(), stack.pop()
            stack.append(f"({value} if {condition} else {other})")
        else:
            right, left = stack.pop(), stack.pop()
            sign = _SIGNS.get(op)
            call = f"{'min' if op is Op.MINIMUM else 'max'}({left}, {right})"
            ceiling = f"(0 - (0 - {left}) // {right})"
            stack.append(ceiling if op is Op.CEIL_DIVIDE else f"({left} {sign} {right})" if sign else call)
    return stack[0].removeprefix("(").removesuffix(")") if _is_wrapped(stack[0]) else stack[0]


def _is_wrapped(text: str) -> bool:
    """Tell if the first parenthesis is closed by the last letter."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return position == len(text) - 1 and text.startswith("(")
    return False


def _check_spec(spec: KernelSpec) -> KernelSpec:
    check_manifest(spec)
    return spec


class Names:
    """The names that expressions of one kernel may use; `parameters` are the `constants` that one of them
    used.
    """

    def __init__(self, args: Sequence[str], arg_names: Sequence[str], constants: Iterable[str] = ()) -> None:
        self._words = tuple(args)
        self._arg_names = tuple(arg_names) or tuple(f"a{position}" for position in range(len(args)))
        self._constants = frozenset(constants)
        self.sizes = [
            name for name, word in zip(self._arg_names, self._words, strict=True) if word.startswith("size:")
        ]
        self.parameters: list[str] = []

    def arguments(self) -> tuple[KernelArgument, ...]:
        """Return the arguments that the words describe."""
        return tuple(
            self._argument(name, word) for name, word in zip(self._arg_names, self._words, strict=True)
        )

    def version(self, version: ReadableVersion) -> KernelVersion:
        """`version` with its guard and limits as code."""
        limits = _LIMIT.findall(version.mapping)
        return KernelVersion(
            guard=self.code(version.guard) if version.guard else None,
            mapping=version.mapping,
            limits=tuple((self.code(left), self.code(right)) for left, right in limits),
        )

    def code(self, text: str) -> SizeBytecode:
        """Return a Python expression as code.

        Raises:
            ValueError: it is no expression over sizes and parameters.
        """
        return SizeBytecode(tuple(self._steps(ast.parse(text, mode="eval").body)))

    def _argument(self, name: str, word: str) -> KernelArgument:
        head, _, elements = word.partition("=")
        role, _, rest = head.removeprefix("*").partition(":")
        dtype, _, alignment = rest.partition(":")
        match role:
            case "in" | "out" | "inout" | "size" | "scratch":
                if dtype and alignment in ("", "16") and head.startswith("*") == (role != "size"):
                    return KernelArgument(
                        name=name,
                        role=role,
                        dtype=dtype,
                        aligned=alignment == "16",
                        elements=self.code(elements) if elements else None,
                    )
            case _:
                pass
        raise ValueError(f"malformed kernel argument {word!r}")

    def _steps(self, node: ast.expr) -> list[Step]:
        match node:
            case ast.Constant(value=int(value)):
                return [(Op.CONSTANT, value)]
            case ast.Name(id=name) if name in self.sizes:
                return [(Op.SIZE, self.sizes.index(name))]
            case ast.Name(id=name) if name in self._constants:
                if name not in self.parameters:
                    self.parameters.append(name)
                return [(Op.PARAMETER, self.parameters.index(name))]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                return [(Op.CONSTANT, -value)]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return [(Op.CONSTANT, 0), *self._steps(operand), (Op.SUBTRACT, 0)]
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATIONS:
                first, second = self._steps(left), self._steps(right)
                return [*first, *second, (_OPERATIONS[type(operator)], 0)]
            case ast.Compare(left=left, ops=[comparison], comparators=[right]) if (
                type(comparison) in _COMPARISONS
            ):
                op, is_swapped = _COMPARISONS[type(comparison)]
                operands = (right, left) if is_swapped else (left, right)
                return [*self._steps(operands[0]), *self._steps(operands[1]), (op, 0)]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return [*self._steps(test), *self._steps(body), *self._steps(orelse), (Op.SELECT, 0)]
            case ast.Call(func=ast.Name(id=name), args=[first_argument, *others]) if name in _FUNCTIONS:
                steps = self._steps(first_argument)
                for other in others:
                    steps += [*self._steps(other), (_FUNCTIONS[name], 0)]
                return steps
            case _:
                raise ValueError(f"{ast.unparse(node)!r} is no expression over sizes")
