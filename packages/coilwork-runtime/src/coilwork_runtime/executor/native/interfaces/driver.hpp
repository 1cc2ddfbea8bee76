// The part of the GPU driver's interface that launches take, by address. Declared after NVIDIA's cuda.h (CUlaunchConfig,
// CUlaunchAttribute: CUDA driver API, section "Execution Control"), whose names for things these are not.
#pragma once
#include <stdint.h>
#include <string.h>

namespace coilwork {

using DriverLaunch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                             void**);
using SetContext = int (*)(void*);
constexpr int INVALID_CONTEXT = 201;

struct LaunchAttribute {
  enum : int32_t { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, CLUSTER_SCHEDULING = 5 };
  int32_t which;
  int32_t padding;
  union {
    uint32_t numbers[3];
    uint64_t room[8];
  };
};
static_assert(sizeof(LaunchAttribute) == 72, "as CUlaunchAttribute");

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
static_assert(sizeof(LaunchConfig) == 56, "as CUlaunchConfig");

using DriverLaunchEx = int (*)(const LaunchConfig*, void*, void**, void**);

// How a function is launched, whatever its arguments are. `launch_ex` is null unless clusters or waiting blocks ask for it:
// it costs more.
struct HowToLaunch {
  DriverLaunch launch = nullptr;
  DriverLaunchEx launch_ex = nullptr;
  void* function = nullptr;
  unsigned threads = 0, shared_bytes = 0;
  unsigned cluster = 1;       // blocks that share memory; the grid counts clusters
  bool cooperative = false;   // all blocks run at once and may wait for each other

  int operator()(const int64_t* grid, void* stream, void** parameters) const {
    const unsigned x = static_cast<unsigned>(grid[0]), y = static_cast<unsigned>(grid[1]), z = static_cast<unsigned>(grid[2]);
    if (__builtin_expect(!launch_ex, 1)) return launch(function, x, y, z, threads, 1, 1, shared_bytes, stream, parameters, nullptr);
    LaunchAttribute attributes[3];
    memset(static_cast<void*>(attributes), 0, sizeof attributes);
    LaunchConfig config{{x * cluster, y, z}, {threads, 1, 1}, shared_bytes, stream, attributes, 0};
    if (cooperative) {
      attributes[config.count].which = LaunchAttribute::COOPERATIVE;
      attributes[config.count++].numbers[0] = 1;
    }
    if (cluster != 1) {
      attributes[config.count].which = LaunchAttribute::CLUSTER_DIMENSION;
      attributes[config.count].numbers[0] = cluster;
      attributes[config.count].numbers[1] = attributes[config.count].numbers[2] = 1;
      ++config.count;
      attributes[config.count].which = LaunchAttribute::CLUSTER_SCHEDULING;
      attributes[config.count++].numbers[0] = 1;  // spread
    }
    return launch_ex(&config, function, parameters, nullptr);
  }
};

}  // namespace coilwork
