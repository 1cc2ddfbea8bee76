"""A program and its kernels as one readable Python module that also runs by itself.

`emit_python` writes the module: a function `call` and one for each nested program, before those that call it;
the kernels' specifications for the runtime; and inputs made up for a run of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, Constant
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.kernel_source import Config, KernelSource, SourceArg
from coilwork_ir.mapping import Version, format_mapping
from coilwork_ir.program.nodes import BindSymbol, ExternCall, Launch, Program
from coilwork_ir.program.regions import inline_regions, outline_regions
from coilwork_ir.program.walk import (
    check_bound,
    index_buffers,
    list_defined_values,
    list_distinct_programs,
    list_kernels,
    list_outer_symbols,
    list_program_symbols,
    walk,
)
from coilwork_ir.syntax.python import (
    Assign,
    Attribute,
    Binary,
    Blank,
    Call,
    Comment,
    Dict,
    Do,
    Docstring,
    Expression,
    Filled,
    Function,
    If,
    Import,
    Joined,
    Name,
    Number,
    Parameter,
    RawText,
    Return,
    Rows,
    Statement,
    Subscript,
    Text,
    Tuple,
    Unpack,
    method,
    print_expression,
    print_module,
)
from coilwork_wrapper.python.instructions import emit_fixed_checks, emit_instruction, find_fixed_checks
from coilwork_wrapper.python.operator_libraries import OperatorLibraries
from coilwork_wrapper.python.sample_inputs import make_constants, make_inputs
from coilwork_wrapper.python.scope import TORCH, Scope, make_identifiers, quote
from coilwork_wrapper.runtime_interface import RUNTIME_MODULE

# ---- functions ----


ARGS: Final = Name("args")


def write_functions(
    program: Program,
    *,
    operators: Mapping[str, str],
    kernels: Mapping[str, str],
    constants: Mapping[str, str],
    used: dict[str, Expression],
) -> tuple[Function, ...]:
    """Function definitions, `call` last.

    `operators`, `kernels` and `constants` (by key) are identifiers of what all functions share; what else
    they use of torch and the runtime is entered into `used`.
    """
    # a program that two instructions share becomes one function
    nested = {id(part): part for part in list_distinct_programs(program)[1:]}
    shared = {*operators.values(), *kernels.values(), *constants.values()}
    named = make_identifiers((f"{part.name} {number}" for number, part in enumerate(nested.values())), shared)
    names = dict(zip(nested, named.values(), strict=True))
    names[id(program)] = "call"
    taken = {*shared, *names.values()}
    outer = {id(part): list_outer_symbols(part) for part in (program, *nested.values())}
    functions: list[Function] = []
    for part in (*reversed(nested.values()), program):
        scope = _make_scope(part, taken, operators, kernels, constants, names, outer, used)
        functions.append(_write_function(part, scope))
    return tuple(functions)


def _make_scope(
    part: Program,
    taken: set[str],
    operators: Mapping[str, str],
    kernels: Mapping[str, str],
    constants: Mapping[str, str],
    names: Mapping[int, str],
    outer: Mapping[int, tuple[Expr, ...]],
    used: dict[str, Expression],
) -> Scope:
    # Symbols come first: they keep their names, which comments and error messages mention.
    symbols = make_identifiers(
        (symbol.name for symbol in (*list_program_symbols(part), *outer[id(part)], *part.symbols)), taken
    )
    own = {constant.buffer.name: constants[constant.key] for constant in part.constants}
    local = make_identifiers(
        (name for name in _local_names(part) if name not in own), taken, frozenset(symbols.values())
    )
    known = index_buffers(part)
    return Scope(
        name={**local, **own}.__getitem__,
        symbols=symbols,
        buffer=known.__getitem__,
        inputs=frozenset(entry.name for entry in part.inputs if isinstance(entry, Buffer)),
        constants=frozenset(own),
        operator=operators.__getitem__,
        kernel=kernels.__getitem__,
        function=lambda nested: names[id(nested)],
        outer=lambda nested: outer[id(nested)],
        used=used,
    )


def _write_function(part: Program, scope: Scope) -> Function:
    name = scope.function(part)
    body: list[Statement] = []
    if name != "call":
        body.append(Docstring(f"Nested program {part.name}."))
    bound: set[str] = set()
    params: list[str] = []
    for entry in part.inputs:
        if isinstance(entry, Buffer):
            params.append(scope.name(entry.name))
        elif entry.is_symbol and entry.name not in bound:
            bound.add(entry.name)
            params.append(scope.symbols[entry.name])
        else:
            # a size that is known already
            params.append("_")
    if params:
        body.append(Unpack(Filled(Tuple(tuple(map(Name, params)))), ARGS))
    body.append(Do(method(ARGS, "clear")))
    ranked: set[str] = set()
    # Sizes that depend on symbols are checked on every call; the others are recognised, all in one go.
    fixed = find_fixed_checks(part, scope) if name == "call" else ()
    if fixed:
        body.extend(emit_fixed_checks(fixed, scope))
    done = {id(check) for check in fixed}
    for instruction in part.instructions:
        if id(instruction) in done:
            continue
        if isinstance(instruction, BindSymbol):
            # an input may carry a size that a tensor's shape gives as well
            if instruction.symbol.name in bound:
                continue
            bound.add(instruction.symbol.name)
            source = instruction.buffer
            if source in scope.inputs and source not in ranked:
                ranked.add(source)
                rank = Number(len(scope.buffer(source).shape))
                body.append(Do(scope.runtime("check_rank", scope.variable(source), quote(source), rank)))
        body.extend(emit_instruction(instruction, scope))
    sizes = (scope.symbols[symbol.name] for symbol in scope.outer(part))
    return Function(name, (Parameter(ARGS.id), *map(Parameter, sizes)), tuple(body))


def _local_names(program: Program) -> Iterator[str]:
    yield from index_buffers(program)
    for instruction in program.instructions:
        yield from list_defined_values(instruction)


# ---- kernels ----


FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType({"cpp": "CppKernel", "triton": "TritonKernel"})
"""By language, the function of the runtime's that describes a kernel in it; those of back ends share one."""


def make_kernel_specification(source: KernelSource, text_name: str) -> Rows:
    """`rt.CppKernel(...)`, `rt.TritonKernel(...)` or `rt.DeviceKernel(...)`; the text itself is the constant
    `text_name`.
    """
    kind = FUNCTIONS.get(source.language, "DeviceKernel")
    fields: list[tuple[str, Expression]] = [
        *([] if source.language in FUNCTIONS else [("language", quote(source.language))]),
        ("name", quote(source.name)),
        ("source", Name(text_name)),
        ("entry", quote(source.entry)),
        ("args", _texts(make_argument_specification(a) for a in source.args)),
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


def make_argument_specification(arg: SourceArg) -> str:
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


# ---- module ----


RUNTIME: Final = "rt"
KERNELS: Final = Name("kernels")
CONSTANTS: Final = Name("constants")


def emit_python(
    program: Program,
    sources: Mapping[str, KernelSource],
    *,
    target: str = "",
    runtime: str = RUNTIME_MODULE,
    libraries: OperatorLibraries | None = None,
) -> str:
    """Text of the module that runs `program`.

    The module defines `KERNELS`; `make_call(kernels, constants)`, which takes built kernels by name and
    constants by key, and returns the boxed `call(args)`; and `make_inputs()`. Run as a script it builds the
    kernels, calls itself on made-up inputs and prints times. `runtime` names the module that provides what
    `coilwork_wrapper.runtime_interface` lists. `libraries` are imported first, so that the module finds the
    operators that they define.

    Raises:
        EmitError: a kernel has no source, or a size symbol no value.
    """
    program = inline_regions(outline_regions(program), remarks=True)
    kernels = list_kernels(program)
    missing = [kernel.name for kernel in kernels if kernel.name not in sources]
    if missing:
        raise EmitError("missing-source", f"no source for kernel {missing[0]} of @{program.name}")
    check_bound(program)
    text_names = make_identifiers([f"{kernel.name}_source".upper() for kernel in kernels])
    statements: list[Statement] = [
        Docstring(_write_heading(program, target)),
        Blank(),
        Import("torch"),
        _import_runtime(runtime),
        *_load_libraries(libraries or OperatorLibraries()),
        Blank(),
    ]
    specs: list[Expression] = []
    for kernel in kernels:
        text_name = text_names[f"{kernel.name}_source".upper()]
        statements += [Assign((text_name,), RawText("\n" + sources[kernel.name].text)), Blank()]
        specs.append(make_kernel_specification(sources[kernel.name], text_name))
    statements.append(Assign(("KERNELS",), Rows(Tuple(tuple(specs)))))
    constants = _list_constants(program)
    definitions = [_write_make_call(program, tuple(constants)), make_inputs(program)]
    if constants:
        definitions.append(make_constants(constants.values()))
    for definition in definitions:
        statements += [Blank(), Blank(), definition]
    parts = map(Name, ("KERNELS", "make_call", "make_inputs"))
    made = {"make_constants": Name("make_constants")} if constants else {}
    run = Do(method(Name(RUNTIME), "run_standalone", *parts, **made))
    is_script = Binary("==", Name("__name__"), Text("__main__"))
    statements += [Blank(), Blank(), If(is_script, (run,))]
    return print_module(statements)


def _load_libraries(libraries: OperatorLibraries) -> Iterator[Statement]:
    """Import what defines operators; a script's own can only be named."""
    for module in libraries.modules:
        if module == "__main__":
            yield Comment("The script that was compiled defines operators: run this file from there.")
        else:
            yield Import(module)
    load = Attribute(Attribute(TORCH, "ops"), "load_library")
    yield from (Do(Call(load, (quote(path),))) for path in libraries.files)


def _import_runtime(runtime: str) -> Statement:
    package, _, module = runtime.rpartition(".")
    return Import(module, RUNTIME, package)


def _write_heading(program: Program, target: str) -> str:
    parts = tuple(walk(program))
    launches = sum(isinstance(i, Launch) for part in parts for i in part.instructions)
    calls = sum(isinstance(i, ExternCall) for part in parts for i in part.instructions)
    where = f" for {target}" if target else ""
    return (
        f"Graph {program.name}{where}, generated by Coilwork.\n\n"
        f"Kernel launches: {launches}, of {len(list_kernels(program))} distinct kernels. Calls of torch "
        f"operators: {calls}.\n"
        "Run this file to build it, call it on made-up inputs, and see its time and bandwidth.\n"
    )


def _list_constants(program: Program) -> Mapping[str, Constant]:
    """Constants of the program and of those nested in it, by key."""
    constants: dict[str, Constant] = {}
    for part in walk(program):
        for constant in part.constants:
            constants.setdefault(constant.key, constant)
    return constants


def _write_make_call(program: Program, keys: tuple[str, ...]) -> Function:
    operators = make_identifiers(_list_operators(program))
    kernel_names = make_identifiers([k.name for k in list_kernels(program)], frozenset(operators.values()))
    taken = frozenset((*operators.values(), *kernel_names.values()))
    constants = make_identifiers(keys, taken)
    used: dict[str, Expression] = {}
    definitions = write_functions(
        program,
        operators=operators,
        kernels=kernel_names,
        constants=constants,
        used=used,
    )
    body: list[Statement] = [
        Docstring(
            "`call(args)`, which runs the graph on the inputs in the list `args`, and empties it first."
        ),
        *sorted((Assign((name,), value) for name, value in used.items()), key=_print_value),
        *(Assign((name,), _operator_path(operator)) for operator, name in operators.items()),
        *(Assign((name,), Subscript(KERNELS, (quote(kernel),))) for kernel, name in kernel_names.items()),
        *(Assign((name,), Subscript(CONSTANTS, (quote(key),))) for key, name in constants.items()),
    ]
    for definition in definitions:
        body += [Blank(), definition]
    body += [Blank(), Return((Name("call"),))]
    return Function("make_call", (Parameter(KERNELS.id), Parameter(CONSTANTS.id)), tuple(body))


def _print_value(assignment: Assign) -> str:
    return print_expression(assignment.value)


def _operator_path(target: str) -> Expression:
    """`torch.ops.aten.mm.out` of `aten.mm.out`."""
    value: Expression = Attribute(TORCH, "ops")
    for name in target.split("."):
        value = Attribute(value, name)
    return value


def _list_operators(program: Program) -> Iterator[str]:
    for part in walk(program):
        for instruction in part.instructions:
            if isinstance(instruction, ExternCall):
                yield instruction.target
