"""Rules of attention and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.buffers import Argument, Buffer, SymbolOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, provably_eq
from coilwork_ir.loops.nodes import (
    STATE_LAYOUTS,
    Attention,
    AttentionGradient,
    BlockLists,
    Saved,
    Weights,
)
from coilwork_ir.loops.verify_compute import check_scalar
from coilwork_ir.scalar import Load, Op, Parameter, Scalar, iterate_postorder
from coilwork_ir.verification import Place, Rule, Scope, check_mask

ATTENTION_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "attention-axes": Rule(
            "attention has two axes, keys and the length of products, and a last range, the values' columns",
            "write [batch and rows, column | key, length], and leave others to the bodies",
        ),
        "attention-types": Rule(
            "an attention multiplies floats, and computes scores and sums in a type that holds them",
            "cast what the bodies load at their end, and accumulate in f32 or f64",
        ),
        "attention-logsumexp": Rule(
            "each row's logsumexp is stored in a buffer, if that is wanted, at an index over rows",
            "give the logsumexp a buffer and an index with one expression per dimension",
        ),
        "attention-state": Rule(
            "the state has as many places as its form, and where weights are dropped a seed among them",
            "write `_` for places that hold nothing, and choose a form with a seed",
        ),
        "attention-operands": Rule(
            "gradients are those of what query, key and value load, of its shape and type",
            "load operands as they are, give each gradient the shape of its operand, and start from the "
            "output or from what stands for it",
        ),
        "attention-blocks": Rule(
            "lists of blocks are integers that promise something of a mask, each kind once",
            "give blocks of at least one point, counts over what has lists, and indices over rows and keys",
        ),
    }
)


CheckScalar: TypeAlias = Callable[[Scalar, frozenset[Expr]], None]
"""Checks a scalar, less its operands, over some ranges."""


def check_attention(node: Attention, scope: Scope, place: Place) -> None:
    """Bodies know what they may, state and logsumexp are what the weights' form asks for."""
    weights = node.weights

    def check(value: Scalar, local: frozenset[Expr]) -> None:
        check_scalar(value, local, scope, place)

    check_weights(weights, check, place)
    if not node.output.dtype.is_float:
        place.fail("attention-types", f"%{node.output.name} is {node.output.dtype.text}")
    if node.epilogue is not None:
        check_body(node.epilogue, weights.ranges, check, place, (weights.accumulate,))
        check_is(node.epilogue, node.output.dtype, "the epilogue", place)
    if (node.logsumexp is None) > (node.logsumexp_at is None):
        place.fail("attention-logsumexp", "there is an index for a logsumexp that nobody wants")
    if node.logsumexp is not None and node.logsumexp_at is not None:
        if len(node.logsumexp_at) != len(node.logsumexp.shape):
            place.fail(
                "attention-logsumexp", f"%{node.logsumexp.name} takes {len(node.logsumexp.shape)} of them"
            )
        for expr in node.logsumexp_at:
            scope.check_symbols(expr, weights.rows, place)
        if node.logsumexp.dtype is not weights.accumulate:
            place.fail("attention-logsumexp", f"%{node.logsumexp.name} is not {weights.accumulate.text}")
    _check_state(weights, node.state, place)
    places = STATE_LAYOUTS[weights.form]
    for number, entry in enumerate(node.state):
        if isinstance(entry, SymbolOutput):
            if number not in (places.rows, places.keys):
                place.fail("attention-state", f"place {number} of {weights.form} is no size")
            scope.declare(entry.symbol, place)


def check_gradient(node: AttentionGradient, scope: Scope, place: Place) -> None:
    """Bodies know what they may, and every gradient is that of a buffer as it is."""
    weights = node.weights
    rows, keys = weights.rows, weights.keys

    def check(value: Scalar, local: frozenset[Expr]) -> None:
        check_scalar(value, local, scope, place)

    check_weights(weights, check, place)
    for argument in node.state:
        scope.check_argument(argument, place)
    _check_state(weights, node.state, place)
    check_saved(weights, node, check, place)
    for name, value, gradient in (
        ("query", weights.query, node.of_query),
        ("key", weights.key, node.of_key),
        ("value", weights.value, node.of_value),
    ):
        source = find_operand(value)
        if source is None:
            place.fail("attention-operands", f"the {name} is computed")
        operand = scope.use(source.buffer, place)
        same = len(operand.shape) == len(gradient.shape) and all(
            a is b or provably_eq(a, b) for a, b in zip(operand.shape, gradient.shape, strict=True)
        )
        if not same or operand.dtype is not gradient.dtype:
            place.fail("attention-operands", f"%{gradient.name} is no gradient of %{operand.name}")
    if (node.bias is None) != (node.of_bias is None):
        place.fail("attention-operands", "a bias that has a gradient is summed, and no other")
    if node.bias is not None and node.of_bias is not None:
        if len(node.bias_at) != len(node.of_bias.shape):
            place.fail(
                "index-rank", f"%{node.of_bias.name} takes {len(node.of_bias.shape)} index expressions"
            )
        for expr in node.bias_at:
            scope.check_symbols(expr, (*rows, keys), place)


def check_saved(weights: Weights, saved: Saved, check: CheckScalar, place: Place) -> None:
    """The bodies of a gradient besides those of `weights` know what they may."""
    rows, keys = weights.rows, weights.keys
    if (saved.output is None) == (saved.inner is None):
        place.fail("attention-operands", "one of output and inner is given")
    if saved.output is not None:
        check_body(saved.output, weights.ranges, check, place)
    if saved.inner is not None:
        check_body(saved.inner, rows, check, place)
    check_body(saved.gradient, weights.ranges, check, place)
    check_body(saved.logsumexp, rows, check, place)
    given = (weights.accumulate, weights.accumulate)
    check_body(saved.slope, (*rows, keys), check, place, given)
    check_is(saved.slope, weights.accumulate, "the slope", place)
    if saved.bias is not None:
        check_body(saved.bias, (*rows, keys), check, place, given)
        check_is(saved.bias, weights.accumulate, "the bias", place)


def find_operand(value: Scalar) -> Load | None:
    """Return the load of a gradient's operand, perhaps converted afterwards; None if it is anything else."""
    while isinstance(value, Op) and value.op == "cast":
        (value,) = value.operands
    plain = isinstance(value, Load) and not value.indirect and value.mask is None
    return value if isinstance(value, Load) and plain else None


def check_weights(weights: Weights, check: CheckScalar, place: Place) -> None:
    """The bodies of `weights` know what they may, and have types that fit."""
    rows, ranges, keys = weights.rows, weights.ranges, weights.keys
    if len(weights.axes) != 2 or not ranges:
        place.fail("attention-axes", f"{len(weights.axes)} axes, {len(ranges)} ranges")
    length = weights.axes[1]
    wide = weights.accumulate
    for name, value, local in (
        ("query", weights.query, (*rows, length)),
        ("key", weights.key, (*rows, keys, length)),
        ("value", weights.value, (*ranges, keys)),
    ):
        check_body(value, local, check, place)
        fits = value.dtype is wide or value.dtype.itemsize < wide.itemsize
        if not value.dtype.is_float or not wide.is_float or not fits:
            place.fail("attention-types", f"the {name} is {value.dtype.text}, sums are {wide.text}")
    check_body(weights.score, (*rows, keys), check, place, (wide,))
    check_is(weights.score, wide, "the score", place)
    if weights.mask is not None:
        check_body(weights.mask, (*rows, keys), check, place)
        check_mask(weights.mask, "the mask of an attention", place)
    if weights.blocks is not None:
        _check_blocks(weights, weights.blocks, check, place)
    if not 0.0 <= weights.dropout < 1.0:
        place.fail("attention-state", f"a share of {weights.dropout} weights is dropped")


def _check_blocks(weights: Weights, blocks: BlockLists, check: CheckScalar, place: Place) -> None:
    rows, keys = weights.rows, weights.keys
    if weights.mask is None or min(blocks.row_block, blocks.key_block) < 1:
        place.fail("attention-blocks", "there is no mask, or a block has no points")
    if len({side for side, _ in blocks.lists}) < len(blocks.lists):
        place.fail("attention-blocks", "a list is given twice")
    for side, one in blocks.lists:
        outer = rows if side in ("keys", "full_keys") else (*rows[:-1], keys)
        check_body(one.count, outer, check, place)
        check_body(one.index, (*rows, keys), check, place)
        if not (one.count.dtype.is_integer and one.index.dtype.is_integer):
            place.fail("attention-blocks", f"the list of {side} is not of integers")


def check_body(
    body: Scalar,
    local: Collection[Expr],
    check: CheckScalar,
    place: Place,
    given: Sequence[DType] = (),
) -> None:
    """`body` is over the ranges `local`, and is given parameters of these types."""
    known = frozenset(local)
    for value in iterate_postorder((body,)):
        if not isinstance(value, Parameter):
            check(value, known)
        elif value.position >= len(given):
            place.fail("parameter", f"parameter {value.position} of a body that is given {len(given)}")
        elif value.dtype is not given[value.position]:
            place.fail("attention-types", f"parameter {value.position} is {given[value.position].text}")


def check_is(body: Scalar, dtype: DType, what: str, place: Place) -> None:
    """`body`, which is `what`, has type `dtype`."""
    if body.dtype is not dtype:
        place.fail("attention-types", f"{what} is {body.dtype.text}, not {dtype.text}")


def _check_state(weights: Weights, state: Sequence[Buffer | SymbolOutput | Argument], place: Place) -> None:
    places = STATE_LAYOUTS[weights.form]
    if len(state) != places.count:
        place.fail("attention-state", f"{len(state)} places, {weights.form} has {places.count}")
    if weights.dropout and (places.seed is None or state[places.seed] is None):
        place.fail("attention-state", "weights are dropped without a seed")
