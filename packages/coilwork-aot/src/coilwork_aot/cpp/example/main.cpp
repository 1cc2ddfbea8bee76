// Loads a package, says what it takes, runs it on ones, and prints the first numbers of each result. Needs neither Python nor torch's
// headers; the library finds libtorch_cpu.so where the system's loader does, or at the path that is given.
//
//   run_model MODEL.cw [ENTRY] [TORCH]
#include <coilwork/model.h>

#include <algorithm>
#include <iostream>

// Memory for an input: each open size is the smallest that it may have.
static coilwork::Tensor make_ones(const coilwork::Input& input, std::vector<float>& room) {
  if (input.kind != COILWORK_TENSOR || input.dtype != COILWORK_FLOAT32 || input.device != COILWORK_CPU)
    throw std::runtime_error(input.name + " is no tensor of float32 on the CPU: fill it as your model wants it");
  std::vector<int64_t> sizes;
  size_t count = 1;
  for (const coilwork::Extent& extent : input.extents) {
    sizes.push_back(extent.low);
    count *= static_cast<size_t>(extent.low);
  }
  room.assign(count, 1.0f);
  return coilwork::Tensor(room.data(), sizes);
}

static void print(const coilwork::Value& value) {
  if (value.kind() != COILWORK_TENSOR) {
    std::cout << "  a number or nothing\n";
    return;
  }
  std::cout << "  a tensor of";
  for (int64_t size : value.tensor().sizes()) std::cout << " " << size;
  if (value.tensor().dtype() == COILWORK_FLOAT32) {
    std::cout << ":";
    const float* data = value.tensor().data<float>();
    for (int64_t k = 0; k < std::min<int64_t>(value.tensor().count(), 4); ++k) std::cout << " " << data[k];
  }
  std::cout << "\n";
}

int main(int count, char** words) try {
  if (count < 2) return std::cerr << "run_model MODEL.cw [ENTRY] [TORCH]\n", 2;
  coilwork::Options options;
  if (count > 3) options.torch_library = words[3];
  const coilwork::Model model(words[1], options);
  const std::string entry = count > 2 ? words[2] : "";

  const std::vector<coilwork::Input> inputs = model.inputs(entry);
  std::vector<std::vector<float>> rooms(inputs.size());
  std::vector<coilwork::Value> given;
  for (size_t k = 0; k < inputs.size(); ++k) given.push_back(make_ones(inputs[k], rooms[k]));

  std::cout << model.name() << " on " << model.device() << "\n";
  for (const coilwork::Value& result : model.call(entry, given)) print(result);
  return 0;
} catch (const coilwork::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
