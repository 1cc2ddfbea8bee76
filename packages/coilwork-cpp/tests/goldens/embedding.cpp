// embedding for x86-64-avx512
// Ranges: x0 < n0, x1 < 64.

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Division by 0 gives 0 where the processor would stop the program; -1 is apart because the least value has no negative.
template <class T>
static inline T trunc_div(T a, T b) {
  if (T(-1) < T(0) && b == T(-1)) return T(u64(0) - u64(a));
  return b == T(0) ? T(0) : T(a / b);
}

template <class T>
static inline T trunc_mod(T a, T b) {
  if (b == T(0) || (T(-1) < T(0) && b == T(-1))) return T(0);
  return T(a % b);
}

template <class T>
static inline T floor_div(T a, T b) {
  const T rest = trunc_mod(a, b);
  return T(trunc_div(a, b) - ((rest != T(0)) & ((rest < T(0)) != (b < T(0)))));
}

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

struct Arguments {
  const float* in0;
  const i64* in1;
  float* out0;
  i64 n0;
  u8* failed_checks;
};

// Check 0: index out of range in self
// A unit of work: x0 in blocks of 4096.
static void nest_0(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const i64* __restrict const in1 = a.in1;
  const i64 n0 = a.n0;
  u8* const failed_checks = a.failed_checks;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 x0_begin = unit * 4096;
    const i64 x0_end = min_i64(x0_begin + 4096, n0);
    i64 failed = 0;
    for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
      const i64 in1_value_0 = in1[x0];
      const bool bitwise_and_0 = bool((in1_value_0 >= 0) & (in1_value_0 < 100));
      failed |= i64(!bitwise_and_0);
    }
    if (failed) {
      failed_checks[0] = 1;
    }
  }
}

// Writes out0. A unit of work: x0.
static void nest_1(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const float* __restrict const in0 = a.in0;
  const i64* __restrict const in1 = a.in1;
  float* __restrict const out0 = a.out0;
  const i64 n0 = a.n0;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 x0 = unit;
    const i64 in1_value_0 = in1[x0];
    #pragma omp simd
    for (i64 x1 = 0; x1 < 64; ++x1) {
      const float in0_value_0 = in0[in1_value_0 * 64 + x1];
      out0[x0 * 64 + x1] = in0_value_0;
    }
  }
}

extern "C" i64 embedding(const float* in0, const i64* in1, float* out0, i64 n0) {
  u8 failed_checks[1] = {};
  Arguments arguments = {in0, in1, out0, n0, failed_checks};
  run(nest_0, -floor_div<i64>(-n0, 4096), 16, &arguments);
  if (failed_checks[0]) {
    return 1;
  }
  run(nest_1, n0, 1024, &arguments);
  return 0;
}
