"""Where compiled code may differ from eager, and why: what a sweep finds beyond this list is a bug."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownException:
    """Operators, ways, dtypes and statuses by shell patterns, several separated by blanks; `reason` is a
    sentence for a user.

    The statuses are those of `README.md`, without a default: what explains other strides does not explain
    other values.
    """

    ops: str
    statuses: str
    reason: str
    ways: str = "*"
    dtypes: str = "*"

    def covers(self, op: str, way: str, dtype: str, status: str) -> bool:
        """Whether this is about what became of the unit."""
        wanted = ((op, self.ops), (way, self.ways), (dtype, self.dtypes), (status, self.statuses))
        return all(any(fnmatchcase(given, one) for one in among.split()) for given, among in wanted)


KNOWN: Final[tuple[KnownException, ...]] = (
    KnownException(
        ops="std_mean var_mean std_mean.unbiased var_mean.unbiased",
        ways="hard",
        statuses="wrong",
        reason=(
            "the mean of numbers one of which is infinite is NaN; eager's running mean is so from the "
            "number after it on: it is "
            "infinite if that is the last one."
        ),
    ),
    KnownException(
        ops="special.chebyshev_polynomial_? special.shifted_chebyshev_polynomial_?",
        ways="hard",
        statuses="wrong",
        reason=(
            "eager's recurrence subtracts infinities where a polynomial of a large number overflows two "
            "degrees early, and does not "
            "start with NaN: its results are NaN, and from memory that nothing was written to. They are "
            "infinite, and NaN."
        ),
    ),
    KnownException(
        ops="signal.windows.kaiser",
        ways="hard",
        statuses="wrong",
        reason=(
            "with a beta beyond 88 eager divides infinities, whose exponential is not yet of the Bessel "
            "function: NaN for 0."
        ),
    ),
    KnownException(
        ops="clamp",
        ways="hard",
        statuses="strides",
        reason=(
            "where limits are broadcast and their layouts contradict that of the input, torch's meta "
            "function, whose strides a "
            "compiled graph has to keep, names others than torch's kernel makes."
        ),
    ),
    KnownException(
        ops="torch.ops.aten._efficient_attention_forward",
        ways="*backward",
        statuses="strides",
        reason=(
            "torch's meta function gives gradients the layout of what they are gradients of, as a "
            "compiled graph has to keep it; "
            "its kernel makes them contiguous."
        ),
    ),
    KnownException(
        ops="tensordot",
        ways="*backward",
        dtypes="bfloat16 float16",
        statuses="strides",
        reason=(
            "torch's meta function lays a product in 16 bits out by a first factor that is expanded, as "
            "if memory held it; eager's "
            "kernel goes by the other one. A compiled graph has to keep the former's strides."
        ),
    ),
    KnownException(
        ops="__rmod__",
        dtypes="int64",
        statuses="wrong",
        reason=(
            "the remainder of a division by 0 is undefined on GPUs: eager's is 2^32 - 1 where the "
            "dividend fits 32 bits, for which "
            "its compiler divides faster, else -1; compiled code's is -1 always."
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRefusal:
    """Calls that eager refuses, or should, and compiled code need not: a sweep of bad calls leaves them out.

    Names, what was changed in a good call, and eager's words are shell patterns, names several separated by
    blanks; `reason` is a sentence for a user.
    """

    ops: str
    reason: str
    changes: str = "*"
    words: str = "*"

    def covers(self, op: str, change: str, words: str) -> bool:
        """Tell if this is about the call of `op` with `change`, of which eager says `words`."""
        is_op = any(fnmatchcase(op, one) for one in self.ops.split())
        return is_op and fnmatchcase(change, self.changes) and fnmatchcase(words, self.words)


_LATER_KERNELS: Final = (
    "eager has no kernel for the type before torch 2.13; compiled code computes what it computes since then."
)
_POSITIONS_OF_GRADIENTS: Final = (
    "eager's kernel writes a gradient beyond its memory, and refuses only the gradient of that; "
    "compiled code "
    "refuses the position, with an IndexError."
)
KNOWN_REFUSALS: Final[tuple[KnownRefusal, ...]] = (
    KnownRefusal(
        ops="trace aten.trace.default", words="\"trace\" not implemented for 'Half'*", reason=_LATER_KERNELS
    ),
    KnownRefusal(
        ops="signbit aten.signbit.default",
        words="\"signbit_cpu\" not implemented for 'UInt16'*",
        reason=_LATER_KERNELS,
    ),
    KnownRefusal(
        ops="masked.std masked.var",
        words="\"where_cpu\" not implemented for 'UInt16'*",
        reason=_LATER_KERNELS,
    ),
    KnownRefusal(
        ops="aten.adaptive_max_pool?d_backward.default",
        words="index * is out of bounds for dimension * with size *",
        reason=_POSITIONS_OF_GRADIENTS,
    ),
    KnownRefusal(
        ops="aten.embedding_dense_backward.default",
        words="index_select(): self indexing axis dim should be positive*",
        reason=_POSITIONS_OF_GRADIENTS,
    ),
    KnownRefusal(
        ops="nn.functional.embedding_bag",
        changes="argument *: on another device",
        words="Function EmbeddingBagBackward0 returned an invalid gradient*expected device meta*",
        reason=(
            "eager's gradient of bags reads the memory of weights that have none, and refuses the call "
            "or crashes; "
            "it runs as captured, with the same."
        ),
    ),
    KnownRefusal(
        ops="lu_unpack aten.lu_unpack.default",
        changes="argument 1: * more*",
        reason=(
            "eager's kernel writes beyond its memory where there are more pivots than rows, and may "
            "refuse the "
            "call, return or crash later; compiled code calls the same kernel."
        ),
    ),
)


def refusal_reason(op: str, change: str, words: str) -> str | None:
    """Why a bad call of `op` is left out; None if it is judged."""
    return next((known.reason for known in KNOWN_REFUSALS if known.covers(op, change, words)), None)


def reason(record: Mapping[str, str]) -> str | None:
    """Why the unit of `record` may fail as it says; None if it may not."""
    unit = (record["op"], record["way"], record["dtype"], record["status"])
    return next((known.reason for known in KNOWN if known.covers(*unit)), None)
