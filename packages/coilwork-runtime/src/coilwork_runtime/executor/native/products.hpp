// Matrix products through cuBLASLt: what torch works out in every call, descriptors and the choice of an algorithm, is worked out
// once per shape. What is out of the ordinary is refused, and the operator does it.
#pragma once
#include "memory.hpp"
#include "product_library.hpp"

namespace coilwork {

class Products {
 public:
  Products(Call& call, Memory& memory) : call_(call), memory_(memory) {}

  // Whether the product is under way; what it returns false for is the operator's to do, or to complain of.
  bool run(const Plan::Multiplication& plan) {
    ProductLibrary* library = call_.program.products;
    if (!library || call_.product_settings < 0 || !on_stream(plan)) return false;
    ProductKey key;
    memset(static_cast<void*>(&key), 0, sizeof key);
    if (!describe(plan, key)) return false;
    Product* product = plan.last.load(std::memory_order_acquire);
    if (!product || memcmp(&product->key, &key, sizeof key) != 0) {
      product = library->find(key);
      if (!product) return false;
      plan.last.store(product, std::memory_order_release);
    }
    return multiply(*library, *product, plan);
  }

 private:
  static constexpr size_t LEAST_SCRATCH = 1u << 20;

  // A tensor as it lies in memory.
  struct Seen {
    int64_t rank = 0;
    const int64_t* sizes = nullptr;
    const int64_t* strides = nullptr;
    int32_t dtype = -1;
    uintptr_t data = 0;
  };

  bool on_stream(const Plan::Multiplication& plan) const {
    return plan.device < 0 || (call_.stream_known && call_.program.cuda_device == plan.device);
  }

  bool describe(const Plan::Multiplication& plan, ProductKey& key) {
    // extents of memory without a tensor are computed into these
    int64_t room[4][2 * MOST_DIMENSIONS];
    Seen seen[4];
    const uint32_t slots[] = {plan.first, plan.second, plan.result, plan.bias};
    const int count = plan.bias == NONE ? 3 : 4;
    for (int at = 0; at < count; ++at)
      if (!look(slots[at], room[at], seen[at]) || seen[at].dtype != seen[0].dtype) return false;
    const int64_t rank = plan.batched ? 3 : 2;
    for (int at = 0; at < 3; ++at)
      if (seen[at].rank != rank) return false;
    if (!type_of(seen[0].dtype, key.type)) return false;
    const int64_t *a = seen[0].sizes + (rank - 2), *b = seen[1].sizes + (rank - 2), *d = seen[2].sizes + (rank - 2);
    key.m = a[0], key.k = a[1], key.n = b[1], key.batch = plan.batched ? seen[0].sizes[0] : 1;
    if (b[0] != key.k || d[0] != key.m || d[1] != key.n) return false;
    if (key.m < 1 || key.n < 1 || key.k < 1 || key.batch < 1 || key.batch > INT32_MAX) return false;
    for (int at = 0; at < 3; ++at) {
      const int64_t* strides = seen[at].strides + (rank - 2);
      const int64_t* sizes = seen[at].sizes + (rank - 2);
      uint8_t transposed = 0;
      if (!matrix(sizes, strides, key.leading[at], transposed) || (at == 2 && transposed)) return false;
      if (at < 2) key.transposed[at] = transposed;
      if (plan.batched && seen[at].sizes[0] != key.batch) return false;
      if (key.batch > 1) key.step[at] = seen[at].strides[0];
      key.alignment[at] = alignment(seen[at].data);
    }
    if (key.batch > 1 && key.step[2] < key.m * key.leading[2]) return false;
    if (plan.bias != NONE) {
      // a row that is added to each row of the result
      if (plan.batched || seen[3].rank != 1 || seen[3].sizes[0] != key.n || (key.n > 1 && seen[3].strides[0] != 1)) return false;
      key.bias = 1;
      key.alignment[3] = alignment(seen[3].data);
      if (key.alignment[3] < ALIGNMENT) return false;
    }
    key.device = plan.device;
    key.settings = call_.product_settings;
    return true;
  }

  bool look(uint32_t number, int64_t* room, Seen& seen) {
    Slot& slot = memory_.slot(number);
    if (!slot.handle) return false;
    seen.data = reinterpret_cast<uintptr_t>(data_of(slot));
    if (slot.state == Slot::MEMORY || slot.state == Slot::WITHIN) {
      const Layout& layout = memory_.layout(slot.layout);
      const Extents extents(layout, memory_.frame());
      memcpy(room, extents.sizes, extents.rank * sizeof *room);
      memcpy(room + extents.rank, extents.strides, extents.rank * sizeof *room);
      seen.rank = extents.rank;
      seen.sizes = room;
      seen.strides = room + extents.rank;
      seen.dtype = layout.dtype;
      return true;
    }
    int64_t *sizes = nullptr, *strides = nullptr;
    const bool good = torch.aoti_torch_get_dim(slot.handle, &seen.rank) == 0 &&
                      torch.aoti_torch_get_sizes(slot.handle, &sizes) == 0 &&
                      torch.aoti_torch_get_strides(slot.handle, &strides) == 0 &&
                      torch.aoti_torch_get_dtype(slot.handle, &seen.dtype) == 0;
    seen.sizes = sizes;
    seen.strides = strides;
    return good;
  }

  static bool type_of(int32_t dtype, int32_t& type) {
    if (dtype == torch.aoti_torch_dtype_float32())
      type = lt::R_32F;
    else if (dtype == torch.aoti_torch_dtype_bfloat16())
      type = lt::R_16BF;
    else if (dtype == torch.aoti_torch_dtype_float16())
      type = lt::R_16F;
    else
      return false;
    return true;
  }

  // The step from one row to the next, or of a matrix that lies transposed, from one column to the next.
  static bool matrix(const int64_t* sizes, const int64_t* strides, int64_t& leading, uint8_t& transposed) {
    for (int row = 0; row < 2; ++row) {
      const int column = 1 - row;
      const bool dense = strides[column] == 1 || sizes[column] == 1;
      if (!dense || (sizes[row] > 1 && strides[row] < sizes[column])) continue;
      leading = sizes[row] > 1 ? strides[row] : sizes[column];
      transposed = static_cast<uint8_t>(row);
      return true;
    }
    return false;
  }

  static uint8_t alignment(uintptr_t data) {
    uintptr_t found = ALIGNMENT;
    while (data % found) found /= 2;
    return static_cast<uint8_t>(found);
  }

  // Scratch memory: the stream's, or where that may not be, memory of the call's own, of the size that the program's products
  // have needed so far; null if there is none.
  void* workspace(ProductLibrary& library, size_t bytes, int32_t device) {
    if (bytes <= call_.workspace_bytes) return call_.workspace_data;
    if (device >= 0 && !ProductLibrary::captured(call_.stream) && kept_workspace(library, bytes, device)) return call_.workspace_data;
    std::atomic<size_t>& most = call_.program.workspace_bytes;
    size_t wanted = most.load(std::memory_order_relaxed);
    while (wanted < bytes && !most.compare_exchange_weak(wanted, bytes, std::memory_order_relaxed)) {
    }
    wanted = wanted < bytes ? bytes : wanted;
    Slot made{};
    void* data = memory_.bytes(static_cast<int64_t>(wanted), device, made);
    if (!data) return nullptr;
    if (call_.workspace) torch.aoti_torch_delete_tensor_object(call_.workspace);
    call_.workspace = made.handle;
    call_.workspace_data = data;
    call_.workspace_bytes = wanted;
    return data;
  }

  bool kept_workspace(ProductLibrary& library, size_t bytes, int32_t device) {
    Scratch kept = library.scratch(device, call_.stream);
    if (kept.bytes < bytes) {
      kept.bytes = LEAST_SCRATCH;
      while (kept.bytes < bytes) kept.bytes *= 2;
      Slot made{};
      kept.data = memory_.bytes(static_cast<int64_t>(kept.bytes), device, made);
      if (!kept.data) return false;
      if (!library.keep(kept)) {
        torch.aoti_torch_delete_tensor_object(made.handle);
        kept = library.scratch(device, call_.stream);
        if (kept.bytes < bytes) return false;
      }
    }
    call_.workspace_data = kept.data;
    call_.workspace_bytes = kept.bytes;
    return true;
  }

  bool multiply(ProductLibrary& library, Product& product, const Plan::Multiplication& plan) {
    void* memory = nullptr;
    if (product.workspace_bytes) {
      memory = workspace(library, product.workspace_bytes, plan.device);
      if (!memory) return false;
    }
    const auto at = [this](uint32_t slot) { return static_cast<void*>(data_of(memory_.slot(slot))); };
    const float one = 1, zero = 0;
    const Holding hold(product.key.bias ? &product.bias : nullptr);
    if (product.key.bias) {
      const void* bias = at(plan.bias);
      if (library.functions.cublasLtMatmulDescSetAttribute(product.desc, lt::DESC_BIAS_POINTER, &bias, sizeof bias)) return false;
    }
    void* result = at(plan.result);
    return library.functions.cublasLtMatmul(product.handle, product.desc, &one, at(plan.second), product.first, at(plan.first),
                                            product.second, &zero, result, product.result, result, product.result,
                                            &product.algo, memory, product.workspace_bytes, call_.stream) == lt::SUCCESS;
  }

  Call& call_;
  Memory& memory_;
};

}  // namespace coilwork
