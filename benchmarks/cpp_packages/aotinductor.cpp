// aotinductor MODEL.pt2 ROWS WIDTH
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "clock.hpp"

int main(int, char** words) {
  const c10::InferenceMode inference;
  const at::Tensor input = at::ones({std::stoll(words[2]), std::stoll(words[3])});
  return measure([&] {
    auto model = std::make_shared<torch::inductor::AOTIModelPackageLoader>(words[1]);
    return [model, input] { return model->run({input}); };
  });
}
