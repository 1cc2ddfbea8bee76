// cuBLASLt, opened, and the products that have been worked out for it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "interfaces/cublaslt.hpp"
#include "libraries/locks.hpp"

namespace coilwork {

// What a product's algorithm depends on. Compared as bytes, so it is cleared first.
struct ProductKey {
  int64_t m, n, k, batch;
  int64_t leading[3];  // of the operands, then of the result
  int64_t step[3];     // from one matrix of a batch to the next
  int32_t type, device, settings;
  uint8_t transposed[2], bias, activation, alignment[4];
  uint8_t none[4];  // what would be padding, which copies need not keep
};
static_assert(sizeof(ProductKey) == 10 * sizeof(int64_t) + 3 * sizeof(int32_t) + 12, "nothing between the fields");

struct Product {
  ProductKey key;
  lt::Handle handle = nullptr;
  lt::Desc desc = nullptr;
  lt::Layout first = nullptr, second = nullptr, result = nullptr;
  lt::Algo algo{};
  size_t workspace_bytes = 0;
  mutable Lock bias;  // its address is a part of `desc`

  ~Product();
  // Puts a product on `stream`; the library's status. `addresses` are those of the operands, the result, the bias and scratch memory.
  int32_t run(const uint64_t* addresses, void* stream) const;
  lt::Functions* library = nullptr;
};

// The library, a handle for each device, and the products so far. One per process and library; never destroyed.
class ProductLibrary {
 public:
  static constexpr const char* FILES[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

  // Null, and the name of a function in `missing`, if `handle` of the dynamic linker has not all.
  static ProductLibrary* open(void* handle, const char** missing);

  // The product for `key`; null if the library has none, or there are too many.
  Product* find(const ProductKey& key);
  // Works out some product of the device's, for which the library reads what it needs for any: tens of milliseconds in a new process.
  void prepare(int32_t device);

  lt::Functions functions;

 private:
  struct Known;
  ProductLibrary();
  Known* known_;
};

}  // namespace coilwork
