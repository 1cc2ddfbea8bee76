// ours MODEL.cw DEVICE DTYPE SIZES TORCH: DTYPE is float or int, of the only input, whose elements are ones
#include <coilwork/model.h>

#include <iostream>
#include <memory>

#include "clock.hpp"

static coilwork::Tensor make_input(const std::vector<int64_t>& sizes, bool is_float, const std::string& device) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  const int64_t rank = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t k = sizes.size(); k-- > 1;) strides[k - 1] = strides[k] * sizes[k];
  static std::vector<float> floats(static_cast<size_t>(count), 1.0f);
  static std::vector<int64_t> integers(static_cast<size_t>(count), 1);
  void* data = is_float ? static_cast<void*>(floats.data()) : integers.data();
  const int32_t dtype = is_float ? COILWORK_FLOAT32 : COILWORK_INT64;
  coilwork::Tensor host(CoilworkMemory{sizeof(CoilworkMemory), data, rank, sizes.data(), nullptr, dtype, COILWORK_CPU, 0});
  if (device == "cpu") return host;
  using Empty = int (*)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, CoilworkTensor*);
  const auto empty = reinterpret_cast<Empty>(dlsym(dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD), "aoti_torch_empty_strided"));
  CoilworkTensor made = nullptr;
  if (empty(rank, sizes.data(), strides.data(), dtype, COILWORK_CUDA, 0, &made)) throw std::runtime_error("there is no memory");
  coilwork::Tensor there = coilwork::Tensor::own(made);
  there.copy_from(host);
  return there;
}

int main(int, char** words) {
  const std::string device = words[2];
  coilwork::open_torch(words[5]);
  const coilwork::Tensor input = make_input(read_sizes(words[4]), std::string(words[3]) == "float", device);
  coilwork::Options options;
  options.device = device;
  std::shared_ptr<coilwork::Model> model;
  const auto open = [&] {
    model = std::make_shared<coilwork::Model>(words[1], options);
    return [model, &input] { return model->call(0, {input}); };
  };
  const int code = measure(open, [&] { wait_for(device); });
  const CoilworkCounters counted = model->counters();
  std::cerr << counted.calls << " calls, " << counted.products << " products, " << counted.graphs << " graphs with " << counted.work_in_graphs
            << " pieces of work\n";
  return code;
}
