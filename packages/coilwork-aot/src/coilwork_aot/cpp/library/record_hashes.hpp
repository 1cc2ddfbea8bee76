// The digests of a package's records, as coilwork_aot/record_hashes.py has them: SHA-256 of the bytes, or of a long record, of its
// pieces' digests.
#pragma once
#include <stddef.h>

#include <functional>
#include <string>

namespace coilwork_aot {

constexpr size_t PIECE_BYTES = size_t{4} << 20;

// What one thread does with the `size` bytes of a record that begin at `begin`.
using DoPiece = std::function<void(size_t begin, size_t size)>;

// Does a record of `size` bytes in pieces of `piece` by `threads` threads, or fewer: each by what `make` gives it. Throws what one of
// them throws, when all have ended.
void do_pieces(size_t size, size_t piece, size_t threads, const std::function<DoPiece()>& make);

// In hexadecimal.
std::string hash_record(const void* data, size_t size);

}  // namespace coilwork_aot
