#include "input_checks.hpp"

#include <set>

#include "refusal.hpp"

namespace coilwork_aot {
namespace {

bool is_within(int64_t size, const Bounds& bounds) { return size >= bounds.low && (bounds.high < 0 || size <= bounds.high); }

void check_sizes(const Leaf& leaf, const int64_t* given, const Variant& variant, std::map<std::string, int64_t>& sizes) {
  for (size_t k = 0; k < leaf.sizes.size(); ++k) {
    const Size& wanted = leaf.sizes[k];
    const std::string place = leaf.kind == Leaf::TENSOR ? "dimension " + std::to_string(k) + " of " + leaf.name : leaf.name;
    const std::string shown = place + " is " + std::to_string(given[k]) + ", and was exported ";
    if (wanted.is_number) {
      if (given[k] != wanted.number) refuse_input("shape", shown + "as " + std::to_string(wanted.number));
    } else if (!wanted.text.empty()) {
      const Bounds& bounds = variant.symbols.at(wanted.text);
      if (!is_within(given[k], bounds)) {
        const std::string low = std::to_string(bounds.low);
        refuse_input("shape", shown + (bounds.high < 0 ? "for at least " + low : "for " + low + " to " + std::to_string(bounds.high)));
      }
      const auto known = sizes.emplace(wanted.text, given[k]).first;
      if (known->second != given[k]) refuse_input("shape", shown + "as equal to " + std::to_string(known->second));
    }
  }
}

// A tensor that is marked as conjugated or negated has other numbers than its memory. Only complex ones, and views of them, are.
bool is_marked(AtenTensorHandle tensor) {
  for (const char* question : {"aten::is_conj", "aten::is_neg"}) {
    StableIValue stack[1] = {0};
    AtenTensorHandle copy = share(tensor).release();
    static_assert(sizeof copy == sizeof *stack, "handles are words");
    stack[0] = reinterpret_cast<StableIValue>(copy);
    if (torch.torch_call_dispatcher(question, "", stack, torch.aoti_torch_abi_version()) == 0 && (stack[0] & 1)) return true;
  }
  return false;
}

void check_tensor(const Leaf& leaf, AtenTensorHandle value, const Place& place, const Variant& variant, std::map<std::string, int64_t>& sizes) {
  const TensorFacts facts(value);
  if (facts.dtype != find_dtype(leaf.dtype)) refuse_input("dtype", leaf.name + " has another element type than " + leaf.dtype);
  const bool on_cpu = leaf.device == "cpu";
  const bool is_there = on_cpu ? facts.device == torch.aoti_torch_device_type_cpu()
                               : facts.device == place.type && facts.device_index == place.index;
  if (!is_there) refuse_input("device", leaf.name + " is on another device than " + (on_cpu ? leaf.device : place.text));
  if (facts.rank != static_cast<int64_t>(leaf.sizes.size()))
    refuse_input("shape", leaf.name + " has " + std::to_string(facts.rank) + " dimensions, and was exported with " + std::to_string(leaf.sizes.size()));
  check_sizes(leaf, facts.sizes, variant, sizes);
  if (leaf.dtype[0] == 'c' && is_marked(value)) refuse_input("strides", leaf.name + " is conjugated or negated, and its memory is not");
}

// The exported strides, -1 where they are not known. An open stride is the dimension that it runs over: its stride times its size.
std::vector<int64_t> find_strides(const Leaf& leaf, const TensorFacts& facts) {
  std::vector<int64_t> strides;
  for (const Size& one : leaf.strides) strides.push_back(one.is_number ? one.number : -1);
  for (size_t round = 0; round < strides.size(); ++round)
    for (size_t k = 0; k < strides.size(); ++k) {
      if (strides[k] >= 0 || leaf.strides[k].text.empty()) continue;
      const size_t inner = static_cast<size_t>(strtoull(leaf.strides[k].text.c_str(), nullptr, 10));
      if (inner < strides.size() && strides[inner] >= 0) strides[k] = strides[inner] * facts.sizes[inner];
    }
  return strides;
}

bool has_strides(const Leaf& leaf, const TensorFacts& facts) {
  if (!facts.count()) return true;
  const std::vector<int64_t> wanted = find_strides(leaf, facts);
  for (size_t k = 0; k < wanted.size(); ++k)
    if (facts.sizes[k] > 1 && wanted[k] >= 0 && facts.strides[k] != wanted[k]) return false;
  return true;
}

}  // namespace

std::vector<const Leaf*> list_moving(const std::vector<Leaf>& leaves) {
  std::vector<const Leaf*> made;
  for (const Leaf& leaf : leaves)
    if (leaf.kind != Leaf::FIXED) made.push_back(&leaf);
  return made;
}

std::vector<size_t> check_inputs(const Variant& variant, const std::vector<const Leaf*>& leaves, const std::vector<Given>& given,
                                 const Place& place) {
  if (given.size() != leaves.size())
    refuse_input("nesting", "the model takes " + std::to_string(leaves.size()) + " inputs, and is given " + std::to_string(given.size()));
  std::map<std::string, int64_t> sizes;
  std::vector<size_t> differing;
  for (size_t k = 0; k < leaves.size(); ++k) {
    const Leaf& leaf = *leaves[k];
    if (given[k].is_number != (leaf.kind == Leaf::NUMBER) || (!given[k].is_number && !given[k].tensor))
      refuse_input("no-tensor", leaf.name + (leaf.kind == Leaf::NUMBER ? " is no integer" : " is no tensor"));
    if (leaf.kind == Leaf::NUMBER) {
      check_sizes(leaf, &given[k].number, variant, sizes);
    } else {
      check_tensor(leaf, given[k].tensor, place, variant, sizes);
      if (!has_strides(leaf, TensorFacts(given[k].tensor))) differing.push_back(k);
    }
  }
  return differing;
}

Handle lay_out(const Leaf& leaf, AtenTensorHandle value, const Place& place) {
  const TensorFacts facts(value);
  const std::vector<int64_t> strides = find_strides(leaf, facts);
  for (int64_t stride : strides)
    if (leaf.is_written || stride < 0)
      refuse_input("strides", leaf.name + " has other strides than the program was exported for, and is written to or has open ones");
  Place cpu;
  cpu.type = torch.aoti_torch_device_type_cpu();
  Handle made = make_empty(facts.sizes, strides.data(), facts.rank, facts.dtype, leaf.device == "cpu" ? cpu : place);
  copy(made.get(), value);
  return made;
}

BoundsChecker::BoundsChecker(const Variant& variant, const std::vector<const Leaf*>& leaves) {
  std::set<std::string> seen;
  for (size_t k = 0; k < leaves.size(); ++k)
    for (size_t d = 0; d < leaves[k]->sizes.size(); ++d) {
      const Size& size = leaves[k]->sizes[d];
      if (size.is_number || size.text.empty() || !seen.insert(size.text).second) continue;
      const Bounds& bounds = variant.symbols.at(size.text);
      bounds_.push_back({k, leaves[k]->kind == Leaf::TENSOR ? static_cast<int64_t>(d) : -1, bounds.low, bounds.high, leaves[k]->name});
    }
}

void BoundsChecker::check(const std::vector<Given>& given) const {
  for (const Bound& bound : bounds_) {
    const Given& one = given[bound.leaf];
    int64_t size = one.number;
    if (bound.dimension >= 0) {
      int64_t rank = 0;
      int64_t* sizes = nullptr;
      if (!one.tensor || torch.aoti_torch_get_dim(one.tensor, &rank) || bound.dimension >= rank || torch.aoti_torch_get_sizes(one.tensor, &sizes))
        continue;
      size = sizes[bound.dimension];
    }
    if (!is_within(size, {bound.low, bound.high})) refuse_input("shape", "a size of " + bound.name + " is " + std::to_string(size));
  }
}

}  // namespace coilwork_aot
