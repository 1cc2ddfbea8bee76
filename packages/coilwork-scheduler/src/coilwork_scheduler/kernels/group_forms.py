"""The form of a fusion group: what its kernel depends on beside the names of buffers and the origins.

Layers of a model are equal, and so are the groups of one place in each of them. `describe_group` numbers the
buffers of a group in the order in which its stages mention them, and says everything else that composing,
tiling and naming the kernel read. So groups of one form have one kernel, and their calls differ in the
buffers alone. `BuiltForms` remembers the first of each.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from coilwork_ir.buffers import Buffer
from coilwork_ir.kernels import Kernel, KernelCall
from coilwork_ir.loc import Origin, merge_origins
from coilwork_ir.scalar import (
    Contraction,
    IndexValue,
    Load,
    Op,
    Reduce,
    Scalar,
    Scan,
    Sort,
    iterate_postorder,
)
from coilwork_scheduler.fusion_group import Group
from coilwork_scheduler.kernels.canonical import make_kernel_name
from coilwork_scheduler.kernels.rounding import Decisions


@dataclass(frozen=True, slots=True)
class Form:
    """The form of groups that share a kernel: their `key` is equal; `names` are their buffers by number."""

    key: Hashable
    names: tuple[str, ...]


def describe_group(
    group: Group,
    wanted: Collection[str],
    buffers: Mapping[str, Buffer],
    aligned: Collection[str],
    decisions: Decisions,
) -> Form:
    """Describe `group`, which stores its `wanted` buffers, in time linear in the size of its bodies.

    `aligned` are the buffers known to start at a multiple of 16 bytes.
    """
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    roots = [root for member in group.members for root in member.stage.scalars]
    places, bodies = _describe_scalars(roots, numbers)
    members: list[Hashable] = []
    for member in group.members:
        stage = member.stage
        stores = tuple(
            [
                (
                    number(store.buffer),
                    store.index,
                    tuple([places[value] for value in store.scalars]),
                    len(store.indirect),
                    store.mask is None,
                    store.mode,
                    store.covers,
                    store.sparse,
                )
                for store in stage.stores
            ]
        )
        checks = tuple([(places[check.condition], check.message, check.error) for check in stage.checks])
        into = tuple([(number(new), number(old)) for new, old in stage.into])
        ranges = (stage.parallel, stage.reduced, tuple(member.mapping.items()))
        members.append((stage.kind, ranges, stores, checks, into, stage.split))
    names = tuple(numbers)
    selections = decisions.selections
    facts = tuple(
        [
            (
                buffer.dtype,
                buffer.shape,
                buffer.strides,
                buffer.device,
                buffer.name in wanted,
                buffer.name in aligned,
                buffer.name in decisions.deciding,
                buffer.name in decisions.rounded,
                buffer.name in selections.alone,
                buffer.name in selections.among,
            )
            for buffer in map(buffers.__getitem__, names)
        ]
    )
    space = (group.parallel, group.sequential, group.reduced, group.bound)
    return Form((space, tuple(members), bodies, facts), names)


def _describe_scalars(
    roots: Sequence[Scalar], numbers: dict[str, int]
) -> tuple[dict[Scalar, int], tuple[Hashable, ...]]:
    """Return the places of all values of `roots`, and what each is, its buffer by its number in
    `numbers`.
    """
    places: dict[Scalar, int] = {}
    found: list[Hashable] = []
    for node in iterate_postorder(roots):
        operands = tuple([places[operand] for operand in node.operands])
        places[node] = len(places)
        match node:
            case Load():
                number = numbers.setdefault(node.buffer, len(numbers))
                is_masked = node.mask is not None
                found.append((number, node.index, node.dtype, operands, is_masked, repr(node.other)))
            case Op():
                found.append((node.op, node.dtype, operands))
            case IndexValue() if operands:
                found.append((node.expr, operands))
            case Reduce():
                found.append((Reduce, node.kind, node.axes, node.output, operands))
            case Contraction():
                found.append((Contraction, node.axes, node.dtype, operands))
            case Scan():
                found.append((Scan, node.kind, node.axis, node.output, node.reverse, operands))
            case Sort():
                found.append((Sort, node.axis, node.output, node.descending, node.topk, operands))
            case _:
                # it reads no memory: values are interned
                found.append(node)
    return places, tuple(found)


@dataclass(frozen=True, slots=True)
class _Built:
    """A kernel and its call, whose buffers are at `places` of its form's names."""

    kernel: Kernel
    call: KernelCall
    places: tuple[int, ...]


class BuiltForms:
    """The kernels that were built, by the form of their groups."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Built] = {}

    def find(self, group: Group, form: Form) -> tuple[Kernel, KernelCall] | None:
        """Return the kernel of `group` and its call, if one of its `form` was built."""
        found = self._known.get(form.key)
        if found is None:
            return None
        origins = list_origins(group)
        name = make_kernel_name(origins, found.kernel.ranges)
        call = KernelCall(
            kernel=name,
            args=tuple([form.names[place] for place in found.places]),
            sizes=found.call.sizes,
            into=tuple([pair for member in group.members for pair in member.stage.into]),
            origins=origins,
        )
        return replace(found.kernel, name=name, origins=origins), call

    def add(self, form: Form, kernel: Kernel, call: KernelCall) -> None:
        """Remember the kernel and the call of a group of `form`."""
        places = {name: place for place, name in enumerate(form.names)}
        self._known[form.key] = _Built(kernel, call, tuple([places[name] for name in call.args]))


def list_origins(group: Group) -> tuple[Origin, ...]:
    """Return the operations that `group` implements."""
    return merge_origins(*(member.stage.origins for member in group.members))
