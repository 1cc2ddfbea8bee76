// transpose_add for x86-64-avx512
// Ranges: x0 < 200, x1 < 300.

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

static inline i64 min_i64(i64 a, i64 b) { return a < b ? a : b; }

extern "C" int torch_parallel_for(i64 begin, i64 end, i64 grain, void (*body)(i64, i64, void*), void* context);

// Calls body on all units, on torch's threads if there are more than `grain`.
static inline void run(void (*body)(i64, i64, void*), i64 units, i64 grain, void* context) {
  if (units <= grain) {
    body(0, units, context);
  } else {
    torch_parallel_for(0, units, grain, body, context);
  }
}

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

// out[c * out_step + r] = in[r * in_step + c] of L * L numbers, L of them to a vector, W to a lane of 16 bytes.
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

// out[c * out_step + r] = in[r * in_step + c]
template <class T>
static inline void transpose(const T* in, i64 in_step, T* out, i64 out_step, i64 rows, i64 columns) {
  transpose_squares<square_size<T>()>(in, in_step, out, out_step, rows, columns);
}

struct Arguments {
  const float* in0;
  const float* in1;
  float* out0;
};

// Writes out0. A unit of work: x0 in blocks of 64, x1 in blocks of 64.
static void nest_0(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const float* __restrict const in0 = a.in0;
  const float* __restrict const in1 = a.in1;
  float* __restrict const out0 = a.out0;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 x0_begin = unit / 5 * 64;
    const i64 x0_end = min_i64(x0_begin + 64, 200);
    const i64 x1_begin = (unit % 5) * 64;
    const i64 x1_end = min_i64(x1_begin + 64, 300);
    alignas(64) float tile_0[4096];
    transpose(in0 + (x0_begin + x1_begin * 200), 200, tile_0, 64, x1_end - x1_begin, x0_end - x0_begin);
    for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
      #pragma omp simd
      for (i64 x1 = x1_begin; x1 < x1_end; ++x1) {
        const float in1_value_0 = in1[x0 * 300 + x1];
        out0[x0 * 300 + x1] = tile_0[(x0 - x0_begin) * 64 + (x1 - x1_begin)] + in1_value_0;
      }
    }
  }
}

extern "C" void transpose_add(const float* in0, const float* in1, float* out0) {
  Arguments arguments = {in0, in1, out0};
  run(nest_0, 20, 8, &arguments);
}
