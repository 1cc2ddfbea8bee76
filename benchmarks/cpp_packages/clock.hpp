// Measures a model: `open` returns a call, `wait` returns when all work is done. Prints seconds to open and to call once, and
// microseconds of a later call: of the host until it returns, and until its work is done; the best of rounds.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>

template <class Open, class Wait>
int measure(Open open, Wait wait) {
  const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  wait();
  const double began = now();
  auto call = open();
  wait();
  const double opened = now();
  call();
  wait();
  const double first = now();
  for (int k = 0; k < 100; ++k) call();
  wait();
  constexpr int ROUNDS = 40, CALLS = 25;  // few enough that no queue of a driver's is full
  double host = 1e9, whole = 1e9;
  for (int round = 0; round < ROUNDS; ++round) {
    const double start = now();
    for (int k = 0; k < CALLS; ++k) call();
    host = std::min(host, (now() - start) / CALLS);
    wait();
    whole = std::min(whole, (now() - start) / CALLS);
  }
  std::printf("%.6f %.6f %.3f %.3f\n", opened - began, first - opened, host * 1e6, whole * 1e6);
  return 0;
}

// Waits for the current GPU; does nothing on the CPU.
inline void wait_for(const std::string& device) {
  if (device == "cpu") return;
  static const auto wait = reinterpret_cast<int (*)()>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxSynchronize"));
  wait();
}

// "4,64" as sizes.
inline std::vector<int64_t> read_sizes(const char* text) {
  std::vector<int64_t> made;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) made.push_back(std::stoll(part));
  return made;
}
