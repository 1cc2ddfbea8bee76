// Measures a model: `open` returns a call. Prints seconds to open and call once, and microseconds of a later call: the best of rounds.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>

template <class Open>
int measure(Open open) {
  const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const double began = now();
  auto call = open();
  const double opened = now();
  call();
  const double first = now();
  double best = 1e9;
  for (int round = 0; round < 30; ++round) {
    const double start = now();
    for (int k = 0; k < 100; ++k) call();
    best = std::min(best, (now() - start) / 100);
  }
  std::printf("%.6f %.6f %.3f\n", opened - began, first - opened, best * 1e6);
  return 0;
}
