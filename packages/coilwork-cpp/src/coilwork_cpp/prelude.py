"""C++ functions that kernels call, kept as text; a file holds those it needs, and the functions these need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from coilwork_cpp.iterated import ITERATED

ALIASES: Final = """
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
"""

# One of them per reduction: `low` becomes the combination of `low` and `high`, numbers or vectors. Vectors that are
# wider than a register gcc would take to pieces.
_FOLD: Final = """
template <i64 N, class T>
static inline T fold_{kind}(const T* lanes) {{
#ifdef __AVX512F__
  constexpr i64 widest = 64;
#elif defined(__AVX__)
  constexpr i64 widest = 32;
#else
  constexpr i64 widest = 16;
#endif
  if constexpr (N == 1) {{
    return lanes[0];
  }} else {{
    T half[N / 2];
    if constexpr (N / 2 * i64(sizeof(T)) > widest) {{
      for (i64 l = 0; l < N / 2; ++l) {{
        T low = lanes[l], high = lanes[l + N / 2];
        {combine}
        half[l] = low;
      }}
    }} else {{
      typedef T Half __attribute__((vector_size(N / 2 * sizeof(T))));
      Half low, high;
      __builtin_memcpy(&low, lanes, sizeof(Half));
      __builtin_memcpy(&high, lanes + N / 2, sizeof(Half));
      {combine}
      __builtin_memcpy(half, &low, sizeof(Half));
    }}
    return fold_{kind}<N / 2>(half);
  }}
}}
"""
# Lanes are folded pairwise, in registers.
_FOLDS: Final[Mapping[str, str]] = {
    f"fold_{kind}": _FOLD.format(kind=kind, combine=combine)
    for kind, combine in {
        "sum": "low += high;",
        "prod": "low *= high;",
        "max": "const auto best = low > high ? low : high; low = low != low ? low : best;",
        "min": "const auto best = low < high ? low : high; low = low != low ? low : best;",
        "any": "low |= high;",
        "all": "low &= high;",
        "xor_sum": "low ^= high;",
    }.items()
}

# Written as straight-line code so that the loops which use them vectorise.
FUNCTIONS: Final[Mapping[str, str]] = {
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
// exp(x) = 2^n * exp(r), |r| <= ln(2)/2 (Cody and Waite's two-part reduction), with a minimax polynomial for exp(r).
// Error below 1 ulp. 2^n is applied in two factors, so that subnormal results are right.
static inline float exp_f32(float x) {
  const float low = x < -104.0f ? -104.0f : x;
  const float t = low > 89.0f ? 89.0f : low;
  const float n = __builtin_rintf(t * 1.44269504f);
  const float r = multiply_add(n, -1.42860677e-06f, multiply_add(n, -0.693145752f, t));
  float q = 0.00138142204f;
  q = multiply_add(q, r, 0.00836889911f);
  q = multiply_add(q, r, 0.0416684039f);
  q = multiply_add(q, r, 0.166665196f);
  q = multiply_add(q, r, 0.49999994f);
  const float y = 1.0f + multiply_add(r * r, q, r);
  const i32 power = i32(n), half = power >> 1;
  const float first = __builtin_bit_cast(float, (half + 127) << 23);
  const float second = __builtin_bit_cast(float, (power - half + 127) << 23);
  return y * first * second;
}
""",
    "erf_f32": """
// erf(x) = x * P(x^2) / Q(x^2), a minimax fit on |x| <= 3.95, where erf rounds to 1. Error below 3 ulp.
static inline float erf_f32(float x) {
  const float low = x < -3.95f ? -3.95f : x;
  const float t = low > 3.95f ? 3.95f : low;
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
  const float y = t * p / q;
  const float above = y < -1.0f ? -1.0f : y;
  return above > 1.0f ? 1.0f : above;
}
""",
    "bf16_to_f32": """
static inline float bf16_to_f32(u16 x) { return __builtin_bit_cast(float, u32(x) << 16); }
""",
    "f32_to_bf16": """
// Rounds to nearest even; NaN becomes the quiet NaN.
static inline u16 f32_to_bf16(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return u16(x != x ? 0x7fc0u : rounded);
}
""",
    "f16_to_f32": """
static inline float f16_to_f32(u16 x) {
  const u32 magnitude = u32(x & 0x7fff) << 13;
  // 2^112 moves the exponent's bias from 15 to 127 and normalises subnormals.
  const u32 scaled = __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) * 0x1p112f);
  const u32 bits = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : scaled;
  return __builtin_bit_cast(float, bits | (u32(x & 0x8000) << 16));
}
""",
    "f32_to_f16": """
// Rounds to nearest even; from 65520 on: infinity.
static inline u16 f32_to_f16(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 magnitude = bits & 0x7fffffffu;
  const u32 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Adding 0.5 aligns a subnormal's bits at the end of the significand, rounded by the hardware.
  const u32 subnormal = __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
  const u32 finite = magnitude < 0x38800000u ? subnormal : normal;
  const u32 special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return u16((magnitude >= 0x477ff000u ? special : finite) | ((bits >> 16) & 0x8000u));
}
""",
    "f8e4m3_to_f32": """
static inline float f8e4m3_to_f32(u8 x) {
  const u32 magnitude = u32(x & 0x7f) << 20;
  const u32 scaled = __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) * 0x1p120f);
  const u32 bits = (x & 0x7f) == 0x7f ? 0x7fc00000u : scaled;
  return __builtin_bit_cast(float, bits | (u32(x & 0x80) << 24));
}
""",
    "f32_to_f8e4m3": """
// Rounds to nearest even; the type has no infinity: what does not fit becomes 448, as torch does from 2.13 on.
static inline u8 f32_to_f8e4m3(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 magnitude = bits & 0x7fffffffu;
  const u32 normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u) >> 20;
  const u32 subnormal = __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) + 0x1p14f) - 0x46800000u;
  const u32 finite = magnitude < 0x3c800000u ? subnormal : normal;
  const u32 saturated = magnitude >= 0x43e00000u ? 0x7eu : finite;
  return u8((magnitude > 0x7f800000u ? 0x7fu : saturated) | ((bits >> 24) & 0x80u));
}
""",
    "f8e5m2_to_f32": """
static inline float f8e5m2_to_f32(u8 x) { return f16_to_f32(u16(u32(x) << 8)); }
""",
    "f32_to_f8e5m2": """
// Rounds to nearest even; overflow gives infinity.
static inline u8 f32_to_f8e5m2(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 magnitude = bits & 0x7fffffffu;
  const u32 normal = (magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - 0x38000000u) >> 21;
  const u32 subnormal = __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) + 0x1p7f) - 0x43000000u;
  const u32 finite = magnitude < 0x38800000u ? subnormal : normal;
  const u32 special = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
  return u8((magnitude >= 0x47800000u ? special : finite) | ((bits >> 24) & 0x80u));
}
""",
    "float_to_u64": """
static inline u64 float_to_u64(double x) { return x < 0 ? u64(i64(x)) : u64(x); }
""",
    # Negated twice, for gcc takes float(i32(x)) for trunc(x): -0, NaN and what is out of range would stay as they are.
    "to_i32": """
template <class T>
static inline i32 to_i32(T x) { return i32(0u - u32(i32(-x))); }
""",
    "to_i64": """
template <class T>
static inline i64 to_i64(T x) { return i64(u64(0) - u64(i64(-x))); }
""",
    "with_nan": """
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
""",
    "min_nan": """
// NaN if either is NaN.
template <class T>
static inline T min_nan(T a, T b) {
  return with_nan(a < b ? a : b, a != a);
}
""",
    "max_nan": """
// NaN if either is NaN.
template <class T>
static inline T max_nan(T a, T b) {
  return with_nan(a > b ? a : b, a != a);
}
""",
    "min_i64": """
static inline i64 min_i64(i64 a, i64 b) { return a < b ? a : b; }
""",
    "max_i64": """
static inline i64 max_i64(i64 a, i64 b) { return a > b ? a : b; }
""",
    "trunc_div": """
// Division by 0 gives 0 where the processor would stop the program; -1 is apart because the least value has no negative.
template <class T>
static inline T trunc_div(T a, T b) {
  if (T(-1) < T(0) && b == T(-1)) return T(u64(0) - u64(a));
  return b == T(0) ? T(0) : T(a / b);
}
""",
    "trunc_mod": """
template <class T>
static inline T trunc_mod(T a, T b) {
  if (b == T(0) || (T(-1) < T(0) && b == T(-1))) return T(0);
  return T(a % b);
}
""",
    "floor_div": """
template <class T>
static inline T floor_div(T a, T b) {
  const T rest = trunc_mod(a, b);
  return T(trunc_div(a, b) - ((rest != T(0)) & ((rest < T(0)) != (b < T(0)))));
}
""",
    "floor_mod": """
// The sign of the divisor.
template <class T>
static inline T floor_mod(T a, T b) {
  const T rest = trunc_mod(a, b);
  return T(rest + (((rest != T(0)) & ((rest < T(0)) != (b < T(0)))) ? b : T(0)));
}
""",
    "fmod_f32": """
// a - b * trunc(a / b), exactly: in double precision a step takes 50 bits off the quotient, which has 277 at most, and what
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
// Stirling's series (Abramowitz and Stegun, 6.1.40) in double precision, from 8 on; below, Gamma(z + 8) / Gamma(z) is a product,
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
  if (exponent < T(0)) return base == T(1) ? T(1) : base == T(-1) ? T(exponent % T(2) == T(0) ? 1 : -1) : T(0);
  u64 result = 1, square = u64(base);
  for (u64 rest = u64(exponent); rest; rest >>= 1, square *= square) {
    if (rest & 1) result *= square;
  }
  return T(result);
}
""",
    "shift_left": """
template <class T>
static inline T shift_left(T a, T b) {
  const u64 bits = 8 * sizeof(T);
  return u64(b) >= bits ? T(0) : T(u64(a) << (u64(b) & 63));
}
""",
    "shift_right": """
template <class T>
static inline T shift_right(T a, T b) {
  const u64 bits = 8 * sizeof(T);
  if (u64(b) < bits) return T(a >> b);
  return T(-1) < T(0) ? T(a >> (bits - 1)) : T(0);
}
""",
    "log_add_exp": """
// log(exp(a) + exp(b)) without overflow.
static inline double log_add_exp(double a, double b) {
  const double high = max_nan(a, b), low = min_nan(a, b);
  return high == low && high - high != 0 ? high : high + log1p(exp(low - high));
}
""",
    "precedes_max": """
// Whether v at position p comes before the best so far: NaN first, then larger, then earlier.
template <class T>
static inline bool precedes_max(T v, i64 p, T best, i64 at) {
  return (v > best) | ((v != v) & (best == best)) | (((v == best) | ((v != v) & (best != best))) & (p < at));
}
""",
    "precedes_min": """
// Whether v at position p comes before the best so far: NaN first, then smaller, then earlier.
template <class T>
static inline bool precedes_min(T v, i64 p, T best, i64 at) {
  return (v < best) | ((v != v) & (best == best)) | (((v == best) | ((v != v) & (best != best))) & (p < at));
}
""",
    **_FOLDS,
    **ITERATED,
    "Workspace": """
extern "C" void* malloc(unsigned long size) noexcept;
extern "C" void free(void* memory) noexcept;
// Working memory of a thread, freed at the end of its scope.
template <class T>
struct Workspace {
  T* memory;
  explicit Workspace(i64 elements) : memory(static_cast<T*>(malloc(sizeof(T) * u64(elements)))) {
    if (!memory) __builtin_trap();
  }
  ~Workspace() { free(memory); }
};
""",
    "run": """
extern "C" int torch_parallel_for(i64 begin, i64 end, i64 grain, void (*body)(i64, i64, void*), void* context);

// Calls body on all units, on torch's threads if there are more than `grain`.
static inline void run(void (*body)(i64, i64, void*), i64 units, i64 grain, void* context) {
  if (units <= grain) {
    body(0, units, context);
  } else {
    torch_parallel_for(0, units, grain, body, context);
  }
}
""",
}

# Functions of the C library by arity, with vector versions in libmvec (glibc 2.35).
_VECTOR: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
         "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"), 1,
    ),
    **dict.fromkeys(("pow", "atan2", "hypot"), 2),
}  # fmt: skip
_SCALAR: Final[Mapping[str, int]] = {"lgamma": 1, "fmod": 2}
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


def _math_declaration(name: str, vector: bool) -> str | None:
    base, kind = (name[:-1], "float") if name.endswith("f") and name not in ("erf",) else (name, "double")
    arity = _VECTOR.get(base) or _SCALAR.get(base)
    if arity is None:
        return None
    attributes = '__attribute__((simd("notinbranch"), const)) ' if vector and base in _VECTOR else ""
    return f"{attributes}{kind} {name}({', '.join([kind] * arity)}) noexcept;"


def declarations(names: Iterable[str], *, vector_math: bool) -> tuple[str, ...]:
    """Declarations and definitions for the functions `names` and what they call, in an order that compiles.

    `vector_math`: libmvec may be used. Names that nothing here defines (types, builtins) are left out.
    """
    needed: dict[str, None] = {}
    math: dict[str, str] = {}

    def visit(name: str) -> None:
        name = name.partition("<")[0]
        if name in needed or name in math:
            return
        text = FUNCTIONS.get(name)
        if text is None:
            declaration = _math_declaration(name, vector_math)
            if declaration is not None:
                math[name] = declaration
            return
        for word in sorted(set(_WORD.findall(text)) - {name}):
            if word in FUNCTIONS or _math_declaration(word, vector_math) is not None:
                visit(word)
        needed[name] = None

    for name in sorted(names):
        visit(name)
    extern = ""
    if math:
        lines = "\n".join(f"  {math[name]}" for name in sorted(math))
        extern = f'extern "C" {{\n{lines}\n}}'
    return tuple(text for text in (ALIASES, extern, *(FUNCTIONS[name] for name in needed)) if text)
