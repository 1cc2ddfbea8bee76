"""C++ functions that stay in registers: fold the lanes of a reduction into one number, transpose a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# ---- folds ----


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


# ---- transposition ----


TRANSPOSITION: Final[Mapping[str, str]] = {
    "shuffled": """
// The numbers of `a` and `b`, taken for one vector, at the places `at`.
template <class Row, class Places>
static inline Row shuffled(Row a, Row b, Places at) {
#ifdef __clang__
  constexpr i64 count = sizeof(a) / sizeof(a[0]);
  Row found = a;
  for (i64 l = 0; l < count; ++l) found[l] = at[l] < count ? a[at[l]] : b[at[l] - count];
  return found;
#else
  return __builtin_shuffle(a, b, at);
#endif
}
""",
    # Eklundh (1972) exchanges ever smaller blocks. Here rounds inside of lanes of 16 bytes, then of whole
    # lanes: each shuffle is one instruction.
    "transpose_square": """
// out[c * out_step + r] = in[r * in_step + c] of L * L numbers, L of them to a vector, W to a lane of 16 \
bytes.
template <i64 L, class T>
static inline void transpose_square(const T* in, i64 in_step, T* out, i64 out_step) {
  typedef T Row __attribute__((vector_size(L * sizeof(T))));
  constexpr i64 W = 16 / sizeof(T);
  decltype(Row() == Row()) zip_low, zip_high, even_lanes, odd_lanes;
  for (i64 l = 0; l < L; ++l) {
    zip_low[l] = l / W * W + l % W / 2 + l % 2 * L;
    zip_high[l] = zip_low[l] + W / 2;
    even_lanes[l] = l / W * 2 * W + l % W;
    odd_lanes[l] = even_lanes[l] + W;
  }
  Row rows[L], next[L];
  #pragma GCC unroll 32
  for (i64 r = 0; r < L; ++r) __builtin_memcpy(&rows[r], in + r * in_step, sizeof(Row));
  // Within each W rows, lanes are transposed: every round zips rows that are W / 2 apart.
  #pragma GCC unroll 4
  for (i64 round = 1; round < W; round *= 2) {
    #pragma GCC unroll 32
    for (i64 r = 0; r < L; r += 2) {
      const i64 from = r / W * W + r % W / 2;
      next[r] = shuffled(rows[from], rows[from + W / 2], zip_low);
      next[r + 1] = shuffled(rows[from], rows[from + W / 2], zip_high);
    }
    #pragma GCC unroll 32
    for (i64 r = 0; r < L; ++r) rows[r] = next[r];
  }
  // Lanes are the numbers of a smaller matrix, whose rows are W apart.
  #pragma GCC unroll 4
  for (i64 apart = W; apart < L; apart *= 2) {
    #pragma GCC unroll 16
    for (i64 pair = 0; pair < L / 2; ++pair) {
      const i64 r = pair / apart * 2 * apart + pair % apart;
      next[r] = shuffled(rows[r], rows[r + apart], even_lanes);
      next[r + apart] = shuffled(rows[r], rows[r + apart], odd_lanes);
    }
    #pragma GCC unroll 32
    for (i64 r = 0; r < L; ++r) rows[r] = next[r];
  }
  #pragma GCC unroll 32
  for (i64 r = 0; r < L; ++r) __builtin_memcpy(out + r * out_step, &rows[r], sizeof(Row));
}
""",
    "transpose_squares": """
// Of a matrix that is smaller than a square, halves of squares. The last ones overlap those before them.
template <i64 L, class T>
static inline void transpose_squares(
    const T* __restrict in, i64 in_step, T* __restrict out, i64 out_step, i64 rows, i64 columns) {
  if (rows >= L && columns >= L) {
    for (i64 r = 0; r < rows; r += L) {
      const i64 row = min_i64(r, rows - L);
      for (i64 c = 0; c < columns; c += L) {
        const i64 column = min_i64(c, columns - L);
        transpose_square<L>(in + row * in_step + column, in_step, out + column * out_step + row, out_step);
      }
    }
  } else if constexpr (L * sizeof(T) > 16) {
    transpose_squares<L / 2>(in, in_step, out, out_step, rows, columns);
  } else {
    for (i64 c = 0; c < columns; ++c) {
      for (i64 r = 0; r < rows; ++r) out[c * out_step + r] = in[r * in_step + c];
    }
  }
}
""",
    "square_size": """
// The size of squares: numbers in a vector, but no more than there are vector registers.
template <class T>
constexpr i64 square_size() {
#ifdef __AVX512F__
  constexpr i64 bytes = 64, registers = 32;
#elif defined(__AVX__)
  constexpr i64 bytes = 32, registers = 16;
#else
  constexpr i64 bytes = 16, registers = 16;
#endif
  constexpr i64 numbers = bytes / sizeof(T);
  return numbers < registers ? numbers : registers;
}
""",
    "transpose": """
// out[c * out_step + r] = in[r * in_step + c]
template <class T>
static inline void transpose(const T* in, i64 in_step, T* out, i64 out_step, i64 rows, i64 columns) {
  transpose_squares<square_size<T>()>(in, in_step, out, out_step, rows, columns);
}
""",
    "transpose_far": """
// As `transpose`, of at most 64 rows, to memory that is no tile: whole cache lines are written there, by \
way of a tile if need be.
// Halves of them evict each other where rows are pages apart.
template <class T>
static inline void transpose_far(const T* in, i64 in_step, T* out, i64 out_step, i64 rows, i64 columns) {
  if constexpr (square_size<T>() * sizeof(T) == 64) {
    transpose(in, in_step, out, out_step, rows, columns);
  } else {
    alignas(64) T tile[4096];
    for (i64 first = 0; first < columns; first += 64) {
      const i64 count = min_i64(64, columns - first);
      transpose(in + first, in_step, tile, 64, rows, count);
      for (i64 c = 0; c < count; ++c) {
        __builtin_memcpy(out + (first + c) * out_step, tile + c * 64, rows * sizeof(T));
      }
    }
  }
}
""",
}
