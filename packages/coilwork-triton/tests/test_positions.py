"""Which positions are written in 32 bits."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.scalar import IndexValue, Scalar, cast, const, index_value, op, postorder
from coilwork_triton.positions import narrow_positions

I64 = DType.I64
AT = symbol("x0", extent=100)


def narrow(*roots: Scalar) -> bool:
    found = narrow_positions(tuple(postorder(roots)), roots)
    assert found <= {node for node in postorder(roots) if isinstance(node, IndexValue)}
    return index_value(AT) in found


@pytest.mark.parametrize("comparison", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_with_constants_and_positions(comparison: str) -> None:
    assert narrow(op(comparison, index_value(AT), const(3, I64)))
    assert narrow(op(comparison, const(3, I64), index_value(AT)))
    assert narrow(op(comparison, index_value(AT), index_value(AT + 1)))


def test_floats() -> None:
    assert narrow(cast(index_value(AT), DType.F32))
    assert not narrow(cast(index_value(AT), DType.BF16))


def test_what_wants_the_whole_number() -> None:
    position = index_value(AT)
    assert not narrow(position)
    assert not narrow(op("mul", position, const(1 << 40, I64)))
    assert not narrow(op("lt", op("add", position, const(1, I64)), const(3, I64)))
    # one use is enough
    assert not narrow(op("lt", position, const(3, I64)), op("add", position, const(1, I64)))
