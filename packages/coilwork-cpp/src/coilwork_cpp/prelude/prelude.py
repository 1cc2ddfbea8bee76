"""C++ functions that kernels call, kept as text; a file holds those it needs, and the functions
these need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from coilwork_cpp.prelude.math_functions import ARITHMETIC, ITERATED
from coilwork_cpp.prelude.product_functions import PRODUCTS
from coilwork_cpp.prelude.register_functions import FOLDS, TRANSPOSITION
from coilwork_cpp.prelude.sort_functions import SORTING

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

# Written as straight-line code so that the loops which use them vectorise.
FUNCTIONS: Final[Mapping[str, str]] = {
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
// Rounds to nearest even; the type has no infinity: what does not fit becomes 448, as torch does from 2.13 \
on.
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
    # Negated twice, for gcc takes float(i32(x)) for trunc(x): -0, NaN and what is out of range would stay as
    # they are.
    "to_i32": """
template <class T>
static inline i32 to_i32(T x) { return i32(0u - u32(i32(-x))); }
""",
    "to_i64": """
template <class T>
static inline i64 to_i64(T x) { return i64(u64(0) - u64(i64(-x))); }
""",
    "with_nan": """
// `value`, or NaN where `nan` is true: all bits are set then. Not a second select, which gcc joins with the \
one before into
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
    "hidden_i64": """
// Hides from the compiler that a position is a comparison: vectorising g++ 12 then reads elsewhere, one \
before the first.
static inline i64 hidden_i64(i64 x) { asm("" : "+r"(x)); return x; }
""",
    "hidden_true": """
// True, which the compiler does not know: of a mask that it knows, g++ makes an access to all lanes.
static inline bool hidden_true() { bool x = true; asm("" : "+r"(x)); return x; }
""",
    "trunc_div": """
// Division by 0 gives 0 where the processor would stop the program; -1 is apart because the least value has \
no negative.
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
    **FOLDS,
    **ITERATED,
    **ARITHMETIC,
    **TRANSPOSITION,
    **SORTING,
    **PRODUCTS,
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
extern "C" int torch_parallel_for(i64 begin, i64 end, i64 grain, void (*body)(i64, i64, void*), void* \
context);

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


def list_declarations(names: Iterable[str], *, vector_math: bool) -> tuple[str, ...]:
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
