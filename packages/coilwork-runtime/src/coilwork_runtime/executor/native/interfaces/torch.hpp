// The functions of torch's stable C interface that the executor calls, found in the loaded libtorch_cpu by name.
//
// Declared here rather than included: torch's own headers take ten times as long to compile as this file, and one build
// serves every version of torch that exports these functions (2.11 does). A test compiles them beside torch's headers.
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;
struct StringOpaque;
using StringHandle = StringOpaque*;
struct CUDAGuardOpaque;
using CUDAGuardHandle = CUDAGuardOpaque*;
using AOTITorchError = int32_t;
using StableIValue = uint64_t;
}

// name, result, parameters
#define COILWORK_TORCH_FUNCTIONS(F)                                                                                       \
  F(aoti_torch_delete_tensor_object, AOTITorchError, (AtenTensorHandle))                                                  \
  F(aoti_torch_new_tensor_handle, AOTITorchError, (AtenTensorHandle, AtenTensorHandle*))                                  \
  F(aoti_torch_new_uninitialized_tensor, AOTITorchError, (AtenTensorHandle*))                                             \
  F(aoti_torch_get_data_ptr, AOTITorchError, (AtenTensorHandle, void**))                                                  \
  F(aoti_torch_get_dim, AOTITorchError, (AtenTensorHandle, int64_t*))                                                     \
  F(aoti_torch_get_sizes, AOTITorchError, (AtenTensorHandle, int64_t**))                                                  \
  F(aoti_torch_get_strides, AOTITorchError, (AtenTensorHandle, int64_t**))                                                \
  F(aoti_torch_get_storage_offset, AOTITorchError, (AtenTensorHandle, int64_t*))                                          \
  F(aoti_torch_get_storage_size, AOTITorchError, (AtenTensorHandle, int64_t*))                                            \
  F(aoti_torch_get_dtype, AOTITorchError, (AtenTensorHandle, int32_t*))                                                   \
  F(aoti_torch_get_device_type, AOTITorchError, (AtenTensorHandle, int32_t*))                                             \
  F(aoti_torch_get_device_index, AOTITorchError, (AtenTensorHandle, int32_t*))                                            \
  F(aoti_torch_empty_strided, AOTITorchError,                                                                             \
    (int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, AtenTensorHandle*))                              \
  F(aoti_torch__reinterpret_tensor, AOTITorchError,                                                                       \
    (AtenTensorHandle, int64_t, const int64_t*, const int64_t*, int64_t, AtenTensorHandle*))                              \
  F(aoti_torch__alloc_from_pool, AOTITorchError,                                                                          \
    (AtenTensorHandle, int64_t, int32_t, int64_t, const int64_t*, const int64_t*, AtenTensorHandle*))                     \
  F(aoti_torch_copy_, AOTITorchError, (AtenTensorHandle, AtenTensorHandle, int32_t))                                      \
  F(aoti_torch_item_bool, AOTITorchError, (AtenTensorHandle, bool*))                                                      \
  F(aoti_torch_item_int8, AOTITorchError, (AtenTensorHandle, int8_t*))                                                    \
  F(aoti_torch_item_int16, AOTITorchError, (AtenTensorHandle, int16_t*))                                                  \
  F(aoti_torch_item_int32, AOTITorchError, (AtenTensorHandle, int32_t*))                                                  \
  F(aoti_torch_item_int64, AOTITorchError, (AtenTensorHandle, int64_t*))                                                  \
  F(aoti_torch_item_uint8, AOTITorchError, (AtenTensorHandle, uint8_t*))                                                  \
  F(aoti_torch_grad_mode_is_enabled, bool, ())                                                                            \
  F(aoti_torch_grad_mode_set_enabled, void, (bool))                                                                       \
  F(aoti_torch_device_type_cpu, int32_t, ())                                                                              \
  F(aoti_torch_device_type_cuda, int32_t, ())                                                                             \
  F(aoti_torch_dtype_int64, int32_t, ())                                                                                  \
  F(aoti_torch_dtype_int32, int32_t, ())                                                                                  \
  F(aoti_torch_dtype_int16, int32_t, ())                                                                                  \
  F(aoti_torch_dtype_int8, int32_t, ())                                                                                   \
  F(aoti_torch_dtype_uint8, int32_t, ())                                                                                  \
  F(aoti_torch_dtype_bool, int32_t, ())                                                                                   \
  F(aoti_torch_dtype_float32, int32_t, ())                                                                                \
  F(aoti_torch_dtype_bfloat16, int32_t, ())                                                                               \
  F(aoti_torch_dtype_float16, int32_t, ())                                                                                \
  F(aoti_torch_dtype_element_size, size_t, (int32_t))                                                                     \
  F(aoti_torch_abi_version, uint64_t, ())                                                                                 \
  F(torch_call_dispatcher, AOTITorchError, (const char*, const char*, StableIValue*, uint64_t))                           \
  F(torch_new_list_reserve_size, AOTITorchError, (size_t, StableListHandle*))                                             \
  F(torch_list_size, AOTITorchError, (StableListHandle, size_t*))                                                         \
  F(torch_list_get_item, AOTITorchError, (StableListHandle, size_t, StableIValue*))                                       \
  F(torch_list_push_back, AOTITorchError, (StableListHandle, StableIValue))                                               \
  F(torch_delete_list, AOTITorchError, (StableListHandle))                                                                \
  F(torch_new_string_handle, AOTITorchError, (const char*, size_t, StringHandle*))

// Only where there is libtorch_cuda, whose most are.
#define COILWORK_CUDA_FUNCTIONS(F)                                                                                        \
  F(aoti_torch_get_current_device_index, AOTITorchError, (int32_t*))                    \
  F(aoti_torch_create_cuda_guard, AOTITorchError, (int32_t, CUDAGuardHandle*))                                            \
  F(aoti_torch_delete_cuda_guard, AOTITorchError, (CUDAGuardHandle))                                                      \
  F(aoti_torch_get_current_cuda_stream, AOTITorchError, (int32_t, void**))

namespace coilwork {

struct Torch {
#define COILWORK_FIELD(name, result, parameters) result(*name) parameters = nullptr;
  COILWORK_TORCH_FUNCTIONS(COILWORK_FIELD)
  COILWORK_CUDA_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD
  void* cpu = nullptr;
  void* cuda = nullptr;
};

inline Torch torch;  // filled once, while the module is imported

// The address of a function of torch, null if it has none of that name.
inline void* torch_symbol(const char* name) {
  void* found = torch.cpu ? dlsym(torch.cpu, name) : nullptr;
  if (!found && torch.cuda) found = dlsym(torch.cuda, name);
  return found;
}

// The name of a function that is missing, or null.
inline const char* find_torch() {
  torch.cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  torch.cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  if (!torch.cpu) return "libtorch_cpu.so";
#define COILWORK_FIND(name, result, parameters) \
  torch.name = reinterpret_cast<result(*) parameters>(torch_symbol(#name));
#define COILWORK_REQUIRE(name, result, parameters) \
  COILWORK_FIND(name, result, parameters)          \
  if (!torch.name) return #name;
  COILWORK_TORCH_FUNCTIONS(COILWORK_REQUIRE)
  COILWORK_CUDA_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
#undef COILWORK_REQUIRE
  return nullptr;
}

}  // namespace coilwork
