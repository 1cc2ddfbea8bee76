// The digests of a package's records, as coilwork_aot/record_hashes.py has them.
#pragma once
#include <stddef.h>

#include <string>

namespace coilwork_aot {

// SHA-256 of the bytes, or of a long record, of its pieces' digests; in hexadecimal.
std::string hash_record(const void* data, size_t size);

}  // namespace coilwork_aot
