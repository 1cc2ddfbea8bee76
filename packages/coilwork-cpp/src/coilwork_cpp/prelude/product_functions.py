"""C++ functions that multiply blocks of matrices in registers, for attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRODUCTS: Final[Mapping[str, str]] = {
    "Panel": """
#ifdef __AVX512F__
constexpr i64 panel_lanes = 16, panel_vectors = 4;
#elif defined(__AVX__)
constexpr i64 panel_lanes = 8, panel_vectors = 2;
#elif defined(__aarch64__)
constexpr i64 panel_lanes = 4, panel_vectors = 4;
#else
constexpr i64 panel_lanes = 4, panel_vectors = 2;
#endif
typedef float Panel __attribute__((vector_size(4 * panel_lanes)));
""",
    # Outer products of a column of R numbers and a row of C vectors stay in registers. GCC fuses products and
    # sums of vectors only where it may contract, whatever the flags for the rest of the file are.
    "product": """
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
template <int mode, int R, int C>
static inline __attribute__((always_inline)) void product_tile(
    const float* a, i64 a_row, i64 a_step, const float* b, i64 b_row, float* c, i64 c_row, i64 depth,
    const float* kept) {
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
  Panel sums[R][C];
  #pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    #pragma GCC unroll 8
    for (int j = 0; j < C; ++j) sums[i][j] = Panel{};
  }
  for (i64 k = 0; k < depth; ++k) {
    Panel right[C];
    #pragma GCC unroll 8
    for (int j = 0; j < C; ++j) __builtin_memcpy(&right[j], b + k * b_row + j * panel_lanes, sizeof(Panel));
    #pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Panel left = a[i * a_row + k * a_step] - Panel{};
      #pragma GCC unroll 8
      for (int j = 0; j < C; ++j) sums[i][j] += left * right[j];
    }
  }
  #pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    #pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      float* const at = c + i * c_row + j * panel_lanes;
      if constexpr (mode != 0) {
        Panel old;
        __builtin_memcpy(&old, at, sizeof(Panel));
        sums[i][j] += mode == 1 ? old : old * kept[i];
      }
      __builtin_memcpy(at, &sums[i][j], sizeof(Panel));
    }
  }
}
template <int mode, int C>
static __attribute__((noinline)) void product_panel(
    const float* a, i64 a_row, i64 a_step, const float* b, i64 b_row, float* c, i64 c_row, i64 rows,
    i64 depth, const float* kept) {
  i64 r = 0;
  for (; r + 6 <= rows; r += 6) {
    product_tile<mode, 6, C>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, depth, kept + r);
  }
  for (; r + 2 <= rows; r += 2) {
    product_tile<mode, 2, C>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, depth, kept + r);
  }
  if (r < rows) {
    product_tile<mode, 1, C>(a + r * a_row, a_row, a_step, b, b_row, c + r * c_row, c_row, depth, kept + r);
  }
}
// c[r, j] = sum over k of a[r * a_row + k * a_step] * b[k * b_row + j], for `columns` columns, of which whole
// vectors are read. With mode 1 it is added to what c holds, with mode 2 to kept[r] times that.
template <int mode, i64 columns>
static inline void product(
    const float* a, i64 a_row, i64 a_step, const float* b, i64 b_row, float* c, i64 c_row, i64 rows,
    i64 depth, const float* kept) {
  constexpr i64 vectors = (columns + panel_lanes - 1) / panel_lanes, whole = vectors / panel_vectors;
  for (i64 n = 0; n < whole; ++n) {
    const i64 j = n * panel_vectors * panel_lanes;
    product_panel<mode, panel_vectors>(a, a_row, a_step, b + j, b_row, c + j, c_row, rows, depth, kept);
  }
  if constexpr (vectors % panel_vectors != 0) {
    constexpr i64 j = whole * panel_vectors * panel_lanes;
    product_panel<mode, vectors % panel_vectors>(
        a, a_row, a_step, b + j, b_row, c + j, c_row, rows, depth, kept);
  }
}
#pragma GCC pop_options
""",
    "align_workspace": """
static inline float* align_workspace(float* memory) {
  return reinterpret_cast<float*>((__builtin_bit_cast(u64, memory) + 63) & ~u64(63));
}
""",
}
