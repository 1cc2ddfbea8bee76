#include "upload.hpp"

#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "gpu.hpp"
#include "record_hashes.hpp"
#include "refusal.hpp"
#include "tensors.hpp"

namespace coilwork_aot {
namespace {

// While one thread lays bytes into its memory, another's are copied. Memory that the device reads costs time by its size, for which
// threads wait for one another: so each has little.
constexpr size_t THREADS = 4, ROOM_BYTES = size_t{1} << 20;

// Declared after NVIDIA's cuda.h.
#define COILWORK_COPY_FUNCTIONS(F)                                \
  F(cuCtxSetCurrent, (void*))                                     \
  F(cuMemHostAlloc, (void**, size_t, unsigned))                   \
  F(cuMemFreeHost, (void*))                                       \
  F(cuMemcpyHtoD_v2, (uint64_t, const void*, size_t))             \
  F(cuMemcpyHtoDAsync_v2, (uint64_t, const void*, size_t, void*)) \
  F(cuStreamCreate, (void**, unsigned))                           \
  F(cuStreamSynchronize, (void*))                                 \
  F(cuStreamDestroy_v2, (void*))

struct CopyFunctions {
#define COILWORK_FIELD(name, parameters) int(*name) parameters = nullptr;
  COILWORK_COPY_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD

  CopyFunctions() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define COILWORK_FIND(name, parameters)                                                  \
  name = library ? reinterpret_cast<int(*) parameters>(dlsym(library, #name)) : nullptr; \
  if (!name) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "the GPU driver has no " #name);
    COILWORK_COPY_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
  }
};
#undef COILWORK_COPY_FUNCTIONS

void check(int result) {
  if (result) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "weights cannot be copied to the GPU: error " + std::to_string(result));
}

// One thread's way to the device.
class Way {
 public:
  // `failed` is the driver's last error, of what ends with the way.
  Way(const CopyFunctions& driver, void* context, std::atomic<int>& failed) : driver_(driver), failed_(failed) {
    check(driver_.cuCtxSetCurrent(context));
    check(driver_.cuStreamCreate(&stream_, NON_BLOCKING));
    // without such memory the driver copies from the file's, more slowly
    if (driver_.cuMemHostAlloc(&room_, ROOM_BYTES, 0)) room_ = nullptr;
  }
  ~Way() {
    if (const int result = stream_ ? driver_.cuStreamSynchronize(stream_) : 0) failed_ = result;
    if (room_) driver_.cuMemFreeHost(room_);
    if (stream_) driver_.cuStreamDestroy_v2(stream_);
  }
  Way(const Way&) = delete;

  // Before the bytes of a piece, which are no more than the room.
  void begin() {
    if (room_) check(driver_.cuStreamSynchronize(stream_));
    used_ = 0;
  }
  void copy(uint64_t to, const char* from, size_t size) {
    if (!room_) return check(driver_.cuMemcpyHtoD_v2(to, from, size));
    void* laid = memcpy(static_cast<char*>(room_) + used_, from, size);
    used_ += size;
    check(driver_.cuMemcpyHtoDAsync_v2(to, laid, size, stream_));
  }

 private:
  static constexpr unsigned NON_BLOCKING = 1;

  const CopyFunctions& driver_;
  std::atomic<int>& failed_;
  void *stream_ = nullptr, *room_ = nullptr;
  size_t used_ = 0;
};

void upload(void* context, void* stream, const char* record, size_t size, const std::vector<Upload>& parts) {
  static const CopyFunctions driver;
  std::atomic<int> failed{0};
  check(driver.cuCtxSetCurrent(context));
  check(driver.cuStreamSynchronize(stream));
  do_pieces(size, ROOM_BYTES, THREADS, [&] {
    const auto way = std::make_shared<Way>(driver, context, failed);
    return [&, way](size_t begin, size_t count) {
      const char *first = record + begin, *last = first + count;
      way->begin();
      for (const Upload& part : parts) {
        const char *from = std::max(part.from, first), *to = std::min(part.from + part.size, last);
        if (from < to) way->copy(part.address + static_cast<uint64_t>(from - part.from), from, static_cast<size_t>(to - from));
      }
    };
  });
  check(failed);
}

}  // namespace

std::future<void> start_upload(const Gpu& gpu, const char* record, size_t size, std::vector<Upload> parts) {
  void* stream = nullptr;
  if (!torch.aoti_torch_get_current_cuda_stream || torch.aoti_torch_get_current_cuda_stream(gpu.index(), &stream))
    throw Refusal(COILWORK_CALL_ERROR, "call-failed", "torch does not tell its current stream: " + read_torch_error());
  // in a thread of its own, whose context is no other's
  return std::async(std::launch::async, [context = gpu.context(), stream, record, size, parts = std::move(parts)] {
    upload(context, stream, record, size, parts);
  });
}

}  // namespace coilwork_aot
