#include "manifest.hpp"

#include <algorithm>
#include <set>

#include "record_hashes.hpp"
#include "refusal.hpp"
#include "sha256.hpp"
#include "tensors.hpp"

namespace coilwork_aot {
namespace {

constexpr uint64_t MOST_MANIFEST_BYTES = 256u << 20;
constexpr int DEEPEST_NESTING = 64;

[[noreturn]] void damage(const std::string& what) { throw NotThere(what); }

std::vector<std::string> read_texts(const Json& value) {
  std::vector<std::string> made;
  for (const Json& one : value.list()) made.push_back(one.text());
  return made;
}

std::vector<int64_t> read_integers(const Json& value) {
  std::vector<int64_t> made;
  for (const Json& one : value.list()) made.push_back(one.integer());
  return made;
}

std::vector<Size> read_sizes(const Json& value) {
  std::vector<Size> made;
  for (const Json& one : value.list()) {
    if (one.kind() == Json::INTEGER)
      made.push_back({true, one.integer(), ""});
    else
      made.push_back({false, 0, one.text()});
  }
  return made;
}

Leaf read_leaf(const Json& value) {
  value.expect_fields({"kind", "name", "position", "value", "dtype", "device", "sizes", "strides", "is_written"});
  Leaf made;
  const std::string& kind = value["kind"].text();
  if (kind != "tensor" && kind != "number" && kind != "fixed") damage("a leaf of no known kind");
  made.kind = kind == "tensor" ? Leaf::TENSOR : kind == "number" ? Leaf::NUMBER : Leaf::FIXED;
  made.name = value["name"].text();
  made.position = value["position"].integer();
  made.value = value["value"];
  if (made.value.kind() == Json::LIST || made.value.kind() == Json::RECORD) damage("a fixed value of no known kind");
  made.dtype = value["dtype"].text();
  made.device = value["device"].text();
  made.sizes = read_sizes(value["sizes"]);
  made.strides = read_sizes(value["strides"]);
  made.is_written = value["is_written"].truth();
  return made;
}

std::vector<Leaf> read_leaves(const Json& value) {
  std::vector<Leaf> made;
  for (const Json& one : value.list()) made.push_back(read_leaf(one));
  return made;
}

// Appends the canonical text of a value: equal values have equal ones.
void write_value(const Json& value, std::string& to) {
  switch (value.kind()) {
    case Json::NOTHING:
      to += 'n';
      break;
    case Json::TRUTH:
      to += value.truth() ? 't' : 'f';
      break;
    case Json::INTEGER:
      to += 'i' + std::to_string(value.integer()) + ';';
      break;
    case Json::REAL:
      to += 'r' + std::to_string(value.real()) + ';';
      break;
    case Json::TEXT:
      to += '"' + std::to_string(value.text().size()) + ':' + value.text();
      break;
    case Json::LIST:
      to += '[' + std::to_string(value.list().size());
      for (const Json& one : value.list()) write_value(one, to);
      break;
    case Json::RECORD:
      to += '{' + std::to_string(value.record().size());
      for (const Json::Field& one : value.record()) {
        to += std::to_string(one.first.size()) + ':' + one.first;
        write_value(one.second, to);
      }
  }
}

// Checks a nesting, and returns how many leaves it has.
size_t count_leaves(const Json& value, int depth = 0) {
  if (value.kind() == Json::TEXT && value.text() == "leaf") return 1;
  if (depth > DEEPEST_NESTING) damage("a nesting is too deep");
  value.expect_fields({"kind", "keys", "children"});
  const std::vector<Json>& children = value["children"].list();
  if (value["kind"].text() == "dict") {
    std::set<std::string> seen;
    for (const Json& key : value["keys"].list()) {
      std::string written;
      write_value(key, written);
      seen.insert(written);
    }
    if (seen.size() != children.size() || value["keys"].list().size() != children.size()) damage("a dict has other keys than entries");
  }
  size_t count = 0;
  for (const Json& child : children) count += count_leaves(child, depth + 1);
  return count;
}

TargetFacts read_target(const Json& value) {
  value.expect_fields({"device", "name", "system", "machine", "features"});
  return {value["device"].text(), value["name"].text(), value["system"].text(), value["machine"].text(), read_texts(value["features"])};
}

Variant read_variant(const Json& value) {
  value.expect_fields({"target", "inputs", "results", "in_tree", "out_tree", "symbols", "state", "constants", "program", "kernels", "calls",
                       "binaries", "roles", "refusal", "devices", "rounds_freely"});
  Variant made;
  made.target = read_target(value["target"]);
  made.inputs = read_leaves(value["inputs"]);
  made.results = read_leaves(value["results"]);
  for (const char* part : {"in_tree", "inputs", "symbols"}) write_value(value[part], made.calls_like);
  for (const auto& [name, bounds] : value["symbols"].record()) {
    const std::vector<int64_t> pair = read_integers(bounds);
    if (pair.size() != 2) damage("a symbol has other than two bounds");
    made.symbols[name] = {pair[0], pair[1]};
  }
  for (int64_t number : read_integers(value["state"])) made.state.push_back(static_cast<size_t>(number));
  for (const auto& [name, number] : value["constants"].record()) made.constants[name] = static_cast<size_t>(number.integer());
  made.program = value["program"].text();
  made.kernels = value["kernels"].text();
  made.calls = value["calls"].text();
  for (const auto& [name, candidates] : value["binaries"].record()) {
    std::vector<Binary>& kept = made.binaries[name];
    for (const Json& one : candidates.list()) {
      one.expect_fields({"config", "record"});
      Binary binary;
      for (const auto& [key, number] : one["config"].record()) binary.config[key] = number.integer();
      binary.record = one["record"].text();
      kept.push_back(std::move(binary));
    }
  }
  made.roles = value["roles"].text();
  made.refusal = value["refusal"].text();
  made.devices = read_texts(value["devices"]);
  made.rounds_freely = value["rounds_freely"].truth();
  const std::pair<const std::vector<Leaf>*, const char*> nested[] = {{&made.inputs, "in_tree"}, {&made.results, "out_tree"}};
  for (const auto& [leaves, tree] : nested)
    if (count_leaves(value[tree]) != leaves->size()) damage("leaves and nesting do not fit");
  return made;
}

StateEntry read_state_entry(const Json& value) {
  value.expect_fields({"name", "kind", "is_persistent", "place"});
  StateEntry made;
  made.name = value["name"].text();
  made.kind = value["kind"].text();
  if (made.kind != "parameter" && made.kind != "buffer" && made.kind != "constant") damage("a state of no known kind");
  made.is_persistent = value["is_persistent"].truth();
  const Json& place = value["place"];
  place.expect_fields({"storage", "dtype", "size", "stride", "offset"});
  made.place = {place["storage"].text(), place["dtype"].text(), read_integers(place["size"]), read_integers(place["stride"]),
                place["offset"].integer()};
  return made;
}

// That the parts of a manifest fit together.
void check_positions(const std::vector<Leaf>& leaves) {
  std::vector<int64_t> positions;
  for (const Leaf& leaf : leaves)
    if (leaf.kind != Leaf::FIXED) positions.push_back(leaf.position);
  std::sort(positions.begin(), positions.end());
  for (size_t k = 0; k < positions.size(); ++k)
    if (positions[k] != static_cast<int64_t>(k)) damage("leaves and nesting do not fit");
}

void check_dtype(const std::string& name) {
  if (!is_dtype(name)) damage("a tensor has an element type of no known name");
}

void check_variant(const Manifest& manifest, const Variant& variant) {
  for (size_t number : variant.state)
    if (number >= manifest.state.size()) damage("a program has a state that is not there");
  for (const auto& [key, number] : variant.constants)
    if (number >= manifest.state.size()) damage("a program has a state that is not there");
  std::vector<std::string> records = {variant.program, variant.kernels, variant.calls};
  for (const auto& [name, binaries] : variant.binaries)
    for (const Binary& one : binaries) records.push_back(one.record);
  for (const std::string& record : records)
    if (!manifest.records.count(record)) damage("it does not list record " + record);
  check_positions(variant.inputs);
  check_positions(variant.results);
  for (const Leaf& leaf : variant.inputs) {
    if (leaf.kind == Leaf::TENSOR) check_dtype(leaf.dtype);
    const size_t sizes = leaf.sizes.size(), strides = leaf.strides.size();
    const bool fits = leaf.kind == Leaf::NUMBER ? sizes == 1 && !strides : leaf.kind == Leaf::FIXED ? !sizes && !strides : sizes == strides;
    if (!fits) damage("an input has other sizes than strides");
    for (const Size& size : leaf.sizes)
      if (!size.is_number && !size.text.empty() && !variant.symbols.count(size.text)) damage("a size is a symbol without bounds");
  }
}

void check_manifest(const Manifest& manifest) {
  if (manifest.entries.empty()) damage("it has no entry point");
  std::set<std::string> names;
  for (const StateEntry& entry : manifest.state)
    if (!names.insert(entry.name).second) damage("two states have one name");
  for (const StateEntry& entry : manifest.state) check_dtype(entry.place.dtype);
  for (const auto& [name, variants] : manifest.entries) {
    if (variants.empty()) damage("it has no entry point");
    for (const Variant& variant : variants) check_variant(manifest, variant);
  }
}

Manifest read_fields(const Json& value) {
  value.expect_fields({"schema", "name", "made_by", "torch", "runtime", "entries", "state", "records"});
  Manifest made;
  made.name = value["name"].text();
  for (const auto& [name, version] : value["made_by"].record()) version.text();
  const std::vector<std::string> range = read_texts(value["torch"]);
  if (range.size() != 2) damage("a range of torch has other than two ends");
  made.torch_first = range[0];
  made.torch_below = range[1];
  made.runtime = value["runtime"].text();
  for (const auto& [name, variants] : value["entries"].record()) {
    made.entries.emplace_back(name, std::vector<Variant>());
    for (const Json& one : variants.list()) made.entries.back().second.push_back(read_variant(one));
  }
  for (const Json& one : value["state"].list()) made.state.push_back(read_state_entry(one));
  for (const auto& [name, facts] : value["records"].record()) {
    facts.expect_fields({"size", "sha256"});
    made.records[name] = {static_cast<uint64_t>(facts["size"].integer()), facts["sha256"].text()};
  }
  check_manifest(made);
  return made;
}

Manifest decode(std::string_view text) {
  try {
    const Json value = Json::parse(text);
    const Json& schema = value["schema"];
    if (schema.kind() != Json::INTEGER || schema.integer() != SCHEMA)
      refuse_package("schema-version", "the package has another schema than " + std::to_string(SCHEMA) + ", which this library reads");
    return read_fields(value);
  } catch (const NotThere& error) {
    refuse_package("damaged-manifest", std::string("the manifest does not describe a package: ") + error.what());
  }
}

[[noreturn]] void refuse_hash(const std::string& record) { refuse_package("wrong-hash", "record " + record + " differs from its hash"); }

void check_records(const Archive& archive, const Manifest& manifest) {
  for (const Record& record : archive.records)
    if (record.name != MANIFEST && record.name != DIGEST && !manifest.records.count(record.name))
      refuse_package("unknown-record", "the manifest does not know record " + record.name);
  for (const auto& [name, facts] : manifest.records)
    if (!archive.find(name) || name == MANIFEST || name == DIGEST) refuse_package("missing-record", "record " + name + " is not there");
  for (const auto& [name, facts] : manifest.records) {
    const Record& record = *archive.find(name);
    if (record.size != facts.size) refuse_package("wrong-hash", "record " + name + " has " + std::to_string(record.size) + " bytes");
    if (name != WEIGHTS && hash_record(archive.data(record), record.size) != facts.sha256) refuse_hash(name);
  }
}

}  // namespace

void verify_weights(const Archive& archive, const Manifest& manifest) {
  const Record* record = archive.find(WEIGHTS);
  if (record && hash_record(archive.data(*record), record->size) != manifest.records.at(WEIGHTS).sha256) refuse_hash(WEIGHTS);
}

Manifest verify_archive(const Archive& archive, const std::string& path, const std::string& digest) {
  if (archive.records.size() < 2 || archive.records[0].name != MANIFEST || archive.records[1].name != DIGEST)
    refuse_package("not-a-package", path + " is an archive, but begins with no manifest");
  const Record &manifest = archive.records[0], &hash = archive.records[1];
  if (manifest.size > MOST_MANIFEST_BYTES || hash.size != 64)
    refuse_package("oversized-record", "the manifest of " + path + " or its digest is too large");
  const std::string found = write_hexadecimal(compute_sha256(archive.data(manifest), manifest.size));
  if (archive.view(hash) != found) refuse_package("wrong-hash", "the manifest of " + path + " differs from its digest");
  if (!digest.empty() && digest != found) refuse_package("wrong-digest", path + " is another package: its digest is " + found);
  Manifest made = decode(archive.view(manifest));
  check_records(archive, made);
  return made;
}

}  // namespace coilwork_aot
