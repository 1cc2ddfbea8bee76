"""Updates of places that many points hit: a program counts how often, and adds the counts. See
`coilwork_triton.kernel_passes.histogram`.
"""

from __future__ import annotations

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Store
from coilwork_ir.scalar import Const
from coilwork_ir.syntax.python import Binary, Expression, Name, Number, Text, method
from coilwork_triton.kernel_passes.histogram import Bins
from coilwork_triton.launch.parameters import next_power_of_two
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.language import conjunction, tl, tl_name
from coilwork_triton.text.types import triton_type, typed_constant
from coilwork_triton.values.values import Values


def add_counts(values: Values, scope: Scope, store: Store, bins: Bins) -> None:
    """Write `store`, which counts in `bins`, as counts of the program's points, and one update for each of
    them that is not 0.
    """
    space, (chosen,) = values.space, store.indirect
    assert isinstance(store.value, Const)
    conditions: list[Expression] = []
    inside = space.mask(space.letters(r.symbol for r in values.kernel.ranges))
    if inside is not None:
        conditions.append(inside)
    if store.mask is not None:
        conditions.append(values.expression(scope, store.mask))
    place = values.expression(scope, chosen)
    number = (
        place
        if chosen.dtype is DType.I32
        else scope.writer.bind("number", method(place, "to", tl_name("int32")))
    )
    if not bins.certain:
        # a number that is out of range, for which nobody may have checked, would be taken for one that is not
        tested = place if chosen.dtype.itemsize > 4 else number
        conditions += [Binary(">=", tested, Number(0)), Binary("<", tested, Number(bins.count))]
    lanes = Number(next_power_of_two(bins.count))
    mask = conjunction(tuple(conditions))
    keywords: dict[str, Expression] = {} if mask is None else {"mask": mask}
    counts = scope.writer.bind("counts", tl("histogram", number, lanes, **keywords))
    numbers = scope.writer.bind("bins", tl("arange", Number(0), lanes))
    pointer = Binary("+", Name(store.buffer), space.index(store.index, [numbers]))
    # as many bits as memory has, in which products and sums wrap alike
    added: Expression = counts
    if store.value.dtype.itemsize > 4 or not store.value.dtype.is_signed_integer:
        added = method(added, "to", triton_type(store.value.dtype))
    if store.value.value != 1:
        added = Binary("*", added, typed_constant(store.value.value, store.value.dtype))
    # of lanes behind the last bin, too, nothing was counted
    some = Binary("!=", counts, Number(0))
    scope.writer.do(tl("atomic_add", pointer, added, mask=some, sem=Text("relaxed")))
