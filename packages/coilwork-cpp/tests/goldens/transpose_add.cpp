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
    alignas(64) float tile_0[4160];
    for (i64 x1 = x1_begin; x1 < x1_end; ++x1) {
      #pragma omp simd
      for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
        tile_0[(x1 - x1_begin) * 65 + (x0 - x0_begin)] = in0[x0 + x1 * 200];
      }
    }
    for (i64 x0 = x0_begin; x0 < x0_end; ++x0) {
      #pragma omp simd
      for (i64 x1 = x1_begin; x1 < x1_end; ++x1) {
        const float in1_value_0 = in1[x0 * 300 + x1];
        out0[x0 * 300 + x1] = tile_0[(x1 - x1_begin) * 65 + (x0 - x0_begin)] + in1_value_0;
      }
    }
  }
}

extern "C" void transpose_add(const float* in0, const float* in1, float* out0) {
  Arguments arguments = {in0, in1, out0};
  run(nest_0, 20, 8, &arguments);
}
