// Convolutions and their gradients through cuDNN: what torch works out in every call is worked out once per shape, and what it
// does around the library is left out. What is out of the ordinary is refused, and the operator does it.
#pragma once
#include "libraries/convolution_library.hpp"
#include "libraries/workspace.hpp"

namespace coilwork {

class Convolutions {
 public:
  Convolutions(Call& call, Frame& frame, Memory& memory)
      : call_(call), frame_(frame), memory_(memory), workspace_(call, memory) {}

  // Whether the results of `step` are under way; what it returns false for is the operator's to do, or to complain of.
  bool run(const Plan::Convolving& plan, const Step& step) {
    ConvolutionLibrary* library = call_.program.convolutions;
    if (!library || call_.convolution_settings < 0 || !workspace_.on_stream(plan.device)) return false;
    const uint32_t* outputs = frame_.words(step.list);
    bool good = true;
    for (uint32_t k = 0; good && k < step.list.count; ++k)
      if (outputs[2 * k] == TENSOR) good = k < plan.computed.size() && compute(*library, plan, k, outputs[2 * k + 1]);
    // the operator computes all results or none
    for (uint32_t k = 0; !good && k < step.list.count; ++k)
      if (outputs[2 * k] == TENSOR) memory_.slot(outputs[2 * k + 1]).release();
    return good;
  }

 private:
  // Beyond, what is kept would show in the peak of a small model, and an allocation does not show in the time of a large one.
  static constexpr size_t MOST_KEPT_BYTES = 1u << 20;

  bool compute(ConvolutionLibrary& library, const Plan::Convolving& plan, uint32_t which, uint32_t result) {
    const int32_t computed = plan.computed[which];
    uint32_t layout = NONE;
    if (computed < 0 || computed >= ROLES || !find_layout(result, layout)) return false;
    ConvolutionKey key;
    memset(static_cast<void*>(&key), 0, sizeof key);
    int64_t room[ROLES][2 * MOST_DIMENSIONS];
    Operand seen[ROLES];
    for (int32_t role = 0; role < ROLES; ++role) {
      if (role == computed) {
        workspace_.declared(layout, room[role], seen[role]);
      } else if (plan.slots[role] == NONE || !workspace_.look(plan.slots[role], room[role], seen[role])) {
        return false;
      }
    }
    if (!describe(plan, computed, seen, key)) return false;
    Convolution* found = plan.last[which].load(std::memory_order_acquire);
    if (!found || memcmp(&found->key, &key, sizeof key) != 0) {
      // a captured stream is no place for what the library does meanwhile
      const bool may_make = plan.device < 0 || !ScratchMemory::captured(call_.stream);
      found = library.find(key, may_make);
      if (!found) return false;
      plan.last[which].store(found, std::memory_order_release);
    }
    const Layout& wanted = memory_.layout(layout);
    const Extents extents(wanted, frame_);
    Slot& made = memory_.slot(result);
    memory_.place(result, wanted, extents);
    seen[computed].data = reinterpret_cast<uintptr_t>(data_of(made));
    uint64_t addresses[ROLES + 1] = {};
    for (int32_t role = 0; role < ROLES; ++role) addresses[role] = seen[role].data;
    return execute(*found, addresses, plan.device);
  }

  bool execute(const Convolution& convolution, uint64_t (&addresses)[ROLES + 1], int32_t device) {
    const size_t bytes = convolution.workspace_bytes;
    uint64_t& scratch = addresses[ROLES];
    if (!bytes) return put(convolution, addresses);
    if (bytes <= MOST_KEPT_BYTES) {
      scratch = reinterpret_cast<uint64_t>(workspace_.scratch(bytes, device));
      return scratch && put(convolution, addresses);
    }
    // more than is kept: torch's allocator gives it to nobody else on the stream before the kernel is done
    Slot large{};
    scratch = reinterpret_cast<uint64_t>(memory_.bytes(static_cast<int64_t>(bytes), device, large));
    const bool good = scratch && put(convolution, addresses);
    large.release(call_.work_queue);
    return good;
  }

  bool put(const Convolution& convolution, const uint64_t* addresses) {
    if (!call_.work_queue) return convolution.run(addresses, call_.stream) == dnn::SUCCESS;
    return call_.work_queue->take({Work::CONVOLUTION, ROLES + 1, &convolution, addresses}) == dnn::SUCCESS;
  }

  // The layout that the program declares for a result, which the steps behind the call would bring it into.
  bool find_layout(uint32_t slot, uint32_t& layout) const {
    const List<Step>& steps = frame_.part.steps;
    for (size_t at = frame_.at + 1; at < steps.size() && steps[at].code == SETTLE; ++at)
      if (steps[at].a == slot) {
        layout = steps[at].layout;
        return true;
      }
    return false;
  }

  bool describe(const Plan::Convolving& plan, int32_t computed, const Operand (&seen)[ROLES], ConvolutionKey& key) const {
    const int64_t rank = seen[IMAGE].rank;
    if (rank < 3 || rank > ConvolutionKey::MOST || static_cast<size_t>(rank - 2) != plan.stride.size()) return false;
    for (const Operand& one : seen) {
      if (one.rank != rank || one.dtype != seen[IMAGE].dtype) return false;
      for (int64_t d = 0; d < rank; ++d)
        if (one.sizes[d] < 1 || one.sizes[d] > INT32_MAX) return false;
    }
    if (!type_of(seen[IMAGE].dtype, key.type) || !fits(plan, seen)) return false;
    // one dimension of space becomes the second of two, as in ATen
    const int64_t added = rank == 3;
    key.rank = static_cast<int32_t>(rank + added);
    for (int64_t d = 0; d < rank - 2; ++d) {
      key.stride[d + added] = plan.stride[static_cast<size_t>(d)];
      key.padding[d + added] = plan.padding[static_cast<size_t>(d)];
      key.dilation[d + added] = plan.dilation[static_cast<size_t>(d)];
    }
    if (added) key.stride[0] = key.dilation[0] = 1;
    for (int32_t role = 0; role < ROLES; ++role) {
      int64_t* sizes = key.sizes[role];
      sizes[0] = seen[role].sizes[0], sizes[1] = seen[role].sizes[1];
      if (added) sizes[2] = 1;
      for (int64_t d = 2; d < rank; ++d) sizes[d + added] = seen[role].sizes[d];
      key.alignment[role] = seen[role].alignment();
    }
    if (!lay_out(seen, true, key) && !lay_out(seen, false, key)) return false;
    key.computed = computed;
    key.device = plan.device;
    key.stream = call_.stream;
    return true;
  }

  // Of `float32`, ATen decides between engines that round to TF32 and others.
  static bool type_of(int32_t dtype, int32_t& type) {
    if (dtype == torch.aoti_torch_dtype_bfloat16())
      type = dnn::DATA_BFLOAT16;
    else if (dtype == torch.aoti_torch_dtype_float16())
      type = dnn::DATA_HALF;
    else
      return false;
    return true;
  }

  // Whether channels and positions are as many as they have to be: if not, the operator says so. Those with one channel
  // in a group are computed faster by torch's own kernels.
  static bool fits(const Plan::Convolving& plan, const Operand (&seen)[ROLES]) {
    const Operand &image = seen[IMAGE], &weight = seen[WEIGHT], &sums = seen[SUMS];
    if (image.sizes[0] != sums.sizes[0] || weight.sizes[0] != sums.sizes[1]) return false;
    if (plan.groups < 1 || weight.sizes[1] * plan.groups != image.sizes[1] || sums.sizes[1] % plan.groups != 0) return false;
    if (plan.groups > 1 && (weight.sizes[1] == 1 || sums.sizes[1] == plan.groups)) return false;
    for (size_t d = 0; d < plan.stride.size(); ++d) {
      const int64_t reach = plan.dilation[d] * (weight.sizes[d + 2] - 1) + 1;
      const int64_t free = image.sizes[d + 2] + 2 * plan.padding[d] - reach;
      if (plan.stride[d] < 1 || plan.dilation[d] < 1 || plan.padding[d] < 0) return false;
      if (free < 0 || free / plan.stride[d] + 1 != sums.sizes[d + 2]) return false;
    }
    return true;
  }

  // Whether all tensors are dense with channels last, or first; strides of dimensions with one element are then as they would be.
  static bool lay_out(const Operand (&seen)[ROLES], bool channels_last, ConvolutionKey& key) {
    for (int32_t role = 0; role < ROLES; ++role) {
      const Operand& one = seen[role];
      const int64_t *sizes = key.sizes[role], rank = key.rank, added = rank - one.rank;
      int64_t step = 1;
      for (int64_t k = 0; k < rank; ++k) {
        // from the innermost dimension outwards
        const int64_t d = !channels_last ? rank - 1 - k : k == 0 ? 1 : k == rank - 1 ? 0 : rank - k;
        const int64_t given = d < 2 ? d : d - added;
        key.strides[role][d] = step;
        if (sizes[d] > 1 && one.strides[given] != step) return false;
        step *= sizes[d];
      }
    }
    return true;
  }

  Call& call_;
  Frame& frame_;
  Memory& memory_;
  Workspace workspace_;
};

}  // namespace coilwork
