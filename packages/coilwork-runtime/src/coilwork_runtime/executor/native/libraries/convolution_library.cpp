// Working out a convolution: an operation graph of the one operation, and the engine that the library's heuristics prefer
// among those that give the same bits in every call.
#include "libraries/convolution_library.hpp"

#include <utility>

#include "libraries/memo_table.hpp"

namespace coilwork {

static constexpr size_t MOST_CONVOLUTIONS = 4096;  // beyond, sizes seem to change with every call
static constexpr size_t MOST_HANDLES = 64;
static constexpr int64_t IDS[] = {'x', 'w', 'y'};  // by role

// A descriptor of the library's while it is put together.
class Descriptor {
 public:
  Descriptor(const dnn::Functions& library, int32_t type) : library_(library) {
    good_ = library_.cudnnBackendCreateDescriptor(type, &desc_) == dnn::SUCCESS;
  }
  Descriptor(Descriptor&& other) : library_(other.library_), desc_(other.desc_), good_(other.good_) { other.desc_ = nullptr; }
  ~Descriptor() {
    if (desc_) library_.cudnnBackendDestroyDescriptor(desc_);
  }

  Descriptor& set(int32_t name, int32_t type, int64_t count, const void* values) {
    good_ = good_ && library_.cudnnBackendSetAttribute(desc_, name, type, count, values) == dnn::SUCCESS;
    return *this;
  }
  Descriptor& set(int32_t name, const Descriptor& other) {
    good_ = good_ && other.good_;
    return set(name, dnn::TYPE_BACKEND_DESCRIPTOR, 1, &other.desc_);
  }
  Descriptor& number(int32_t name, int64_t value) { return set(name, dnn::TYPE_INT64, 1, &value); }
  Descriptor& finish() {
    good_ = good_ && library_.cudnnBackendFinalize(desc_) == dnn::SUCCESS;
    return *this;
  }
  // How many values there are, of which at most `room` are written to `values`.
  int64_t get(int32_t name, int32_t type, int64_t room, void* values) const {
    int64_t count = 0;
    return good_ && library_.cudnnBackendGetAttribute(desc_, name, type, room, &count, values) == dnn::SUCCESS ? count : 0;
  }
  dnn::Desc take() {
    const dnn::Desc made = desc_;
    desc_ = nullptr;
    return made;
  }
  dnn::Desc* address() { return &desc_; }
  bool good() const { return good_; }

 private:
  const dnn::Functions& library_;
  dnn::Desc desc_ = nullptr;
  bool good_;
};

// How an operation of the library is said, by the role that it computes.
struct Saying {
  int32_t type, convolution, alpha, beta, tensors[ROLES];
};
static constexpr Saying SAYINGS[ROLES] = {
    {dnn::OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     dnn::ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     dnn::ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     dnn::ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
     {dnn::ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, dnn::ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      dnn::ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}},
    {dnn::OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     dnn::ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     dnn::ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     dnn::ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
     {dnn::ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, dnn::ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      dnn::ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}},
    {dnn::OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     dnn::ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     dnn::ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     dnn::ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
     {dnn::ATTR_OPERATION_CONVOLUTION_FORWARD_X, dnn::ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      dnn::ATTR_OPERATION_CONVOLUTION_FORWARD_Y}},
};

struct ConvolutionLibrary::Known {
  explicit Known(dnn::Functions& functions) : functions(functions) {}

  // What the library cannot do is remembered, too.
  Convolution* find(const ConvolutionKey& key, bool may_make) {
    const Holding hold(&lock_);
    return convolutions_.find(key, may_make, [this](const ConvolutionKey& wanted) { return make(wanted); });
  }

  dnn::Functions& functions;

 private:
  struct Stream {
    int32_t device;
    void* stream;
    dnn::Handle handle;
    Lock turn;
  };

  Stream* stream_of(const ConvolutionKey& key) {
    for (const auto& known : streams_)
      if (known->device == key.device && known->stream == key.stream) return known.get();
    if (streams_.size() >= MOST_HANDLES) return nullptr;
    auto made = Owned<Stream>(new Stream());
    made->device = key.device;
    made->stream = key.stream;
    if (functions.cudnnCreate(&made->handle) != dnn::SUCCESS) return nullptr;
    if (functions.cudnnSetStream(made->handle, key.stream) != dnn::SUCCESS) {
      functions.cudnnDestroy(made->handle);
      return nullptr;
    }
    streams_.push_back(std::move(made));
    return streams_.back().get();
  }

  Owned<Convolution> make(const ConvolutionKey& key) {
    Stream* stream = stream_of(key);
    if (!stream) return nullptr;
    auto made = Owned<Convolution>(new Convolution());
    made->key = key;
    made->library = &functions;
    made->handle = stream->handle;
    made->turn = &stream->turn;
    const Descriptor tensors[] = {tensor(key, IMAGE), tensor(key, WEIGHT), tensor(key, SUMS)};
    const Descriptor convolution = convolution_of(key);
    const Saying& saying = SAYINGS[key.computed];
    const float one = 1, zero = 0;
    Descriptor operation(functions, saying.type);
    operation.set(saying.convolution, convolution)
        .set(saying.alpha, dnn::TYPE_FLOAT, 1, &one)
        .set(saying.beta, dnn::TYPE_FLOAT, 1, &zero);
    for (int role = 0; role < ROLES; ++role) operation.set(saying.tensors[role], tensors[role]);
    operation.finish();
    Descriptor graph(functions, dnn::OPERATIONGRAPH_DESCRIPTOR);
    graph.set(dnn::ATTR_OPERATIONGRAPH_HANDLE, dnn::TYPE_HANDLE, 1, &stream->handle)
        .set(dnn::ATTR_OPERATIONGRAPH_OPS, operation)
        .finish();
    for (int32_t mode : {dnn::HEUR_MODE_A, dnn::HEUR_MODE_FALLBACK})
      if (choose(graph, mode, *made)) return made;
    return nullptr;
  }

  Descriptor tensor(const ConvolutionKey& key, int role) const {
    Descriptor made(functions, dnn::TENSOR_DESCRIPTOR);
    made.set(dnn::ATTR_TENSOR_DATA_TYPE, dnn::TYPE_DATA_TYPE, 1, &key.type)
        .set(dnn::ATTR_TENSOR_DIMENSIONS, dnn::TYPE_INT64, key.rank, key.sizes[role])
        .set(dnn::ATTR_TENSOR_STRIDES, dnn::TYPE_INT64, key.rank, key.strides[role])
        .number(dnn::ATTR_TENSOR_UNIQUE_ID, IDS[role])
        .number(dnn::ATTR_TENSOR_BYTE_ALIGNMENT, key.alignment[role])
        .finish();
    return made;
  }

  Descriptor convolution_of(const ConvolutionKey& key) const {
    const int32_t sums = dnn::DATA_FLOAT, mode = dnn::CROSS_CORRELATION;
    const int64_t space = key.rank - 2;
    Descriptor made(functions, dnn::CONVOLUTION_DESCRIPTOR);
    made.set(dnn::ATTR_CONVOLUTION_COMP_TYPE, dnn::TYPE_DATA_TYPE, 1, &sums)
        .set(dnn::ATTR_CONVOLUTION_CONV_MODE, dnn::TYPE_CONVOLUTION_MODE, 1, &mode)
        .set(dnn::ATTR_CONVOLUTION_DILATIONS, dnn::TYPE_INT64, space, key.dilation)
        .set(dnn::ATTR_CONVOLUTION_FILTER_STRIDES, dnn::TYPE_INT64, space, key.stride)
        .set(dnn::ATTR_CONVOLUTION_PRE_PADDINGS, dnn::TYPE_INT64, space, key.padding)
        .set(dnn::ATTR_CONVOLUTION_POST_PADDINGS, dnn::TYPE_INT64, space, key.padding)
        .number(dnn::ATTR_CONVOLUTION_SPATIAL_DIMS, space)
        .finish();
    return made;
  }

  // The first engine of the heuristics that gives the same bits in every call and has a plan.
  bool choose(const Descriptor& graph, int32_t mode, Convolution& made) const {
    Descriptor heuristics(functions, dnn::ENGINEHEUR_DESCRIPTOR);
    heuristics.set(dnn::ATTR_ENGINEHEUR_OPERATION_GRAPH, graph).set(dnn::ATTR_ENGINEHEUR_MODE, dnn::TYPE_HEUR_MODE, 1, &mode).finish();
    const int64_t count = heuristics.get(dnn::ATTR_ENGINEHEUR_RESULTS, dnn::TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
    List<Descriptor> configs;
    List<dnn::Desc> found;
    for (int64_t at = 0; at < count; ++at) {
      configs.emplace_back(functions, dnn::ENGINECFG_DESCRIPTOR);
      found.push_back(*configs.back().address());
    }
    const int64_t got = heuristics.get(dnn::ATTR_ENGINEHEUR_RESULTS, dnn::TYPE_BACKEND_DESCRIPTOR, count, found.data());
    for (int64_t at = 0; at < got; ++at)
      if (is_repeatable(configs[static_cast<size_t>(at)]) && plan(configs[static_cast<size_t>(at)], made)) return true;
    return false;
  }

  // Whether an engine gives the same bits in every call.
  bool is_repeatable(const Descriptor& config) const {
    Descriptor engine(functions, dnn::ENGINE_DESCRIPTOR);
    if (config.get(dnn::ATTR_ENGINECFG_ENGINE, dnn::TYPE_BACKEND_DESCRIPTOR, 1, engine.address()) != 1) return false;
    int32_t notes[dnn::MOST_NOTES];
    const int64_t count = engine.get(dnn::ATTR_ENGINE_NUMERICAL_NOTE, dnn::TYPE_NUMERICAL_NOTE, dnn::MOST_NOTES, notes);
    for (int64_t at = 0; at < count && at < dnn::MOST_NOTES; ++at)
      if (notes[at] == dnn::NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
  }

  bool plan(const Descriptor& config, Convolution& made) const {
    Descriptor plan(functions, dnn::EXECUTION_PLAN_DESCRIPTOR);
    plan.set(dnn::ATTR_EXECUTION_PLAN_HANDLE, dnn::TYPE_HANDLE, 1, &made.handle)
        .set(dnn::ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)
        .finish();
    int64_t bytes = 0;
    if (plan.get(dnn::ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, dnn::TYPE_INT64, 1, &bytes) != 1 || bytes < 0) return false;
    made.workspace_bytes = static_cast<size_t>(bytes);
    made.plan = plan.take();
    return true;
  }

  Lock lock_;
  List<Owned<Stream>> streams_;
  MemoTable<ConvolutionKey, Convolution> convolutions_{MOST_CONVOLUTIONS};
};

Convolution::~Convolution() {
  if (plan) library->cudnnBackendDestroyDescriptor(plan);
}

int32_t Convolution::run(const uint64_t* addresses, void* stream) const {
  constexpr int32_t FAILED = -1;
  Descriptor pack(*library, dnn::VARIANT_PACK_DESCRIPTOR);
  pack.set(dnn::ATTR_VARIANT_PACK_UNIQUE_IDS, dnn::TYPE_INT64, ROLES, IDS)
      .set(dnn::ATTR_VARIANT_PACK_DATA_POINTERS, dnn::TYPE_VOID_PTR, ROLES, addresses)
      .set(dnn::ATTR_VARIANT_PACK_WORKSPACE, dnn::TYPE_VOID_PTR, 1, addresses + ROLES)
      .finish();
  if (!pack.good()) return FAILED;
  const Holding hold(turn);
  if (stream == key.stream) return library->cudnnBackendExecute(handle, plan, *pack.address());
  // the handle's own stream is that of the calls that the plan was made for
  if (library->cudnnSetStream(handle, stream) != dnn::SUCCESS) return FAILED;
  const int32_t status = library->cudnnBackendExecute(handle, plan, *pack.address());
  return library->cudnnSetStream(handle, key.stream) == dnn::SUCCESS ? status : FAILED;
}

ConvolutionLibrary::ConvolutionLibrary() : known_(new Known(functions)) {}

ConvolutionLibrary* ConvolutionLibrary::open(void* handle, const char** missing) {
  auto made = Owned<ConvolutionLibrary>(new ConvolutionLibrary());
  *missing = made->functions.find(handle);
  return *missing ? nullptr : made.release();
}

Convolution* ConvolutionLibrary::find(const ConvolutionKey& key, bool may_make) { return known_->find(key, may_make); }

}  // namespace coilwork
