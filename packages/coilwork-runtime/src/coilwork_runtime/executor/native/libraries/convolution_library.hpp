// cuDNN, opened, and the convolutions that have been worked out for it.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "interfaces/cudnn.hpp"
#include "libraries/locks.hpp"

namespace coilwork {

// The tensors that a convolution relates: what it slides over, the weight, and the sums. Each is computed from the two others:
// forward, and the gradients of the other two. Transposed, a convolution is the gradient of what it slides over.
enum Role : int32_t { IMAGE = 0, WEIGHT = 1, SUMS = 2, ROLES = 3 };

// What an execution plan depends on. Compared as bytes, so it is cleared first.
struct ConvolutionKey {
  static constexpr int MOST = 5;  // dimensions: images or sums, channels, and up to three of space

  int64_t sizes[ROLES][MOST], strides[ROLES][MOST];
  int64_t stride[MOST - 2], padding[MOST - 2], dilation[MOST - 2];
  void* stream;
  int32_t computed;  // a Role
  int32_t rank, type, device;
  uint8_t alignment[ROLES];
  uint8_t none[5];  // what would be padding, which copies need not keep
};
static_assert(sizeof(ConvolutionKey) == (2 * ROLES * 5 + 9 + 1) * sizeof(int64_t) + 4 * sizeof(int32_t) + 8,
              "nothing between the fields");

struct Convolution {
  ConvolutionKey key;
  dnn::Functions* library = nullptr;
  dnn::Handle handle = nullptr;
  Lock* turn = nullptr;  // of those who use the handle
  dnn::Desc plan = nullptr;
  size_t workspace_bytes = 0;

  ~Convolution();
  // Puts it on `stream`; the library's status. `addresses` are those of tensors, by role, and of scratch memory.
  int32_t run(const uint64_t* addresses, void* stream) const;
};

// The library, a handle for each stream, and the convolutions so far. One per process and library; never destroyed.
class ConvolutionLibrary {
 public:
  static constexpr const char* FILES[] = {"libcudnn.so.9"};

  // Null, and the name of a function in `missing`, if `handle` of the dynamic linker has not all.
  static ConvolutionLibrary* open(void* handle, const char** missing);

  // The convolution for `key`; null if the library has none, or there are too many. `may_make`: whether it may be worked out now.
  Convolution* find(const ConvolutionKey& key, bool may_make);

  dnn::Functions functions;

 private:
  struct Known;
  ConvolutionLibrary();
  Known* known_;
};

}  // namespace coilwork
