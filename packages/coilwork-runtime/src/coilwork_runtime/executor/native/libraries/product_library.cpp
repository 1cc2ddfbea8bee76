// Working out a product: descriptors, and the algorithm that the library's heuristics prefer.
#include "libraries/product_library.hpp"

#include <string.h>

#include <utility>

#include "libraries/memo_table.hpp"

namespace coilwork {

static constexpr size_t WORKSPACE_BYTES = 32u << 20;
static constexpr size_t MOST_PRODUCTS = 4096;  // beyond, sizes seem to change with every call

struct ProductLibrary::Known {
  explicit Known(lt::Functions& functions) : functions(functions) {}

  // What the library cannot do is remembered, too.
  Product* find(const ProductKey& key) {
    const Holding hold(&lock_);
    return products_.find(key, true, [this](const ProductKey& wanted) { return make(wanted); });
  }

  lt::Functions& functions;

 private:
  lt::Handle handle_of(int32_t device) {
    for (const Opened& known : handles_)
      if (known.device == device) return known.handle;
    lt::Handle handle = nullptr;
    if (functions.cublasLtCreate(&handle) != lt::SUCCESS) return nullptr;
    handles_.push_back({device, handle});
    return handle;
  }

  Owned<Product> make(const ProductKey& key) {
    auto made = Owned<Product>(new Product());
    made->key = key;
    made->library = &functions;
    made->handle = handle_of(key.device);
    if (!made->handle || !describe(key, *made) || !choose(key, *made)) return nullptr;
    return made;
  }

  // Matrices are row-major here and column-major there: the transposed result is the product of the transposed operands,
  // in the other order.
  bool describe(const ProductKey& key, Product& made) const {
    const bool fast = key.type == lt::R_32F && (key.settings & 1);
    if (functions.cublasLtMatmulDescCreate(&made.desc, fast ? lt::COMPUTE_32F_FAST_TF32 : lt::COMPUTE_32F, lt::R_32F))
      return false;
    bool good = layout(made.first, key, key.transposed[1], key.k, key.n, 1) &&
                layout(made.second, key, key.transposed[0], key.m, key.k, 0) && layout(made.result, key, 0, key.m, key.n, 2);
    good = good && set_transposed(made.desc, lt::DESC_TRANSA, key.transposed[1]) &&
           set_transposed(made.desc, lt::DESC_TRANSB, key.transposed[0]);
    // epilogues are sums of what is done
    const uint32_t epilogue = key.activation | (key.bias ? lt::EPILOGUE_BIAS : 0);
    if (good && epilogue)
      good = !functions.cublasLtMatmulDescSetAttribute(made.desc, lt::DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (good && key.bias) {
      // of the address only the alignment counts until there is a product
      const uintptr_t somewhere = 16;
      good = !functions.cublasLtMatmulDescSetAttribute(made.desc, lt::DESC_BIAS_POINTER, &somewhere, sizeof somewhere);
    }
    return good;
  }
  bool set_transposed(lt::Desc desc, int32_t which, uint8_t transposed) const {
    const int32_t operation = transposed ? lt::OP_T : lt::OP_N;
    return !functions.cublasLtMatmulDescSetAttribute(desc, which, &operation, sizeof operation);
  }
  bool layout(lt::Layout& made, const ProductKey& key, bool transposed, int64_t rows, int64_t columns, int which) const {
    const uint64_t first = static_cast<uint64_t>(transposed ? rows : columns);
    const uint64_t second = static_cast<uint64_t>(transposed ? columns : rows);
    if (functions.cublasLtMatrixLayoutCreate(&made, key.type, first, second, key.leading[which])) return false;
    if (key.batch == 1) return true;
    const int32_t batch = static_cast<int32_t>(key.batch);
    return !functions.cublasLtMatrixLayoutSetAttribute(made, lt::LAYOUT_BATCH_COUNT, &batch, sizeof batch) &&
           !functions.cublasLtMatrixLayoutSetAttribute(made, lt::LAYOUT_BATCH_STRIDE, &key.step[which], sizeof(int64_t));
  }

  bool choose(const ProductKey& key, Product& made) const {
    lt::Preference preference = nullptr;
    if (functions.cublasLtMatmulPreferenceCreate(&preference)) return false;
    const size_t most = WORKSPACE_BYTES;
    // whether sums may be rounded to the result's type between parts, and whether there may be parts (torch_compat.py)
    const int32_t settings = key.type == lt::R_32F ? 6 : key.type == lt::R_16F ? key.settings : key.settings >> 2;
    const bool rounds = settings & 2, parts = settings & 4;
    const uint32_t mask = !parts ? lt::REDUCTION_NONE : rounds ? lt::REDUCTION_ANY : lt::REDUCTION_COMPUTE_TYPE;
    const auto set = [&](int32_t what, const void* value, size_t size) {
      return functions.cublasLtMatmulPreferenceSetAttribute(preference, what, value, size) == lt::SUCCESS;
    };
    bool good = set(lt::PREF_MAX_WORKSPACE_BYTES, &most, sizeof most) &&
                set(lt::PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    const int32_t which[] = {lt::PREF_MIN_ALIGNMENT_B, lt::PREF_MIN_ALIGNMENT_A, lt::PREF_MIN_ALIGNMENT_C,
                             lt::PREF_MIN_ALIGNMENT_D};
    const uint8_t alignment[] = {key.alignment[0], key.alignment[1], key.alignment[2], key.alignment[2]};
    for (int at = 0; good && at < 4; ++at) {
      const uint32_t bytes = alignment[at];
      good = set(which[at], &bytes, sizeof bytes);
    }
    lt::Heuristic found{};
    int count = 0;
    good = good && functions.cublasLtMatmulAlgoGetHeuristic(made.handle, made.desc, made.first, made.second, made.result,
                                                            made.result, preference, 1, &found, &count) == lt::SUCCESS;
    functions.cublasLtMatmulPreferenceDestroy(preference);
    made.algo = found.algo;
    made.workspace_bytes = found.workspace_bytes;
    return good && count == 1 && found.state == lt::SUCCESS;
  }

  struct Opened {
    int32_t device;
    lt::Handle handle;
  };

  Lock lock_;
  List<Opened> handles_;
  MemoTable<ProductKey, Product> products_{MOST_PRODUCTS};
};

Product::~Product() {
  if (!library) return;
  if (desc) library->cublasLtMatmulDescDestroy(desc);
  for (lt::Layout layout : {first, second, result})
    if (layout) library->cublasLtMatrixLayoutDestroy(layout);
}

int32_t Product::run(const uint64_t* addresses, void* stream) const {
  const auto at = [addresses](int k) { return reinterpret_cast<void*>(static_cast<uintptr_t>(addresses[k])); };
  const float one = 1, zero = 0;
  const Holding hold(key.bias ? &bias : nullptr);
  if (key.bias) {
    const void* row = at(3);
    const int32_t failed = library->cublasLtMatmulDescSetAttribute(desc, lt::DESC_BIAS_POINTER, &row, sizeof row);
    if (failed) return failed;
  }
  return library->cublasLtMatmul(handle, desc, &one, at(1), first, at(0), second, &zero, at(2), result, at(2), result, &algo, at(4),
                                 workspace_bytes, stream);
}

ProductLibrary::ProductLibrary() : known_(new Known(functions)) {}

ProductLibrary* ProductLibrary::open(void* handle, const char** missing) {
  auto made = Owned<ProductLibrary>(new ProductLibrary());
  *missing = made->functions.find(handle);
  return *missing ? nullptr : made.release();
}

Product* ProductLibrary::find(const ProductKey& key) { return known_->find(key); }

void ProductLibrary::prepare(int32_t device) {
  constexpr int64_t SIDE = 64;
  ProductKey key;
  memset(static_cast<void*>(&key), 0, sizeof key);
  key.m = key.n = key.k = key.leading[0] = key.leading[1] = key.leading[2] = SIDE;
  key.batch = 1;
  key.type = lt::R_16BF;
  key.device = device;
  for (uint8_t& bytes : key.alignment) bytes = 16;
  find(key);
}

}  // namespace coilwork
