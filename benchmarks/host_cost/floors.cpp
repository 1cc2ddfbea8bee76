// What the driver and torch cost by themselves: loops over their functions, whose addresses the caller gives.
// Each returns microseconds per call, or -1 if a call failed.

#include <chrono>
#include <cstdint>

namespace {

template <typename Once>
double microseconds(int64_t count, Once once) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int64_t k = 0; k < count; ++k) {
    if (once() != 0) return -1;
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(count);
}

using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
using Make = int (*)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**);
using Drop = int (*)(void*);
using Multiply = int (*)(void*, void*, void*);

}  // namespace

extern "C" {

// `cuLaunchKernel` of one block of a warp.
double launches(void* launch, void* kernel, void* stream, void** parameters, int64_t count) {
  const auto call = reinterpret_cast<Launch>(launch);
  return microseconds(count, [&] { return call(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr); });
}

// `aoti_torch_empty_strided` of a row of `elements`, and `aoti_torch_delete_tensor_object`.
double allocations(void* make, void* drop, int64_t elements, int32_t dtype, int32_t kind, int32_t device, int64_t count) {
  const int64_t stride = 1;
  return microseconds(count, [&] {
    void* made = nullptr;
    const int failed = reinterpret_cast<Make>(make)(1, &elements, &stride, dtype, kind, device, &made);
    return failed ? failed : reinterpret_cast<Drop>(drop)(made);
  });
}

// `aoti_torch_cuda_mm_out`.
double products(void* multiply, void* result, void* left, void* right, int64_t count) {
  return microseconds(count, [&] { return reinterpret_cast<Multiply>(multiply)(result, left, right); });
}

}  // extern "C"
