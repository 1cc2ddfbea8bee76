"""C++ functions of floats that the C library has not, or not as fast or as exact: straight-line code, so that
loops vectorise.

Names are what `prelude.FUNCTIONS` knows them by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ARITHMETIC: Final[Mapping[str, str]] = {
    "multiply_add": """
// a * b + c, fused where the processor can, whatever the compiler's settings for other code are.
static inline float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
""",
    "exp_f32": """
// e^x = 2^n * e^r, |r| <= ln(2)/2 (Cody and Waite's two-part reduction), with a minimax polynomial for e^r.
// Error below 1 ulp. 2^n is applied in two factors, so that subnormal results are right. x is clamped to \
[-104, 89] by its
// bits, which order floats of one sign: of comparisons of floats gcc makes eight instructions with masks, \
of these two.
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
""",
    "erf_f32": """
// erf(x) = x * P(x^2) / Q(x^2), a minimax fit on |x| <= 3.95, where erf rounds to 1. Error below 3 ulp. \
Magnitudes are
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
""",
    "fmod_f32": """
// a - b * trunc(a / b), exactly: in double precision a step takes 50 bits off the quotient, which has 277 \
at most, and what
// it leaves is a multiple of b's last bit that fits. The last quotient may be one off.
static inline float fmod_f32(float a, float b) {
  const double size = __builtin_fabs(double(b)), y = size > 1e200 ? 1e200 : size, inverse = 1 / y;
  double rest = __builtin_fabs(double(a));
  rest = __builtin_fma(-__builtin_floor(rest * inverse), y, rest);
  rest = __builtin_fma(-__builtin_floor(rest * inverse), y, rest);
  rest = __builtin_fma(-__builtin_floor(rest * inverse), y, rest);
  rest = __builtin_fma(-__builtin_floor(rest * inverse), y, rest);
  rest = __builtin_fma(-__builtin_floor(rest * inverse), y, rest);
  rest = __builtin_fma(-__builtin_floor(rest * inverse), y, rest);
  const double below = rest < 0 ? rest + y : rest;
  return __builtin_copysignf(float(below >= y ? below - y : below), a);
}
""",
    "fmod_f64": """
// In one step where the quotient is a number that a double holds; the library takes it off bit by bit.
static inline double fmod_f64(double a, double b) {
  const double x = __builtin_fabs(a), y = __builtin_fabs(b), quotient = x / y;
  if (!(quotient < 0x1p52 && y - y == 0)) return fmod(a, b);
  const double rest = __builtin_fma(-__builtin_trunc(quotient), y, x);
  return __builtin_copysign(rest < 0 ? rest + y : rest, a);
}
""",
    "lgamma_f32": """
// Stirling's series (Abramowitz and Stegun, 6.1.40) in double precision, from 8 on; below, Gamma(z + 8) / \
Gamma(z) is a product,
// and negative numbers are reflected (6.1.17).
static inline float lgamma_f32(float x) {
  const double z = __builtin_fabs(double(x)), w = z < 8 ? z + 8 : z, u = 1 / w, v = u * u;
  double series = -3617.0 / 122400;
  series = __builtin_fma(series, v, 1.0 / 156);
  series = __builtin_fma(series, v, -691.0 / 360360);
  series = __builtin_fma(series, v, 1.0 / 1188);
  series = __builtin_fma(series, v, -1.0 / 1680);
  series = __builtin_fma(series, v, 1.0 / 1260);
  series = __builtin_fma(series, v, -1.0 / 360);
  series = __builtin_fma(series, v, 1.0 / 12);
  const double stirling = (w - 0.5) * (log(w) - 1) + (0.91893853320467274178 - 0.5) + u * series;
  const double raised = z * (z + 1) * (z + 2) * (z + 3) * (z + 4) * (z + 5) * (z + 6) * (z + 7);
  const double rise = z < 8 ? raised : 1.0;
  const double sine = __builtin_fabs(sin(3.14159265358979323846 * (z - __builtin_rint(z))));
  const double reflected = log(x < 0 ? rise * (3.14159265358979323846 / (z * sine)) : rise);
  const double difference = x < 0 ? reflected - stirling : stirling - reflected;
  // the zeros are exact
  const double result = (x == 1) | (x == 2) ? 0.0 : difference;
  return z > 1e300 ? float(z) : float(result);
}
""",
    "floor_mod_float": """
// The sign of the divisor.
static inline float floor_mod_float(float a, float b) {
  const float rest = fmod_f32(a, b);
  return (rest != 0) & ((rest < 0) != (b < 0)) ? rest + b : rest;
}
static inline double floor_mod_float(double a, double b) {
  const double rest = fmod_f64(a, b);
  return (rest != 0) & ((rest < 0) != (b < 0)) ? rest + b : rest;
}
""",
    "floor_div_float": """
// The quotient of what the exact remainder leaves, so that it agrees with the remainder (as in Python).
template <class T>
static inline T floor_quotient(T a, T b, T rest) {
  if (b == 0) return a / b;
  T quotient = (a - rest) / b;
  if ((rest != 0) & ((b < 0) != (rest < 0))) quotient -= 1;
  if (quotient == 0) return T(__builtin_copysign(0.0, a / b));
  const T down = T(__builtin_floor(quotient));
  return quotient - down > T(0.5) ? down + 1 : down;
}
static inline float floor_div_float(float a, float b) { return floor_quotient(a, b, fmod_f32(a, b)); }
static inline double floor_div_float(double a, double b) { return floor_quotient(a, b, fmod_f64(a, b)); }
""",
    "power": """
// Integer power by squaring, wrapping around. Negative exponents as in torch: 0 but for bases 1 and -1.
template <class T>
static inline T power(T base, T exponent) {
  if (exponent < T(0)) return base == T(1) ? T(1) : base == T(-1) ? T(exponent % T(2) == T(0) ? 1 : -1) : \
T(0);
  u64 result = 1, square = u64(base);
  for (u64 rest = u64(exponent); rest; rest >>= 1, square *= square) {
    if (rest & 1) result *= square;
  }
  return T(result);
}
""",
    "log_add_exp": """
// log(exp(a) + exp(b)) without overflow.
static inline double log_add_exp(double a, double b) {
  const double high = max_nan(a, b), low = min_nan(a, b);
  return high == low && high - high != 0 ? high : high + log1p(exp(low - high));
}
""",
}
