#include "record_hashes.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "sha256.hpp"

namespace coilwork_aot {
namespace {

constexpr size_t MOST_THREADS = 16;

size_t count_usable_cores() {
  cpu_set_t usable;
  const bool known = sched_getaffinity(0, sizeof usable, &usable) == 0;
  return known ? static_cast<size_t>(std::max(CPU_COUNT(&usable), 1)) : 1;
}

size_t count_pieces(size_t size) { return std::max<size_t>((size + PIECE_BYTES - 1) / PIECE_BYTES, 1); }

}  // namespace

void do_pieces(size_t size, size_t threads, const std::function<DoPiece()>& make) {
  const size_t count = count_pieces(size);
  std::atomic<size_t> next{0};
  std::mutex failing;
  std::exception_ptr failed;
  const auto work = [&] {
    try {
      const DoPiece act = make();
      for (size_t k; (k = next.fetch_add(1)) < count;) act(k, k * PIECE_BYTES, std::min(PIECE_BYTES, size - k * PIECE_BYTES));
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failing);
      if (!failed) failed = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> started;
  try {
    // the caller's thread is not used: work may choose a device
    while (started.size() < std::min({threads, count, count_usable_cores()})) started.emplace_back(work);
  } catch (const std::system_error&) {
    // there are many threads already
    if (started.empty()) throw;
  }
  for (std::thread& one : started) one.join();
  if (failed) std::rethrow_exception(failed);
}

std::string hash_record(const void* data, size_t size) {
  if (size <= PIECE_BYTES) return write_hexadecimal(compute_sha256(data, size));
  const char* bytes = static_cast<const char*>(data);
  std::vector<Sha256> digests(count_pieces(size));
  do_pieces(size, MOST_THREADS, [&] {
    return [&](size_t number, size_t begin, size_t count) { digests[number] = compute_sha256(bytes + begin, count); };
  });
  return write_hexadecimal(compute_sha256(digests.data(), digests.size() * sizeof(Sha256)));
}

}  // namespace coilwork_aot
