// aotinductor MODEL.pt2 DEVICE DTYPE SIZES: DTYPE is float or int, of the only input, whose elements are ones
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "clock.hpp"

int main(int, char** words) {
  const c10::InferenceMode inference;
  const std::string device = words[2];
  const auto dtype = std::string(words[3]) == "float" ? at::kFloat : at::kLong;
  const at::Tensor input = at::ones(read_sizes(words[4]), at::TensorOptions().dtype(dtype).device(device));
  const auto open = [&] {
    auto model = std::make_shared<torch::inductor::AOTIModelPackageLoader>(words[1]);
    return [model, input] { return model->run({input}); };
  };
  return measure(open, [&] { wait_for(device); });
}
