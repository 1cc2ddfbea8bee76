// The device `queued`: host memory, and streams that are queues of work, each served by a thread of its own.
//
// It is registered as torch's PrivateUse1: memory, streams and events, copies; what else torch is asked for runs on
// the CPU. The functions at the end are for `device.py`, which launches compiled kernels.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(TYPE, 0);
constexpr size_t MOST_WORDS = 512;  // of a kernel; `device.py` refuses more

// Done when the work before it in its stream is.
class Mark {
 public:
  void finish() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_done_; });
  }
  bool is_done() {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_done_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;
};

class Queue {
 public:
  Queue() { std::thread([this] { serve(); }).detach(); }

  void add(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_one();
  }

  std::shared_ptr<Mark> mark() {
    auto made = std::make_shared<Mark>();
    add([made] { made->finish(); });
    return made;
  }

  // The first fault of a kernel since somebody asked; empty if there was none.
  std::string take_fault() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(fault_, std::string());
  }
  void report(const std::string& fault) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (fault_.empty()) fault_ = fault;
  }

 private:
  void serve() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !work_.empty(); });
        next = std::move(work_.front());
        work_.pop_front();
      }
      next();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::string fault_;
};

// The streams by their ids; stream 0 is there from the start. They live as long as the process.
class Streams {
 public:
  Queue& of(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    return *queues_.at(static_cast<size_t>(id));
  }
  int64_t add() {
    std::lock_guard<std::mutex> lock(mutex_);
    queues_.push_back(new Queue);
    return static_cast<int64_t>(queues_.size()) - 1;
  }
  std::vector<Queue*> all() {
    std::lock_guard<std::mutex> lock(mutex_);
    return queues_;
  }

 private:
  std::mutex mutex_;
  std::vector<Queue*> queues_{new Queue};
};

Streams& streams() {
  static Streams* made = new Streams;
  return *made;
}

thread_local int64_t current = 0;
std::atomic<int64_t> launched{0}, replayed{0};

struct Launch {
  void* function;
  std::vector<uint64_t> words;
  const char* const* checks;
  size_t count_of_checks;
  const char* kernel;
};
using Batch = std::vector<Launch>;

// Waits for the work of a stream, and raises what a kernel of it found wrong.
void finish(Queue& queue) {
  queue.mark()->wait();
  const std::string fault = queue.take_fault();
  if (fault.empty()) return;
  constexpr const char* INDEX = "IndexError: ";
  if (fault.rfind(INDEX, 0) == 0) TORCH_CHECK_INDEX(false, fault.substr(strlen(INDEX)));
  TORCH_CHECK(false, fault);
}

// Memory is given back in the order of the stream that it was made on, so work that is still queued may use it.
class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes) TORCH_CHECK(posix_memalign(&data, 64, bytes) == 0, "no memory for ", bytes, " bytes");
    return {data, new Block{data, current, {}}, &release, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    streams().of(current).add([=] { memcpy(to, from, bytes); });
  }

  // Another stream uses the memory, too.
  static void use(const c10::DataPtr& data, int64_t stream) {
    auto* block = static_cast<Block*>(data.get_context());
    if (block && block->stream != stream) block->others.push_back(stream);
  }

 private:
  struct Block {
    void* data;
    int64_t stream;
    std::vector<int64_t> others;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    std::vector<std::shared_ptr<Mark>> marks;
    for (int64_t other : block->others) marks.push_back(streams().of(other).mark());
    streams().of(block->stream).add([data = block->data, marks] {
      for (const auto& mark : marks) mark->wait();
      free(data);
    });
    delete block;
  }
};

Memory& memory() {
  static Memory* made = new Memory;
  return *made;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(streams().add()); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(streams().add()); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current, static_cast<int64_t>(next.id())));
  }
  bool queryStream(const c10::Stream& one) const override { return streams().of(one.id()).mark()->is_done(); }
  void synchronizeStream(const c10::Stream& one) const override { finish(streams().of(one.id())); }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    for (Queue* queue : streams().all()) finish(*queue);
  }

  void record(void** event, const c10::Stream& one, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new std::shared_ptr<Mark>;
    *static_cast<std::shared_ptr<Mark>*>(*event) = streams().of(one.id()).mark();
  }
  void block(void* event, const c10::Stream& one) const override {
    if (!event) return;
    streams().of(one.id()).add([mark = *static_cast<std::shared_ptr<Mark>*>(event)] { mark->wait(); });
  }
  bool queryEvent(void* event) const override { return !event || (*static_cast<std::shared_ptr<Mark>*>(event))->is_done(); }
  void synchronizeEvent(void* event) const override {
    if (event) (*static_cast<std::shared_ptr<Mark>*>(event))->wait();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<std::shared_ptr<Mark>*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& one) const override {
    Memory::use(data, one.id());
  }

 private:
  static c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, DEVICE, id); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr made = memory().allocate(bytes);
    memory().copy_data(made.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(made));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// ---- operators that know the memory; the others run on the CPU ----------------------------------------------

at::Tensor on_host(const at::Tensor& value) {
  return at::from_blob(value.data_ptr(), value.sizes(), value.strides(), value.options().device(at::kCPU));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory(), keys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory(),
                                           keys, c10::dtype_or_default(type));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.device().type() == TYPE && to.device().type() == TYPE) {
    // views of memory only, which outlives this work: tensors belong to the thread that made them
    auto view = [](const at::Tensor& value) {
      return [data = value.data_ptr(), size = value.sizes().vec(), stride = value.strides().vec(),
              type = value.scalar_type()] { return at::from_blob(data, size, stride, at::TensorOptions(type)); };
    };
    streams().of(current).add([source = view(from), target = view(to)] { target().copy_(source()); });
    return to;
  }
  finish(streams().of(current));
  if (from.device().type() == TYPE) {
    const_cast<at::Tensor&>(to).copy_(on_host(from));
  } else {
    on_host(to).copy_(from);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar read_number(const at::Tensor& value) {
  finish(streams().of(current));
  return at::native::_local_scalar_dense_cpu(on_host(value));
}

at::Tensor& set_storage(at::Tensor& value, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / value.dtype().itemsize());
  return at::native::set_storage_cpu_(value, std::move(source), 0, {count}, {});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", read_number);
}

// The device's own library: matrices are multiplied behind the work of a stream, where the CPU's fallback waits.
std::atomic<int64_t> multiplied{0};

at::Tensor& multiply_out(const at::Tensor& left, const at::Tensor& right, at::Tensor& out) {
  ++multiplied;
  auto view = [](const at::Tensor& value) {
    return [data = value.data_ptr(), size = value.sizes().vec(), stride = value.strides().vec(),
            type = value.scalar_type()] { return at::from_blob(data, size, stride, at::TensorOptions(type)); };
  };
  streams().of(current).add([a = view(left), b = view(right), made = view(out)] {
    at::Tensor result = made();
    at::mm_out(result, a(), b());
  });
  return out;
}

at::Tensor multiply(const at::Tensor& left, const at::Tensor& right) {
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  return multiply_out(left, right, out);
}

TORCH_LIBRARY(queued, m) {
  m.def("multiply(Tensor left, Tensor right) -> Tensor");
  m.def("multiply.out(Tensor left, Tensor right, *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(queued, PrivateUse1, m) {
  m.impl("multiply", multiply);
  m.impl("multiply.out", multiply_out);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
const int registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(TYPE, &memory());
  return 0;
}();

// ---- launching ------------------------------------------------------------------------------------------------

template <size_t... I>
int64_t call(void* function, const uint64_t* words, std::index_sequence<I...>) {
  return reinterpret_cast<int64_t (*)(decltype((void)I, uint64_t{})...)>(function)(words[I]...);
}

// Calls a C function of so many words. It may be handed more than it takes, which its caller removes again.
template <size_t most>
int64_t call_up_to(void* function, std::vector<uint64_t>& words) {
  words.resize(most);
  return call(function, words.data(), std::make_index_sequence<most>{});
}

int64_t call_with(void* function, std::vector<uint64_t>& words) {
  const size_t count = words.size();
  if (count <= 8) return call_up_to<8>(function, words);
  if (count <= 32) return call_up_to<32>(function, words);
  if (count <= 128) return call_up_to<128>(function, words);
  return call_up_to<MOST_WORDS>(function, words);
}

}  // namespace

extern "C" {

int64_t queued_current() { return current; }
int64_t queued_exchange(int64_t stream) { return std::exchange(current, stream); }
int64_t queued_launched() { return launched; }
int64_t queued_multiplied() { return multiplied; }
int64_t queued_new() { return streams().add(); }

// Puts a call of a C function behind the work of a stream. `checks` are `count_of_checks` messages, one of which a
// result above 0 picks; they and `kernel` live as long as the process.
void queued_launch(int64_t stream, void* function, const uint64_t* words, size_t count, const char* const* checks,
                   size_t count_of_checks, const char* kernel) {
  ++launched;
  Queue& queue = streams().of(stream);
  queue.add([=, &queue, words = std::vector<uint64_t>(words, words + count)]() mutable {
    const int64_t failed = call_with(function, words);
    if (count_of_checks && failed > 0) queue.report(std::string(checks[failed - 1]) + " (in kernel " + kernel + ")");
  });
}

// Launches that repeat, which a queue takes as one piece of work.
void* queued_new_batch() { return new std::shared_ptr<Batch>(std::make_shared<Batch>()); }
void queued_batch_launch(void* batch, void* function, const uint64_t* words, size_t count, const char* const* checks,
                         size_t count_of_checks, const char* kernel) {
  (*static_cast<std::shared_ptr<Batch>*>(batch))->push_back({function, {words, words + count}, checks, count_of_checks, kernel});
}
void queued_replay(int64_t stream, void* batch) {
  const std::shared_ptr<Batch> launches = *static_cast<std::shared_ptr<Batch>*>(batch);
  launched += launches->size();
  ++replayed;
  Queue& queue = streams().of(stream);
  queue.add([launches, &queue] {
    for (const Launch& one : *launches) {
      std::vector<uint64_t> words = one.words;
      const int64_t failed = call_with(one.function, words);
      if (one.count_of_checks && failed > 0) queue.report(std::string(one.checks[failed - 1]) + " (in kernel " + one.kernel + ")");
    }
  });
}
void queued_release_batch(void* batch) { delete static_cast<std::shared_ptr<Batch>*>(batch); }
int64_t queued_replayed() { return replayed; }

void* queued_record(int64_t stream) { return new std::shared_ptr<Mark>(streams().of(stream).mark()); }
void queued_wait(int64_t stream, void* event) {
  streams().of(stream).add([mark = *static_cast<std::shared_ptr<Mark>*>(event)] { mark->wait(); });
}
int queued_is_done(void* event) { return (*static_cast<std::shared_ptr<Mark>*>(event))->is_done(); }
void queued_release(void* event) { delete static_cast<std::shared_ptr<Mark>*>(event); }

// Waits for a stream; writes what a kernel of it found wrong.
void queued_finish(int64_t stream, char* fault, size_t size) {
  Queue& queue = streams().of(stream);
  queue.mark()->wait();
  const std::string found = queue.take_fault();
  strncpy(fault, found.c_str(), size - 1);
  fault[size - 1] = 0;
}
}
