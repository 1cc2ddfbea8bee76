// The part of cuBLASLt's C interface that matrix products take, found in the library that torch has loaded.
//
// Declared after NVIDIA's cublasLt.h and the "cuBLASLt API" chapters of the cuBLAS documentation
// (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api). Types that the documentation calls opaque are pointers; the
// numbers of enumerators, and the layout of the heuristic's result, are the same in CUDA 11.0 to 13.0. A test compares them
// with a header where one is installed.
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

namespace coilwork::lt {

enum : int32_t { SUCCESS = 0 };                                          // cublasStatus_t
enum : int32_t { R_32F = 0, R_16F = 2, R_16BF = 14 };                    // cudaDataType
enum : int32_t { COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };         // cublasComputeType_t
enum : int32_t { OP_N = 0, OP_T = 1 };                                   // cublasOperation_t
enum : int32_t { LAYOUT_BATCH_COUNT = 5, LAYOUT_BATCH_STRIDE = 6 };      // cublasLtMatrixLayoutAttribute_t
enum : int32_t { DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8 };  // ...MatmulDescAttributes_t
enum : int32_t {                                                         // cublasLtMatmulPreferenceAttributes_t
  PREF_MAX_WORKSPACE_BYTES = 1, PREF_REDUCTION_SCHEME_MASK = 3, PREF_MIN_ALIGNMENT_A = 5, PREF_MIN_ALIGNMENT_B = 6,
  PREF_MIN_ALIGNMENT_C = 7, PREF_MIN_ALIGNMENT_D = 8
};
enum : uint32_t { EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32 };  // cublasLtEpilogue_t
enum : uint32_t { REDUCTION_NONE = 0, REDUCTION_COMPUTE_TYPE = 2, REDUCTION_ANY = 7 };  // cublasLtReductionScheme_t

using Handle = void*;
using Desc = void*;
using Layout = void*;
using Preference = void*;

struct Algo {
  uint64_t data[8];
};
struct Heuristic {
  Algo algo;
  size_t workspace_bytes;
  int32_t state;
  float waves;
  int32_t reserved[4];
};
static_assert(sizeof(Heuristic) == 96, "as in cublasLt.h");

// name, parameters
#define COILWORK_LT_FUNCTIONS(F)                                                                                          \
  F(cublasLtCreate, (Handle*))                                                                                            \
  F(cublasLtMatmulDescCreate, (Desc*, int32_t compute, int32_t scale))                                                    \
  F(cublasLtMatmulDescDestroy, (Desc))                                                                                    \
  F(cublasLtMatmulDescSetAttribute, (Desc, int32_t, const void*, size_t))                                                 \
  F(cublasLtMatrixLayoutCreate, (Layout*, int32_t type, uint64_t rows, uint64_t columns, int64_t leading))                \
  F(cublasLtMatrixLayoutDestroy, (Layout))                                                                                \
  F(cublasLtMatrixLayoutSetAttribute, (Layout, int32_t, const void*, size_t))                                             \
  F(cublasLtMatmulPreferenceCreate, (Preference*))                                                                        \
  F(cublasLtMatmulPreferenceDestroy, (Preference))                                                                        \
  F(cublasLtMatmulPreferenceSetAttribute, (Preference, int32_t, const void*, size_t))                                     \
  F(cublasLtMatmulAlgoGetHeuristic,                                                                                       \
    (Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference, int wanted, Heuristic*, int* found))               \
  F(cublasLtMatmul, (Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta,     \
                     const void* c, Layout, void* d, Layout, const Algo*, void* workspace, size_t, void* stream))

struct Functions {
#define COILWORK_FIELD(name, parameters) int32_t(*name) parameters = nullptr;
  COILWORK_LT_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD

  // The name of a function that `library` has not, or null.
  const char* find(void* library) {
#define COILWORK_FIND(name, parameters)                                        \
  name = reinterpret_cast<int32_t(*) parameters>(dlsym(library, #name));       \
  if (!name) return #name;
    COILWORK_LT_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
    return nullptr;
  }
};

}  // namespace coilwork::lt
