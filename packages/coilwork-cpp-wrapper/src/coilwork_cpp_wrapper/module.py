"""A program and its kernels as C++.

`emit_cpp` returns a `CppProgram`: the text, and everything that building and calling it takes. The text is a
fixed preamble, one function per program, and the exported entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Final, Literal

import torch

from coilwork_cpp_wrapper.instructions import check_fixed_layouts, emit_instruction, list_fixed_layouts
from coilwork_cpp_wrapper.scope import ADDRESS, PYTHON_REMEDY, Scope
from coilwork_cpp_wrapper.torch_compat import abi_version
from coilwork_cpp_wrapper.view_plan import plan_views
from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    GraphInput,
    GraphOutput,
    ListValue,
    Ref,
)
from coilwork_ir.device_traits import ATEN_CUDA, has_trait
from coilwork_ir.errors import EmitError
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.program.nodes import AllocPool, BindSymbol, CheckLayout, ExternCall, Launch, Program, Return
from coilwork_ir.program.regions import inline_regions, outline_regions
from coilwork_ir.program.walk import (
    index_buffers,
    list_distinct_programs,
    list_kernels,
    list_program_symbols,
)
from coilwork_ir.streams import is_host
from coilwork_ir.syntax.cpp import (
    Call,
    Code,
    CppPrinter,
    Declare,
    DeclareArray,
    Function,
    Item,
    Source,
    Statement,
    Verbatim,
    element,
    string,
)
from coilwork_runtime.manifest.kernel_manifest import KernelSpec

# ---- what is emitted ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or result, in order.

    `kind`: a tensor, an integer, or nothing (results only). `type` describes it to people, e.g. `"f32[s0,
    4]"`.
    """

    kind: Literal["tensor", "size", "none"]
    name: str
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUnit:
    """One kernel: a translation unit of its own.

    Attributes:
        name: the kernel's name.
        text: complete source.
        entry: the function in `text`.
        symbol: what `entry` is renamed to when compiled, so that kernels may use the same name.
        features: instruction set extensions to enable.
    """

    name: str
    text: str
    entry: str
    symbol: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CppProgram:
    """A program as C++.

    Attributes:
        name: the program's.
        text: the translation unit that defines `coilwork_run`; needs no header but C's own.
        kernels: the kernels it calls, linked with it.
        gpu_kernels: names of the kernels that it launches on a GPU, by their numbers in the text.
        gpu: the GPU that it has memory on, `"cuda:0"`; empty if there is none.
        inputs: what `coilwork_run` takes, tensors and sizes in one order; each kind is passed in its own
            array.
        outputs: what it returns, likewise.
        constants: keys of the tensors known at compile time, in the order they are passed in.
        relayed: texts of the relays that it calls (`relays.py`), in a process that has Python.
    """

    name: str
    text: str
    kernels: tuple[KernelUnit, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[str, ...]
    relayed: tuple[str, ...] = ()
    gpu_kernels: tuple[str, ...] = ()
    gpu: str = ""


# ---- emitter ----


KEYWORDS: Final = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class
    compl concept const const_cast constexpr consteval constinit continue co_await co_return co_yield decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if
    inline int int16_t int32_t int64_t int8_t long mutable namespace new noexcept not not_eq nullptr operator
    or or_eq private protected public register reinterpret_cast requires return short signed sizeof size_t
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
    typename uint16_t uint32_t uint64_t uint8_t union unsigned using virtual void volatile wchar_t while xor
    xor_eq linux unix""".split()
)
RESERVED: Final = frozenset(
    {
        "rt",
        "std",
        "main",
        "constants",
        "args",
        "sizes",
        "results",
        "result_sizes",
        "tensors",
        "layouts",
        "TORCH_VERSION",
        "MOST_TENSORS",
        "NULL",
    }
)
# What emitted code calls its own temporaries and functions, and torch its own.
PREFIXES: Final = (
    "aoti_", "torch_", "coilwork_", "run_", "call_", "parts_", "scratch_", "checks_", "operands_", "extents_",
    "verdict_", "results_", "round_", "number_", ADDRESS,
)  # fmt: skip


def make_identifiers(names: Iterable[str], taken: Iterable[str] = ()) -> Mapping[str, str]:
    """Return a distinct valid identifier for each of `names`, the name itself where that is one that nothing
    else uses.

    Names with two underscores in a row, or an underscore and a capital in front, belong to the compiler.
    """
    fresh = FreshNames({*KEYWORDS, *RESERVED, *taken})
    chosen: dict[str, str] = {}
    for name in names:
        if name in chosen:
            continue
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
        while "__" in base:
            base = base.replace("__", "_")
        base = base.lstrip("_") or "v"
        if base[0].isdigit() or base.startswith(PREFIXES):
            base = f"v{base}" if base[0].isdigit() else f"v_{base}"
        chosen[name] = fresh.close_to(base)
    return chosen


WIDTH: Final = 110
PARAMETERS: Final = (
    "const AtenTensorHandle* constants",
    "rt::Tensor* args",
    "const int64_t* sizes",
    "rt::Tensor* results",
    "int64_t* result_sizes",
)


def emit_cpp(program: Program, specs: Mapping[str, KernelSpec]) -> CppProgram:
    """`program` as C++ over torch's C interface; `specs` are its kernels, manifests with texts, by name.

    The text depends on the installed torch: on its operators' schemas and on its version.

    Raises:
        EmitError: `cpp-unsupported`, the program does what torch's C interface cannot do yet, or holds
            something that is neither on the CPU nor on one NVIDIA GPU; `missing-source`, a kernel has no
            source.
    """
    program = inline_regions(outline_regions(program))
    parts = list_distinct_programs(program)
    gpu = _find_gpu(parts)
    kernels, on_gpu = _kernel_units(program, specs)
    keys = tuple(dict.fromkeys(c.key for part in parts for c in part.constants))
    functions = {id(part): f"run_{number}" for number, part in enumerate(parts)}
    items: list[Item] = [Verbatim(read_preamble("shim.hpp"))]
    items += [Verbatim(f"static const uint64_t TORCH_VERSION = 0x{abi_version():016x};")]
    items += [Verbatim(read_preamble("support.hpp")), Verbatim(read_preamble("dispatch.hpp"))]
    if on_gpu:
        items += [Verbatim(read_preamble("launching.hpp")), Verbatim(_write_kernel_table(on_gpu, specs))]
        items += [Verbatim(read_preamble("kernels.hpp"))]
    if gpu:
        items += [Verbatim(read_preamble("gpu.hpp").replace("@GPU@", gpu.partition(":")[2] or "0"))]
    used = _Used()
    written: list[Item] = []
    outer: dict[int, tuple[Expr, ...]] = {}
    for part in reversed(parts):  # nested programs first, because callers pass on the sizes that these use
        emission = _Emission(part, functions, keys, specs, (kernels, on_gpu, gpu), outer, used)
        written.append(emission.function())
        outer[id(part)] = emission.outer_symbols()
    if outer[id(program)]:
        unbound = outer[id(program)][0].name
        raise EmitError("unbound-symbol", f"size {unbound} is not bound in program @{program.name}")
    declarations = [*_entries(specs, kernels), *used.declared]
    if declarations:
        items.append(Verbatim("\n".join(['extern "C" {', *declarations, "}"])))
    items += written
    inputs = tuple(_input_port(entry, number) for number, entry in enumerate(program.inputs))
    outputs = _output_ports(program)
    items.append(_write_entry(inputs, outputs, functions[id(program)], gpu))
    if on_gpu:
        items.append(Verbatim(read_preamble("kernels_entry.hpp")))
    if gpu:
        items.append(Verbatim(read_preamble("gpu_entry.hpp")))
    return CppProgram(
        name=program.name,
        text=CppPrinter(width=WIDTH).source(Source(_write_heading(program), tuple(items))),
        kernels=kernels,
        inputs=inputs,
        outputs=outputs,
        constants=keys,
        relayed=tuple(used.relayed),
        gpu_kernels=on_gpu,
        gpu=gpu,
    )


def read_preamble(name: str) -> str:
    """One of the C++ files that every program starts with."""
    return (files("coilwork_cpp_wrapper") / "preamble" / name).read_text(encoding="utf-8")


def _write_heading(program: Program) -> str:
    launches = sum(isinstance(i, Launch) for i in program.instructions)
    calls = sum(isinstance(i, ExternCall) for i in program.instructions)
    return (
        f"Graph {program.name}, generated by Coilwork.\n"
        f"One call launches {launches} kernels ({len(program.kernels)} distinct) and calls {calls} "
        "torch operators.\n"
        "What it computes is in run_0; the parts before are the same in every program."
    )


def _find_gpu(parts: tuple[Program, ...]) -> str:
    """Return the GPU that a program has memory on; empty if all of it is on the host.

    Raises:
        EmitError: `cpp-unsupported`, it has memory on two, or on another device.
    """
    found = ""
    for name, device in _list_devices(parts):
        if is_host(device):
            continue
        if not has_trait(device, ATEN_CUDA) or torch.version.hip or (found and device != found):
            raise EmitError(
                "cpp-unsupported",
                f"{name} is on device {device}",
                reason="C++ programs run on the CPU, and on one GPU of NVIDIA's",
                remedy=PYTHON_REMEDY,
            )
        found = device
    return found


def _list_devices(parts: tuple[Program, ...]) -> Iterator[tuple[str, str]]:
    """Names of memory and operators, each with its device."""
    for part in parts:
        for buffer in index_buffers(part).values():
            yield f"%{buffer.name}", buffer.device
        for instruction in part.instructions:
            if isinstance(instruction, AllocPool):
                yield f"%{instruction.pool}", instruction.device
            if isinstance(instruction, ExternCall):
                for value in (*instruction.args, *(v for _, v in instruction.kwargs)):
                    for device in _devices(value):
                        yield instruction.target, device


def _devices(value: Argument) -> Iterator[str]:
    if isinstance(value, DeviceValue):
        yield value.device
    elif isinstance(value, ListValue):
        for item in value.items:
            yield from _devices(item)


def _kernel_units(
    program: Program, specs: Mapping[str, KernelSpec]
) -> tuple[tuple[KernelUnit, ...], tuple[str, ...]]:
    """Return the kernels in C++, and names of those that are launched on a GPU."""
    units: list[KernelUnit] = []
    on_gpu: list[str] = []
    for kernel in list_kernels(program):
        spec = specs.get(kernel.name)
        if spec is None:
            raise EmitError("missing-source", f"no source for kernel {kernel.name} of @{program.name}")
        if spec.is_triton:
            on_gpu.append(kernel.name)
            continue
        if not spec.is_cpp:
            raise EmitError(
                "cpp-unsupported",
                f"kernel {kernel.name} is written in {spec.language}",
                reason="C++ programs launch kernels in C++ and Triton only",
                remedy=PYTHON_REMEDY,
            )
        units.append(
            KernelUnit(
                name=kernel.name, text=spec.source, entry=spec.entry, symbol="", features=spec.features
            )
        )
    symbols = make_identifiers([unit.name for unit in units])
    named = tuple(replace(unit, symbol=f"coilwork_kernel_{symbols[unit.name]}") for unit in units)
    return named, tuple(on_gpu)


def _write_kernel_table(names: tuple[str, ...], specs: Mapping[str, KernelSpec]) -> str:
    most = max(sum(arg.is_pointer for arg in specs[name].args) for name in names)
    rows = ",\n  ".join(f"{{{string(name).text}, nullptr}}" for name in names)
    return (
        "namespace rt {\n\n"
        "// Kernels that are launched on a GPU, each with how that is done once it is known.\n"
        "struct Kernel {\n  const char* name;\n  const void* form;\n};\n"
        f"constexpr int KERNELS = {len(names)}, MOST_TENSORS = {max(most, 1)};\n"
        f"static Kernel kernels[] = {{\n  {rows}}};\n\n"
        "}  // namespace rt"
    )


def _entries(specs: Mapping[str, KernelSpec], kernels: tuple[KernelUnit, ...]) -> Iterator[str]:
    """Declarations of the kernels: pointers, then sizes, then scratch. C linkage makes the pointers' types
    irrelevant.
    """
    for unit in kernels:
        spec = specs[unit.name]
        result = "int64_t" if spec.checks else "void"
        kinds = ["void*" if a.is_pointer else "int64_t" for a in spec.args]
        yield f"{result} {unit.symbol}({', '.join(kinds)});"


@dataclass(frozen=True, slots=True)
class _Used:
    """The functions that a program calls, in the order of first use: declarations, and texts of relays."""

    declared: dict[str, None] = field(default_factory=dict)
    relayed: dict[str, None] = field(default_factory=dict)


class _Emission:
    """One program becoming one function."""

    def __init__(
        self,
        program: Program,
        functions: Mapping[int, str],
        keys: tuple[str, ...],
        specs: Mapping[str, KernelSpec],
        launched: tuple[tuple[KernelUnit, ...], tuple[str, ...], str],
        outer: Mapping[int, tuple[Expr, ...]],
        used: _Used,
    ) -> None:
        self._program = program
        self._functions = functions
        self._keys = keys
        own = tuple(symbol.name for symbol in list_program_symbols(program))
        self._bound = frozenset(own)
        self._outer: dict[str, Expr] = {}
        self._symbol_names = dict(make_identifiers(own))
        names = make_identifiers(_local_names(program), taken=self._symbol_names.values())
        self._taken = frozenset(names.values())
        kernels, on_gpu, gpu = launched
        self._scope = Scope(
            name=names.__getitem__,
            buffer=index_buffers(program).__getitem__,
            symbol=self._symbol,
            kernel=specs.__getitem__,
            entry={unit.name: unit.symbol for unit in kernels}.__getitem__,
            function=lambda nested: functions[id(nested)],
            outer_symbols=lambda nested: outer[id(nested)],
            declare=lambda text: used.declared.update({text: None}),
            relay=lambda text: used.relayed.update({text: None}),
            gpu_kernel={name: number for number, name in enumerate(on_gpu)}.get,
            gpu=gpu,
            constants=frozenset(c.buffer.name for c in program.constants),
            views=plan_views(program),
            addressed=set(),
            number=0,
        )

    def outer_symbols(self) -> tuple[Expr, ...]:
        """Symbols that the program uses and does not bind, in the order they are passed in; known once it is
        emitted.
        """
        return tuple(self._outer.values())

    def function(self) -> Function:
        """Return the function."""
        program, scope = self._program, self._scope
        parameters = tuple(_declare_parameters(program, self._keys, scope))
        bound = {e.name for e in program.inputs if isinstance(e, Expr) and e.is_symbol}
        rows = {i.buffer: row for i, row in list_fixed_layouts(program)}
        body: list[Statement] = list(check_fixed_layouts(rows.values()))
        for number, instruction in enumerate(program.instructions):
            if isinstance(instruction, BindSymbol):
                # an input may carry a size that a tensor's shape gives as well
                if instruction.symbol.name in bound:
                    continue
                bound.add(instruction.symbol.name)
            if isinstance(instruction, CheckLayout) and instruction.buffer in rows:
                continue
            body.extend(emit_instruction(instruction, replace(scope, number=number)))
        first = sum(isinstance(entry, Expr) for entry in program.inputs)
        passed = tuple(
            Declare("const int64_t", self._symbol_names[symbol], element("sizes", first + position))
            for position, symbol in enumerate(self._outer)
        )
        name = self._functions[id(program)]
        statements = _hold_tensors((*parameters, *passed, *body))
        return Function(f"static void {name}", PARAMETERS, statements, f"Program {program.name}.")

    def _symbol(self, symbol: Expr) -> str:
        if symbol.name not in self._bound and symbol.name not in self._outer:
            taken = {*self._taken, *self._symbol_names.values()}
            self._symbol_names.update(make_identifiers([symbol.name], taken=taken))
            self._outer[symbol.name] = symbol
        return self._symbol_names[symbol.name]


def _hold_tensors(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """`body` with its tensors in one array, of which their names are references.

    A tensor with a name of its own is one more object to destroy wherever something may fail behind it, and
    the compiler writes that out for each such place.
    """
    held: list[Statement] = []
    count = 0
    for statement in body:
        if isinstance(statement, Declare) and statement.type == "rt::Tensor":
            value: Code = element("tensors", count)
            if statement.value is not None:
                value = Call(f"tensors[{count}].keep", (statement.value,))
            statement = Declare("rt::Tensor&", statement.name, value)
            count += 1
        held.append(statement)
    return (DeclareArray("rt::Tensor", "tensors", count), *held) if count else tuple(held)


def _declare_parameters(program: Program, keys: tuple[str, ...], scope: Scope) -> Iterator[Statement]:
    tensors, numbers = 0, 0
    declared: set[str] = set()
    for entry in program.inputs:
        if isinstance(entry, Buffer):
            yield Declare("rt::Tensor&", scope.name(entry.name), element("args", tensors))
            tensors += 1
            continue
        if entry.is_symbol and entry.name not in declared:  # one size may be handed over twice
            declared.add(entry.name)
            yield Declare("const int64_t", scope.symbol(entry), element("sizes", numbers))
        numbers += 1
    for constant in program.constants:
        handle = element("constants", keys.index(constant.key))
        yield Declare("rt::Tensor", scope.name(constant.buffer.name), Call("rt::Tensor::borrowed", (handle,)))


def _local_names(program: Program) -> Iterator[str]:
    yield from index_buffers(program)
    yield from (i.pool for i in program.instructions if isinstance(i, AllocPool))


def _input_port(entry: GraphInput, number: int) -> Port:
    if isinstance(entry, Buffer):
        return Port(kind="tensor", name=entry.name, type=_type_text(entry))
    return Port(kind="size", name=entry.name if entry.is_symbol else f"size_{number}")


def _output_ports(program: Program) -> tuple[Port, ...]:
    last = program.instructions[-1]
    if not isinstance(last, Return):
        raise EmitError("no-return", f"program @{program.name} does not end in a return")
    known = index_buffers(program)
    return tuple(_output_port(value, known) for value in last.values)


def _output_port(value: GraphOutput, known: Mapping[str, Buffer]) -> Port:
    match value:
        case None:
            return Port(kind="none", name="")
        case Ref(name):
            return Port(kind="tensor", name=name, type=_type_text(known[name]))
        case Expr():
            return Port(kind="size", name=format_expr(value))


def _type_text(buffer: Buffer) -> str:
    return f"{buffer.dtype.text}[{', '.join(format_expr(e) for e in buffer.shape)}]"


def _signature(inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> str:
    shown = [
        ", ".join(f"{p.name}: {p.type}" if p.type else p.name or "none" for p in ps)
        for ps in (inputs, outputs)
    ]
    return f"({shown[0]}) -> ({shown[1]})"


def _write_entry(inputs: tuple[Port, ...], outputs: tuple[Port, ...], function: str, gpu: str) -> Item:
    """Return the exported functions. Handles of inputs are taken over whatever happens, those of results are
    given away.
    """
    tensors = sum(port.kind == "tensor" for port in inputs)
    results = sum(port.kind != "size" for port in outputs)
    template = read_preamble("entry.hpp")
    return Verbatim(
        template.replace("@SIGNATURE@", string(_signature(inputs, outputs)).text)
        .replace("@INPUTS@", str(tensors))
        .replace("@OUTPUTS@", str(results))
        .replace("@RUN@", function)
        .replace("@AROUND@", "\n    const rt::OnGpu device;" if gpu else "")
    )
