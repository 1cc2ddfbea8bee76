// coilwork_executor.Roles(inner, separate, gives, rows, kept, functions) is a callable that applies roles around `inner`, as
// coilwork_runtime/calling_convention.py makes it: over one list of inputs, which `inner` empties, or over the inputs one by one.
#include <new>
#include <utility>

#include "call/roles.hpp"

namespace coilwork {

struct RolesObject {
  PyObject_HEAD
  vectorcallfunc call;
  Roles* roles;
};

static RoleNames role_names;

static bool make_names() {
  struct Named {
    PyObject*& place;
    const char* name;
  };
  const Named all[] = {{role_names.is_view, "_is_view"},   {role_names.detach, "detach"},
                       {role_names.data, "data"},          {role_names.is_inference, "is_inference"},
                       {role_names.view_as, "view_as"},    {role_names.item, "item"},
                       {role_names.set, "set_"},           {role_names.conj, "conj"},
                       {role_names.as_strided, "as_strided"}, {role_names.is_quantized, "is_quantized"},
                       {role_names.level, "_current_level"}};
  for (const Named& one : all)
    if (!one.place && !(one.place = PyUnicode_InternFromString(one.name))) return false;
  return true;
}

static void unload_roles(Roles* roles) {
  if (!roles) return;
  Py_XDECREF(roles->inner);
  for (const Row& row : roles->rows) Py_XDECREF(row.extra);
  PyObject** functions = reinterpret_cast<PyObject**>(&roles->functions);
  for (size_t k = 0; k < sizeof(RoleFunctions) / sizeof(PyObject*); ++k) Py_XDECREF(functions[k]);
  delete roles;
}

static At read_place(int place, Py_ssize_t position, Roles& roles) {
  if (place < 0 || place >= PLACES || position < 0) throw Damaged{"a role speaks of no value"};
  if (place == HIDDEN && position >= roles.hidden) roles.hidden = position + 1;
  return {place, position};
}

// Places, two numbers each.
static void read_places(PyObject* tuple, Roles& roles, List<At>& to) {
  for (Py_ssize_t k = 0; k + 1 < PyTuple_GET_SIZE(tuple); k += 2) {
    const long place = PyLong_AsLong(PyTuple_GET_ITEM(tuple, k));
    const Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, k + 1));
    if (PyErr_Occurred()) throw_python();
    to.push_back(read_place(static_cast<int>(place), position, roles));
  }
}

static void read_row(PyObject* given, Roles& roles) {
  Row row;
  int value = 0, source = 0, of_parts = 0;
  Py_ssize_t value_at = 0, source_at = 0;
  PyObject *extra = nullptr, *takes = nullptr, *gives = nullptr;
  if (!PyArg_ParseTuple(given, "iininiOipO!O!", &row.act, &value, &value_at, &source, &source_at, &row.flags, &extra, &row.recorded,
                        &of_parts, &PyTuple_Type, &takes, &PyTuple_Type, &gives))
    throw_python();
  if (row.act < 0 || row.act >= ACTS) throw Damaged{"a role that is not known"};
  row.value = read_place(value, value_at, roles);
  row.source = read_place(source, source_at, roles);
  row.of_parts = of_parts;
  read_places(takes, roles, row.takes);
  read_places(gives, roles, row.gives);
  const bool changes_input = row.value.place == IN && row.act != SET_INPUT && row.act != DONATED_INPUT;
  if (row.act == DONATED_INPUT) roles.donated.push_back(row.value.position);
  roles.before = roles.before || row.act == INSTEAD_OF_CALL || row.act == BEFORE_CALL || changes_input;
  if (extra != Py_None) {
    Py_INCREF(extra);
    row.extra = extra;
  }
  roles.rows.push_back(std::move(row));
}

static void read_roles(PyObject* args, Roles& roles) {
  PyObject *inner = nullptr, *rows = nullptr, *kept = nullptr, *functions = nullptr;
  int separate = 0;
  if (!PyArg_ParseTuple(args, "OpnO!O!O!", &inner, &separate, &roles.gives, &PyTuple_Type, &rows, &PyTuple_Type, &kept, &PyTuple_Type,
                        &functions))
    throw_python();
  Py_INCREF(inner);
  roles.inner = inner;
  roles.separate = separate;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(rows); ++k) read_row(PyTuple_GET_ITEM(rows, k), roles);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kept); ++k) {
    roles.kept.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(kept, k)));
    if (PyErr_Occurred()) throw_python();
  }
  const Py_ssize_t count = sizeof(RoleFunctions) / sizeof(PyObject*);
  if (PyTuple_GET_SIZE(functions) != count) throw Damaged{"functions of roles are missing"};
  PyObject** places = reinterpret_cast<PyObject**>(&roles.functions);
  for (Py_ssize_t k = 0; k < count; ++k) {
    places[k] = PyTuple_GET_ITEM(functions, k);
    Py_INCREF(places[k]);
  }
}

// Calls `act`, which returns a new reference, and turns what it throws into a Python exception.
template <class Acting>
static PyObject* guarded(Acting act) {
  try {
    return act();
  } catch (Raised& raised) {
    PyErr_Restore(raised.type, raised.value, raised.trace);
  } catch (const Failed& failed) {
    PyErr_SetString(PyExc_RuntimeError, failed.what);
  } catch (const Damaged& damaged) {
    PyErr_SetString(PyExc_ValueError, damaged.what);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  return nullptr;
}

static PyObject* call_roles(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  if (keywords && PyTuple_GET_SIZE(keywords)) {
    PyErr_SetString(PyExc_TypeError, "inputs are given by position");
    return nullptr;
  }
  const Roles& roles = *reinterpret_cast<RolesObject*>(self)->roles;
  const size_t count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  return guarded([&]() -> PyObject* {
    RolesCall call(roles, role_names);
    if (!roles.separate && count == 1 && PyList_Check(args[0])) return call.run(args[0]);
    if (!roles.before) return call.run(args, count);
    const Reference list = checked(RolesCall::list_of(args, count));
    return call.run(list.get());
  });
}

static void free_roles(PyObject* self) {
  unload_roles(reinterpret_cast<RolesObject*>(self)->roles);
  Py_TYPE(self)->tp_free(self);
}

static PyObject* new_roles(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded([&]() -> PyObject* {
    PyObject* self = type->tp_alloc(type, 0);
    if (!self) throw_python();
    Reference owner(self);
    reinterpret_cast<RolesObject*>(self)->call = call_roles;
    Roles* roles = reinterpret_cast<RolesObject*>(self)->roles = new Roles();
    read_roles(args, *roles);
    return owner.release();
  });
}

static PyTypeObject RolesType = {PyVarObject_HEAD_INIT(nullptr, 0) "coilwork_executor.Roles"};

bool add_roles(PyObject* module) {
  RolesType.tp_basicsize = sizeof(RolesObject);
  RolesType.tp_dealloc = free_roles;
  RolesType.tp_call = PyVectorcall_Call;
  RolesType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  RolesType.tp_vectorcall_offset = offsetof(RolesObject, call);
  RolesType.tp_new = new_roles;
  if (!make_names() || PyType_Ready(&RolesType) < 0) return false;
  Py_INCREF(&RolesType);
  if (PyModule_AddObject(module, "Roles", reinterpret_cast<PyObject*>(&RolesType)) == 0) return true;
  Py_DECREF(&RolesType);
  return false;
}

}  // namespace coilwork
