// SHA-256 (FIPS 180-4).
#pragma once
#include <stddef.h>

#include <string>

namespace coilwork_aot {

// The digest of bytes, in hexadecimal.
std::string compute_sha256(const void* data, size_t size);

}  // namespace coilwork_aot
