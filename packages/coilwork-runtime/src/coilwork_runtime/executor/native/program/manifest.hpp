// Manifests of kernels as they are read: records of named fields (coilwork_runtime/manifest/kernel_manifest.py says what they look like).
#pragma once
#include <initializer_list>
#include <utility>

#include "containers/text.hpp"
#include "program/arithmetic.hpp"

namespace coilwork {

struct Manifest {
  struct Argument {
    Text name, role, dtype;
    bool aligned = false;
    Formula elements;
  };
  struct Limit {
    Formula left, right;
  };
  struct Version {
    Formula guard;  // empty: it is for all sizes
    Text mapping;
    List<Limit> limits;
  };
  struct Setting {
    Text name;
    int64_t value = 0;
  };
  Text name, language, entry, target;
  List<Argument> args;
  List<Text> parameters, checks, features, origins;
  List<Formula> grid;
  List<List<Setting>> configs;
  List<Version> versions;
  Formula traffic;
  size_t sizes = 0;
};

// Hands the fields of a record to `read`, which returns whether it knows the name and reads the payload.
template <class Read>
static void read_fields(Reader in, std::initializer_list<const char*> required, Read read) {
  List<Text> seen;
  for (uint32_t left = in.count(); left; --left) {
    Text name = in.text();
    Reader payload = in.block();
    for (const Text& other : seen)
      if (other == name.c_str()) throw Damaged::field("a manifest has twice the field ", name);
    if (!read(name, payload)) throw Damaged::field("a manifest has a field that is not known: ", name);
    if (!payload.done()) throw Damaged::field("something follows the field ", name);
    seen.push_back(std::move(name));
  }
  if (!in.done()) throw Damaged{"something follows the last field of a manifest"};
  for (const char* wanted : required) {
    bool found = false;
    for (const Text& name : seen) found = found || name == wanted;
    if (!found) throw Damaged::field("a manifest lacks the field ", Text(wanted));
  }
}

static bool read_text(Reader& in, Text& into) {
  into = in.rest();
  return true;
}

static bool read_code(Reader& in, Formula& into) {
  into.read(in);
  return true;
}

template <class T, class Read>
static bool read_list(Reader& in, List<T>& into, Read read) {
  for (uint32_t left = in.count(); left; --left) {
    T made{};
    read(made);
    into.push_back(std::move(made));
  }
  return true;
}

static bool read_texts(Reader& in, List<Text>& into) {
  return read_list(in, into, [&](Text& one) { one = in.text(); });
}

static void read_argument(Reader in, Manifest::Argument& one) {
  read_fields(in, {"name", "role", "dtype"}, [&](const Text& name, Reader& payload) {
    if (name == "name") return read_text(payload, one.name);
    if (name == "role") return read_text(payload, one.role);
    if (name == "dtype") return read_text(payload, one.dtype);
    if (name == "elements") return read_code(payload, one.elements);
    if (!(name == "aligned")) return false;
    one.aligned = payload.i64() != 0;
    return true;
  });
}

static void read_version(Reader in, Manifest::Version& one) {
  read_fields(in, {}, [&](const Text& name, Reader& payload) {
    if (name == "guard") return read_code(payload, one.guard);
    if (name == "mapping") return read_text(payload, one.mapping);
    if (!(name == "limits")) return false;
    return read_list(payload, one.limits, [&](Manifest::Limit& limit) {
      limit.left.read(payload);
      limit.right.read(payload);
    });
  });
}

static bool read_configs(Reader& in, List<List<Manifest::Setting>>& into) {
  return read_list(in, into, [&](List<Manifest::Setting>& config) {
    read_list(in, config, [&](Manifest::Setting& setting) {
      setting.name = in.text();
      setting.value = in.i64();
    });
  });
}

static bool read_field(const Text& name, Reader& in, Manifest& into) {
  if (name == "name") return read_text(in, into.name);
  if (name == "language") return read_text(in, into.language);
  if (name == "entry") return read_text(in, into.entry);
  if (name == "target") return read_text(in, into.target);
  if (name == "parameters") return read_texts(in, into.parameters);
  if (name == "checks") return read_texts(in, into.checks);
  if (name == "features") return read_texts(in, into.features);
  if (name == "origins") return read_texts(in, into.origins);
  if (name == "traffic") return read_code(in, into.traffic);
  if (name == "grid") return read_list(in, into.grid, [&](Formula& one) { one.read(in); });
  if (name == "configs") return read_configs(in, into.configs);
  if (name == "args") return read_list(in, into.args, [&](Manifest::Argument& one) { read_argument(in.block(), one); });
  if (name == "versions") return read_list(in, into.versions, [&](Manifest::Version& one) { read_version(in.block(), one); });
  return false;
}

// That roles are known and that code uses only what there is.
static void check_manifest(const Manifest& manifest) {
  const auto check = [&](const Formula& code) {
    if (!code.is_within(manifest.sizes, manifest.parameters.size())) throw Damaged{"a formula uses no such size or parameter"};
  };
  for (const Manifest::Argument& argument : manifest.args) {
    bool known = false;
    for (const char* role : {"in", "out", "inout", "size", "scratch"}) known = known || argument.role == role;
    if (!known) throw Damaged::field("a parameter has the role ", argument.role);
    if (argument.elements.empty() == (argument.role == "scratch")) throw Damaged{"scratch memory without a size, or something else with one"};
    check(argument.elements);
  }
  if (manifest.grid.size() > 3) throw Damaged{"a grid has too many dimensions"};
  for (const Formula& extent : manifest.grid) check(extent);
  for (const Manifest::Version& version : manifest.versions) {
    check(version.guard);
    for (const Manifest::Limit& limit : version.limits) {
      check(limit.left);
      check(limit.right);
    }
  }
  check(manifest.traffic);
}

// Throws Damaged.
static Manifest parse_manifest(Reader in) {
  Manifest made;
  read_fields(in, {"name", "language", "entry", "args"},
              [&](const Text& name, Reader& payload) { return read_field(name, payload, made); });
  for (const Manifest::Argument& argument : made.args) made.sizes += argument.role == "size";
  check_manifest(made);
  return made;
}

}  // namespace coilwork
