"""Calls of operators that go on when they have returned: what they use until when, and the calls that wait
for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Extern, Mutation, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value, make_whole_value
from coilwork_lowering.facts.alias_analysis import get_flight, list_undeclared_writes
from coilwork_lowering.torch_compat.operators import Overload

_WAIT: Final = "_c10d_functional.wait_tensor.default"


def lower_wait(builder: Builder, value: TensorValue, *, borrowed: bool) -> Value:
    """Append a call that waits for what writes the memory of `value`, all of it, and return `value` as it is
    then.

    The operands of a branch or loop are `borrowed`: it may give their memory no other name.
    """
    root = builder.buffers.root(value.buffer.name)
    if root not in builder.in_flight and (
        root in builder.at_rest
        or isinstance(builder.buffers.definer(root), Pointwise | Reduce | Scan | Scatter | Sort)
    ):
        return value
    if not borrowed and builder.buffers.owner(value.buffer).name == builder.buffers.latest(root).name:
        wait_for(builder, root)
        return builder.current(value)
    # or an operator made it a part of that memory
    placed = builder.materialize(value, None).buffer
    done = builder.declare(placed.shape, placed.dtype, placed.device, strides=placed.strides)
    builder.add(_wait(builder, placed, root, output=done))
    return make_whole_value(done)


def wait_for(builder: Builder, root: str) -> None:
    """Append a call that waits for what writes the memory `root`."""
    memory = builder.buffers.latest(root)
    done = builder.declare(
        memory.shape, memory.dtype, memory.device, strides=memory.strides, name=f"{root}_done"
    )
    builder.add(_wait(builder, memory, root, renamed=done))
    builder.buffers.overwrite(memory.name, done)


def _wait(
    builder: Builder,
    memory: Buffer,
    root: str,
    *,
    output: Buffer | None = None,
    renamed: Buffer | None = None,
) -> Extern:
    return Extern(
        target=_WAIT,
        args=(Ref(memory.name),),
        outputs=(output,),
        aliases=() if output is None else ((0, memory.name),),
        mutates=() if renamed is None else (Mutation(output=renamed, source=memory.name),),
        family="collective",
        effect=True,
        waits=tuple(dict.fromkeys((root, memory.name))),
        origins=builder.origins,
    )


def settle(builder: Builder, roots: Sequence[str], *, written: bool) -> None:
    """Append the waits after which no operator writes the memory of `roots`, nor reads it if it is to be
    `written`.

    The program itself is to wait before it reads a result. Where it leaves that out, eager mode reads
    whatever is there.
    """
    for root in roots:
        for pending in builder.in_flight.list_waits(root):
            if written or pending == root:
                wait_for(builder, pending)


def find_received(
    target: Overload, arguments: Mapping[str, Value], written: Mapping[str, Sequence[Buffer]]
) -> Sequence[Buffer | None]:
    """Return the argument that each result of a call of `target` is, of those that it writes silently; None:
    memory of its own.
    """
    silently = list_undeclared_writes(target)
    if not silently:
        return ()
    kinds = arguments.get("op_list")
    items = written[silently[0]]
    if not isinstance(kinds, tuple):
        return items
    return [item if kind == "irecv" else None for kind, item in zip(kinds, items, strict=True)]


def find_flight(
    target: Overload, operands: Mapping[str, Sequence[str]], results: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`in_flight` and `until` of a call of `target`: buffers by argument, and those that its
    results lie in.
    """
    result = get_flight(target)
    if result is None:
        return (), ()
    used = [name for argument in result.uses for name in operands.get(argument, ())]
    until = tuple(dict.fromkeys(name for name in results if name))
    return tuple(dict.fromkeys((*used, *until))), until
