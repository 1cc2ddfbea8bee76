#include "record_hashes.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "sha256.hpp"

namespace coilwork_aot {
namespace {

// some cores are left to what happens beside
constexpr size_t MOST_THREADS = 12;

size_t count_usable_cores() {
  cpu_set_t usable;
  const bool known = sched_getaffinity(0, sizeof usable, &usable) == 0;
  return known ? static_cast<size_t>(std::max(CPU_COUNT(&usable), 1)) : 1;
}

size_t count_pieces(size_t size, size_t piece) { return std::max<size_t>((size + piece - 1) / piece, 1); }

}  // namespace

void do_pieces(size_t size, size_t piece, size_t threads, const std::function<DoPiece()>& make) {
  const size_t count = count_pieces(size, piece);
  std::atomic<size_t> next{0};
  std::mutex failing;
  std::exception_ptr failed;
  const auto work = [&] {
    try {
      const DoPiece act = make();
      for (size_t k; (k = next.fetch_add(1)) < count;) act(k * piece, std::min(piece, size - k * piece));
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
  std::vector<Sha256> digests(count_pieces(size, PIECE_BYTES));
  do_pieces(size, 2 * PIECE_BYTES, MOST_THREADS, [&] {
    return [&](size_t begin, size_t count) {
      Sha256* made = &digests[begin / PIECE_BYTES];
      const size_t first = std::min(count, PIECE_BYTES), rest = count - first;
      if (rest == first) {
        std::tie(made[0], made[1]) = compute_two_sha256(bytes + begin, bytes + begin + first, first);
        return;
      }
      made[0] = compute_sha256(bytes + begin, first);
      if (rest) made[1] = compute_sha256(bytes + begin + first, rest);
    };
  });
  return write_hexadecimal(compute_sha256(digests.data(), digests.size() * sizeof(Sha256)));
}

}  // namespace coilwork_aot
