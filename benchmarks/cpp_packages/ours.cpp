// ours MODEL.cw TORCH ROWS WIDTH
#include <coilwork/model.h>

#include "clock.hpp"

int main(int, char** words) {
  coilwork::open_torch(words[2]);
  const int64_t rows = std::stoll(words[3]), width = std::stoll(words[4]);
  std::vector<float> data(static_cast<size_t>(rows * width), 1.0f);
  return measure([&] {
    auto model = std::make_shared<coilwork::Model>(words[1]);
    coilwork::Tensor input(data.data(), {rows, width});
    return [model, input] { return model->call(0, {input}); };
  });
}
