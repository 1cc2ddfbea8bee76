// softmax for x86-64-avx512
// Ranges: x0 < n0, r0 < 1000.

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// a * b + c, fused where the processor can, whatever the compiler's settings for other code are.
static inline float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// e^x = 2^n * e^r, |r| <= ln(2)/2 (Cody and Waite's two-part reduction), with a minimax polynomial for e^r.
// Error below 1 ulp. 2^n is applied in two factors, so that subnormal results are right. x is clamped to [-104, 89] by its
// bits, which order floats of one sign: of comparisons of floats gcc makes eight instructions with masks, of these two.
static inline float exp_f32(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const i32 above = i32(bits < 0xc2d00000u ? bits : 0xc2d00000u);
  const float t = __builtin_bit_cast(float, above < 0x42b20000 ? above : 0x42b20000);
  const float n = __builtin_rintf(t * 1.44269504f);
  const float r = multiply_add(n, -1.42860677e-06f, multiply_add(n, -0.693145752f, t));
  float q = 0.00138142204f;
  q = multiply_add(q, r, 0.00836889911f);
  q = multiply_add(q, r, 0.0416684039f);
  q = multiply_add(q, r, 0.166665196f);
  q = multiply_add(q, r, 0.49999994f);
  const float y = 1.0f + multiply_add(r * r, q, r);
  const i32 whole = i32(n), half = whole >> 1;
  const float first = __builtin_bit_cast(float, (half + 127) << 23);
  const float second = __builtin_bit_cast(float, (whole - half + 127) << 23);
  const float result = y * first * second;
  return x != x ? x : result;
}

template <class T, T... numbers>
struct Numbers {};
template <i64 count>
#ifdef __clang__
using NumbersBelow = __make_integer_seq<Numbers, i64, count>;
#else
using NumbersBelow = Numbers<i64, __integer_pack(count)...>;
#endif

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

static inline float from_order(i32 order) { return __builtin_bit_cast(float, order ^ ((order >> 31) & 0x7fffffff)); }
static inline double from_order(i64 order) {
  return __builtin_bit_cast(double, order ^ ((order >> 63) & 0x7fffffffffffffff));
}

// Integers in the order of floats, -0 before 0; NaN, of either sign, comes after all numbers, or before them.
static inline i32 to_order(float x, bool nan_last) {
  const i32 bits = __builtin_bit_cast(i32, x), last = 0x7fffffff;
  return x != x ? (nan_last ? last : -last - 1) : bits ^ ((bits >> 31) & last);
}
static inline i64 to_order(double x, bool nan_last) {
  const i64 bits = __builtin_bit_cast(i64, x), last = 0x7fffffffffffffff;
  return x != x ? (nan_last ? last : -last - 1) : bits ^ ((bits >> 63) & last);
}

template <i64 apart, class Row>
static inline auto fold_row_max(Row low) {
  if constexpr (apart == 0) {
    return low[0];
  } else {
    Row high = exchanged<apart>(low);
    low = low > high ? low : high;
    return fold_row_max<apart / 2>(low);
  }
}
template <i64 N, class T>
static inline T fold_max(const T* lanes) {
#ifdef __AVX512F__
  constexpr i64 widest = 64;
#elif defined(__AVX__)
  constexpr i64 widest = 32;
#else
  constexpr i64 widest = 16;
#endif
  constexpr i64 bytes = N * i64(sizeof(T));
  if constexpr (N == 1) {
    return lanes[0];
  } else if constexpr (bytes > widest || bytes < 16) {
    T half[N / 2];
    for (i64 l = 0; l < N / 2; ++l) {
      T low = lanes[l], high = lanes[l + N / 2];
      low = low > high ? low : high;
      half[l] = low;
    }
    return fold_max<N / 2>(half);
  } else {
    typedef T Row __attribute__((vector_size(bytes)));
    Row row;
    __builtin_memcpy(&row, lanes, bytes);
    return fold_row_max<N / 2>(row);
  }
}

template <i64 N>
static inline float fold_max(const float* lanes) {
  alignas(64) i32 orders[N];
  #pragma omp simd
  for (i64 l = 0; l < N; ++l) orders[l] = to_order(lanes[l], true);
  return from_order(fold_max<N>(orders));
}
template <i64 N>
static inline double fold_max(const double* lanes) {
  alignas(64) i64 orders[N];
  #pragma omp simd
  for (i64 l = 0; l < N; ++l) orders[l] = to_order(lanes[l], true);
  return from_order(fold_max<N>(orders));
}

template <i64 apart, class Row>
static inline auto fold_row_sum(Row low) {
  if constexpr (apart == 0) {
    return low[0];
  } else {
    Row high = exchanged<apart>(low);
    low += high;
    return fold_row_sum<apart / 2>(low);
  }
}
template <i64 N, class T>
static inline T fold_sum(const T* lanes) {
#ifdef __AVX512F__
  constexpr i64 widest = 64;
#elif defined(__AVX__)
  constexpr i64 widest = 32;
#else
  constexpr i64 widest = 16;
#endif
  constexpr i64 bytes = N * i64(sizeof(T));
  if constexpr (N == 1) {
    return lanes[0];
  } else if constexpr (bytes > widest || bytes < 16) {
    T half[N / 2];
    for (i64 l = 0; l < N / 2; ++l) {
      T low = lanes[l], high = lanes[l + N / 2];
      low += high;
      half[l] = low;
    }
    return fold_sum<N / 2>(half);
  } else {
    typedef T Row __attribute__((vector_size(bytes)));
    Row row;
    __builtin_memcpy(&row, lanes, bytes);
    return fold_row_sum<N / 2>(row);
  }
}

// `value`, or NaN where `nan` is true: all bits are set then. Not a second select, which gcc joins with the one before into
// arithmetic on masks, three times as slow. Integers have none.
template <class T>
static inline T with_nan(T value, bool) { return value; }
static inline float with_nan(float value, bool nan) {
  return __builtin_bit_cast(float, __builtin_bit_cast(u32, value) | (nan ? ~0u : 0u));
}
static inline double with_nan(double value, bool nan) {
  return __builtin_bit_cast(double, __builtin_bit_cast(u64, value) | (nan ? ~u64(0) : u64(0)));
}

// NaN if either is NaN.
template <class T>
static inline T max_nan(T a, T b) {
  return with_nan(a > b ? a : b, a != a);
}

extern "C" int torch_parallel_for(i64 begin, i64 end, i64 grain, void (*body)(i64, i64, void*), void* context);

// Calls body on all units, on torch's threads if there are more than `grain`.
static inline void run(void (*body)(i64, i64, void*), i64 units, i64 grain, void* context) {
  if (units <= grain) {
    body(0, units, context);
  } else {
    torch_parallel_for(0, units, grain, body, context);
  }
}

struct Arguments {
  const float* in0;
  float* out0;
  i64 n0;
};

// Writes out0. A unit of work: x0.
static void nest_0(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const float* __restrict const in0 = a.in0;
  float* __restrict const out0 = a.out0;
  const i64 n0 = a.n0;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 x0 = unit;
    alignas(64) float row_0[1000];
    float max_0 = -__builtin_inff();
    alignas(64) float max_0_lanes[32];
    #pragma omp simd
    for (i64 l = 0; l < 32; ++l) {
      max_0_lanes[l] = -__builtin_inff();
    }
    for (i64 r0_first = 0; r0_first < 1000 - 8; r0_first += 32) {
      #pragma omp simd
      for (i64 l = 0; l < 32; ++l) {
        const i64 r0 = r0_first + l;
        const float in0_value_0 = in0[r0 + x0 * 1000];
        max_0_lanes[l] = max_nan<float>(in0_value_0, max_0_lanes[l]);
      }
    }
    alignas(64) float max_0_left[8];
    #pragma omp simd
    for (i64 l = 0; l < 8; ++l) {
      const i64 r0 = 1000 - 8 + l;
      const float in0_value_1 = in0[r0 + x0 * 1000];
      max_0_left[l] = in0_value_1;
    }
    for (i64 l = 0; l < 8; ++l) {
      max_0 = max_nan<float>(max_0_left[l], max_0);
    }
    max_0 = max_nan<float>(fold_max<32>(max_0_lanes), max_0);
    double sum_0 = 0.0;
    alignas(64) float sum_0_lanes[32];
    #pragma omp simd
    for (i64 l = 0; l < 32; ++l) {
      sum_0_lanes[l] = 0.0f;
    }
    for (i64 r0_first = 0; r0_first < 1000 - 8; r0_first += 32) {
      #pragma omp simd
      for (i64 l = 0; l < 32; ++l) {
        const i64 r0 = r0_first + l;
        const float in0_value_2 = in0[r0 + x0 * 1000];
        const float exp_0 = exp_f32(in0_value_2 - max_0);
        sum_0_lanes[l] = exp_0 + sum_0_lanes[l];
        row_0[r0] = exp_0;
      }
    }
    alignas(64) float sum_0_left[8];
    #pragma omp simd
    for (i64 l = 0; l < 8; ++l) {
      const i64 r0 = 1000 - 8 + l;
      const float in0_value_3 = in0[r0 + x0 * 1000];
      const float exp_1 = exp_f32(in0_value_3 - max_0);
      sum_0_left[l] = exp_1;
      row_0[r0] = exp_1;
    }
    for (i64 l = 0; l < 8; ++l) {
      sum_0 = sum_0_left[l] + sum_0;
    }
    sum_0 += fold_sum<32>(sum_0_lanes);
    const float sum_result_0 = float(sum_0);
    #pragma omp simd
    for (i64 r0 = 0; r0 < 1000; ++r0) {
      out0[r0 + x0 * 1000] = row_0[r0] / sum_result_0;
    }
  }
}

extern "C" void softmax(const float* in0, float* out0, i64 n0) {
  Arguments arguments = {in0, out0, n0};
  run(nest_0, n0, 10, &arguments);
}
