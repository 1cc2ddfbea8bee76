// Matrix products through cuBLASLt: what torch works out in every call, descriptors and the choice of an algorithm, is worked out
// once per shape. What is out of the ordinary is refused, and the operator does it.
#pragma once
#include "libraries/product_library.hpp"
#include "libraries/workspace.hpp"

namespace coilwork {

class Products {
 public:
  Products(Call& call, Memory& memory) : call_(call), memory_(memory), workspace_(call, memory) {}

  // Whether the product is under way; what it returns false for is the operator's to do, or to complain of.
  bool run(const Plan::Multiplication& plan) {
    ProductLibrary* library = call_.program.products;
    if (!library || call_.product_settings < 0 || !workspace_.on_stream(plan.device)) return false;
    ProductKey key;
    memset(static_cast<void*>(&key), 0, sizeof key);
    if (!describe(plan, key)) return false;
    Product* product = plan.last.load(std::memory_order_acquire);
    if (!product || memcmp(&product->key, &key, sizeof key) != 0) {
      product = library->find(key);
      if (!product) return false;
      plan.last.store(product, std::memory_order_release);
    }
    return multiply(*product, plan);
  }

 private:
  bool describe(const Plan::Multiplication& plan, ProductKey& key) {
    int64_t room[4][2 * MOST_DIMENSIONS];
    Operand seen[4];
    const uint32_t slots[] = {plan.first, plan.second, plan.result, plan.bias};
    const int count = plan.bias == NONE ? 3 : 4;
    for (int at = 0; at < count; ++at)
      if (!workspace_.look(slots[at], room[at], seen[at]) || seen[at].dtype != seen[0].dtype) return false;
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
      key.alignment[at] = seen[at].alignment();
    }
    if (key.batch > 1 && key.step[2] < key.m * key.leading[2]) return false;
    if (plan.bias != NONE) {
      // a row that is added to each row of the result
      if (plan.batched || seen[3].rank != 1 || seen[3].sizes[0] != key.n || (key.n > 1 && seen[3].strides[0] != 1)) return false;
      key.bias = 1;
      key.alignment[3] = seen[3].alignment();
      if (key.alignment[3] < ALIGNMENT) return false;
    }
    key.activation = plan.activation;
    key.device = plan.device;
    key.settings = call_.product_settings;
    return true;
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

  bool multiply(Product& product, const Plan::Multiplication& plan) {
    void* memory = nullptr;
    if (product.workspace_bytes) {
      memory = workspace_.scratch(product.workspace_bytes, plan.device);
      if (!memory) return false;
    }
    const auto at = [this](uint32_t slot) { return reinterpret_cast<uint64_t>(data_of(memory_.slot(slot))); };
    const uint64_t addresses[] = {at(plan.first), at(plan.second), at(plan.result), plan.bias == NONE ? 0 : at(plan.bias),
                                  reinterpret_cast<uint64_t>(memory)};
    if (!call_.work_queue) return product.run(addresses, call_.stream) == lt::SUCCESS;
    return call_.work_queue->take({Work::PRODUCT, 5, &product, addresses}) == lt::SUCCESS;
  }

  Call& call_;
  Memory& memory_;
  Workspace workspace_;
};

}  // namespace coilwork
