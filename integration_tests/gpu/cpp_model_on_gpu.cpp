// Runs a package on a GPU for test_cpp_models_gpu.py, without Python.
//
//   driver TORCH PACKAGE DEVICE INPUT ROWS COLUMNS RESULT USES
//
// INPUT is a file of float32; the bytes of the first result go to the file RESULT. Calls follow that are all alike, and then eight threads
// call the model, each on a stream of its own: 400 times, and 10,000 times more, behind which memory is what it was. Prints how many
// results differ, the device of a result, what is current after loading, MiB that were kept, and whether products were made without torch
// and repeated work became graphs, which is left out unless USES is "all".
#include <coilwork/model.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <thread>

using coilwork::Model;
using coilwork::Tensor;

template <class Function>
static Function find(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  void* found = handle ? dlsym(handle, name) : nullptr;
  if (!found) throw std::runtime_error(std::string("there is no ") + name);
  return reinterpret_cast<Function>(found);
}

struct Torch {
  int (*empty)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, CoilworkTensor*) =
      find<decltype(empty)>("libtorch_cpu.so", "aoti_torch_empty_strided");
  int (*guard)(void*, int32_t, void**) = find<decltype(guard)>("libtorch_cuda.so", "aoti_torch_create_cuda_stream_guard");
  int (*leave)(void*) = find<decltype(leave)>("libtorch_cuda.so", "aoti_torch_delete_cuda_stream_guard");
  int (*use)(int32_t, void**) = find<decltype(use)>("libtorch_cuda.so", "aoti_torch_create_cuda_guard");
  int (*current)(int32_t*) = find<decltype(current)>("libtorch_cuda.so", "aoti_torch_get_current_device_index");
  int (*stream)(void**, unsigned) = find<decltype(stream)>("libcuda.so.1", "cuStreamCreate");
  int (*memory)(size_t*, size_t*) = find<decltype(memory)>("libcuda.so.1", "cuMemGetInfo_v2");
};

static std::vector<char> bytes_of(const Tensor& tensor) {
  std::vector<char> room(static_cast<size_t>(tensor.count()) * 4);
  const CoilworkMemory memory = tensor.memory();
  Tensor copy(CoilworkMemory{sizeof(CoilworkMemory), room.data(), memory.rank, memory.sizes, nullptr, memory.dtype, COILWORK_CPU, 0});
  copy.copy_from(tensor);
  return room;
}

// Of the device's memory and of the process's, in MiB.
static int64_t read_used(const Torch& torch) {
  size_t free = 0, total = 0;
  if (torch.memory(&free, &total)) throw std::runtime_error("the device does not tell its memory");
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<int64_t>((total - free) >> 20) + (resident * sysconf(_SC_PAGESIZE) >> 20);
}

int main(int, char** given) {
  try {
    coilwork::open_torch(given[1]);
    coilwork::Options options;
    options.torch_library = given[1];
    options.device = given[3];
    options.uses_libraries = options.uses_graphs = std::string(given[8]) == "all";
    const Model model(given[2], options);
    const int32_t device = std::stoi(model.device().substr(5));
    const Torch torch;
    int32_t current = -1;
    if (torch.current(&current)) throw std::runtime_error("torch does not tell its current device");
    std::ifstream file(given[4], std::ios::binary);
    std::string data(std::istreambuf_iterator<char>(file), {});
    const int64_t sizes[] = {std::stoll(given[5]), std::stoll(given[6])}, strides[] = {sizes[1], 1};
    const Tensor host(CoilworkMemory{sizeof(CoilworkMemory), &data[0], 2, sizes, nullptr, COILWORK_FLOAT32, COILWORK_CPU, 0});
    const auto put = [&] {
      CoilworkTensor made = nullptr;
      if (torch.empty(2, sizes, strides, COILWORK_FLOAT32, COILWORK_CUDA, device, &made)) throw std::runtime_error("there is no memory");
      Tensor there = Tensor::own(made);
      there.copy_from(host);
      return there;
    };
    const Tensor result = model.call("forward", {put()})[0].tensor();
    const std::vector<char> wanted = bytes_of(result);
    std::ofstream(given[7], std::ios::binary).write(wanted.data(), static_cast<std::streamsize>(wanted.size()));
    std::atomic<int> differing{0}, failed{0};
    const Tensor same = put();
    for (int round = 0; round < 50; ++round) differing += bytes_of(model.call("forward", {same})[0].tensor()) != wanted;
    std::vector<void*> streams(8);
    void* using_device = nullptr;
    if (torch.use(device, &using_device)) throw std::runtime_error("the device does not become current");
    // not ordered with the default stream
    for (void*& stream : streams)
      if (torch.stream(&stream, 1)) throw std::runtime_error("there is no stream");
    // The same threads go on when memory is read: torch keeps what its libraries need for each thread and stream.
    std::atomic<int> warm{0};
    std::promise<void> is_read;
    const std::shared_future<void> begin = is_read.get_future().share();
    std::vector<std::thread> threads;
    for (void* stream : streams)
      threads.emplace_back([&, stream] {
        bool is_warm = false;
        try {
          void* guard = nullptr;
          if (torch.guard(stream, device, &guard)) throw std::runtime_error("the stream does not become current");
          for (int round = 0; round < 1300; ++round) {
            if (round == 50) {
              is_warm = true;
              ++warm;
              begin.wait();
            }
            const Tensor mine = put();
            const Tensor made = model.call("forward", {mine})[0].tensor();
            // each eighth result is compared
            if (round % 8 == 0) differing += bytes_of(made) != wanted;
          }
          torch.leave(guard);
        } catch (const std::exception& error) {
          std::cerr << error.what() << "\n";
          ++failed;
          if (!is_warm) ++warm;
        }
      });
    while (warm < static_cast<int>(streams.size())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t used = read_used(torch);
    is_read.set_value();
    for (std::thread& one : threads) one.join();
    const int64_t kept = read_used(torch) - used;
    const CoilworkCounters counted = model.counters();
    std::cout << "differing " << differing << " failed " << failed << " device " << result.memory().device_index << " current " << current << " kept "
              << (kept > 8 ? kept : 0) << " products "
              << (counted.products > 0) << " graphs " << (counted.graphs > 0 && counted.work_in_graphs >= 4 * counted.graphs) << "\n";
  } catch (const std::exception& error) {
    std::cout << error.what() << "\n";
    return 1;
  }
  return 0;
}
