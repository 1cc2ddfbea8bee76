// What torch says at present about products and convolutions on CUDA, for a process without Python: told by C++ functions that
// libtorch_cpu exports, since its C interface has none for it. They take the context alone, and give a byte. Where one is missing or
// throws, the answer is that only ATen knows. Python has the same in coilwork_runtime/torch_compat.py.
#pragma once
#include "interfaces/torch.hpp"

namespace coilwork {

class TorchSettings {
 public:
  static const TorchSettings& instance() {
    static const TorchSettings found;
    return found;
  }

  // As `get_product_settings`.
  int32_t products() const {
    if (!context_ || !deterministic_ || !narrow_sums_ || !tf32_ || !half_parts_ || !brain_parts_) return -1;
    try {
      if (deterministic_(context_) || narrow_sums_(context_)) return -1;
      const int32_t half = parts(half_parts_(context_)), brain = parts(brain_parts_(context_));
      return half < 0 || brain < 0 ? -1 : (tf32_(context_) ? 1 : 0) | half << 1 | brain << 3;
    } catch (...) {
      // TF32 was set in two ways that do not agree
      return -1;
    }
  }

  // As `get_convolution_settings`.
  int32_t convolutions() const {
    return context_ && enabled_ && benchmark_ && enabled_(context_) && !benchmark_(context_) ? 0 : -1;
  }

 private:
  using Ask = uint8_t (*)(const void* context);

  TorchSettings() {
    // named as the Itanium C++ ABI has it: at::globalContext(), and functions of at::Context
    const auto global = reinterpret_cast<const void* (*)()>(torch_symbol("_ZN2at13globalContextEv"));
    context_ = global ? global() : nullptr;
    const auto ask = [](const char* name) { return reinterpret_cast<Ask>(torch_symbol(name)); };
    deterministic_ = ask("_ZNK2at7Context23deterministicAlgorithmsEv");
    narrow_sums_ = ask("_ZNK2at7Context27allowFP16AccumulationCuBLASEv");
    tf32_ = ask("_ZNK2at7Context15allowTF32CuBLASEv");
    half_parts_ = ask("_ZNK2at7Context24allowFP16ReductionCuBLASEv");
    brain_parts_ = ask("_ZNK2at7Context24allowBF16ReductionCuBLASEv");
    enabled_ = ask("_ZNK2at7Context16userEnabledCuDNNEv");
    benchmark_ = ask("_ZNK2at7Context14benchmarkCuDNNEv");
  }

  // Of at::CuBLASReductionOption: bit 0, sums may be rounded between parts; bit 1, there may be parts; -1: another option.
  static int32_t parts(uint8_t option) {
    constexpr int32_t ROUNDED = 1, PARTED = 2;
    return option == 0 ? ROUNDED | PARTED : option == 1 ? PARTED : option == 2 ? 0 : -1;
  }

  const void* context_ = nullptr;
  Ask deterministic_ = nullptr, narrow_sums_ = nullptr, tf32_ = nullptr, half_parts_ = nullptr, brain_parts_ = nullptr;
  Ask enabled_ = nullptr, benchmark_ = nullptr;
};

}  // namespace coilwork
