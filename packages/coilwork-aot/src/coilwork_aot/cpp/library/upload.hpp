// Bringing a record to a GPU, and verifying it on the way: it is read once.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "gpu.hpp"

namespace coilwork_aot {

// A part of the record that goes to memory of the GPU's.
struct Upload {
  uint64_t begin, size;
  uint64_t address;
};

// Copies the parts, which are in the order of the record; all is there when it returns. The record's digest, or an empty text if that
// is not asked for. Throws Refusal: call-failed.
std::string upload(const Gpu& gpu, const char* record, size_t size, const std::vector<Upload>& parts, bool hashes);

}  // namespace coilwork_aot
