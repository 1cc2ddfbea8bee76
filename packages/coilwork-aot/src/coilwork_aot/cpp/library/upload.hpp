// Bringing a package's weights to a GPU.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <future>
#include <vector>

namespace coilwork_aot {

class Gpu;

// Bytes of the mapped file, and where they go on the device.
struct Upload {
  const char* from;
  uint64_t size, address;
};

// Copies the bytes, which lie in the `size` bytes at `record`, behind the work of torch's current stream, to which the memory may have
// belonged. All is there when the future is ready, which throws Refusal: call-failed. Its destructor waits.
std::future<void> start_upload(const Gpu& gpu, const char* record, size_t size, std::vector<Upload> parts);

}  // namespace coilwork_aot
