"""The functions of a generated module: `call`, and one for each nested program, before those that call it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr
from coilwork_ir.program.nodes import BindSymbol, Program
from coilwork_ir.program.symbols import bound_symbols, outer_symbols
from coilwork_ir.program.walk import buffers, defined_values, distinct_programs
from coilwork_ir.syntax.python import (
    Do,
    Docstring,
    Expression,
    Filled,
    Function,
    Name,
    Number,
    Parameter,
    Statement,
    Tuple,
    Unpack,
    method,
)
from coilwork_wrapper.python.instructions import emit_fixed_checks, emit_instruction, fixed_checks
from coilwork_wrapper.python.scope import Scope, identifiers, quote

ARGS: Final = Name("args")


def functions(
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
    nested = {id(part): part for part in distinct_programs(program)[1:]}
    shared = {*operators.values(), *kernels.values(), *constants.values()}
    named = identifiers((f"{part.name} {number}" for number, part in enumerate(nested.values())), shared)
    names = dict(zip(nested, named.values(), strict=True))
    names[id(program)] = "call"
    taken = {*shared, *names.values()}
    outer = {id(part): outer_symbols(part) for part in (program, *nested.values())}
    found: list[Function] = []
    for part in (*reversed(nested.values()), program):
        scope = _scope(part, taken, operators, kernels, constants, names, outer, used)
        found.append(_function(part, scope))
    return tuple(found)


def _scope(
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
    symbols = identifiers(
        (symbol.name for symbol in (*bound_symbols(part), *outer[id(part)], *part.symbols)), taken
    )
    own = {constant.buffer.name: constants[constant.key] for constant in part.constants}
    local = identifiers(
        (name for name in _names(part) if name not in own), taken, frozenset(symbols.values())
    )
    known = buffers(part)
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


def _function(part: Program, scope: Scope) -> Function:
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
    fixed = fixed_checks(part, scope) if name == "call" else ()
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


def _names(program: Program) -> Iterator[str]:
    yield from buffers(program)
    for instruction in program.instructions:
        yield from defined_values(instruction)
