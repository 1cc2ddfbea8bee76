#include "gpu.hpp"

#include <stdlib.h>

#include "json.hpp"
#include "program/forms.hpp"
#include "refusal.hpp"
#include "tensors.hpp"

namespace coilwork_aot {
namespace {

[[noreturn]] void refuse(const coilwork::DriverRefusal& refusal) {
  if (refusal.of_device) refuse_target("missing-device", refusal.what.c_str());
  refuse_package("damaged-kernels", refusal.what.c_str());
}

int64_t read_natural(const Json& header, const char* name, int64_t otherwise) {
  const int64_t value = header.has(name) ? header[name].integer() : otherwise;
  if (value < 0) throw NotThere("a kernel's binary lacks " + std::string(name));
  return value;
}

}  // namespace

GpuBinary decode_binary(std::string_view data) {
  uint64_t length = 0;
  if (data.size() < 16 || data.substr(0, 8) != "COILTRIT") throw NotThere("no compiled Triton kernel");
  memcpy(&length, data.data() + 8, 8);
  if (length >= data.size() - 16) throw NotThere("no compiled Triton kernel");
  const Json header = Json::parse(data.substr(16, length));
  GpuBinary made;
  made.name = header["name"].text();
  made.image = data.substr(16 + length);
  made.shared_bytes = static_cast<unsigned>(read_natural(header, "shared_bytes", -1));
  made.threads = static_cast<unsigned>(read_natural(header, "threads", -1));
  made.scratch_bytes = static_cast<uint64_t>(read_natural(header, "scratch_bytes", -1));
  made.cluster = static_cast<unsigned>(read_natural(header, "cluster", 1));
  made.cooperative = read_natural(header, "cooperative", 0) != 0;
  return made;
}

Gpu::Gpu(int index) {
  if (!torch.cuda) refuse_target("missing-device", "this torch is built without CUDA");
  int32_t current = 0;
  if (index < 0) {
    if (torch.aoti_torch_get_current_device_index && torch.aoti_torch_get_current_device_index(&current)) current = 0;
    index = current;
  }
  try {
    device_ = std::make_unique<coilwork::GpuDevice>(index);
  } catch (const coilwork::DriverRefusal& refusal) {
    refuse(refusal);
  }
  name_ = "sm_" + std::to_string(device_->major) + std::to_string(device_->minor);
}

void Gpu::load(const GpuBinary& binary, coilwork::Form& form) const try {
  coilwork::GpuCode code;
  code.name = binary.name.c_str();
  code.image = binary.image.data();
  code.shared_bytes = binary.shared_bytes;
  code.threads = binary.threads;
  code.cluster = binary.cluster;
  code.cooperative = binary.cooperative;
  code.scratch_bytes = binary.scratch_bytes;
  coilwork::load_code(*device_, code, form);
} catch (const coilwork::DriverRefusal& refusal) {
  refuse(refusal);
}

bool can_run_on(const std::string& target, const std::string& present) {
  const bool both = target.rfind("sm_", 0) == 0 && present.rfind("sm_", 0) == 0;
  if (!both) return target == present;
  const int wanted = atoi(target.c_str() + 3), here = atoi(present.c_str() + 3);
  return wanted / 10 == here / 10 && wanted <= here && (wanted == here || wanted < 90);
}

}  // namespace coilwork_aot
