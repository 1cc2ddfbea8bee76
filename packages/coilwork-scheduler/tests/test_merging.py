"""Axes that every offset sees as one."""

from __future__ import annotations

from coilwork_ir.index import as_int, evaluate, extent_of, floordiv, substitute, symbol
from coilwork_scheduler.splitting.pieces import merge_axes

IMAGES, ROWS, COLUMNS = (symbol(name, extent=n) for name, n in (("n", 4), ("h", 3), ("w", 5)))
CHANNEL = symbol("c", extent=8)


def test_images_and_their_points_are_one_axis_channels_last() -> None:
    offset = ((IMAGES * 3 + ROWS) * 5 + COLUMNS) * 8 + CHANNEL
    (whole,), mapping = merge_axes((IMAGES, ROWS, COLUMNS), (offset, offset + 7))
    assert as_int(extent_of(whole)) == 60
    over = substitute(offset, mapping)
    for point in range(60):
        n, h, w = point // 15, point // 5 % 3, point % 5
        env = {whole.name: point, "c": 2}
        assert evaluate(over, env) == evaluate(offset, {"n": n, "h": h, "w": w, "c": 2})
        assert [evaluate(mapping[a], env) for a in (IMAGES, ROWS, COLUMNS)] == [n, h, w]


def test_only_neighbours_that_lie_together_are_merged() -> None:
    # channels first: images are apart
    offset = ((IMAGES * 8 + CHANNEL) * 3 + ROWS) * 5 + COLUMNS
    axes, mapping = merge_axes((IMAGES, ROWS, COLUMNS), (offset,))
    assert axes[0] is IMAGES and as_int(extent_of(axes[1])) == 15
    assert set(mapping) == {ROWS, COLUMNS}


def test_what_one_offset_tells_apart_stays_apart() -> None:
    together = (IMAGES * 3 + ROWS) * 8 + CHANNEL
    assert merge_axes((IMAGES, ROWS), (together, IMAGES * 8 + CHANNEL)) == ((IMAGES, ROWS), {})
    assert merge_axes((IMAGES, ROWS), (together, floordiv(IMAGES, 2))) == ((IMAGES, ROWS), {})
