"""Kinds of bad calls that no change of one argument makes, by what is wrong with them. `call.py` says what a
call is.

`mutations.py` changes arguments of good calls, `bad_values.py` computes them. Of the calls that tables of
types make, some are good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from integration_tests.operators.kinds.call import BadCall
from integration_tests.operators.kinds.memory import AUTOGRAD, MEMORY
from integration_tests.operators.kinds.options import OPTIONS
from integration_tests.operators.kinds.sizes import SIZES
from integration_tests.operators.kinds.types import (
    list_output_calls,
    list_overwriting_calls,
    list_pair_calls,
    list_position_calls,
)

# A table of more calls is several names, so that several processes share it.
_MOST_CALLS: Final = 150
_TABLES: Final[Mapping[str, Mapping[str, BadCall]]] = MappingProxyType(
    {
        "kind.sizes": SIZES,
        "kind.memory": MEMORY,
        "kind.autograd": AUTOGRAD,
        "kind.options": OPTIONS,
        "kind.overwriting": dict(list_overwriting_calls()),
        "kind.positions": dict(list_position_calls()),
        "kind.pairs": dict(list_pair_calls()),
        "kind.outputs": dict(list_output_calls()),
    }
)


def _split(name: str, table: Mapping[str, BadCall]) -> Iterator[tuple[str, Mapping[str, BadCall]]]:
    parts = -(-len(table) // _MOST_CALLS)
    for part in range(parts):
        yield (f"{name}.{part}" if parts > 1 else name), dict(list(table.items())[part::parts])


KINDS: Final[Mapping[str, Mapping[str, BadCall]]] = MappingProxyType(
    {name: part for table, calls in _TABLES.items() for name, part in _split(table, calls)}
)
"""The calls of each name, by what is wrong with them."""
