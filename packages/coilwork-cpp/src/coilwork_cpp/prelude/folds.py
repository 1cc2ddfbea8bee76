"""C++ functions that fold the lanes of a reduction, pairwise and in registers, into one number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# One of them per reduction: `low` becomes the combination of `low` and `high`, numbers or vectors. Vectors
# that are wider than a register, or narrower than 16 bytes, gcc would take to pieces, the latter by way of
# memory; and so it does with the halves of a vector of 64 bytes, which are exchanged instead.
_FOLD: Final = """
template <i64 apart, class Row>
static inline auto fold_row_{kind}(Row low) {{
  if constexpr (apart == 0) {{
    return low[0];
  }} else {{
    Row high = exchanged<apart>(low);
    {combine}
    return fold_row_{kind}<apart / 2>(low);
  }}
}}
template <i64 N, class T>
static inline T fold_{kind}(const T* lanes) {{
#ifdef __AVX512F__
  constexpr i64 widest = 64;
#elif defined(__AVX__)
  constexpr i64 widest = 32;
#else
  constexpr i64 widest = 16;
#endif
  constexpr i64 bytes = N * i64(sizeof(T));
  if constexpr (N == 1) {{
    return lanes[0];
  }} else if constexpr (bytes > widest || bytes < 16) {{
    T half[N / 2];
    for (i64 l = 0; l < N / 2; ++l) {{
      T low = lanes[l], high = lanes[l + N / 2];
      {combine}
      half[l] = low;
    }}
    return fold_{kind}<N / 2>(half);
  }} else {{
    typedef T Row __attribute__((vector_size(bytes)));
    Row row;
    __builtin_memcpy(&row, lanes, bytes);
    return fold_row_{kind}<N / 2>(row);
  }}
}}
"""
# Extremes of floats are those of integers in the same order: one instruction for a pair instead of four with
# masks for NaN.
_OF_FLOATS: Final = """
template <i64 N>
static inline float fold_{kind}(const float* lanes) {{
  alignas(64) i32 orders[N];
  #pragma omp simd
  for (i64 l = 0; l < N; ++l) orders[l] = to_order(lanes[l], {nan_last});
  return from_order(fold_{kind}<N>(orders));
}}
template <i64 N>
static inline double fold_{kind}(const double* lanes) {{
  alignas(64) i64 orders[N];
  #pragma omp simd
  for (i64 l = 0; l < N; ++l) orders[l] = to_order(lanes[l], {nan_last});
  return from_order(fold_{kind}<N>(orders));
}}
"""
_COMBINED: Final[Mapping[str, str]] = {
    "sum": "low += high;",
    "prod": "low *= high;",
    "max": "low = low > high ? low : high;",
    "min": "low = low < high ? low : high;",
    "any": "low |= high;",
    "all": "low &= high;",
    "xor_sum": "low ^= high;",
}
_NAN_LAST: Final[Mapping[str, str]] = {"max": "true", "min": "false"}

FOLDS: Final[Mapping[str, str]] = {
    **{
        f"fold_{kind}": _FOLD.format(kind=kind, combine=combine)
        + (_OF_FLOATS.format(kind=kind, nan_last=_NAN_LAST[kind]) if kind in _NAN_LAST else "")
        for kind, combine in _COMBINED.items()
    },
    # The places stand there at once: a loop that writes them g++ unrolls and folds step by step, for each
    # reduction anew, which took more than half of the time to compile a kernel of twelve sums.
    "exchanged": """
// The numbers of `row`, each at the place that is `apart` from its own.
template <i64 apart, class Row, i64... l>
static inline Row exchanged_at(Row row, Numbers<i64, l...>) {
  const decltype(row == row) at = {(l ^ apart)...};
  return shuffled(row, row, at);
}
template <i64 apart, class Row>
static inline Row exchanged(Row row) {
  return exchanged_at<apart>(row, NumbersBelow<i64(sizeof(row) / sizeof(row[0]))>());
}
""",
    "NumbersBelow": """
template <class T, T... numbers>
struct Numbers {};
template <i64 count>
#ifdef __clang__
using NumbersBelow = __make_integer_seq<Numbers, i64, count>;
#else
using NumbersBelow = Numbers<i64, __integer_pack(count)...>;
#endif
""",
    "to_order": """
// Integers in the order of floats, -0 before 0; NaN, of either sign, comes after all numbers, or before them.
static inline i32 to_order(float x, bool nan_last) {
  const i32 bits = __builtin_bit_cast(i32, x), last = 0x7fffffff;
  return x != x ? (nan_last ? last : -last - 1) : bits ^ ((bits >> 31) & last);
}
static inline i64 to_order(double x, bool nan_last) {
  const i64 bits = __builtin_bit_cast(i64, x), last = 0x7fffffffffffffff;
  return x != x ? (nan_last ? last : -last - 1) : bits ^ ((bits >> 63) & last);
}
""",
    "from_order": """
static inline float from_order(i32 order) { return __builtin_bit_cast(float, order ^ ((order >> 31) & \
0x7fffffff)); }
static inline double from_order(i64 order) {
  return __builtin_bit_cast(double, order ^ ((order >> 63) & 0x7fffffffffffffff));
}
""",
    "ordered_max": """
template <class T>
static inline T ordered_max(T a, T b) {
  const auto low = to_order(a, true), high = to_order(b, true);
  return from_order(low > high ? low : high);
}
""",
    "ordered_min": """
template <class T>
static inline T ordered_min(T a, T b) {
  const auto low = to_order(a, false), high = to_order(b, false);
  return from_order(low < high ? low : high);
}
""",
}
