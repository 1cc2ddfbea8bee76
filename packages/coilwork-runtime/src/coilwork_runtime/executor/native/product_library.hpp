// cuBLASLt, opened, and the products that have been worked out for it.
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "cublaslt_interface.hpp"

namespace coilwork {

constexpr uintptr_t ALIGNMENT = 16;     // no algorithm asks for more

// A lock of the C library: C++'s own headers for locks and tables take as long to compile as the rest of this.
class Lock {
 public:
  void take() { pthread_mutex_lock(&mutex_); }
  void give() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

// Holds a lock, or none.
class Holding {
 public:
  explicit Holding(Lock* lock) : lock_(lock) {
    if (lock_) lock_->take();
  }
  ~Holding() {
    if (lock_) lock_->give();
  }
  Holding(const Holding&) = delete;

 private:
  Lock* lock_;
};

// What a product's algorithm depends on. Compared as bytes, so it is cleared first.
struct ProductKey {
  int64_t m, n, k, batch;
  int64_t leading[3];  // of the operands, then of the result
  int64_t step[3];     // from one matrix of a batch to the next
  int32_t type, device, settings;
  uint8_t transposed[2], bias, alignment[4];
  uint8_t none[5];  // what would be padding, which copies need not keep
};
static_assert(sizeof(ProductKey) == 10 * sizeof(int64_t) + 3 * sizeof(int32_t) + 12, "nothing between the fields");

struct Product {
  ProductKey key;
  lt::Handle handle = nullptr;
  lt::Desc desc = nullptr;
  lt::Layout first = nullptr, second = nullptr, result = nullptr;
  lt::Algo algo{};
  size_t workspace_bytes = 0;
  Lock bias;  // its address is a part of `desc`

  ~Product();
  lt::Functions* library = nullptr;
};

// Memory that the products on one stream use in turn, after each other. It is never given back, as ATen keeps what it has for the
// same purpose: allocated for a call, it would come on top of all that is alive then.
struct Scratch {
  int32_t device;
  void* stream;
  void* data;
  size_t bytes;
};

// The library, a handle for each device, the products so far, and their scratch memory. One per process and library; never destroyed.
class ProductLibrary {
 public:
  // Null, and the name of a function in `missing`, if `handle` of the dynamic linker has not all.
  static ProductLibrary* open(void* handle, const char** missing);

  // The product for `key`; null if the library has none, or there are too many.
  Product* find(const ProductKey& key);

  // The scratch memory of a stream; of no bytes if there is none yet.
  Scratch scratch(int32_t device, void* stream);
  // Has `made` kept as that of its stream. False if it is not needed: there is as much by now, or there are too many streams.
  bool keep(const Scratch& made);
  // Whether memory of now is that of a graph of the driver's, which may run at any time later, next to others.
  static bool captured(void* stream);

  lt::Functions functions;

 private:
  struct Known;
  ProductLibrary();
  Known* known_;
};

}  // namespace coilwork
