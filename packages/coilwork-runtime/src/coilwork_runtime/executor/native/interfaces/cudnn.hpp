// The part of cuDNN's C interface that convolutions take, found in the library that torch has loaded.
//
// Declared after NVIDIA's cudnn_graph.h and the "cudnn_graph Library" chapter of the cuDNN documentation
// (https://docs.nvidia.com/deeplearning/cudnn/latest/api/cudnn-graph-library.html). A descriptor is made, told its attributes one by
// one, and finalized; an operation graph of one convolution gives engine configurations, and one of these an execution plan. The
// numbers are the same in cuDNN 8.3 to 9. A test compares them with a header where one is installed.
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

namespace coilwork::dnn {

enum : int32_t { SUCCESS = 0 };                                                         // cudnnStatus_t
enum : int32_t { DATA_FLOAT = 0, DATA_HALF = 2, DATA_BFLOAT16 = 9 };                    // cudnnDataType_t
enum : int32_t { CROSS_CORRELATION = 1 };                                               // cudnnConvolutionMode_t
enum : int32_t { HEUR_MODE_FALLBACK = 2, HEUR_MODE_A = 3 };                             // cudnnBackendHeurMode_t
enum : int32_t { NUMERICAL_NOTE_NONDETERMINISTIC = 4 };                                 // cudnnBackendNumericalNote_t
constexpr int MOST_NOTES = 32;  // more than there are
enum : int32_t {                                                                        // cudnnBackendAttributeType_t
  TYPE_HANDLE = 0, TYPE_DATA_TYPE = 1, TYPE_INT64 = 3, TYPE_FLOAT = 4, TYPE_VOID_PTR = 6, TYPE_CONVOLUTION_MODE = 7,
  TYPE_HEUR_MODE = 8, TYPE_NUMERICAL_NOTE = 11, TYPE_BACKEND_DESCRIPTOR = 15
};
enum : int32_t {                                                                        // cudnnBackendDescriptorType_t
  CONVOLUTION_DESCRIPTOR = 1, ENGINE_DESCRIPTOR = 2, ENGINECFG_DESCRIPTOR = 3, ENGINEHEUR_DESCRIPTOR = 4,
  EXECUTION_PLAN_DESCRIPTOR = 5, OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR = 10,
  OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR = 11, OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR = 12,
  OPERATIONGRAPH_DESCRIPTOR = 15, VARIANT_PACK_DESCRIPTOR = 16, TENSOR_DESCRIPTOR = 17
};
enum : int32_t {                                                                        // cudnnBackendAttributeName_t
  ATTR_CONVOLUTION_COMP_TYPE = 100, ATTR_CONVOLUTION_CONV_MODE = 101, ATTR_CONVOLUTION_DILATIONS = 102,
  ATTR_CONVOLUTION_FILTER_STRIDES = 103, ATTR_CONVOLUTION_POST_PADDINGS = 104, ATTR_CONVOLUTION_PRE_PADDINGS = 105,
  ATTR_CONVOLUTION_SPATIAL_DIMS = 106,
  ATTR_ENGINEHEUR_MODE = 200, ATTR_ENGINEHEUR_OPERATION_GRAPH = 201, ATTR_ENGINEHEUR_RESULTS = 202,
  ATTR_ENGINECFG_ENGINE = 300,
  ATTR_EXECUTION_PLAN_HANDLE = 400, ATTR_EXECUTION_PLAN_ENGINE_CONFIG = 401, ATTR_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
  ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA = 700, ATTR_OPERATION_CONVOLUTION_FORWARD_BETA = 701,
  ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702, ATTR_OPERATION_CONVOLUTION_FORWARD_W = 703,
  ATTR_OPERATION_CONVOLUTION_FORWARD_X = 704, ATTR_OPERATION_CONVOLUTION_FORWARD_Y = 705,
  ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA = 706, ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA = 707,
  ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC = 708, ATTR_OPERATION_CONVOLUTION_BWD_DATA_W = 709,
  ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX = 710, ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY = 711,
  ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA = 712, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA = 713,
  ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC = 714, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW = 715,
  ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X = 716, ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY = 717,
  ATTR_OPERATIONGRAPH_HANDLE = 800, ATTR_OPERATIONGRAPH_OPS = 801,
  ATTR_TENSOR_BYTE_ALIGNMENT = 900, ATTR_TENSOR_DATA_TYPE = 901, ATTR_TENSOR_DIMENSIONS = 902, ATTR_TENSOR_STRIDES = 903,
  ATTR_TENSOR_UNIQUE_ID = 906,
  ATTR_VARIANT_PACK_UNIQUE_IDS = 1000, ATTR_VARIANT_PACK_DATA_POINTERS = 1001, ATTR_VARIANT_PACK_WORKSPACE = 1003,
  ATTR_ENGINE_NUMERICAL_NOTE = 1303
};

using Handle = void*;
using Desc = void*;

// name, parameters
#define COILWORK_DNN_FUNCTIONS(F)                                                                                          \
  F(cudnnCreate, (Handle*))                                                                                                \
  F(cudnnDestroy, (Handle))                                                                                                \
  F(cudnnSetStream, (Handle, void* stream))                                                                                \
  F(cudnnBackendCreateDescriptor, (int32_t type, Desc*))                                                                   \
  F(cudnnBackendDestroyDescriptor, (Desc))                                                                                 \
  F(cudnnBackendFinalize, (Desc))                                                                                          \
  F(cudnnBackendSetAttribute, (Desc, int32_t name, int32_t type, int64_t count, const void* values))                       \
  F(cudnnBackendGetAttribute, (Desc, int32_t name, int32_t type, int64_t room, int64_t* count, void* values))              \
  F(cudnnBackendExecute, (Handle, Desc plan, Desc variant_pack))

struct Functions {
#define COILWORK_FIELD(name, parameters) int32_t(*name) parameters = nullptr;
  COILWORK_DNN_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD

  // The name of a function that `library` has not, or null.
  const char* find(void* library) {
#define COILWORK_FIND(name, parameters)                                        \
  name = reinterpret_cast<int32_t(*) parameters>(dlsym(library, #name));       \
  if (!name) return #name;
    COILWORK_DNN_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
    return nullptr;
  }
};

}  // namespace coilwork::dnn
