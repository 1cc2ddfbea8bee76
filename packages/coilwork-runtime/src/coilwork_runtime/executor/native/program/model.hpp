// A program in memory: what the bytes say, checked once so that running it checks nothing. Immutable but for counters and
// for kernels that settle how they are launched.
#pragma once
#include <atomic>

#include "containers/owned.hpp"

#include "interfaces/driver.hpp"
#include "interfaces/torch.hpp"
#include "program/arithmetic.hpp"

// An object of the interpreter, of which a program holds some where there is one (call/host.hpp).
typedef struct _object PyObject;

namespace coilwork {

enum Code : uint8_t {
  COMPUTE = 1, BIND, CHECK, ALLOC, POOL, CARVE, REUSE, VIEW, LAUNCH, CALL, REQUIRE, COND, WHILE, FREE, RETURN, SETTLE,
  // made while a program is loaded (resolving.hpp)
  RUN_KERNEL, POINT,
  // streams and events
  STREAM = 32,
  // where what a driver may replay begins and ends
  REGION,
  // a part that is called; one that runs so many times
  RUN, REPEAT
};
enum Ordering : uint8_t { FORK, RECORD, WAIT, SYNCHRONIZE, JOIN, USE };
enum class Seen : uint8_t { SAME, LAYOUT, BITS };
enum Wanted : uint8_t { NOTHING, TENSOR, NUMBER, IGNORED };  // of inputs, results of calls, results of programs

constexpr uint32_t MOST_DIMENSIONS = 64;
constexpr uint32_t NONE = UINT32_MAX;
constexpr size_t MOST_WORDS = 512;  // parameters of a kernel

// Where a list lies in `Part::words`.
struct Span {
  uint32_t first = 0, count = 0;
};

struct Layout {
  int32_t dtype = 0, device_type = 0, device_index = 0;
  bool on_cpu = false;
  bool quantized = false;  // its tensors stay as operators make them
  uint32_t dtype_name = 0, device_name = 0;
  uint32_t rank = 0;
  bool fixed = true;
  List<uint32_t> registers;  // sizes, then strides
  List<int64_t> values;      // the same as numbers, if they are fixed
};

// One instruction; what its fields mean is said where it is read (parsing.hpp).
struct Step {
  uint8_t code = 0, flag = 0, kind = 0;
  uint32_t place = 0;
  uint32_t a = NONE, b = NONE, c = NONE, layout = NONE;
  Span list, more, rest;
  uint32_t number = 0;         // in the program, as it was written
  uint32_t root = NONE;        // POINT: the slot that keeps the memory
  int64_t offset = 0;          // POINT: bytes, on top of the register times `scale`
  int64_t scale = 0;
  void* function = nullptr;    // RUN_KERNEL
};

// What a kernel is given when it is run as RUN_KERNEL: a register, or memory so many bytes after the start of a slot's.
struct Argument {
  uint32_t number = 0;
  bool is_size = false;
  int64_t offset = 0;
};

struct Part {
  uint32_t name = 0;
  List<uint32_t> slot_names;
  uint32_t variables = 0;      // registers that are no constants; these come first
  List<int64_t> constants;
  List<uint32_t> outer;        // registers that the caller fills
  struct Input {
    uint8_t kind;
    uint32_t number;
  };
  List<Input> inputs;
  struct Known {
    uint32_t slot, key;
  };
  List<Known> known;
  List<Layout> layouts;
  List<Step> steps;
  List<uint32_t> words;
  List<Argument> arguments;
  List<uint8_t> shared;        // slots whose memory a tensor of somebody else's may see; nothing if that is not known
  PyObject* replacement = nullptr;  // what is called in its place, in `Program::replacements`; null almost always

  size_t registers() const { return variables + constants.size(); }
};

// An argument of a call, as the plan of the call says.
struct Value {
  enum Kind : uint8_t {
    NONE = 0, TENSOR, SIZE, INT, REAL, REAL_OF_SIZE, BOOL, CODE, TEXT, LIST, SOME, DEVICE, UNDEFINED,
    // for functions of single operators: pointers to tensors or numbers, lists as pointer and count
    TENSOR_AT = 20, INTS, TENSORS, INT_AT, REAL_AT, CODE_AT, DEVICE_AT, BOOLS, INTS_AT
  };
  Kind kind = NONE;
  uint32_t number = 0;  // slot, register, or device index
  int64_t integer = 0;
  double real = 0;
  Text text;
  List<Value> items;
};

struct Timing;          // in timing.hpp
struct Product;         // in product_library.hpp
class ProductLibrary;
struct Convolution;     // in convolution_library.hpp
class ConvolutionLibrary;
class Replay;           // in replay.hpp

// How a kernel is launched without Python.
struct Form {
  struct Parameter {
    enum Role : uint8_t { POINTER, SIZE64, SIZE32, SCRATCH } role;
    uint32_t item_bytes = 0;
    Formula elements;
  };
  bool gpu = false;
  bool checks = false;
  Text name;
  void* function = nullptr;
  List<Parameter> parameters;
  size_t tensors = 0, sizes = 0;
  // GPUs only
  HowToLaunch how;
  void* set_context = nullptr;
  void* context = nullptr;
  int32_t device = 0;  // -1 for one that torch does not know, which has no streams
  uint64_t compiler_scratch_bytes = 0;
  Formula grid[3];
  Owned<Form> otherwise;  // where `guard` is not 0
  Formula guard;
};

// How a kernel of the user's is launched without Python for arguments that its compiler does not tell apart. Tensors and sizes
// are numbered as the plan of the call has them.
struct UserLaunch {
  struct Condition {
    enum Kind : uint8_t {
      ALIGNED,  // whether the tensor begins at a multiple of 16 bytes
      EQUAL,    // the size
      ALIKE     // those traits of the size that the upper byte of the value names are as its lower byte says
    } kind;
    uint32_t number = 0;
    int64_t value = 0;
  };
  struct Word {
    enum Kind : uint8_t { TENSOR, SIZE, NUMBER } kind;
    uint32_t number = 0;
    uint64_t bits = 0;
  };
  enum Trait : uint8_t { ONE = 1, MULTIPLE_OF_16 = 2, OF_32_BITS = 4 };
  Form form;  // without parameters and grid
  List<Condition> conditions;
  List<Word> parameters;
  Word grid[3];
  const UserLaunch* next = nullptr;
};

// Those that are known so far. Any thread adds some; they stay as long as the program.
class UserLaunches {
 public:
  UserLaunches() = default;
  UserLaunches(const UserLaunches&) = delete;
  ~UserLaunches() {
    for (const UserLaunch* one = first_.load(); one;) {
      const UserLaunch* next = one->next;
      delete one;
      one = next;
    }
  }
  const UserLaunch* first() const { return first_.load(std::memory_order_acquire); }
  void add(Owned<UserLaunch> made) {
    UserLaunch* one = made.release();
    one->next = first();
    while (!first_.compare_exchange_weak(one->next, one, std::memory_order_acq_rel)) {
    }
  }

 private:
  std::atomic<const UserLaunch*> first_{nullptr};
};

struct Plan {
  enum Route : uint8_t { PYTHON = 0, FUNCTION, DISPATCHER, ITEM, LAUNCH };
  Route route = PYTHON;
  void* function = nullptr;
  Text name, overload;
  List<Value> values;
  List<uint8_t> results;         // of the operator: 0 tensor, 1 number, 2 list of tensors
  bool in_place = false;         // a function that returns its first argument
  bool single = true;
  uint32_t wanted = 0;           // results that the program declares
  size_t words = 0;              // room that the arguments of a function take
  List<uint32_t> slots, sizes;   // what the Python callable is given
  // A matrix product that cuBLASLt may do instead; slots, `bias` may be NONE. A device below 0 is the CPU of tests.
  struct Multiplication {
    bool batched = false;
    uint32_t first = 0, second = 0, result = 0, bias = NONE;
    uint8_t activation = 0;  // of sums, as an epilogue of cuBLASLt's: 0 is none
    int32_t device = 0;
    mutable std::atomic<Product*> last{nullptr};
  };
  Owned<Multiplication> multiplication;
  // A convolution or its gradients that cuDNN may do instead: where each role's tensor is (NONE: nowhere), and the role that
  // each result has (-1: none).
  struct Convolving {
    uint32_t slots[3] = {NONE, NONE, NONE};
    List<int32_t> computed;
    List<int64_t> stride, padding, dilation;
    int64_t groups = 1;
    int32_t device = 0;
    mutable std::atomic<Convolution*> last[3] = {};
  };
  Owned<Convolving> convolving;
  mutable UserLaunches launches;  // LAUNCH: of a kernel of the user's, which Python launches until there is one that fits
  PyObject* callable = nullptr;   // returns the bytes of such a launch behind one that it made
};

struct Kernel {
  uint32_t name = 0;
  PyObject* launcher = nullptr;  // takes tensors, then sizes
  PyObject* settle = nullptr;    // returns the form's bytes or None, after a call of `launcher`; may be null
  std::atomic<const Form*> form{nullptr};
  List<Text> checks;             // what failed checks say, where there is no Python
};

// Kinds of errors that a call raises.
enum class Fault { RUNTIME, OVERFLOW, DIVISION };

// A function of torch failed where no slower way is left.
struct Failed {
  const char* what;
};

struct Counters {
  std::atomic<uint64_t> calls{0}, python_calls{0}, python_launches{0}, slow_paths{0}, fallbacks{0};
  std::atomic<uint64_t> products{0}, refused_products{0}, convolutions{0}, refused_convolutions{0};
  std::atomic<uint64_t> graphs{0}, work_in_graphs{0};
};

// Keys of torch's dispatcher: those that a tensor may have, and those of which it has to have one.
struct Kinds {
  uint64_t allowed = 0, required = 0;
};

struct Program {
  List<Text> strings;
  List<uint32_t> keys;
  List<Part> parts;
  List<Owned<Plan>> plans;
  List<Owned<Kernel>> kernels;
  List<AtenTensorHandle> constants;
  int32_t cuda_device = -1;   // the one that it uses, -1 for none
  bool several_devices = false;
  PyObject* handles_of = nullptr;    // list of tensors -> list of capsules
  PyObject* tensors_of = nullptr;    // the inverse, which deletes the capsules' handles
  PyObject* faults = nullptr;        // `coilwork_runtime.executor.slow_path`
  PyObject* fallback = nullptr;      // does the whole call where numbers are not plain
  PyObject* operators = nullptr;     // does it by torch's operators: for tensors that are no memory, and for those who watch operators
  bool strict = false;               // there are none such; those who watch see what a program calls, unless they are torch's own
  Kinds kinds;                       // of tensors that it reads
  uint64_t refused = 0;              // further keys that inputs may have, which checks refuse by name
  bool captures = false;             // it has capture regions
  bool streams = false;              // work is put on several streams
  bool resizes = false;              // an operator resizes the memory of inputs, which may come without
  PyObject* replacements = nullptr;  // callables by the names of parts; null almost always
  PyObject* regions = nullptr;       // is told where capture regions begin and end (`region_replay.py`); null almost always
  PyObject* watch = nullptr;         // is told of each change of memory; null almost always
  ProductLibrary* products = nullptr;    // null where operators do matrix products
  PyObject* product_settings = nullptr;  // returns what torch says about products at present; below 0: none of ours
  ConvolutionLibrary* convolutions = nullptr;  // the same of convolutions
  PyObject* convolution_settings = nullptr;
  bool on_gpu = false;               // it has kernels on a GPU
  bool user_launches = false;        // it launches kernels of the user's
  Replay* replay = nullptr;          // null where the driver is given work piece by piece
  mutable Counters counters;
  mutable std::atomic<size_t> workspace_bytes{0};    // the most that a product or convolution has asked for so far
  mutable std::atomic<Timing*> timing{nullptr};  // while somebody wants to know what instructions take
  mutable List<Owned<Timing>> timings;  // all so far: calls may still write into them

  const char* text(uint32_t number) const { return strings[number].c_str(); }
};

// Where plans.hpp is included. The form of a kernel; throws Damaged.
Owned<Form> parse_form(const char* data, size_t size);
// A launch for calls of `plan`; the same.
Owned<UserLaunch> parse_user_launch(const Plan& plan, const char* data, size_t size);

}  // namespace coilwork
