#include "record_hashes.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "sha256.hpp"

namespace coilwork_aot {
namespace {

constexpr size_t PIECE_BYTES = size_t{4} << 20, MOST_THREADS = 8;

size_t count_usable_cores() {
  cpu_set_t usable;
  const bool known = sched_getaffinity(0, sizeof usable, &usable) == 0;
  return known ? static_cast<size_t>(std::max(CPU_COUNT(&usable), 1)) : 1;
}

}  // namespace

std::string hash_record(const void* data, size_t size) {
  if (size <= PIECE_BYTES) return write_hexadecimal(compute_sha256(data, size));
  const char* bytes = static_cast<const char*>(data);
  std::vector<Sha256> pieces((size + PIECE_BYTES - 1) / PIECE_BYTES);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t k; (k = next.fetch_add(1)) < pieces.size();)
      pieces[k] = compute_sha256(bytes + k * PIECE_BYTES, std::min(PIECE_BYTES, size - k * PIECE_BYTES));
  };
  std::vector<std::thread> others;
  try {
    for (size_t left = std::min({MOST_THREADS, pieces.size(), count_usable_cores()}); left > 1; --left) others.emplace_back(work);
  } catch (const std::system_error&) {
    // there are too many threads already: this one does the rest
  }
  work();
  for (std::thread& one : others) one.join();
  return write_hexadecimal(compute_sha256(pieces.data(), pieces.size() * sizeof(Sha256)));
}

}  // namespace coilwork_aot
