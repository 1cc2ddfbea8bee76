"""`python -m coilwork_aot`: where the C++ library is."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Final

from coilwork_aot.cpp_library import CMAKE, CPP, INCLUDE, LIBRARY

PLACES: Final = MappingProxyType(
    {
        "cmake-path": CMAKE,
        "include-path": INCLUDE,
        "library-path": LIBRARY,
        "example-path": CPP / "example",
    }
)


def main(words: list[str]) -> int:
    """Print the place that is asked for; return 1 for a library that this installation has not."""
    place = PLACES.get(words[0]) if len(words) == 1 else None
    if place is None:
        print(f"usage: python -m coilwork_aot {' | '.join(PLACES)}", file=sys.stderr)
        return 2
    if not place.exists():
        print(f"{place} is not there: CMake builds it, or install a wheel for x86-64", file=sys.stderr)
        return 1
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
