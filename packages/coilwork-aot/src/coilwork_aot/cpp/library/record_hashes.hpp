// The digests of a package's records, as coilwork_aot/record_hashes.py has them: SHA-256 of the bytes, or of a long record, of its
// pieces' digests.
#pragma once
#include <stddef.h>

#include <functional>
#include <string>
#include <vector>

#include "sha256.hpp"

namespace coilwork_aot {

constexpr size_t PIECE_BYTES = size_t{4} << 20;

// What one thread does with piece `number` of a record, which begins at `begin` and has `size` bytes.
using DoPiece = std::function<void(size_t number, size_t begin, size_t size)>;

// Does all pieces of a record of `size` bytes, several at a time: each thread by what `make` gives it. Throws what one of them throws,
// when all have ended.
void do_pieces(size_t size, const std::function<DoPiece()>& make);

// The digest of a record with these digests of pieces, of which there is one at least; in hexadecimal.
std::string join_digests(const std::vector<Sha256>& pieces);

std::string hash_record(const void* data, size_t size);

}  // namespace coilwork_aot
