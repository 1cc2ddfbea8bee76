"""Computes the Chebyshev series of special functions that lowering uses, with mpmath to 40 digits.

    python -m devtools.chebyshev_tables > chebyshev_tables.py

The file belongs into `ops/special_functions/` of `coilwork_lowering`.

A series is of a smooth factor of the function, over an interval that is mapped to [-1, 1]; which factor and
which interval, a comment beside each table says. The forms are those of Cephes (Moshier, "Methods and
Programs for Mathematical Functions", 1989).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mpmath as mp

Function = Callable[[Any], Any]
NODES: Final = 80
# Terms below this part of the largest are left out.
SMALLEST: Final = 2e-17


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The series of `function`, a function of the mapped variable in [-1, 1]."""

    name: str
    of: str
    function: Function


def series(function: Function) -> list[float]:
    """Coefficients of the Chebyshev polynomials, lowest first; of the first, half of it is meant to count as
    a whole.
    """
    angles = [mp.pi * (mp.mpf(j) + mp.mpf(1) / 2) / NODES for j in range(NODES)]
    values = [function(mp.cos(angle)) for angle in angles]
    found = [
        2 * mp.fsum(value * mp.cos(k * angle) for value, angle in zip(values, angles, strict=True)) / NODES
        for k in range(NODES)
    ]
    found[0] /= 2
    largest = max(abs(c) for c in found)
    kept = max(k for k, c in enumerate(found) if abs(c) > SMALLEST * largest)
    return [float(c) for c in found[: kept + 1]]


def map_interval(low: float, high: float, function: Function) -> Function:
    """`function` of a variable from `low` to `high`, as one of the mapped variable."""
    return lambda u: function(mp.mpf(low) + (u + 1) * (mp.mpf(high) - mp.mpf(low)) / 2)


def map_tail(start: float, power: int, function: Function) -> Function:
    """`function` of `x` from `start` on, as one of `2 * (start / x) ** power - 1`."""
    return lambda u: function(start / mp.root((u + 1) / 2, power))


def _modulus(order: int, part: str) -> Function:
    """The slowly varying factors of Bessel functions: Abramowitz and Stegun 9.2.5 and 9.2.6."""

    def factor(x: Any) -> Any:
        angle = x - mp.mpf(2 * order + 1) * mp.pi / 4
        j, y = mp.besselj(order, x), mp.bessely(order, x)
        size = mp.sqrt(mp.pi * x / 2)
        if part == "P":
            return size * (j * mp.cos(angle) + y * mp.sin(angle))
        return x * size * (y * mp.cos(angle) - j * mp.sin(angle))

    return factor


def _airy(part: str) -> Function:
    """The slowly varying factors of Ai at `-x`: Abramowitz and Stegun 10.4.60, with `z = 2/3 x ** (3/2)`
    given.
    """

    def factor(z: Any) -> Any:
        x = (3 * z / 2) ** (mp.mpf(2) / 3)
        a, b = mp.airyai(-x), mp.airybi(-x)
        angle, size = z + mp.pi / 4, mp.sqrt(mp.pi) * mp.root(x, 4)
        if part == "P":
            return size * (a * mp.sin(angle) + b * mp.cos(angle))
        return z * size * (b * mp.sin(angle) - a * mp.cos(angle))

    return factor


def _airy_decaying(z: Any) -> Any:
    x = (3 * z / 2) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * 2 * mp.sqrt(mp.pi) * mp.root(x, 4) * mp.exp(z)


def _y0_rest(square: Any) -> Any:
    x = mp.sqrt(square)
    return mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x)


def _y1_rest(square: Any) -> Any:
    x = mp.sqrt(square)
    return (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x


def _k0_rest(square: Any) -> Any:
    x = mp.sqrt(square)
    return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)


def _k1_rest(square: Any) -> Any:
    x = mp.sqrt(square)
    return x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x))


def _erfcx(x: Any) -> Any:
    return mp.exp(x * x) * mp.erfc(x)


def _erfcx_scaled(u: Any) -> Any:
    """Shepherd and Laframboise 1981: over `(x - 3.75) / (x + 3.75)`."""
    x = mp.mpf("3.75") * (1 + u) / (1 - u)
    return (1 + 2 * x) * _erfcx(x)


def _quantile(p: Any) -> Any:
    """Return the quantile of the normal distribution."""
    guess = -mp.sqrt(-2 * mp.log(p)) if p < mp.mpf("0.1") else (p - mp.mpf("0.5")) * mp.mpf("2.5")
    if p < mp.mpf("0.1"):
        # of the logarithm, since what is small is small
        wanted = mp.log(p)
        guess = -mp.sqrt(-2 * (wanted + mp.log(-guess * mp.sqrt(2 * mp.pi))))
        return mp.findroot(lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2) - wanted, guess)
    return mp.findroot(lambda x: mp.ncdf(x) - p, guess)


def _quantile_centre(square: Any) -> Any:
    y = mp.sqrt(square)
    return _quantile(mp.mpf("0.5") - y) / -y


def _quantile_tail(x: Any) -> Any:
    """Return what `x - log(x) / x`, of `x = sqrt(-2 log p)`, exceeds it by, times `x`."""
    return x * (x - mp.log(x) / x + _quantile(mp.exp(-x * x / 2)))


TABLES: Final = (
    Table(
        name="I0_NEAR",
        of="exp(-x) I0(x), x in [0, 8]",
        function=map_interval(0, 8, lambda x: mp.exp(-x) * mp.besseli(0, x)),
    ),
    Table(
        name="I0_FAR",
        of="exp(-x) sqrt(x) I0(x), x from 8, in 8 / x",
        function=map_tail(8, 1, lambda x: mp.exp(-x) * mp.sqrt(x) * mp.besseli(0, x)),
    ),
    Table(
        name="I1_NEAR",
        of="exp(-x) I1(x) / x, x in [0, 8]",
        function=map_interval(0, 8, lambda x: mp.exp(-x) * mp.besseli(1, x) / x),
    ),
    Table(
        name="I1_FAR",
        of="exp(-x) sqrt(x) I1(x), x from 8, in 8 / x",
        function=map_tail(8, 1, lambda x: mp.exp(-x) * mp.sqrt(x) * mp.besseli(1, x)),
    ),
    Table(
        name="K0_NEAR", of="K0(x) + log(x / 2) I0(x), in x^2 in [0, 4]", function=map_interval(0, 4, _k0_rest)
    ),
    Table(
        name="K0_FAR",
        of="exp(x) sqrt(x) K0(x), x from 2, in 2 / x",
        function=map_tail(2, 1, lambda x: mp.exp(x) * mp.sqrt(x) * mp.besselk(0, x)),
    ),
    Table(
        name="K1_NEAR",
        of="x (K1(x) - log(x / 2) I1(x)), in x^2 in [0, 4]",
        function=map_interval(0, 4, _k1_rest),
    ),
    Table(
        name="K1_FAR",
        of="exp(x) sqrt(x) K1(x), x from 2, in 2 / x",
        function=map_tail(2, 1, lambda x: mp.exp(x) * mp.sqrt(x) * mp.besselk(1, x)),
    ),
    Table(
        name="J0_NEAR",
        of="J0(x), in x^2 in [0, 64]",
        function=map_interval(0, 64, lambda s: mp.besselj(0, mp.sqrt(s))),
    ),
    Table(
        name="J1_NEAR",
        of="J1(x) / x, in x^2 in [0, 64]",
        function=map_interval(0, 64, lambda s: mp.besselj(1, mp.sqrt(s)) / mp.sqrt(s)),
    ),
    Table(
        name="Y0_NEAR",
        of="Y0(x) - 2 / pi log(x) J0(x), in x^2 in [0, 64]",
        function=map_interval(0, 64, _y0_rest),
    ),
    Table(
        name="Y1_NEAR",
        of="(Y1(x) - 2 / pi (log(x) J1(x) - 1 / x)) / x, in x^2 in [0, 64]",
        function=map_interval(0, 64, _y1_rest),
    ),
    Table(name="P0_FAR", of="P(0, x), x from 8, in (8 / x)^2", function=map_tail(8, 2, _modulus(0, "P"))),
    Table(name="Q0_FAR", of="x Q(0, x), x from 8, in (8 / x)^2", function=map_tail(8, 2, _modulus(0, "Q"))),
    Table(name="P1_FAR", of="P(1, x), x from 8, in (8 / x)^2", function=map_tail(8, 2, _modulus(1, "P"))),
    Table(name="Q1_FAR", of="x Q(1, x), x from 8, in (8 / x)^2", function=map_tail(8, 2, _modulus(1, "Q"))),
    Table(name="AI_NEAR", of="Ai(x), x in [-4, 2]", function=map_interval(-4, 2, mp.airyai)),
    Table(
        name="AI_P_FAR",
        of="of Ai(-x), z = 2/3 x^(3/2) from 16/3, in (16/3 / z)^2",
        function=map_tail(mp.mpf(16) / 3, 2, _airy("P")),
    ),
    Table(
        name="AI_Q_FAR",
        of="of Ai(-x), z = 2/3 x^(3/2) from 16/3, in (16/3 / z)^2",
        function=map_tail(mp.mpf(16) / 3, 2, _airy("Q")),
    ),
    Table(
        name="AI_DECAYING",
        of="2 sqrt(pi) x^(1/4) exp(z) Ai(x), z = 2/3 x^(3/2) from 1.8, in 1.8 / z",
        function=map_tail(mp.mpf("1.8"), 1, _airy_decaying),
    ),
    Table(name="ERFCX", of="(1 + 2 x) erfcx(x), in (x - 3.75) / (x + 3.75)", function=_erfcx_scaled),
    Table(
        name="QUANTILE_CENTRE",
        of="quantile(1/2 + y) / y of the normal distribution, in y^2 in [0, 0.14]",
        function=map_interval(0, 0.14, _quantile_centre),
    ),
    Table(
        name="QUANTILE_TAIL",
        of="x (x - log(x) / x + quantile(exp(-x^2 / 2))), x in [1.9, 8]",
        function=map_interval(1.9, 8, _quantile_tail),
    ),
    Table(
        name="QUANTILE_FAR",
        of="x (x - log(x) / x + quantile(exp(-x^2 / 2))), x in [8, 39], in 1 / x in [1/39, 1/8]",
        function=map_interval(mp.mpf(1) / 39, mp.mpf(1) / 8, lambda z: _quantile_tail(1 / z)),
    ),
)


def text() -> str:
    """The module with the tables."""
    lines = [
        (
            '"""Chebyshev series of factors of special functions, lowest first; made by `python -m '
            'devtools.chebyshev_tables`."""'
        ),
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
    ]
    for table in TABLES:
        lines += ["", f"# {table.of}", f"{table.name}: Final = ("]
        found = [repr(c) for c in series(table.function)]
        for first in range(0, len(found), 4):
            lines.append("    *(" + ", ".join(found[first : first + 4]) + ",),")
        lines.append(")")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the module."""
    with mp.workdps(40):
        print(text(), end="")


if __name__ == "__main__":
    main()
