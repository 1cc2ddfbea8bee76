// column_mean for x86-64-avx512
// Ranges: x0 < 4096, r0 < 500.

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

struct Arguments {
  const float* in0;
  float* out0;
};

// Writes out0. A unit of work: x0 in blocks of 64.
static void nest_0(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const float* __restrict const in0 = a.in0;
  float* __restrict const out0 = a.out0;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 x0_begin = unit * 64;
    const i64 x0_end = x0_begin + 64;
    alignas(64) double sum_0_total[64];
    alignas(64) float sum_0[64];
    #pragma omp simd
    for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
      sum_0_total[x0 - x0_begin] = 0.0;
    }
    for (i64 r0_begin = 0; r0_begin < 500; r0_begin += 64) {
      const i64 r0_end = min_i64(r0_begin + 64, 500);
      #pragma omp simd
      for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
        sum_0[x0 - x0_begin] = 0.0f;
      }
      for (i64 r0 = r0_begin; r0 < r0_end; ++r0) {
        #pragma omp simd
        for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
          const float in0_value_0 = in0[r0 * 4096 + x0];
          sum_0[x0 - x0_begin] = in0_value_0 + sum_0[x0 - x0_begin];
        }
      }
      #pragma omp simd
      for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
        sum_0_total[x0 - x0_begin] += sum_0[x0 - x0_begin];
      }
    }
    #pragma omp simd
    for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
      out0[x0] = float(sum_0_total[x0 - x0_begin]) / 5e+02f;
    }
  }
}

extern "C" void column_mean(const float* in0, float* out0) {
  Arguments arguments = {in0, out0};
  run(nest_0, 64, 1, &arguments);
}
