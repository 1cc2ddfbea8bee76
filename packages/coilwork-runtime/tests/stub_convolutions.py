"""A cuDNN that convolves in memory of the CPU, slowly, and counts what it is asked."""

from __future__ import annotations

from pathlib import Path

from stub_library import ELEMENTS, StubLibrary

SOURCE = r"""
#include <map>
#include <vector>
enum { BAD = 2000, UNSUPPORTED = 3000 };
struct Desc { int type; bool done; std::map<int, std::vector<char>> values; };
NUMBERS made, destroyed, heuristics, convolutions, handles, unrepeatable, unsupported, fail_with,
    workspace_bytes, last_workspace;
NUMBERS last_engine, last_alignment[3];
enum { ENGINES = 4 };

template <class T>
static T value(const Desc* desc, int name, int at = 0) {
  T found{};
  auto known = desc->values.find(name);
  if (known != desc->values.end() && known->second.size() >= (at + 1) * sizeof(T)) memcpy(&found,
      known->second.data() + at * sizeof(T), sizeof(T));
  return found;
}
static Desc* part(const Desc* desc, int name) { return value<Desc*>(desc, name); }

API int cudnnCreate(void** handle) { ++handles; *handle = new void*(nullptr); return 0; }
API int cudnnDestroy(void* handle) { --handles; delete static_cast<void**>(handle); return 0; }
API int cudnnSetStream(void* handle, void* stream) { *static_cast<void**>(handle) = stream; return 0; }
API int cudnnBackendCreateDescriptor(int type, void** desc) { ++made; *desc = new Desc{type, false, {}};
    return 0; }
API int cudnnBackendDestroyDescriptor(void* desc) { ++destroyed; delete static_cast<Desc*>(desc); return 0; }
API int cudnnBackendSetAttribute(void* given, int name, int type, int64_t count, const void* values) {
  Desc* desc = static_cast<Desc*>(given);
  const int64_t width = type == 1 || type == 4 || type == 7 || type == 8 ? 4 : 8;
  if (desc->done || (count && !values)) return BAD;
  const char* bytes = static_cast<const char*>(values);
  desc->values[name].assign(bytes, bytes + count * width);
  if (type == 15)
    for (int64_t k = 0; k < count; ++k)
      if (!value<Desc*>(desc, name, k)->done) return BAD;
  return 0;
}
API int cudnnBackendFinalize(void* given) {
  Desc* desc = static_cast<Desc*>(given);
  if (desc->done) return BAD;
  if (desc->type == 5 && value<int64_t>(part(desc, 401), 9001) < unsupported) return UNSUPPORTED;
  if (desc->type == 4) ++heuristics;
  desc->done = true;
  return 0;
}
API int cudnnBackendGetAttribute(void* given, int name, int type, int64_t room, int64_t* count, void* values)
    {
  Desc* desc = static_cast<Desc*>(given);
  if (name == 202) {
    *count = value<int>(desc, 200) == 3 ? ENGINES : 0;
    for (int64_t k = 0; k < room && k < *count; ++k) {
      Desc* config = static_cast<Desc**>(values)[k];
      config->values[9001].assign(reinterpret_cast<char*>(&k), reinterpret_cast<char*>(&k) + 8);
      Desc* graph = part(desc, 201);
      config->values[9002].assign(reinterpret_cast<char*>(&graph), reinterpret_cast<char*>(&graph) + 8);
      Desc* operation = part(graph, 801);
      // the operation outlives its descriptors, as the library keeps what it is told
      for (auto& one : operation->values) config->values[one.first] = one.second;
      const int64_t kind = operation->type;
      config->values[9003].assign(reinterpret_cast<const char*>(&kind), reinterpret_cast<const char*>(&kind) +
          8);
      const int names[3][4] = {{702, 704, 703, 705}, {714, 716, 715, 717}, {708, 710, 709, 711}};
      for (int which = 0; which < 4; ++which) {
        Desc* inner = part(operation, names[kind - 10][which]);
        if (!inner) return BAD;
        for (auto& one : inner->values) config->values[10000 * (which + 1) + one.first] = one.second;
      }
      config->done = true;
    }
    return 0;
  }
  if (name == 300) {
    Desc* engine = *static_cast<Desc**>(values);
    engine->values[9001] = desc->values[9001];
    engine->done = true;
    *count = 1;
    return 0;
  }
  if (name == 1303) {
    *count = 0;
    if (room > 0) static_cast<int*>(values)[(*count)++] = 0;
    if (room > 1 && value<int64_t>(desc, 9001) < unrepeatable) static_cast<int*>(values)[(*count)++] = 4;
    return 0;
  }
  if (name == 402) {
    if (!desc->done) return BAD;
    // a plan keeps its configuration
    if (desc->values.find(9001) == desc->values.end())
      for (auto& one : part(desc, 401)->values) desc->values.insert(one);
    *static_cast<int64_t*>(values) = workspace_bytes;
    *count = 1;
    return 0;
  }
  return BAD;
}

struct Tensor {
  void* data;
  int type;
  int64_t sizes[5], strides[5], whole = 0;
  std::vector<float> sums;
  int64_t at(const int64_t* where) const { int64_t sum = 0; for (int d = 0; d < 5; ++d) sum += where[d] *
      strides[d]; return sum; }
};
// Two dimensions of space become the last of three.
static Tensor tensor(const Desc* plan, int base, void* data) {
  Tensor made{data, value<int>(plan, base + 901), {}, {}, 0, {}};
  const int rank = plan->values.at(base + 902).size() / 8;
  for (int d = 0; d < 5; ++d) made.sizes[d] = 1, made.strides[d] = 0;
  for (int d = 0; d < rank; ++d) {
    const int to = d < 2 ? d : d + 5 - rank;
    made.sizes[to] = value<int64_t>(plan, base + 902, d);
    made.strides[to] = value<int64_t>(plan, base + 903, d);
    made.whole += (made.sizes[to] - 1) * made.strides[to];
  }
  made.sums.assign(made.whole + 1, 0.0f);
  return made;
}

API int cudnnBackendExecute(void* handle, void* given, void* pack_) {
  if (fail_with) return int(fail_with);
  const Desc *plan = static_cast<Desc*>(given), *pack = static_cast<Desc*>(pack_);
  if (!plan->done || !pack->done || plan->type != 5 || pack->type != 16) return BAD;
  last_engine = value<int64_t>(plan, 9001);
  last_workspace = reinterpret_cast<int64_t>(value<void*>(pack, 1003));
  if (workspace_bytes && !last_workspace) return BAD;
  std::map<int64_t, void*> data;
  for (int k = 0; k < 3; ++k) data[value<int64_t>(pack, 1000, k)] = value<void*>(pack, 1001, k);
  Tensor all[3] = {};
  for (int k = 0; k < 3; ++k) {
    all[k] = tensor(plan, 10000 * (k + 2), data.at(value<int64_t>(plan, 10000 * (k + 2) + 906)));
    last_alignment[k] = value<int64_t>(plan, 10000 * (k + 2) + 900);
  }
  Tensor &x = all[0], &w = all[1], &y = all[2];
  const int64_t kind = value<int64_t>(plan, 9003), space = value<int64_t>(plan, 10106);
  if (value<int>(plan, 10100) != 0 || value<int>(plan, 10101) != 1) return BAD;
  int64_t stride[3] = {1, 1, 1}, padding[3] = {}, dilation[3] = {1, 1, 1};
  for (int d = 0; d < space; ++d) {
    const int to = d + 3 - space;
    dilation[to] = value<int64_t>(plan, 10102, d), stride[to] = value<int64_t>(plan, 10103, d);
    padding[to] = value<int64_t>(plan, 10105, d);
    if (padding[to] != value<int64_t>(plan, 10104, d)) return BAD;
  }
  const int64_t groups = x.sizes[1] / w.sizes[1], per_group = w.sizes[0] / groups;
  Tensor& result = kind == 10 ? y : kind == 11 ? w : x;
  for (int64_t n = 0; n < y.sizes[0]; ++n)
    for (int64_t k = 0; k < y.sizes[1]; ++k)
      for (int64_t c = 0; c < w.sizes[1]; ++c)
        for (int64_t p = 0; p < y.sizes[2] * y.sizes[3] * y.sizes[4]; ++p)
          for (int64_t r = 0; r < w.sizes[2] * w.sizes[3] * w.sizes[4]; ++r) {
            const int64_t out[5] = {n, k, p / (y.sizes[3] * y.sizes[4]), p / y.sizes[4] % y.sizes[3], p %
                y.sizes[4]};
            const int64_t tap[5] = {k, c, r / (w.sizes[3] * w.sizes[4]), r / w.sizes[4] % w.sizes[3], r %
                w.sizes[4]};
            int64_t in[5] = {n, k / per_group * w.sizes[1] + c, 0, 0, 0};
            bool inside = true;
            for (int d = 0; d < 3; ++d) {
              in[d + 2] = out[d + 2] * stride[d] - padding[d] + tap[d + 2] * dilation[d];
              inside = inside && in[d + 2] >= 0 && in[d + 2] < x.sizes[d + 2];
            }
            if (!inside) continue;
            if (kind == 10) y.sums[y.at(out)] += load(x.data, x.type, x.at(in)) * load(w.data, w.type,
                w.at(tap));
            if (kind == 11) w.sums[w.at(tap)] += load(x.data, x.type, x.at(in)) * load(y.data, y.type,
                y.at(out));
            if (kind == 12) x.sums[x.at(in)] += load(y.data, y.type, y.at(out)) * load(w.data, w.type,
                w.at(tap));
          }
  for (int64_t at = 0; at <= result.whole; ++at) store(result.data, result.type, at, result.sums[at]);
  ++convolutions;
  return 0;
}
"""


class StubConvolutions(StubLibrary):
    """The library and its counters."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "stub_cudnn", ELEMENTS + SOURCE)
