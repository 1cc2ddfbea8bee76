// The functions of torch's stable C interface that programs call; libtorch_cpu exports them since 2.11. Declared here
// rather than included: torch's own headers take 25 times as long to compile as this file.
#include <initializer_list>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern "C" {
struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;
struct StringOpaque;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;
using StableIValue = uint64_t;

AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle original, AtenTensorHandle* result);
AOTITorchError aoti_torch_new_uninitialized_tensor(AtenTensorHandle* result);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** result);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* result);
AOTITorchError aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* result);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** result);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** result);
AOTITorchError aoti_torch_get_storage_offset(AtenTensorHandle tensor, int64_t* result);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* result);
AOTITorchError aoti_torch__reinterpret_tensor(AtenTensorHandle tensor, int64_t rank, const int64_t* sizes,
                                              const int64_t* strides, int64_t offset, AtenTensorHandle* result);
AOTITorchError aoti_torch__alloc_from_pool(AtenTensorHandle pool, int64_t offset_bytes, int32_t dtype, int64_t rank,
                                           const int64_t* sizes, const int64_t* strides, AtenTensorHandle* result);
AOTITorchError aoti_torch_copy_(AtenTensorHandle target, AtenTensorHandle source, int32_t non_blocking);
AOTITorchError aoti_torch_item_bool(AtenTensorHandle tensor, bool* result);
AOTITorchError aoti_torch_item_int8(AtenTensorHandle tensor, int8_t* result);
AOTITorchError aoti_torch_item_int16(AtenTensorHandle tensor, int16_t* result);
AOTITorchError aoti_torch_item_int32(AtenTensorHandle tensor, int32_t* result);
AOTITorchError aoti_torch_item_int64(AtenTensorHandle tensor, int64_t* result);
AOTITorchError aoti_torch_item_uint8(AtenTensorHandle tensor, uint8_t* result);
bool aoti_torch_grad_mode_is_enabled();
void aoti_torch_grad_mode_set_enabled(bool enabled);

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_layout_strided();
int32_t aoti_torch_memory_format_contiguous_format();
int32_t aoti_torch_memory_format_channels_last();
int32_t aoti_torch_memory_format_channels_last_3d();
int32_t aoti_torch_memory_format_preserve_format();
size_t aoti_torch_dtype_element_size(int32_t dtype);
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float8_e4m3fn();
int32_t aoti_torch_dtype_float8_e5m2();
int32_t aoti_torch_dtype_float8_e4m3fnuz();
int32_t aoti_torch_dtype_float8_e5m2fnuz();
int32_t aoti_torch_dtype_float8_e8m0fnu();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int16();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_uint64();
int32_t aoti_torch_dtype_uint32();
int32_t aoti_torch_dtype_uint16();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_bool();
int32_t aoti_torch_dtype_complex32();
int32_t aoti_torch_dtype_complex64();
int32_t aoti_torch_dtype_complex128();

AOTITorchError torch_call_dispatcher(const char* name, const char* overload, StableIValue* stack, uint64_t version);
AOTITorchError torch_new_list_reserve_size(size_t size, StableListHandle* result);
AOTITorchError torch_list_size(StableListHandle list, size_t* result);
AOTITorchError torch_list_get_item(StableListHandle list, size_t index, StableIValue* result);
AOTITorchError torch_list_push_back(StableListHandle list, StableIValue element);
AOTITorchError torch_delete_list(StableListHandle list);
AOTITorchError torch_new_string_handle(const char* text, size_t length, StringHandle* result);
AOTITorchError torch_delete_string(StringHandle text);
// Since torch 2.13; null before.
__attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
}
