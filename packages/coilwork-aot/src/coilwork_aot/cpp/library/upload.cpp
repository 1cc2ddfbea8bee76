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

// One thread's way to the device: pieces are laid into memory that the device reads by itself, and copied while the next is laid.
class Way {
 public:
  // `failed` is the driver's last error, of what ends with the way.
  Way(const CopyFunctions& driver, const Gpu& gpu, std::atomic<int>& failed) : driver_(driver), failed_(failed) {
    check(driver_.cuCtxSetCurrent(gpu.context()));
    // memory that torch gives out may still be in use by work that is under way
    check(driver_.cuCtxSynchronize());
    for (Half& half : halves_) {
      check(driver_.cuStreamCreate(&half.stream, NON_BLOCKING));
      // without such memory the driver copies from the file's, more slowly
      if (driver_.cuMemHostAlloc(&half.room, PIECE_BYTES, 0)) half.room = nullptr;
    }
  }
  ~Way() {
    for (Half& half : halves_) {
      if (const int result = half.stream ? driver_.cuStreamSynchronize(half.stream) : 0) failed_ = result;
      if (half.room) driver_.cuMemFreeHost(half.room);
      if (half.stream) driver_.cuStreamDestroy_v2(half.stream);
    }
  }
  Way(const Way&) = delete;

  // Where the bytes are read from that are at `data`.
  const char* lay(const char* data, size_t size) {
    Half& half = halves_[turn_ ^= 1];
    check(driver_.cuStreamSynchronize(half.stream));
    return half.room ? static_cast<char*>(memcpy(half.room, data, size)) : data;
  }
  void copy(uint64_t to, const char* laid, size_t size) {
    const Half& half = halves_[turn_];
    check(half.room ? driver_.cuMemcpyHtoDAsync_v2(to, laid, size, half.stream) : driver_.cuMemcpyHtoD_v2(to, laid, size));
  }
  static void check(int result) {
    if (result) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "weights cannot be copied to the GPU: error " + std::to_string(result));
  }

 private:
  static constexpr unsigned NON_BLOCKING = 1;
  struct Half {
    void *stream = nullptr, *room = nullptr;
  };

  const CopyFunctions& driver_;
  std::atomic<int>& failed_;
  Half halves_[2];
  int turn_ = 0;
};

}  // namespace

std::string upload(const Gpu& gpu, const char* record, size_t size, const std::vector<Upload>& parts, bool hashes) {
  static const CopyFunctions driver;
  std::vector<Sha256> digests((size + PIECE_BYTES - 1) / PIECE_BYTES);
  std::atomic<int> failed{0};
  do_pieces(size, [&] {
    const auto way = std::make_shared<Way>(driver, gpu, failed);
    return [&, way](size_t number, size_t begin, size_t count) {
      const char* laid = way->lay(record + begin, count);
      const auto ends_before = [](const Upload& part, uint64_t place) { return part.begin + part.size <= place; };
      for (auto part = std::lower_bound(parts.begin(), parts.end(), begin, ends_before); part != parts.end() && part->begin < begin + count; ++part) {
        const uint64_t from = std::max<uint64_t>(part->begin, begin), to = std::min<uint64_t>(part->begin + part->size, begin + count);
        if (from < to) way->copy(part->address + (from - part->begin), laid + (from - begin), to - from);
      }
      if (hashes) digests[number] = compute_sha256(laid, count);
    };
  });
  Way::check(failed);
  return hashes ? join_digests(digests) : "";
}

}  // namespace coilwork_aot
