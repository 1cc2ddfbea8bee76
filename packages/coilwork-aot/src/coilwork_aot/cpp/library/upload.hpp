// Bringing a record to a GPU.
#pragma once
#include <stdint.h>

#include <vector>

#include "gpu.hpp"

namespace coilwork_aot {

// A part of the record that goes to memory of the GPU's.
struct Upload {
  uint64_t begin, size;
  uint64_t address;
};

// Copies the parts; all is there when it returns. Throws Refusal: call-failed.
void upload(const Gpu& gpu, const char* record, size_t size, const std::vector<Upload>& parts);

}  // namespace coilwork_aot
