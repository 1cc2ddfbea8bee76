// Checks of inputs against the layouts that a program declares. What fails is done again by the host, whose error it
// then is.
#pragma once
#include "call/allocation.hpp"

namespace coilwork {

// Tells if `value` lies on the device of `wanted`.
static bool is_on_device(AtenTensorHandle value, const Layout& wanted) {
  if (wanted.on_cpu && tensor_kinds.is_on_cpu(value)) return true;
  int32_t type = -1, index = -1;
  return torch.aoti_torch_get_device_type(value, &type) == 0 && type == wanted.device_type &&
         (wanted.on_cpu || (torch.aoti_torch_get_device_index(value, &index) == 0 && index == wanted.device_index));
}

// Tells if `value` has the element type, device, sizes and strides of `wanted`.
static bool has_layout(AtenTensorHandle value, const Layout& wanted, const Extents& extents) {
  int32_t dtype = -1;
  int64_t rank = -1;
  int64_t *sizes = nullptr, *strides = nullptr;
  return torch.aoti_torch_get_dtype(value, &dtype) == 0 && dtype == wanted.dtype &&
         is_on_device(value, wanted) && torch.aoti_torch_get_dim(value, &rank) == 0 && rank == extents.rank &&
         torch.aoti_torch_get_sizes(value, &sizes) == 0 && extents.equal_sizes(sizes) &&
         torch.aoti_torch_get_strides(value, &strides) == 0 && extents.same_strides(strides);
}

// Refuses an input that is not as declared; one that should be aligned and is not is replaced by a copy.
static void check_input(Call& call, Memory& memory, const Step& step) {
  Slot& input = memory.slot(step.a);
  const bool aligned = step.flag & 1;
  const auto is_in_place = [&] { return reinterpret_cast<uintptr_t>(data_of(input)) % 16 == 0; };
  // the caller promises the layout
  if (step.flag & 2 && is_in_place()) return;
  const Layout& wanted = memory.layout(step.layout);
  const Extents extents(wanted, memory.frame());
  const size_t width = torch.aoti_torch_dtype_element_size(wanted.dtype);
  const bool fits = has_layout(input.handle, wanted, extents) &&
                    (call.program.resizes || tensor_kinds.holds(input.handle, extents.span(), width));
  if (fits && (!aligned || is_in_place())) return;
  input.own(check_slowly(call, input.handle, memory.name(step.a), wanted, extents, aligned));
}

}  // namespace coilwork
