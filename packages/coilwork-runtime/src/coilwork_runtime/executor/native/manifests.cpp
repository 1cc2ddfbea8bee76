// What the executor reads of manifests and their code, for those who compare it with what Python reads.
#include "call/references.hpp"
#include "program/manifest.hpp"
#include "program/model.hpp"

namespace coilwork {

static PyObject* object_of(const Text& text) {
  return PyUnicode_DecodeUTF8(text.c_str(), static_cast<Py_ssize_t>(text.size()), nullptr);
}

// A tuple of what `make` makes of each item.
template <class T, class Make>
static PyObject* tuple_of(const List<T>& items, Make make) {
  Reference made = checked(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t k = 0; k < items.size(); ++k) {
    PyObject* item = make(items[k]);
    if (!item) throw_python();
    PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(k), item);
  }
  return made.release();
}

static PyObject* texts_of(const List<Text>& texts) { return tuple_of(texts, object_of); }

// Steps as pairs; None for no code.
static PyObject* object_of(const Formula& code) {
  if (code.empty()) Py_RETURN_NONE;
  return tuple_of(code.steps(), [](const Formula::Step& step) {
    return Py_BuildValue("(iL)", step.kind, static_cast<long long>(step.value));
  });
}

static PyObject* object_of(const Manifest::Argument& argument) {
  return Py_BuildValue("(NNNNN)", object_of(argument.name), object_of(argument.role), object_of(argument.dtype),
                       PyBool_FromLong(argument.aligned), object_of(argument.elements));
}

static PyObject* object_of(const Manifest::Version& version) {
  PyObject* limits = tuple_of(version.limits, [](const Manifest::Limit& limit) {
    return Py_BuildValue("(NN)", object_of(limit.left), object_of(limit.right));
  });
  return Py_BuildValue("(NNN)", object_of(version.guard), object_of(version.mapping), limits);
}

static PyObject* object_of(const List<Manifest::Setting>& config) {
  return tuple_of(config, [](const Manifest::Setting& setting) {
    return Py_BuildValue("(NL)", object_of(setting.name), static_cast<long long>(setting.value));
  });
}

static PyObject* object_of(const Manifest& manifest) {
  const auto each = [](const auto& item) { return object_of(item); };
  return Py_BuildValue("{sNsNsNsNsNsNsNsNsNsNsNsNsN}", "name", object_of(manifest.name), "language", object_of(manifest.language), "entry",
                       object_of(manifest.entry), "args", tuple_of(manifest.args, each), "parameters", texts_of(manifest.parameters), "grid",
                       tuple_of(manifest.grid, each), "configs", tuple_of(manifest.configs, each), "versions",
                       tuple_of(manifest.versions, each), "checks", texts_of(manifest.checks), "features", texts_of(manifest.features),
                       "traffic", object_of(manifest.traffic), "target", object_of(manifest.target), "origins", texts_of(manifest.origins));
}

static Reader reader_of(PyObject* data) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data, &bytes, &size) != 0) throw_python();
  return Reader(bytes, static_cast<size_t>(size));
}

static void read_numbers(PyObject* given, List<int64_t>& into) {
  if (!PyTuple_Check(given)) {
    PyErr_SetString(PyExc_TypeError, "numbers come as a tuple");
    throw_python();
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(given); ++k) {
    into.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(given, k)));
    if (PyErr_Occurred()) throw_python();
  }
}

// What `make` makes; null with an exception of Python's for one of ours.
template <class Make>
static PyObject* translated(Make make) {
  try {
    return make();
  } catch (Raised& raised) {
    PyErr_Restore(raised.type, raised.value, raised.trace);
  } catch (const Damaged& damaged) {
    PyErr_Format(PyExc_ValueError, "%s%s", damaged.what, damaged.name);
  } catch (const DividedByZero&) {
    PyErr_SetString(PyExc_ZeroDivisionError, "integer division or modulo by zero");
  } catch (const Overflow&) {
    PyErr_SetString(PyExc_RuntimeError, "a size does not fit 64 bits");
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  return nullptr;
}

PyObject* read_manifest(PyObject*, PyObject* data) {
  return translated([&] { return object_of(parse_manifest(reader_of(data))); });
}

PyObject* evaluate_code(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "code, a tuple of sizes and a tuple of parameters are needed");
  return translated([&] {
    Reader in = reader_of(given[0]);
    Formula code;
    code.read(in);
    List<int64_t> sizes, parameters;
    read_numbers(given[1], sizes);
    read_numbers(given[2], parameters);
    if (!in.done() || !code.is_within(sizes.size(), parameters.size())) throw Damaged{"code uses no such size or parameter"};
    const int64_t value = code(sizes.data(), parameters.data());
    // bound beforehand, it is the same
    if (code.bind(parameters.data())(sizes.data()) != value) throw Damaged{"bound code has another value"};
    return PyLong_FromLongLong(value);
  });
}

}  // namespace coilwork
