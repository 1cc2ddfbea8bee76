"""The fallback that serves every operator: a call of its kernel inside the compiled program.

Arguments are converted by the operator's schema, laid out as the operator takes them, with the memory that it
writes. Results in lists are numbered for the program and put back in lists for the captured graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    Item,
    ListValue,
    Ref,
    ResultPath,
    SymbolOutput,
    TorchValue,
    make_contiguous_strides,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, find_coefficients, symbol
from coilwork_ir.loops import Extern, Mutation, Node
from coilwork_ir.loops.attention import ATTENTION, ATTENTION_GRADIENT
from coilwork_ir.loops.matrix_products import ACTIVATED_PRODUCT, BATCHED_PRODUCT, PRODUCT
from coilwork_ir.loops.nodes import USER_LAUNCH, ExternFamily
from coilwork_ir.operators import find_info, find_target_info
from coilwork_lowering.aten_layouts.row_padding import UNPADDED
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.size_assertions import find_user_equality, lower_assertion
from coilwork_lowering.building.values import (
    NumberValue,
    Relation,
    TensorValue,
    Value,
    find_layout,
    format_device,
    get_dtype,
    make_whole_value,
)
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.extern.asynchronous import find_flight, find_received
from coilwork_lowering.extern.quantization import is_dequantizing
from coilwork_lowering.facts.alias_analysis import (
    COLLECTIVES,
    USER_KERNELS,
    communicates,
    get_flight,
    is_barrier,
    list_undeclared_writes,
    may_retain,
)
from coilwork_lowering.rules import Call
from coilwork_lowering.scalar_math import index
from coilwork_lowering.torch_compat.operators import (
    Overload,
    find_kernel_dtype,
    get_schema,
    has_kernel,
    suggest_format,
)
from coilwork_lowering.torch_compat.sizes import find_plain_symbol

# ---- Arguments ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The arguments of one call.

    Attributes:
        positional, keywords: as the call has them.
        mutated: the memory that it writes into, each once.
        named: buffers that each argument mentions, by its name.
        sources: buffers by the alias label that the schema gives the argument.
        written: buffers of each argument that is written into, by its name.
        filled: arguments that are written into and hold nothing before: the call makes these buffers.
    """

    positional: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    mutated: tuple[Mutation, ...]
    named: Mapping[str, Sequence[str]]
    sources: Mapping[str, Sequence[str]]
    written: Mapping[str, Sequence[Buffer]]
    filled: tuple[tuple[str, Buffer], ...] = ()


def pass_arguments(builder: Builder, call: Call, target: Overload, *, exact: bool) -> Passed:
    """Return the arguments of `call` for `target`. With `exact`, those that are only read are laid out as
    eager's are.

    Raises:
        LoweringError[argument]: an argument cannot be passed (a graph module, a condition on sizes).
        LoweringError[layout]: an argument that is written into has no memory of the form that the operator
            takes.
    """
    mutated: list[Mutation] = []
    positional: list[Argument] = []
    keywords: list[tuple[str, Argument]] = []
    named: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    written: dict[str, list[Buffer]] = {}
    filled: list[tuple[str, Buffer]] = []
    silently = list_undeclared_writes(target)
    for formal in get_schema(target).arguments:
        value, fake = call.arguments[formal.name], call.fakes[formal.name]
        writes = formal.name in silently or (formal.alias_info is not None and formal.alias_info.is_write)
        if writes:
            value = _writable(builder, value, call, formal.name)
        if writes and isinstance(value, TensorValue) and builder.is_unfilled(value.buffer):
            filled.append((formal.name, value.buffer))
            continue
        dense = torch.Tag.needs_contiguous_strides in target.tags and not writes
        argument, used = _argument(builder, value, fake, call, exact=exact, dense=dense)
        if writes:
            _require_no_copies(builder, value, used, call, formal.name)
            written[formal.name] = used
            _overwrite_owners(builder, used, mutated)
        named[formal.name] = [b.name for b in used]
        if formal.alias_info is not None:
            for label in formal.alias_info.before_set:
                sources.setdefault(label, []).extend(b.name for b in used)
        if filled:
            # memory that the call makes is given by name, and so is all that comes after it
            keywords.append((formal.name, argument))
        elif formal.kwarg_only:
            if formal.name in call.node.kwargs:
                keywords.append((formal.name, argument))
        else:
            positional.append(argument)
    return Passed(
        positional=tuple(positional),
        keywords=tuple(keywords),
        mutated=tuple(mutated),
        named=named,
        sources=sources,
        written=written,
        filled=tuple(filled),
    )


def _argument(
    builder: Builder, value: Value, fake: Any, call: Call, *, exact: bool, dense: bool
) -> tuple[Argument, list[Buffer]]:
    """`value` as an argument of a call, and the buffers it mentions. Tensors are laid out as eager's if
    `exact`, contiguous if `dense`.
    """
    match value:
        case TensorValue():
            strides: Sequence[Expr] | None = None
            if dense:
                strides = make_contiguous_strides(value.shape)
            elif exact and isinstance(fake, torch.Tensor):
                strides = builder.sizes.exprs(fake.stride())
            placed = builder.materialize(value, strides)
            return Ref(placed.buffer.name), [placed.buffer]
        case NumberValue(number):
            held = builder.store_number(number).buffer
            return Item(held.name), [held]
        case tuple():
            fakes = fake if isinstance(fake, list | tuple) else [None] * len(value)
            pairs = [
                _argument(builder, v, f, call, exact=exact, dense=dense)
                for v, f in zip(value, fakes, strict=True)
            ]
            return ListValue(tuple(a for a, _ in pairs)), [b for _, used in pairs for b in used]
        case torch.dtype():
            return get_dtype(value), []
        case torch.device():
            return DeviceValue(str(value)), []
        case torch.layout() | torch.memory_format():
            return TorchValue(str(value).removeprefix("torch.")), []
        case None | bool() | int() | float() | complex() | str() | Expr():
            return value, []
    raise _refuse_argument(builder, value, call)


def _refuse_argument(builder: Builder, value: object, call: Call) -> LoweringError:
    what = "a condition on sizes" if isinstance(value, Relation) else f"a {type(value).__name__}"
    return LoweringError(
        "argument",
        f"{call.target} has no lowering for these arguments, and {what} cannot be passed to its ATen kernel",
        node=call.node.format_node() or call.node.name,
        origins=builder.origins,
        remedy="keep this call out of the compiled region with torch.compiler.disable",
    )


def _writable(builder: Builder, value: Value, call: Call, name: str) -> Value:
    """Return a tensor whose own memory is to be written: it must not be replaced by a copy.

    Raises:
        LoweringError[layout]: its elements have no strides there.
    """
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if isinstance(item, TensorValue) and find_layout(item) is None:
            raise _refuse_write(builder, call, name, "has no strided layout in its memory")
    return value


def _require_no_copies(builder: Builder, value: Value, used: Sequence[Buffer], call: Call, name: str) -> None:
    """Require that the operator writes into the memory of `value` itself, and not into a copy.

    Raises:
        LoweringError[layout]: it had to be laid out otherwise for the operator.
    """
    items = [
        item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, TensorValue)
    ]
    for item, buffer in zip(items, used, strict=True):
        if builder.buffers.root(item.buffer.name) != builder.buffers.root(buffer.name):
            raise _refuse_write(builder, call, name, "lies in memory otherwise than in eager mode")


def _refuse_write(builder: Builder, call: Call, name: str, reason: str) -> LoweringError:
    """Return the error that `call` cannot be given the memory which it writes as argument `name`."""
    return LoweringError(
        "layout",
        f"{call.target} writes into argument {name}, which {reason}",
        node=call.node.format_node() or call.node.name,
        origins=builder.origins,
        remedy="write into a tensor that owns its memory",
    )


def _overwrite_owners(builder: Builder, written: Sequence[Buffer], mutated: list[Mutation]) -> None:
    """Add to `mutated` the memory that each of `written` lies in, once: what else is a view of it changes as
    well.
    """
    for buffer in written:
        owner = builder.buffers.owner(buffer)
        if any(mutation.source == owner.name for mutation in mutated):
            continue
        mutated.append(Mutation(output=builder.declare_successor(owner), source=owner.name))


# ---- Nested results ----


def list_results(result: Any) -> tuple[tuple[ResultPath, Any], ...]:
    """Return every result that is no list, and where it lies in `result`: a bare one at `()`, and nothing at
    all nowhere.
    """
    return () if result is None else tuple(_walk_results(result, ()))


def _walk_results(result: Any, path: ResultPath) -> Iterator[tuple[ResultPath, Any]]:
    if not isinstance(result, list | tuple):
        yield path, result
        return
    for number, item in enumerate(result):
        yield from _walk_results(item, (*path, number))


def list_result_paths(result: Any) -> tuple[ResultPath, ...]:
    """Return the places of the results in `result`; none if a number alone says where each lies."""
    paths = tuple(path for path, _ in list_results(result))
    listed = isinstance(result, list | tuple) and any(isinstance(item, list | tuple) for item in result)
    return paths if listed else ()


def nest_results(result: Any, values: Sequence[Value]) -> Value:
    """`values`, one for each of `list_results(result)`, in lists as those are."""
    remaining = iter(values)
    return None if result is None else _fill_lists(result, remaining)


def _fill_lists(result: Any, values: Iterator[Value]) -> Value:
    if isinstance(result, list | tuple):
        return tuple(_fill_lists(item, values) for item in result)
    return next(values)


# ---- Calls ----


# Results that are there if an argument is true.
_OPTIONAL_RESULTS: Final[Mapping[tuple[str, int], str]] = {
    ("aten._native_multi_head_attention.default", 1): "need_weights"
}


def call_extern(
    builder: Builder,
    call: Call,
    target: Overload,
    *,
    effect: bool = False,
    recast: Callable[[Extern], Node] | None = None,
) -> Value:
    """Append a call of `target` and return its results. With `effect`, it is kept although nobody may need
    them.

    `recast` makes the node that is appended of the call, one that defines the same.

    Tensor operands are laid out as eager's are, because results' strides depend on them; only calls that
    write into given memory take whatever strided layout an operand has.

    Raises:
        LoweringError[argument]: an argument cannot be passed (a graph module, a condition on sizes).
    """
    results = _result_list(call)
    out_overload, out_names = _find_out_variant(target, results, call)
    passed = pass_arguments(builder, call, target, exact=not out_overload)
    unmet = builder.sizes.find_unmet(results)
    outputs, values, aliases, binds = _outputs(
        builder, call, target, results, passed, given=bool(out_overload)
    )
    if passed.filled:
        # only operators without results of their own are given such memory
        out_overload, out_names = call.target, tuple(name for name, _ in passed.filled)
    made = tuple(buffer for _, buffer in passed.filled) or outputs
    in_flight, until = find_flight(
        target, passed.named, [_handle(o, v) for o, v in zip(outputs, values, strict=True)]
    )
    created = Extern(
        target=call.target,
        args=passed.positional,
        kwargs=passed.keywords,
        outputs=made,
        single=len(made) == 1 if passed.filled else not isinstance(call.result, list | tuple),
        paths=list_result_paths(call.result),
        out_overload=out_overload,
        out_names=out_names,
        mutates=passed.mutated,
        aliases=aliases,
        binds=binds,
        family=_family(target),
        implements=_name_implemented(call),
        random=torch.Tag.nondeterministic_seeded in target.tags,
        effect=effect or _has_effect(target, [*results, *made], passed.mutated),
        fresh=call.target.endswith(".default") and find_target_info(call.target).has_fresh_result,
        in_flight=in_flight,
        until=until,
        retains=may_retain(target, call.arguments),
        barrier=is_barrier(target),
        origins=builder.origins,
    )
    builder.add(created if recast is None else recast(created))
    for mutation in passed.mutated:
        builder.buffers.overwrite(mutation.source, mutation.output)
    for output, value in zip(outputs, values, strict=True):
        if isinstance(output, SymbolOutput) and isinstance(value, Expr) and value is not output.symbol:
            _bind_read_size(builder, call, output.symbol, value, unmet)
    if _family(target) == "custom" and not in_flight:
        values = [
            _mark_conjugate(builder, value, result) if isinstance(output, Buffer) else value
            for output, value, result in zip(outputs, values, results, strict=True)
        ]
    values = [builder.current(value) if isinstance(value, TensorValue) else value for value in values]
    return nest_results(call.result, values)


def _handle(output: object, value: Value) -> str:
    """Return the buffer that a result is: a new one, or the argument that the call returns; empty if it is
    none.
    """
    if isinstance(output, Buffer):
        return output.name
    return value.buffer.name if isinstance(value, TensorValue) else ""


def _mark_conjugate(builder: Builder, value: Value, result: Any) -> Value:
    """`value` as the conjugate view that `result` is said to be, if it is.

    Drivers resolve what an operator gives them.
    """
    if not isinstance(value, TensorValue) or not result.is_conj():
        return value
    for name in ("_conj_physical", "_conj"):
        source = value.buffer
        created = builder.declare(source.shape, source.dtype, source.device, strides=source.strides)
        builder.add(
            Extern(
                target=f"aten.{name}.default",
                args=(Ref(source.name),),
                outputs=(created,),
                aliases=((0, source.name),) if name == "_conj" else (),
                origins=builder.origins,
            )
        )
        value = make_whole_value(created)
    return value


def _bind_read_size(builder: Builder, call: Call, read: Expr, known: Expr, unmet: Collection[object]) -> None:
    """Require that `read`, a number from the call, is `known`, as torch knows by promises of the program.

    A symbol of torch's among `find_unmet`, as `m` in the even number `2 * m`, gets its value from `read`.
    """
    for unknown in (ours for ours, theirs in builder.sizes.pairs if theirs in unmet):
        affine = find_coefficients(known, (unknown,))
        if affine is not None and affine[0][0].is_const and affine[0][0].value:
            (factor,), rest = affine
            builder.sizes.undefine(unknown, index((read - rest) // factor))
    same = Relation(lhs=read, relation="eq", rhs=known)
    message = (
        find_user_equality(call.node) or f"a number from data must be {known}, by what the program says of it"
    )
    lower_assertion(builder, same, message, call.node)


def _result_list(call: Call) -> list[Any]:
    results = [item for _, item in list_results(call.result)]
    return [None if _is_left_out(call, number) else item for number, item in enumerate(results)]


def _is_left_out(call: Call, number: int) -> bool:
    """Tell if the kernel makes no tensor of result `number`, which is None then. Torch's meta function says
    an empty one.
    """
    flag = _OPTIONAL_RESULTS.get((call.target, number))
    return flag is not None and call.arguments[flag] is False


def _find_out_variant(target: Overload, results: list[Any], call: Call) -> tuple[str, tuple[str, ...]]:
    """Return the overload that writes into given memory, and its out arguments; empty if it has no kernel of
    its own or does not take every result.
    """
    if not find_info(call.target.split(".")[1]).is_contraction or not all(
        isinstance(r, torch.Tensor) for r in results
    ):
        return "", ()
    packet = target.overloadpacket
    if "out" not in packet.overloads() or target._overloadname != "default":
        return "", ()
    result = packet.out
    device = results[0].device.type if results else "cpu"
    # compiling for a device that this build of torch lacks: what the CPU writes in place, others do too
    if not (has_kernel(result, device) or has_kernel(result, "cpu")):
        return "", ()
    ours, theirs = get_schema(target), get_schema(result)
    outs = [a.name for a in theirs.arguments if a.alias_info is not None and a.alias_info.is_write]
    same = [a.name for a in theirs.arguments if a.name not in outs] == [a.name for a in ours.arguments]
    if not same or len(outs) != len(results):
        return "", ()
    return f"{call.target.rpartition('.')[0]}.out", tuple(outs)


def _outputs(
    builder: Builder,
    call: Call,
    target: Overload,
    results: list[Any],
    passed: Passed,
    *,
    given: bool,
) -> tuple[
    tuple[Buffer | SymbolOutput | None, ...],
    list[Value],
    tuple[tuple[int, str], ...],
    tuple[tuple[Expr, int, int], ...],
]:
    schema = get_schema(target)
    outputs: list[Buffer | SymbolOutput | None] = []
    values: list[Value] = []
    aliases: list[tuple[int, str]] = []
    binds: list[tuple[Expr, int, int]] = []
    formals = {label: a.name for a in schema.arguments if a.alias_info for label in a.alias_info.before_set}
    places = [path[0] if path else 0 for path, _ in list_results(call.result)]
    for number, (result, place) in enumerate(zip(results, places, strict=True)):
        returned = schema.returns[min(place, len(schema.returns) - 1)]
        labels = _labels(schema, returned)
        arguments = [formals[x] for x in labels if formals.get(x) in passed.written]
        written = (
            passed.written[arguments[0]]
            if arguments
            else find_received(target, call.arguments, passed.written)
        )
        if len(written) in (1, len(results)) and (itself := written[number if len(written) > 1 else 0]):
            # the argument itself
            outputs.append(None)
            values.append(make_whole_value(itself))
            continue
        fresh = _list_undefined_sizes(builder, call, number, result)
        dense = not given and (UNPADDED in call.node.meta or _is_made_dense(call, target, result))
        if isinstance(result, torch.Tensor) and not labels:
            # a distance in memory that nothing but memory tells: the run copies what lies otherwise
            dense = dense or bool(builder.sizes.find_unmet(result.stride()))
        dtype = find_kernel_dtype(call.node.target, number, _get_first_dtype(call))
        output, value = _declare_output(builder, call, number, result, dtype, dense=dense)
        outputs.append(output)
        values.append(value)
        if isinstance(output, Buffer):
            aliases.extend(
                (number, source) for label in labels for source in passed.sources.get(label, ())[:1]
            )
            binds.extend((builder.sizes.expr(result.shape[axis]), number, axis) for axis in fresh)
    for found in (
        *(bound for bound, _, _ in binds),
        *(o.symbol for o in outputs if isinstance(o, SymbolOutput)),
    ):
        builder.sizes.note_data_dependent(found)
    return tuple(outputs), values, tuple(aliases), tuple(binds)


def _get_first_dtype(call: Call) -> torch.dtype | None:
    first = next(iter(call.fakes.values()), None)
    return first.dtype if isinstance(first, torch.Tensor) else None


def _labels(schema: torch.FunctionSchema, returned: torch.Argument) -> set[str]:
    """Return the labels of the arguments whose memory `returned` shares.

    Of a list, as in `split(Tensor(a -> *) self, ...) -> Tensor(a)[]`, the schema keeps none: its tensors
    share the memory of the arguments that become part of a list.
    """
    if returned.alias_info is None:
        return set()
    if returned.alias_info.before_set:
        return set(returned.alias_info.before_set)
    into_lists = [
        a.alias_info for a in schema.arguments if a.alias_info is not None and "*" in a.alias_info.after_set
    ]
    return {label for info in into_lists if not info.is_write for label in info.before_set}


def _is_made_dense(call: Call, target: Overload, result: Any) -> bool:
    """Tell if the kernel makes a contiguous result, whatever the meta function says."""
    if not isinstance(result, torch.Tensor):
        return False
    if get_flight(target) is not None:
        return True
    if not is_dequantizing(call.target, call.arguments):
        return False
    return suggest_format(result) == torch.contiguous_format


def _list_undefined_sizes(builder: Builder, call: Call, number: int, result: Any) -> list[int]:
    """Return the dimensions of result `number` whose size is a symbol that nothing has defined, each symbol
    once.
    """
    if not isinstance(result, torch.Tensor):
        return []
    results: list[int] = []
    sizes: list[Any] = list(result.shape)
    for axis, size in enumerate(sizes):
        if isinstance(size, torch.SymInt) and builder.sizes.tells(
            size, f"size{axis}_of_{number}_{call.node.name}"
        ):
            builder.sizes.expr(size)
            results.append(axis)
    return results


def _declare_output(
    builder: Builder, call: Call, number: int, result: Any, dtype: torch.dtype | None, *, dense: bool
) -> tuple[Buffer | SymbolOutput | None, Value]:
    """Return result `number` of the call, as the program holds it and as its users see it."""
    if isinstance(result, torch.Tensor):
        shape = builder.sizes.exprs(result.shape)
        strides = make_contiguous_strides(shape) if dense else builder.sizes.exprs(result.stride())
        element = get_dtype(dtype or result.dtype)
        if element is DType.F32 and call.quantized is not None:
            element = call.quantized
        buffer = builder.declare(shape, element, format_device(result.device), strides=strides)
        return buffer, make_whole_value(buffer)
    if isinstance(result, torch.SymInt):
        name = find_plain_symbol(result)
        known = name is None or builder.sizes.knows(name)
        size = builder.sizes.expr(result)
        return SymbolOutput(symbol=symbol(f"read_{number}_{call.node.name}") if known else size), size
    if result is None:
        return None, None
    if isinstance(result, bool | int | float):
        return None, result
    raise LoweringError(
        "no-lowering",
        f"{call.target} returns a {type(result).__name__}, which a graph cannot hold",
        node=call.node.name,
        origins=builder.origins,
        remedy="keep this call out of the compiled region with torch.compiler.disable",
    )


def _name_implemented(call: Call) -> str:
    """Return the kind of product or attention that the call is, of one that no node says, or a launch of a
    user's kernel; `""` of what is none.
    """
    if call.target.startswith(f"{USER_KERNELS}."):
        return USER_LAUNCH
    info = find_target_info(call.target)
    if info.is_attention:
        # what comes in front of the query is the gradient, or memory for the result
        first = next(iter(call.arguments))
        return ATTENTION if first == "query" else ATTENTION_GRADIENT if first.startswith("grad") else ""
    if info.product is None or not call.target.endswith(".default"):
        return ""
    if info.product.is_plain:
        return PRODUCT if call.fake.dim() == 2 else BATCHED_PRODUCT
    return ACTIVATED_PRODUCT if info.product.has_activation else ""


def _family(target: Overload) -> ExternFamily:
    if target.namespace in COLLECTIVES:
        return "collective"
    return "aten" if target.namespace in ("aten", "prims") else "custom"


def _has_effect(target: Overload, results: list[Any], mutated: Sequence[Mutation]) -> bool:
    if communicates(target):
        return True
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, Buffer)
    return not mutated and not any(isinstance(r, kinds) for r in results)
