#include "upload.hpp"

#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "record_hashes.hpp"
#include "refusal.hpp"

namespace coilwork_aot {
namespace {

// Declared after NVIDIA's cuda.h.
#define COILWORK_COPY_FUNCTIONS(F)                                   \
  F(cuCtxSetCurrent, (void*))                                        \
  F(cuCtxSynchronize, ())                                            \
  F(cuMemHostAlloc, (void**, size_t, unsigned))                      \
  F(cuMemFreeHost, (void*))                                          \
  F(cuMemcpyHtoD_v2, (uint64_t, const void*, size_t))                \
  F(cuMemcpyHtoDAsync_v2, (uint64_t, const void*, size_t, void*))    \
  F(cuStreamCreate, (void**, unsigned))                              \
  F(cuStreamSynchronize, (void*))                                    \
  F(cuStreamDestroy_v2, (void*))

struct CopyFunctions {
#define COILWORK_FIELD(name, parameters) int(*name) parameters = nullptr;
  COILWORK_COPY_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD

  CopyFunctions() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define COILWORK_FIND(name, parameters)                                                                     \
  name = library ? reinterpret_cast<int(*) parameters>(dlsym(library, #name)) : nullptr;                    \
  if (!name) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "the GPU driver has no " #name);
    COILWORK_COPY_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
  }
};
#undef COILWORK_COPY_FUNCTIONS

void check(int result) {
  if (result) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "weights cannot be copied to the GPU: error " + std::to_string(result));
}

// One thread's way to the device: pieces are laid into memory that the device reads by itself.
class Way {
 public:
  // `failed` is the driver's last error, of what ends with the way.
  Way(const CopyFunctions& driver, const Gpu& gpu, std::atomic<int>& failed) : driver_(driver), failed_(failed) {
    check(driver_.cuCtxSetCurrent(gpu.context()));
    // memory that torch gives out may still be in use by work that is under way
    check(driver_.cuCtxSynchronize());
    check(driver_.cuStreamCreate(&stream_, NON_BLOCKING));
    // without such memory the driver copies from the file's, more slowly
    if (driver_.cuMemHostAlloc(&room_, PIECE_BYTES, 0)) room_ = nullptr;
  }
  ~Way() {
    if (const int result = stream_ ? driver_.cuStreamSynchronize(stream_) : 0) failed_ = result;
    if (room_) driver_.cuMemFreeHost(room_);
    if (stream_) driver_.cuStreamDestroy_v2(stream_);
  }
  Way(const Way&) = delete;

  // Where the bytes are that are copied instead of those at `data`.
  const char* lay(const char* data, size_t size) {
    check(driver_.cuStreamSynchronize(stream_));
    return room_ ? static_cast<char*>(memcpy(room_, data, size)) : data;
  }
  void copy(uint64_t to, const char* laid, size_t size) {
    check(room_ ? driver_.cuMemcpyHtoDAsync_v2(to, laid, size, stream_) : driver_.cuMemcpyHtoD_v2(to, laid, size));
  }

 private:
  static constexpr unsigned NON_BLOCKING = 1;

  const CopyFunctions& driver_;
  std::atomic<int>& failed_;
  void *stream_ = nullptr, *room_ = nullptr;
};

}  // namespace

void upload(const Gpu& gpu, const char* record, size_t size, const std::vector<Upload>& parts) {
  // while one thread lays a piece, another's is copied
  constexpr size_t THREADS = 3;
  if (parts.empty()) return;
  static const CopyFunctions driver;
  std::atomic<int> failed{0};
  do_pieces(size, THREADS, [&] {
    const auto way = std::make_shared<Way>(driver, gpu, failed);
    return [&, way](size_t, size_t begin, size_t count) {
      const char* laid = way->lay(record + begin, count);
      for (const Upload& part : parts) {
        const uint64_t from = std::max<uint64_t>(part.begin, begin), to = std::min<uint64_t>(part.begin + part.size, begin + count);
        if (from < to) way->copy(part.address + (from - part.begin), laid + (from - begin), to - from);
      }
    };
  });
  check(failed);
}

}  // namespace coilwork_aot
