#include "sha256.hpp"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace coilwork_aot {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
alignas(16) constexpr uint32_t ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotate(uint32_t value, int count) { return value >> count | value << (32 - count); }

void add_blocks(uint32_t* state, const uint8_t* data, size_t blocks) {
  for (; blocks; --blocks, data += 64) {
    uint32_t words[64];
    for (int k = 0; k < 16; ++k) {
      memcpy(&words[k], data + 4 * k, 4);
      words[k] = __builtin_bswap32(words[k]);
    }
    for (int k = 16; k < 64; ++k) {
      const uint32_t a = words[k - 15], b = words[k - 2];
      words[k] = words[k - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + words[k - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    uint32_t v[8];
    memcpy(v, state, sizeof v);
    for (int k = 0; k < 64; ++k) {
      const uint32_t first = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + ROUNDS[k] + words[k];
      const uint32_t second = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      memmove(v + 1, v, 7 * sizeof *v);
      v[4] += first;
      v[0] = first + second;
    }
    for (int k = 0; k < 8; ++k) state[k] += v[k];
  }
}

#if defined(__x86_64__)
#define COILWORK_WITH_SHA __attribute__((target("sha,sse4.1"), always_inline))

// The state as the processor's own instructions keep it: ABEF and CDGH (Intel SDM, SHA256RNDS2), and sixteen words of a message.
struct Quick {
  __m128i abef, cdgh, abef_before, cdgh_before, words[4];

  COILWORK_WITH_SHA inline void read(const uint32_t* state) {
    const __m128i abcd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
    const __m128i efgh = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
    const __m128i cdab = _mm_shuffle_epi32(abcd, 0xb1), hgfe = _mm_shuffle_epi32(efgh, 0x1b);
    abef = _mm_alignr_epi8(cdab, hgfe, 8);
    cdgh = _mm_blend_epi16(hgfe, cdab, 0xf0);
  }
  COILWORK_WITH_SHA inline void write(uint32_t* state) const {
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
  }
  COILWORK_WITH_SHA inline void begin(const uint8_t* data) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    abef_before = abef;
    cdgh_before = cdgh;
    for (int k = 0; k < 4; ++k)
      words[k] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * k)), swap);
  }
  // Four of the 64 rounds.
  COILWORK_WITH_SHA inline void round(int k) {
    const __m128i now = words[k & 3];
    __m128i sum = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(ROUNDS + 4 * k)));
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
    sum = _mm_shuffle_epi32(sum, 0x0e);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
    if (k >= 12) return;
    // four words that come sixteen later
    const __m128i second = words[(k + 1) & 3], third = words[(k + 2) & 3], fourth = words[(k + 3) & 3];
    const __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(now, second), _mm_alignr_epi8(fourth, third, 4));
    words[k & 3] = _mm_sha256msg2_epu32(partial, fourth);
  }
  COILWORK_WITH_SHA inline void end() {
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
};

__attribute__((target("sha,sse4.1"))) void add_blocks_quickly(uint32_t* state, const uint8_t* data, size_t blocks) {
  Quick one;
  one.read(state);
  for (; blocks; --blocks, data += 64) {
    one.begin(data);
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) one.round(k);
    one.end();
  }
  one.write(state);
}

// Of two messages: each instruction waits for the one before, so that the processor is busy half the time with one message.
__attribute__((target("sha,sse4.1"))) void add_two_quickly(uint32_t* state, const uint8_t* data, uint32_t* other_state, const uint8_t* other_data,
                                                           size_t blocks) {
  Quick one, other;
  one.read(state);
  other.read(other_state);
  for (; blocks; --blocks, data += 64, other_data += 64) {
    one.begin(data);
    other.begin(other_data);
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      one.round(k);
      other.round(k);
    }
    one.end();
    other.end();
  }
  one.write(state);
  other.write(other_state);
}

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  // leaf 7: EBX bit 29 is SHA; leaf 1: ECX bit 19 is SSE4.1
  const bool has_sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
  return has_sha && __get_cpuid(1, &a, &b, &c, &d) && (c >> 19 & 1);
}
#endif

bool is_quick() {
#if defined(__x86_64__)
  static const bool has = has_instructions();
  return has;
#else
  return false;
#endif
}

void add(uint32_t* state, const uint8_t* data, size_t blocks) {
#if defined(__x86_64__)
  if (is_quick()) return add_blocks_quickly(state, data, blocks);
#endif
  add_blocks(state, data, blocks);
}

struct Message {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

  // With what is left of the message behind its last whole block.
  Sha256 finish(const uint8_t* bytes, size_t size) {
    const size_t rest = size % 64;
    uint8_t last[128] = {};
    if (rest) memcpy(last, bytes + size - rest, rest);
    last[rest] = 0x80;
    const size_t blocks = rest < 56 ? 1 : 2;
    const uint64_t bits = __builtin_bswap64(static_cast<uint64_t>(size) * 8);
    memcpy(last + 64 * blocks - 8, &bits, 8);
    add(state, last, blocks);
    for (uint32_t& word : state) word = __builtin_bswap32(word);
    Sha256 made;
    memcpy(made.data(), state, sizeof state);
    return made;
  }
};

}  // namespace

Sha256 compute_sha256(const void* data, size_t size) {
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  Message message;
  if (size >= 64) add(message.state, bytes, size / 64);
  return message.finish(bytes, size);
}

std::pair<Sha256, Sha256> compute_two_sha256(const void* data, const void* other, size_t size) {
#if defined(__x86_64__)
  if (is_quick()) {
    const uint8_t *bytes = static_cast<const uint8_t*>(data), *other_bytes = static_cast<const uint8_t*>(other);
    Message one, two;
    add_two_quickly(one.state, bytes, two.state, other_bytes, size / 64);
    return {one.finish(bytes, size), two.finish(other_bytes, size)};
  }
#endif
  return {compute_sha256(data, size), compute_sha256(other, size)};
}

std::string write_hexadecimal(const Sha256& digest) {
  std::string text;
  for (unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace coilwork_aot
