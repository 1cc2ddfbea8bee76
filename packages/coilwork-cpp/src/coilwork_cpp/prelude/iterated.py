"""C++ functions whose loops are as long as their operands say: divisors, recurrences, series and continued
fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
