"""What `batch_invariant` promises of a whole program: no call of torch's whose sums run in an order that the batch decides."""

from __future__ import annotations

from typing import Final

from coilwork.errors import BatchVariantError
from coilwork_ir.loc import Origin
from coilwork_ir.program.nodes import ExternCall, Program
from coilwork_ir.program.walk import walk

# Operators of torch that move, select, order or draw elements, and add or multiply none of them: what a row gives is then the
# same wherever it is. Sums, products and all that is built from them are not listed: kernels choose blocks by sizes.
MOVES: Final = frozenset(
    {
        *("clone", "copy_", "copy", "_to_copy", "fill_", "fill", "zero_", "zeros", "ones", "full", "empty", "arange"),
        *("empty_strided", "empty_like", "eye", "scalar_tensor", "lift_fresh_copy", "resize_", "set_", "constant_pad_nd"),
        *("cat", "stack", "split", "split_with_sizes", "chunk", "unbind", "slice", "select", "as_strided", "view", "_unsafe_view"),
        *("permute", "transpose", "expand", "reshape", "alias", "detach", "repeat", "repeat_interleave", "roll", "flip"),
        *("index", "index_select", "_unsafe_index", "gather", "take", "embedding", "masked_select", "masked_fill", "masked_scatter"),
        *("index_fill", "index_copy", "scatter", "select_scatter", "slice_scatter", "as_strided_scatter", "diagonal", "tril", "triu"),
        *("nonzero", "nonzero_static", "sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "searchsorted", "bucketize"),
        *("unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "isin", "where", "equal", "tril_indices", "triu_indices"),
        *("max", "min", "amax", "amin", "argmax", "argmin", "aminmax", "any", "all", "cummax", "cummin", "max_pool2d_with_indices"),
        *("max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d", "reflection_pad1d", "reflection_pad2d"),
        *("reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d", "_local_scalar_dense", "item"),
        *("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "rand", "randn", "randint", "randperm", "bernoulli"),
        *("rand_like", "randn_like", "randint_like", "native_dropout", "multinomial", "uniform", "normal", "exponential"),
        *("random", "geometric", "log_normal", "cauchy", "uniform_", "normal_", "bernoulli_", "exponential_", "random_"),
    }
)  # fmt: skip


def check_batch_invariant(program: Program) -> None:
    """Nothing, if no call of `program` may give a row other bits in another batch.

    Raises:
        BatchVariantError: one may; it names the operator and the user's line.
    """
    for part in walk(program):
        for instruction in part.instructions:
            if isinstance(instruction, ExternCall) and not _moves(instruction.target):
                raise BatchVariantError(
                    "batch-variant",
                    f"{instruction.target} runs as torch's own kernel, which may choose another order of sums for another batch"
                    + _where(instruction.origins),
                    reason="batch_invariant=True promises that a row's bits do not depend on the rows beside it",
                    remedy="compute this part outside of torch.compile, or with another operator; or batch_invariant=False",
                )


def _moves(target: str) -> bool:
    namespace, _, rest = target.partition(".")
    return namespace == "aten" and rest.partition(".")[0] in MOVES


def _where(origins: tuple[Origin, ...]) -> str:
    lines = [f"{o.file}:{o.line}" for o in origins if o.file]
    return f", for {', '.join(dict.fromkeys(lines))}" if lines else ""
