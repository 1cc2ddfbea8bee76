/* The C interface of libcoilwork_model, which loads packages that coilwork.export wrote and runs them without Python. C++ programs
 * include coilwork/model.h, which wraps it.
 *
 * Functions that may fail return null, or an error that the caller deletes. Texts and arrays that a function hands out live as long
 * as what they were asked of. Handles of tensors are those of torch's stable C interface: `AtenTensorHandle` of torch/csrc/stable.
 * Structures begin with their size, so that an older program fits a newer library. */
#ifndef COILWORK_MODEL_C_H
#define COILWORK_MODEL_C_H
#include <stddef.h>
#include <stdint.h>

#define COILWORK_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

struct AtenTensorOpaque;
typedef struct AtenTensorOpaque* CoilworkTensor;
typedef struct CoilworkModel CoilworkModel;
typedef struct CoilworkError CoilworkError;

/* ---- errors ---- */

/* As the classes of coilwork_aot.errors; a call that fails for another reason, such as a check in a kernel, is COILWORK_CALL_ERROR. */
typedef enum { COILWORK_PACKAGE_ERROR = 1, COILWORK_TARGET_ERROR, COILWORK_INPUT_ERROR, COILWORK_CALL_ERROR } CoilworkErrorKind;

COILWORK_API CoilworkErrorKind coilwork_error_kind(const CoilworkError* error);
/* One of coilwork_aot.errors.CODES, such as "wrong-hash". */
COILWORK_API const char* coilwork_error_code(const CoilworkError* error);
COILWORK_API const char* coilwork_error_message(const CoilworkError* error);
COILWORK_API void coilwork_error_delete(CoilworkError* error);

/* ---- tensors ---- */

/* Loads torch, where the process has not linked or loaded it, from the path of libtorch_cpu.so; null: where the system's loader looks.
 * Needed for tensors that are made before a model is opened. */
COILWORK_API CoilworkError* coilwork_open_torch(const char* path);

/* Numbers of element types and kinds of devices are torch's: c10::ScalarType, c10::DeviceType. */
typedef enum {
  COILWORK_UINT8 = 0, COILWORK_INT8 = 1, COILWORK_INT16 = 2, COILWORK_INT32 = 3, COILWORK_INT64 = 4, COILWORK_FLOAT16 = 5,
  COILWORK_FLOAT32 = 6, COILWORK_FLOAT64 = 7, COILWORK_COMPLEX64 = 9, COILWORK_COMPLEX128 = 10, COILWORK_BOOL = 11,
  COILWORK_BFLOAT16 = 15, COILWORK_FLOAT8_E5M2 = 23, COILWORK_FLOAT8_E4M3FN = 24, COILWORK_UINT16 = 27, COILWORK_UINT32 = 28,
  COILWORK_UINT64 = 29
} CoilworkDtype;
typedef enum { COILWORK_CPU = 0, COILWORK_CUDA = 1 } CoilworkDevice;

/* Memory as a tensor sees it; sizes and strides in elements. */
typedef struct {
  size_t size;
  void* data;
  int64_t rank;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t dtype, device, device_index;
} CoilworkMemory;

/* A tensor on the caller's memory. `release(data, context)` is called when no tensor sees it any more; null if the caller keeps the
 * memory for as long. `strides` may be null: contiguous. */
COILWORK_API CoilworkError* coilwork_tensor_make(const CoilworkMemory* memory, void (*release)(void*, void*), void* context,
                                                 CoilworkTensor* made);
COILWORK_API CoilworkError* coilwork_tensor_describe(CoilworkTensor tensor, CoilworkMemory* memory);
/* Another handle on the same tensor. */
COILWORK_API CoilworkError* coilwork_tensor_share(CoilworkTensor tensor, CoilworkTensor* made);
COILWORK_API CoilworkError* coilwork_tensor_copy(CoilworkTensor to, CoilworkTensor from);
COILWORK_API void coilwork_tensor_delete(CoilworkTensor tensor);

/* ---- models ---- */

typedef struct {
  const char* name;
  CoilworkTensor tensor;
} CoilworkNamedTensor;

/* Zeros are the defaults. */
typedef struct {
  size_t size;
  const char* device;                 /* "cpu", "cuda", "cuda:1"; null: what the package is for */
  const char* digest;                 /* insists on the package with this digest */
  const char* weights_path;           /* a safetensors file instead of the package's own weights */
  const CoilworkNamedTensor* weights; /* or tensors, which stay the caller's */
  size_t weight_count;
  const CoilworkModel* share;         /* uses the tensors of this model, which may be closed before */
  const char* torch_library;          /* path of libtorch_cpu.so, if the process has not loaded it */
  int32_t skips_weight_hash;          /* does not read all weights to check them */
  int32_t leaves_libraries;           /* on a GPU, torch does all products and convolutions */
  int32_t leaves_graphs;              /* on a GPU, repeated work does not go to the driver as graphs */
} CoilworkOptions;

/* Loads a package. Nothing is compiled, timed or written; several threads may load and call. */
COILWORK_API CoilworkError* coilwork_model_open(const char* path, const CoilworkOptions* options, CoilworkModel** made);
COILWORK_API void coilwork_model_close(CoilworkModel* model);
COILWORK_API const char* coilwork_model_name(const CoilworkModel* model);
COILWORK_API const char* coilwork_model_device(const CoilworkModel* model);

typedef enum { COILWORK_NOTHING = 0, COILWORK_TENSOR, COILWORK_INTEGER, COILWORK_REAL, COILWORK_TRUTH, COILWORK_TEXT } CoilworkKind;

/* An input or result. Of a tensor, `tensor` is a handle; of a result, the caller's to delete. */
typedef struct {
  CoilworkKind kind;
  CoilworkTensor tensor;
  int64_t integer; /* of a truth value, too */
  double real;
  const char* text;
} CoilworkValue;

/* The sizes that a dimension may have; `high` is -1 without an upper bound. `symbol` is one text for dimensions that are equal, empty
 * for a fixed size or one that the program checks. */
typedef struct {
  int64_t low, high;
  const char* symbol;
} CoilworkExtent;

/* An input. A number has one extent. */
typedef struct {
  size_t size;
  const char* name;
  CoilworkKind kind;
  int32_t dtype, device;
  int64_t rank;
  const CoilworkExtent* extents;
  int32_t is_written; /* the program writes to it */
} CoilworkInput;

COILWORK_API size_t coilwork_model_entry_count(const CoilworkModel* model);
/* Null beyond the last. */
COILWORK_API const char* coilwork_model_entry_name(const CoilworkModel* model, size_t entry);
/* Number of the entry point `name`. */
COILWORK_API CoilworkError* coilwork_model_find_entry(const CoilworkModel* model, const char* name, size_t* entry);
/* An entry point has a variant for each range of shapes; a call takes the first that fits. */
COILWORK_API size_t coilwork_model_variant_count(const CoilworkModel* model, size_t entry);
COILWORK_API size_t coilwork_model_input_count(const CoilworkModel* model, size_t entry, size_t variant);
COILWORK_API size_t coilwork_model_result_count(const CoilworkModel* model, size_t entry, size_t variant);
COILWORK_API CoilworkError* coilwork_model_input(const CoilworkModel* model, size_t entry, size_t variant, size_t number,
                                                 CoilworkInput* input);

/* Runs an entry point. Inputs are the leaves of the exported arguments in order, those apart that were fixed at export; results are the
 * leaves of what the model returns, fixed ones among them. `result_count` is the room for results, then their number. */
COILWORK_API CoilworkError* coilwork_model_call(const CoilworkModel* model, size_t entry, const CoilworkValue* inputs, size_t input_count,
                                                CoilworkValue* results, size_t* result_count);

/* What all calls so far have done on a GPU: products of cuBLASLt and convolutions of cuDNN without torch, graphs of the driver's that
 * were launched, and the pieces of work in them. */
typedef struct {
  size_t size;
  uint64_t calls, products, convolutions, graphs, work_in_graphs;
} CoilworkCounters;

COILWORK_API void coilwork_model_count(const CoilworkModel* model, CoilworkCounters* counters);

/* ---- state ---- */

typedef struct {
  size_t size;
  const char* name;
  const char* kind;      /* "parameter", "buffer", "constant" */
  int32_t is_persistent; /* it is in the state_dict */
} CoilworkStateInfo;

COILWORK_API size_t coilwork_model_state_count(const CoilworkModel* model);
COILWORK_API CoilworkError* coilwork_model_state(const CoilworkModel* model, size_t number, CoilworkStateInfo* info, CoilworkTensor* made);
/* Other values for all persistent state by name: copied into it, or with `assigns` the tensors themselves, which calls that begin
 * later use. With an error, nothing has changed. */
COILWORK_API CoilworkError* coilwork_model_load_state(CoilworkModel* model, const CoilworkNamedTensor* values, size_t count, int32_t assigns);
/* The same from a safetensors file. */
COILWORK_API CoilworkError* coilwork_model_load_state_file(CoilworkModel* model, const char* path, int32_t assigns);

#ifdef __cplusplus
}
#endif
#endif
