// bias_gelu for x86-64-avx512
// Ranges: x0 < n0, x1 < 3072.
// aten.add.Tensor at model.py:12: x = self.fc(x) + self.bias
// aten.gelu at model.py:13 (mlp): x = F.gelu(x)

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

extern "C" {
  __attribute__((simd("notinbranch"), const)) double erf(double) noexcept;
}

static inline float bf16_to_f32(u16 x) { return __builtin_bit_cast(float, u32(x) << 16); }

// a * b + c, fused where the processor can, whatever the compiler's settings for other code are.
static inline float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// erf(x) = x * P(x^2) / Q(x^2), a minimax fit on |x| <= 3.95, where erf rounds to 1. Error below 3 ulp. Magnitudes are
// clamped by their bits: of comparisons of floats gcc makes several times as many instructions.
static inline float erf_f32(float x) {
  const u32 bits = __builtin_bit_cast(u32, x), magnitude = bits & 0x7fffffffu;
  const float t = __builtin_bit_cast(float, magnitude < 0x407ccccdu ? magnitude : 0x407ccccdu);
  const float s = t * t;
  float p = 2.02585898e-06f;
  p = multiply_add(p, s, 0.000284666632f);
  p = multiply_add(p, s, 0.00380766345f);
  p = multiply_add(p, s, 0.0528738759f);
  p = multiply_add(p, s, 0.191540137f);
  p = multiply_add(p, s, 1.12837911f);
  float q = 3.78301811e-05f;
  q = multiply_add(q, s, 0.00117058645f);
  q = multiply_add(q, s, 0.0150541002f);
  q = multiply_add(q, s, 0.114555217f);
  q = multiply_add(q, s, 0.503080726f);
  q = multiply_add(q, s, 1.0f);
  const u32 size = __builtin_bit_cast(u32, t * p / q), most = size < 0x3f800000u ? size : 0x3f800000u;
  const float result = __builtin_bit_cast(float, most | (bits & 0x80000000u));
  return x != x ? x : result;
}

// Rounds to nearest even; NaN becomes the quiet NaN.
static inline u16 f32_to_bf16(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return u16(x != x ? 0x7fc0u : rounded);
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
  const u16* in0;
  const u16* in1;
  u16* out0;
  i64 n0;
};

// Writes out0. A unit of work: x0.
static void nest_0(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const u16* __restrict const in0 = a.in0;
  const u16* __restrict const in1 = a.in1;
  u16* __restrict const out0 = a.out0;
  const i64 n0 = a.n0;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 x0 = unit;
    #pragma omp simd
    for (i64 x1 = 0; x1 < 3072; ++x1) {
      const u16 in0_value_0 = in0[x0 * 3072 + x1];
      const u16 in1_value_0 = in1[x1];
      const float add_0 = bf16_to_f32(in0_value_0) + bf16_to_f32(in1_value_0);
      const float mul_0 = add_0 * 0.5f * (erf_f32(add_0 * 0.70710677f) + 1.0f);
      out0[x0 * 3072 + x1] = f32_to_bf16(mul_0);
    }
  }
}

extern "C" void bias_gelu(const u16* in0, const u16* in1, u16* out0, i64 n0) {
  Arguments arguments = {in0, in1, out0, n0};
  run(nest_0, n0, 2, &arguments);
}
