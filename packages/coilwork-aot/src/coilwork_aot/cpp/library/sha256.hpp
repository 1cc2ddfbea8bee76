// SHA-256 (FIPS 180-4).
#pragma once
#include <stddef.h>

#include <array>
#include <string>
#include <utility>

namespace coilwork_aot {

using Sha256 = std::array<unsigned char, 32>;

Sha256 compute_sha256(const void* data, size_t size);
// Of two messages of one size, on one core in little more time than one takes.
std::pair<Sha256, Sha256> compute_two_sha256(const void* data, const void* other, size_t size);
std::string write_hexadecimal(const Sha256& digest);

}  // namespace coilwork_aot
