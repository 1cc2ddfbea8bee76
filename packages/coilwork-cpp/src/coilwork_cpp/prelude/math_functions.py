"""C++ functions of numbers that the C library does not have, or not as fast or as exact.

The first are straight-line code, so that loops vectorise. The others have loops as long as their operands
say: divisors, recurrences, series and continued fractions. `prelude.FUNCTIONS` knows them by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# ---- straight-line ----


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


# ---- iterative ----


# The three-term recurrences of orthogonal polynomials (DLMF 18.9); a degree that is no number from 0 on gives
# 0, as torch has it.
_POLYNOMIAL: Final = """
template <class T>
static inline T {name}(T x, T degree) {{
  if (!(degree > -1) || degree >= T(9.2e18)) return 0;
  const i64 n = i64(degree);
  {special}
  if (n == 0) return 1;
  T before = 1, last = {first};
  for (i64 k = 1; k < n && last == last; ++k) {{
    const T next = {step};
    before = last;
    last = next;
  }}
  return last;
}}
"""
_HIGH: Final = 'if (n > (sizeof(T) == 4 ? 128 : 512)) return __builtin_nanf("");'

ITERATED: Final[Mapping[str, str]] = {
    "gcd": """
// By Euclid's algorithm, with the sign that remainders of the least number leave.
template <class T>
static inline T gcd(T a, T b) {
  T left = a < 0 ? T(-u64(a)) : a, right = b < 0 ? T(-u64(b)) : b;
  while (left != 0) {
    const T rest = T(right % left);
    right = left;
    left = rest;
  }
  return right;
}
""",
    "hermite_h": _POLYNOMIAL.format(
        name="hermite_h", special=_HIGH, first="x + x", step="(x + x) * last - T(2 * k) * before"
    ),
    "hermite_he": _POLYNOMIAL.format(
        name="hermite_he", special=_HIGH, first="x", step="x * last - T(k) * before"
    ),
    "laguerre": _POLYNOMIAL.format(
        name="laguerre",
        special="if (x == 0) return 1;",
        first="1 - x",
        step="((T(2 * k) + (1 - x)) * last - T(k) * before) / T(k + 1)",
    ),
    "legendre": _POLYNOMIAL.format(
        name="legendre",
        special="if (x == 1 || x == -1) return x > 0 || n % 2 == 0 ? 1 : -1;",
        first="x",
        step="(T(2 * k + 1) * x * last - T(k) * before) / T(k + 1)",
    ),
    "zeta": """
// Hurwitz' zeta function: terms one by one, then Euler and Maclaurin's formula (DLMF 25.11.28).
static inline double zeta(double s, double q) {
  if (s == 1) return __builtin_inf();
  if (s < 1) return __builtin_nan("");
  if (q <= 0) {
    if (q == __builtin_floor(q)) return __builtin_inf();
    if (s != __builtin_floor(s)) return __builtin_nan("");
  }
  double at = q, term = pow(q, -s), total = term;
  for (i64 k = 0; k < 9 || at <= 9; ++k) {
    at += 1;
    term = pow(at, -s);
    total += term;
    if (__builtin_fabs(term) < 1e-17 * __builtin_fabs(total)) return total;
  }
  total += term * at / (s - 1) - 0.5 * term;
  // (2k)! / B(2k)
  static constexpr double factors[12] = {
      12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10,
      -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
      1.8152105401943546773e17, -7.1661652561756670113e18};
  double rising = 1;
  for (int k = 0; k < 12; ++k) {
    rising *= s + 2 * k;
    term /= at;
    const double more = rising * term / factors[k];
    total += more;
    if (__builtin_fabs(more) < 1e-17 * __builtin_fabs(total)) break;
    rising *= s + 2 * k + 1;
    term /= at;
  }
  return total;
}
""",
    "gamma_deviance": """
// (x - a) / a - log(x / a)
static inline double gamma_deviance(double a, double x) {
  const double mu = (x - a) / a;
  if (__builtin_fabs(mu) >= 0.05) return mu - log(x / a);
  double sum = 0;
  for (int k = 14; k > 1; --k) sum = 1.0 / k - mu * sum;
  return mu * mu * sum;
}
""",
    "gamma_factor": """
// x^a exp(-x) / gamma(a + 1), from 12 on by Stirling's series (DLMF 5.11.3)
static inline double gamma_factor(double a, double x) {
  if (a < 12) return exp(a * log(x) - x - lgamma(a + 1));
  const double z = 1 / (a * a);
  const double rest = 1.0 / 12 + z * (-1.0 / 360 + z * (1.0 / 1260 + z * (-1.0 / 1680 + z * (1.0 / 1188 +
      z * (-691.0 / 360360 + z / 156)))));
  return exp(-a * gamma_deviance(a, x) - rest / a) / __builtin_sqrt(6.283185307179586 * a);
}
""",
    "gamma_near": """
// Temme's uniform expansion (Gil, Segura and Temme, SIAM J. Sci. Comput. 34, 2012, section 2.5), for a from \
12 on and x near it
static inline double gamma_near(double a, double x, bool upper) {
  static constexpr double f[27] = {
      1.0, -0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073,
      0.0003527336860670194, -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06,
      -1.85406221071516e-06, 8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09,
      1.0261809784240309e-08, -4.382036018453353e-09, 9.14769958223679e-10, -2.5514193994946248e-11,
      -5.830772132550426e-11, 2.4361948020667415e-11, -5.0276692801141755e-12, 1.1004392031956135e-13,
      3.371763262400985e-13, -1.392388722418162e-13, 2.8534893807047445e-14, -5.139111834242572e-16,
      -1.9752288294349442e-15, 8.099521156704561e-16};
  const double deviance = gamma_deviance(a, x);
  const double root = __builtin_sqrt(2 * deviance), eta = x < a ? -root : root;
  double later = f[26], here = f[25], sum = here;
  for (int k = 24; k > 0; --k) {
    const double earlier = f[k] + (k + 1) * later / a;
    later = here;
    here = earlier;
    sum = sum * eta + here;
  }
  // `later` is the second coefficient
  const double rest = sum / (1 + later / a) * exp(-a * deviance) / __builtin_sqrt(6.283185307179586 * a);
  const double half = eta * __builtin_sqrt(0.5 * a);
  return upper ? 0.5 * erfc(half) + rest : 0.5 * erfc(-half) - rest;
}
""",
    "gamma_fraction": """
// x^-a exp(x) gamma(a, x), a continued fraction (DLMF 8.9.2) by Lentz' algorithm
static inline double gamma_fraction(double a, double x) {
  double below = x + 1 - a, c = 1e300, d = 1 / below, result = d;
  for (int k = 1; k < 2000; ++k) {
    const double above = k * (a - k);
    below += 2;
    d = above * d + below;
    d = 1 / (__builtin_fabs(d) < 1e-300 ? 1e-300 : d);
    c = below + above / c;
    c = __builtin_fabs(c) < 1e-300 ? 1e-300 : c;
    result *= c * d;
    if (__builtin_fabs(c * d - 1) < 2e-16) break;
  }
  return result;
}
""",
    "gamma_upper_series": """
// The upper function's ratio for small x and a (DLMF 8.7.3), with the logarithm of gamma(1 + a) exact in a
static inline double gamma_upper_series(double a, double x) {
  double term = 1, sum = 0;
  for (int k = 1; k < 200; ++k) {
    term *= -x / k;
    const double more = term / (a + k);
    sum += more;
    if (__builtin_fabs(more) < 1e-17 * __builtin_fabs(sum)) break;
  }
  const double small = -a * (0.5772156649015329 + a * (-0.8224670334241132 + a * (0.40068563438653143 + a * (
      -0.27058080842778454 + a * (0.20738555102867398 + a * (-0.16955717699740818 + a * (
      0.1440498967684612 - a * 0.12550966952474304)))))));
  const double power = a * log(x) - (a < 0.01 ? small : lgamma(1 + a));
  return -expm1(power) - a * exp(power) * sum;
}
""",
    "regularized_gamma": """
// gamma(a, x) / gamma(a), the lower or the upper incomplete one; the smaller of both is computed
static inline double regularized_gamma(double a, double x, bool upper) {
  if (x < 0 || a < 0) return __builtin_nan("");
  if (a == 0) return x > 0 ? !upper : __builtin_nan("");
  if (x == 0) return upper;
  if (a == __builtin_inf()) return x == __builtin_inf() ? __builtin_nan("") : double(upper);
  if (x == __builtin_inf()) return !upper;
  if (a != a || x != x) return __builtin_nan("");
  if (a >= 12 && x > 0.3 * a && x < 2.35 * a) return gamma_near(a, x, upper);
  if (x < 1.5 && a < 12 && (x < 0.5 ? a * log(x) > -0.6931471805599453 : a < x + 0.25)) {
    const double above = gamma_upper_series(a, x);
    return upper ? above : 1 - above;
  }
  if (x >= 1.5 && x > a) {
    const double above = gamma_factor(a, x) * a * gamma_fraction(a, x);
    return upper ? above : 1 - above;
  }
  double term = 1, sum = 1;
  for (i64 k = 1; term > 1e-17 * sum; ++k) {
    term *= x / (a + k);
    sum += term;
  }
  const double below = gamma_factor(a, x) * sum;
  return upper ? 1 - below : below;
}
""",
    "igamma": "static inline double igamma(double a, double x) { return regularized_gamma(a, x, false); }\n",
    "igammac": "static inline double igammac(double a, double x) { return regularized_gamma(a, x, true); }\n",
}
