"""Decompose attention into products around a softmax, with all scores in memory.

This is for nodes that no library takes. The products are contractions like others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, get_extents, symbol
from coilwork_ir.loops import (
    Attention,
    AttentionGradient,
    Contraction,
    Node,
    Pointwise,
    Reduce,
    Scatter,
)
from coilwork_ir.loops.nodes import Weights
from coilwork_ir.loops.verify_attention import find_operand
from coilwork_ir.scalar import (
    Parameter,
    Scalar,
    cast,
    const,
    find_index_symbols,
    load,
    op,
    parameter,
    rewrite,
    where,
)
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.attention_cost import count_moved_bytes, model_attention_us
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote


@dataclass(frozen=True, slots=True)
class DecomposedAttention:
    """Products, a softmax and products again, in the type of sums. Products are contractions like others."""

    context: ImplementationContext

    def claims(self, node: Attention | AttentionGradient, target: Target) -> str | None:
        """It computes what leaves output and logsumexp alone, if its parts are contractions."""
        weights = node.weights
        if weights.form != "plain" or weights.dropout:
            return "loops keep no other kernel's state"
        reason = "a factor does not vary along what is summed"
        if not _can_contract(weights.rows, (weights.axes[1],), weights.query, weights.key):
            return reason
        if not _varies(weights.value, (weights.keys, weights.ranges[-1])):
            return reason
        if isinstance(node, Attention):
            return None
        pairs = ((weights.query, weights.key), (weights.key, weights.query), (weights.value, node.gradient))
        if not all(_can_sum(weights, *pair) for pair in pairs):
            return reason
        return None

    def quote(self, node: Attention | AttentionGradient, target: Target) -> Quote:
        """Return the time to write and read matrices of scores: two of them in forward, three more in
        backward.
        """
        weights, context = node.weights, self.context
        shape = get_extents((*weights.rows, weights.keys))
        scores = context.sizes.numel(shape) * weights.accumulate.itemsize
        times = 2 if isinstance(node, Attention) else 5
        read_bytes, write_bytes = count_moved_bytes(node, context)
        moved_us = context.move_us(read_bytes + times * scores, write_bytes + times * scores)
        # what is computed takes as long as in blocks
        tiles = target.machine.attention_kernels
        computed_us = model_attention_us(node, context, target, tiles)
        us = moved_us + computed_us - context.move_us(read_bytes, write_bytes)
        return Quote(us=us, reason="no library weighs keys so", numbers={"loops_us": round(us, 3)})

    def build(self, node: Attention | AttentionGradient, target: Target) -> tuple[Node, ...]:
        """Return the loops."""
        writer = _Writer(context=self.context, node=node, nodes=[])
        if isinstance(node, Attention):
            writer.attend(node)
        else:
            writer.derive(node)
        return tuple(writer.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Appends the loops of `node` to `nodes`."""

    context: ImplementationContext
    node: Attention | AttentionGradient
    nodes: list[Node]

    def attend(self, node: Attention) -> None:
        weights = node.weights
        rows, over, wide = weights.rows, (*weights.rows, weights.keys), weights.accumulate
        scores = self._multiply(
            self._declare("scores", over),
            over,
            (weights.axes[1],),
            weights.query,
            weights.key,
            _mask_score(weights),
        )
        most, sums, total = (self._declare(what, rows) for what in ("most", "sums", "logsumexp"))
        score, top = load(scores.name, over, wide), load(most.name, rows, wide)
        nothing = op("eq", top, const(-inf, wide))
        power = op("exp", op("sub", score, where(nothing, const(0, wide), top)))
        for output, kind, body in ((most, "max", score), (sums, "sum", power)):
            self.nodes.append(
                Reduce(
                    outputs=(output,),
                    kind="max" if kind == "max" else "sum",
                    ranges=rows,
                    axes=(weights.keys,),
                    body=body,
                    origins=node.origins,
                )
            )
        value = op("add", top, op("log", load(sums.name, rows, wide)))
        if weights.logsumexp == "binary":
            binary = op("mul", value, const(1 / log(2), wide))
            self._store(total, rows, where(nothing, const(-inf, wide), binary))
        else:
            self._store(total, rows, where(nothing, const(0, wide), value))
        weight = _exponentiate(score, _read_logsumexp(weights, load(total.name, rows, wide)))
        self._multiply(node.output, weights.ranges, (weights.keys,), weight, weights.value)
        self._store_logsumexp(node, total)

    def _store_logsumexp(self, node: Attention, total: Buffer) -> None:
        rows, stored = node.weights.rows, node.logsumexp
        if stored is None:
            return
        value = load(total.name, rows, total.dtype)
        if node.logsumexp_at is None:
            ranges = tuple(symbol(f"n{k}", extent=size) for k, size in enumerate(stored.shape))
            self._store(stored, ranges, const(0, stored.dtype))
        elif node.logsumexp_at == rows:
            self._store(stored, rows, value)
        else:
            self.nodes.append(
                Scatter(
                    output=stored,
                    ranges=rows,
                    index=node.logsumexp_at,
                    indirect=(),
                    value=value,
                    mode="store",
                    sparse=True,
                    origins=node.origins,
                )
            )

    def derive(self, node: AttentionGradient) -> None:
        weights = node.weights
        ranges, over = weights.ranges, (*weights.rows, weights.keys)
        wide, column = weights.accumulate, ranges[-1]
        raw = self._multiply(self._declare("raw", over), over, (weights.axes[1],), weights.query, weights.key)
        raw_score = load(raw.name, over, wide)
        weight = self._declare("weights", over)
        scored = _substitute(_mask_score(weights), raw_score)
        logsumexp = _read_logsumexp(weights, cast(node.logsumexp, wide))
        self._store(weight, over, _exponentiate(scored, logsumexp))
        of_weight = self._multiply(
            self._declare("of_weights", over), over, (column,), node.gradient, weights.value
        )
        inner = self._sum_passed(node)
        share = load(weight.name, over, wide)
        centred = op("sub", load(of_weight.name, over, wide), inner)
        passed = self._declare("passed", over)
        self._store(passed, over, op("mul", share, centred))
        of_score = load(passed.name, over, wide)
        of_raw = self._declare("of_raw", over)
        slope = _substitute(node.slope, raw_score, of_score)
        hidden = op("eq", share, const(0, wide))
        self._store(of_raw, over, where(hidden, const(0, wide), slope))
        of_raw_score = load(of_raw.name, over, wide)
        for output, operand, left, right in (
            (node.of_query, weights.query, of_raw_score, weights.key),
            (node.of_key, weights.key, of_raw_score, weights.query),
            (node.of_value, weights.value, share, node.gradient),
        ):
            self._sum_products(output, operand, left, right)
        if node.bias is not None and node.of_bias is not None:
            bias = _substitute(node.bias, raw_score, of_score)
            self._sum(node.of_bias, node.bias_at, over, bias)

    def _sum_passed(self, node: AttentionGradient) -> Scalar:
        """Build the sum over a row of output times its gradient, which all of its weights share."""
        weights = node.weights
        rows, wide, column = weights.rows, weights.accumulate, weights.ranges[-1]
        if node.inner is not None:
            return cast(node.inner, wide)
        assert node.output is not None
        inner = self._declare("inner", rows)
        both = op("mul", cast(node.gradient, wide), cast(node.output, wide))
        self.nodes.append(
            Reduce(outputs=(inner,), kind="sum", ranges=rows, axes=(column,), body=both, origins=node.origins)
        )
        return load(inner.name, rows, wide)

    def _sum_products(self, output: Buffer, operand: Scalar, left: Scalar, right: Scalar) -> None:
        """`output`, the gradient of the load in `operand`, as the sum of products of which it is a factor."""
        kept, axes = _partition_ranges(self.node.weights, operand, right)
        found = find_operand(operand)
        assert found is not None
        direct = _invert_index(found.index, output)
        if direct is not None:
            self._multiply(output, direct, axes, left, right)
            return
        products = self._multiply(self._declare(f"{output.name}_by_rows", kept), kept, axes, left, right)
        self._scatter(output, found.index, kept, load(products.name, kept, products.dtype))

    def _sum(self, output: Buffer, index: tuple[Expr, ...], over: Sequence[Expr], value: Scalar) -> None:
        """`output` as the sum of `value` of all points that have one `index`."""
        direct = _invert_index(index, output)
        if direct is None:
            self._scatter(output, index, tuple(over), value)
            return
        axes = tuple(r for r in over if r not in direct)
        if not axes:
            self._store(output, direct, value)
            return
        sums = replace(self._declare(f"{output.name}_sums", direct), device=output.device)
        self.nodes.append(
            Reduce(
                outputs=(sums,), kind="sum", ranges=direct, axes=axes, body=value, origins=self.node.origins
            )
        )
        self._store(output, direct, load(sums.name, direct, sums.dtype))

    def _scatter(
        self, output: Buffer, index: tuple[Expr, ...], ranges: tuple[Expr, ...], value: Scalar
    ) -> None:
        """Add `value` up in `output`, in the type of sums."""
        zeros = tuple(symbol(f"n{k}", extent=size) for k, size in enumerate(output.shape))
        empty, full = (self._declare(f"{output.name}_{what}", zeros) for what in ("empty", "full"))
        self._store(empty, zeros, const(0, empty.dtype))
        self.nodes.append(
            Scatter(
                output=full,
                into=empty.name,
                ranges=ranges,
                index=index,
                indirect=(),
                value=value,
                mode="add",
                origins=self.node.origins,
            )
        )
        self._store(output, zeros, load(full.name, zeros, full.dtype))

    def _multiply(
        self,
        output: Buffer,
        ranges: tuple[Expr, ...],
        axes: tuple[Expr, ...],
        left: Scalar,
        right: Scalar,
        epilogue: Scalar | None = None,
    ) -> Buffer:
        wide = self.node.weights.accumulate
        total: Scalar = parameter(0, wide) if epilogue is None else epilogue
        self.nodes.append(
            Contraction(
                output=output,
                ranges=ranges,
                axes=axes,
                left=left,
                right=right,
                accumulate=wide,
                epilogue=cast(total, output.dtype),
                origins=self.node.origins,
            )
        )
        return output

    def _store(self, output: Buffer, ranges: tuple[Expr, ...], value: Scalar) -> None:
        body = cast(value, output.dtype)
        self.nodes.append(Pointwise(output=output, ranges=ranges, body=body, origins=self.node.origins))

    def _declare(self, what: str, ranges: Sequence[Expr]) -> Buffer:
        """Memory of its own for a value over `ranges`, in the type of sums."""
        like = self.node.output if isinstance(self.node, Attention) else self.node.of_query
        shape = get_extents(ranges)
        return Buffer(
            name=self.context.name(f"{like.name}_{what}"),
            dtype=self.node.weights.accumulate,
            shape=shape,
            strides=make_contiguous_strides(shape),
            device=like.device,
        )


def _mask_score(weights: Weights) -> Scalar:
    """Return the score of a raw one, parameter 0, or minus infinity where the mask does not hold."""
    score = weights.score
    return score if weights.mask is None else where(weights.mask, score, const(-inf, score.dtype))


def _read_logsumexp(weights: Weights, logsumexp: Scalar) -> Scalar:
    """`logsumexp`, as it is written, as a natural logarithm."""
    if weights.logsumexp == "natural":
        return logsumexp
    return op("mul", logsumexp, const(log(2), logsumexp.dtype))


def _exponentiate(score: Scalar, logsumexp: Scalar) -> Scalar:
    none: DType = score.dtype
    hidden = op("eq", score, const(-inf, none))
    return where(hidden, const(0, none), op("exp", op("sub", score, logsumexp)))


def _substitute(body: Scalar, *values: Scalar) -> Scalar:
    """`body` with its parameters replaced by `values`."""
    (made,) = rewrite((body,), lambda one: values[one.position] if isinstance(one, Parameter) else one)
    return made


def _partition_ranges(
    weights: Weights, operand: Scalar, other: Scalar
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Ranges that the load in `operand` varies along, and what the products with `other` are summed along."""
    known = find_index_symbols((operand,))
    whole = dict.fromkeys((*weights.rows, weights.keys, *(r for r in (weights.axes[1], weights.ranges[-1]))))
    of_other = find_index_symbols((other,))
    rows = (*weights.rows, weights.keys)
    every = [r for r in whole if r in rows or r in of_other]
    return tuple(r for r in every if r in known), tuple(r for r in every if r not in known)


def _can_sum(weights: Weights, operand: Scalar, other: Scalar) -> bool:
    kept, axes = _partition_ranges(weights, operand, other)
    known = find_index_symbols((operand,))
    return bool(axes) and _varies(other, axes) and known <= {*kept}


def _can_contract(rows: Sequence[Expr], axes: Sequence[Expr], left: Scalar, right: Scalar) -> bool:
    known = find_index_symbols((left,)) | find_index_symbols((right,))
    return all(r in known or _is_one(r) for r in rows) and _varies(left, axes) and _varies(right, axes)


def _varies(value: Scalar, ranges: Sequence[Expr]) -> bool:
    known = find_index_symbols((value,))
    return all(r in known or _is_one(r) for r in ranges)


def _is_one(value: Expr) -> bool:
    return value.extent is not None and as_int(value.extent) == 1


def _invert_index(index: tuple[Expr, ...], output: Buffer) -> tuple[Expr, ...] | None:
    """Return the ranges of `output` that `index` runs along; None if it is no plain list of them."""
    found: list[Expr] = []
    for number, (expr, size) in enumerate(zip(index, output.shape, strict=True)):
        if expr.is_symbol and expr.extent is size and expr not in found:
            found.append(expr)
        elif as_int(expr) == 0 and as_int(size) == 1:
            found.append(symbol(f"n{number}", extent=1))
        else:
            return None
    return tuple(found)
