// The roles of a call's inputs and results, as `coilwork_runtime.manifest.convention_parser` reads them: rows that are applied around the call of
// a program. `coilwork_runtime.calling_convention` does the same in Python, and a test runs every row by both. Memory is looked at
// through handles; torch's own functions make views and copies. What is rare, or nobody's in a hurry for, is a helper in Python.
#pragma once
#include "call/tensor_objects.hpp"
#include "call/tensor_samples.hpp"

namespace coilwork {

// As `Act` and `Place` in Python.
enum Act : int {
  ALIGNED_INPUT, RESOLVED_INPUT, SET_INPUT, STRIDED_VALUE, DONATED_INPUT, NUMBER_RESULT, CONSTANT_RESULT, DETACHED_RESULT,
  COUNTED_RESULT, VIEW_RESULT, SAME_RESULT, MARKED_RESULT, CREATED_RESULT, SHOWN_RESULT, MADE_RESULTS, INSTEAD_OF_CALL, BEFORE_CALL, ACTS
};
enum Place : int { IN, OUT, HIDDEN, NOWHERE, PLACES };

struct At {
  int place = NOWHERE;
  Py_ssize_t position = 0;
};

struct Row {
  int act = 0;
  At value, source;
  int flags = 0;
  PyObject* extra = nullptr;   // strides, a constant, a callable, or torch's value of how views are made; may be null
  int recorded = -1;           // views are made so with gradients recorded (1) or not (0)
  bool of_parts = false;
  List<At> takes, gives;
};

// torch's own functions, and helpers of `coilwork_runtime.calling_convention`, in this order in the tuple that Python gives.
struct RoleFunctions {
  PyObject *tensor, *align, *resolve, *lay_out, *share_count, *make_view, *show_memory_of;
  PyObject *set_creation, *negate, *levels, *interpreters, *has_key, *batching;
  PyObject *keeps_graph, *copy;
};

// Tells if autograd runs a backward that keeps its graph. torch's C interface does not say so, functions in C++ that take nothing do.
struct GraphTasks {
  bool (*is_kept)() = nullptr;   // bool torch::autograd::get_current_graph_task_keep_graph(), true outside of a backward
  int (*id)() = nullptr;         // int torch::autograd::get_current_graph_task_id(), negative outside of a backward
  bool is_sought = false;

  // False: torch has no such functions, and Python is asked.
  bool find() {
    if (is_sought) return is_kept && id;
    is_sought = true;
    void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!library) return false;
    is_kept = reinterpret_cast<bool (*)()>(dlsym(library, "_ZN5torch8autograd33get_current_graph_task_keep_graphEv"));
    id = reinterpret_cast<int (*)()>(dlsym(library, "_ZN5torch8autograd25get_current_graph_task_idEv"));
    dlclose(library);
    return is_kept && id;
  }
};

inline GraphTasks graph_tasks;  // guarded by the interpreter's lock

struct Roles {
  PyObject* inner = nullptr;
  bool separate = false;       // `inner` takes its inputs one by one only
  Py_ssize_t gives = -1;
  List<Row> rows;
  List<Py_ssize_t> kept;       // inputs that are asked for after the call
  List<Py_ssize_t> donated;    // inputs that the program may overwrite
  Py_ssize_t hidden = 0;
  bool before = false;         // some rows do something before the call
  RoleFunctions functions = {};
};

// Attributes and methods by name, made once.
struct RoleNames {
  PyObject *is_view, *detach, *data, *is_inference, *view_as, *item, *set, *conj, *as_strided, *is_quantized, *level;
};

class RolesCall {
 public:
  RolesCall(const Roles& roles, const RoleNames& names) : roles_(roles), names_(names), functions_(roles.functions) {
    hidden_.resize(static_cast<size_t>(roles.hidden));
  }
  RolesCall(const RolesCall&) = delete;
  ~RolesCall() {
    for (PyObject* value : kept_) Py_XDECREF(value);
    for (PyObject* value : hidden_) Py_XDECREF(value);
    for (const Copied& one : copies_) {
      Py_XDECREF(one.value);
      Py_XDECREF(one.copy);
    }
    Py_XDECREF(results_);
  }

  // With what the caller gives in a list, which is emptied.
  PyObject* run(PyObject* list) {
    Reference made(nullptr);
    for (size_t k = roles_.rows.size(); k && roles_.rows[k - 1].act == BEFORE_CALL; --k) {
      made = checked(PyObject_CallOneArg(roles_.rows[k - 1].extra, list));
      list = made.get();
      if (!PyList_CheckExact(list)) {
        PyErr_SetString(PyExc_TypeError, "what makes inputs gives a list");
        throw_python();
      }
    }
    return run_inner(list);
  }

  // With the inputs one by one, where nothing is to be done before the call.
  PyObject* run(PyObject* const* args, size_t count) {
    keep(args, static_cast<Py_ssize_t>(count));
    if (!roles_.donated.empty() && keeps_graph()) {
      const Reference list = checked(list_of(args, count));
      copy_donated(list.get());
      take(PyObject_Vectorcall(roles_.inner, PySequence_Fast_ITEMS(list.get()), count, nullptr));
    } else {
      take(PyObject_Vectorcall(roles_.inner, args, count, nullptr));
    }
    return finish(0);
  }

  static PyObject* list_of(PyObject* const* args, size_t count) {
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(count));
    for (size_t k = 0; list && k < count; ++k) {
      Py_INCREF(args[k]);
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(k), args[k]);
    }
    return list;
  }

 private:
  struct Copied {
    size_t row;
    PyObject *value, *copy;
  };

  // With the inputs in a list, which the program empties.
  PyObject* run_inner(PyObject* list) {
    keep(PySequence_Fast_ITEMS(list), PyList_GET_SIZE(list));
    size_t first = 0;
    bool done = false;
    if (roles_.before)
      for (size_t k = roles_.rows.size(); k && !done; --k) {
        const Row& row = roles_.rows[k - 1];
        if (row.act == INSTEAD_OF_CALL) {
          if (!is_transformed()) continue;
          take(PyObject_CallOneArg(row.extra, list));
          first = k;
          done = true;
        } else if (row.value.place == IN) {
          prepare(row, k - 1, list);
        }
      }
    if (!done) {
      if (!roles_.donated.empty() && keeps_graph()) copy_donated(list);
      take(roles_.separate ? call_separately(list) : PyObject_CallOneArg(roles_.inner, list));
    }
    return finish(first);
  }

  // As `keeps_graph` in Python.
  bool keeps_graph() const {
    if (graph_tasks.find()) return graph_tasks.is_kept() && graph_tasks.id() >= 0;
    return checked(PyObject_CallNoArgs(functions_.keeps_graph)).get() == Py_True;
  }

  // A graph that is kept may run again, so the program overwrites copies.
  void copy_donated(PyObject* list) {
    for (const Py_ssize_t position : roles_.donated) {
      if (position >= PyList_GET_SIZE(list)) {
        PyErr_Format(PyExc_IndexError, "there is no input %zd", position);
        throw_python();
      }
      PyObject* value = PyList_GET_ITEM(list, position);
      const AtenTensorHandle tensor = plain(value);
      PyObject* copy = tensor && make_object ? copied(tensor) : nullptr;
      if (!copy && !PyErr_Occurred()) copy = PyObject_CallOneArg(functions_.copy, value);
      if (!copy || PyList_SetItem(list, position, copy) != 0) throw_python();
    }
  }

  void keep(PyObject* const* args, Py_ssize_t count) {
    kept_.reserve(roles_.kept.size());
    for (const Py_ssize_t position : roles_.kept) {
      if (position >= count) {
        PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected more than %zd, got %zd)", position, count);
        throw_python();
      }
      Py_INCREF(args[position]);
      kept_.push_back(args[position]);
    }
  }

  PyObject* call_separately(PyObject* list) {
    const Reference arguments = checked(PyList_AsTuple(list));
    return PyObject_CallObject(roles_.inner, arguments.get());
  }

  void take(PyObject* results) {
    if (!results) throw_python();
    if (PyList_CheckExact(results)) {
      results_ = results;
      return;
    }
    const Reference others(results);
    results_ = checked(PySequence_List(results)).release();
  }

  PyObject* finish(size_t first) {
    for (size_t k = first; k < roles_.rows.size(); ++k) apply(roles_.rows[k], k);
    if (roles_.gives >= 0 && PyList_SetSlice(results_, roles_.gives, PyList_GET_SIZE(results_), nullptr) != 0) throw_python();
    PyObject* results = results_;
    results_ = nullptr;
    return results;
  }

  // Borrowed.
  PyObject* read(const At& at) {
    PyObject* found = nullptr;
    if (at.place == IN) {
      for (size_t k = 0; k < kept_.size(); ++k)
        if (roles_.kept[k] == at.position) found = kept_[k];
    } else if (at.place == HIDDEN) {
      found = hidden_[static_cast<size_t>(at.position)];
    } else if (at.position < PyList_GET_SIZE(results_)) {
      found = PyList_GET_ITEM(results_, at.position);
    }
    if (!found) {
      PyErr_Format(PyExc_IndexError, "a role speaks of value %zd, which there is not", at.position);
      throw_python();
    }
    return found;
  }

  void write(const At& at, PyObject* value) {
    if (!value) throw_python();
    if (at.place == HIDDEN) {
      PyObject*& place = hidden_[static_cast<size_t>(at.position)];
      Py_XDECREF(place);
      place = value;
    } else if (PyList_SetItem(results_, at.position, value) != 0) {
      throw_python();
    }
  }

  void prepare(const Row& row, size_t number, PyObject* list) {
    if (row.act == SET_INPUT || row.act == DONATED_INPUT) return;
    if (row.value.position >= PyList_GET_SIZE(list)) {
      PyErr_Format(PyExc_IndexError, "there is no input %zd", row.value.position);
      throw_python();
    }
    PyObject* value = PyList_GET_ITEM(list, row.value.position);
    Reference made(row.act == ALIGNED_INPUT    ? aligned(value)
                   : row.act == RESOLVED_INPUT ? resolved(value, row)
                                               : PyObject_CallFunctionObjArgs(functions_.lay_out, value, row.extra, nullptr));
    if (!made.get()) throw_python();
    if (made.get() == value) return;
    Py_INCREF(made.get());
    if (row.flags & 1) {
      Py_INCREF(value);
      copies_.push_back({number, value, made.get()});
    } else {
      Py_DECREF(made.get());
    }
    if (PyList_SetItem(list, row.value.position, made.release()) != 0) throw_python();
  }

  PyObject* aligned(PyObject* value) {
    const AtenTensorHandle tensor = plain(value);
    void* data = nullptr;
    if (!tensor || torch.aoti_torch_get_data_ptr(tensor, &data) != 0) return PyObject_CallOneArg(functions_.align, value);
    if (reinterpret_cast<uintptr_t>(data) % 16 == 0) {
      Py_INCREF(value);
      return value;
    }
    PyObject* copy = make_object ? copied(tensor) : nullptr;
    return copy ? copy : PyErr_Occurred() ? nullptr : PyObject_CallOneArg(functions_.align, value);
  }

  // A copy with the same strides; null where torch's C interface does not make it.
  static PyObject* copied(AtenTensorHandle tensor) {
    int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
    int32_t dtype = 0, device = 0, index = 0;
    AtenTensorHandle copy = nullptr;
    if (torch.aoti_torch_get_dim(tensor, &rank) || torch.aoti_torch_get_sizes(tensor, &sizes) ||
        torch.aoti_torch_get_strides(tensor, &strides) || torch.aoti_torch_get_dtype(tensor, &dtype) ||
        torch.aoti_torch_get_device_type(tensor, &device) || torch.aoti_torch_get_device_index(tensor, &index) ||
        torch.aoti_torch_empty_strided(rank, sizes, strides, dtype, device, index, &copy))
      return nullptr;
    PyObject* object = torch.aoti_torch_copy_(copy, tensor, 0) == 0 ? made_object(make_object, copy) : nullptr;
    torch.aoti_torch_delete_tensor_object(copy);
    return object;
  }

  PyObject* resolved(PyObject* value, const Row& row) {
    const AtenTensorHandle tensor = tensor_objects.in(value);
    if (value == Py_None || (tensor && tensor_kinds.keys_at && !tensor_kinds.is_marked(tensor))) {
      Py_INCREF(value);
      return value;
    }
    return PyObject_CallFunctionObjArgs(functions_.resolve, value, row.flags & 2 ? Py_True : Py_False, nullptr);
  }

  // The handle of a tensor in memory that nobody else has a say in; null: it is another, or that is not known.
  static AtenTensorHandle plain(PyObject* value) {
    const AtenTensorHandle tensor = tensor_objects.in(value);
    return tensor && tensor_kinds.keys_at && tensor_kinds.fits(tensor, tensor_kinds.plain) ? tensor : nullptr;
  }

  void apply(const Row& row, size_t number) {
    switch (row.act) {
      case ALIGNED_INPUT:
      case RESOLVED_INPUT:
      case STRIDED_VALUE:
        if (row.value.place != IN)
          write(row.value, PyObject_CallFunctionObjArgs(functions_.lay_out, read(row.value), row.extra, nullptr));
        else
          write_back(number);
        break;
      case SET_INPUT: {
        const bool recorded = torch.aoti_torch_grad_mode_is_enabled();
        torch.aoti_torch_grad_mode_set_enabled(false);
        const Reference set(PyObject_CallMethodObjArgs(read(row.value), names_.set, read(row.source), nullptr));
        torch.aoti_torch_grad_mode_set_enabled(recorded);
        if (!set.get()) throw_python();
        break;
      }
      case NUMBER_RESULT:
        write(row.value, number_in(read(row.value), row.flags));
        break;
      case CONSTANT_RESULT:
        Py_INCREF(row.extra);
        write(row.value, row.extra);
        break;
      case DETACHED_RESULT:
        if (says(read(row.value), names_.is_view)) write(row.value, method(read(row.value), names_.detach));
        break;
      case COUNTED_RESULT:
        write(row.value, counted(row));
        break;
      case VIEW_RESULT:
        if (!(row.flags && says(read(row.value), names_.is_view))) write(row.value, viewed(row));
        break;
      case SAME_RESULT: {
        PyObject* same = read(row.source);
        Py_INCREF(same);
        write(row.value, same);
        break;
      }
      case MARKED_RESULT:
        write(row.value, marked(row));
        break;
      case CREATED_RESULT: {
        PyObject* view = read(row.value);
        Py_INCREF(view);
        write(row.value, with_creation(view, row));
        break;
      }
      case SHOWN_RESULT:
        if (says(read(row.value), names_.is_inference) != says(read(row.source), names_.is_inference))
          write(row.value, PyObject_CallFunctionObjArgs(functions_.show_memory_of, read(row.value), read(row.source),
                                                        row.flags ? Py_True : Py_False, nullptr));
        break;
      case MADE_RESULTS:
        make_results(row);
        break;
      default:
        break;
    }
  }

  void write_back(size_t number) {
    for (const Copied& one : copies_) {
      if (one.row != number) continue;
      const AtenTensorHandle value = plain(one.value), copy = plain(one.copy);
      if (value && copy && torch.aoti_torch_copy_(value, copy, 0) == 0) continue;
      checked(PyObject_CallMethod(one.value, "copy_", "O", one.copy));
    }
  }

  PyObject* number_in(PyObject* result, int is_bool) {
    const Reference inside(PyLong_Check(result) || PyFloat_Check(result) ? nullptr : PyObject_GetAttr(result, names_.item));
    const Reference called(inside.get() ? PyObject_CallNoArgs(inside.get()) : nullptr);
    if (PyErr_Occurred()) throw_python();
    PyObject* number = called.get() ? called.get() : result;
    if (!is_bool) return PyNumber_Float(number);
    const int truth = PyObject_IsTrue(number);
    return truth < 0 ? nullptr : PyBool_FromLong(truth);
  }

  PyObject* counted(const Row& row) {
    PyObject* value = read(row.value);
    const bool is_plain = is_tensor(value);
    if (row.source.place == NOWHERE) {
      if (is_plain) return PyObject_GetAttr(value, names_.data);
      Py_INCREF(value);
      return value;
    }
    PyObject* source = read(row.source);
    const int shared = is_plain ? share(value, source) : -1;
    if (shared < 0) return PyObject_CallFunctionObjArgs(functions_.share_count, value, source, nullptr);
    if (!shared) {
      Py_INCREF(value);
      return value;
    }
    // a detached tensor keeps the count, also when it is given other contents
    Reference made = checked(method(source, names_.detach));
    if (value != source && PyObject_SetAttr(made.get(), names_.data, value) != 0) throw_python();
    return made.release();
  }

  // Whether two tensors have one memory; -1 where that is not known.
  static int share(PyObject* one, PyObject* other) {
    const AtenTensorHandle first = plain(one), second = plain(other);
    return first && second ? tensor_kinds.share(first, second) : -1;
  }

  PyObject* viewed(const Row& row) {
    PyObject *value = read(row.value), *base = read(row.source);
    if (!is_tensor(value) || !is_tensor(base) || !plain(value) || !plain(base) || says_attribute(value, names_.is_quantized))
      return slow_view(row, value, base);
    bool recorded = torch.aoti_torch_grad_mode_is_enabled();
    if (value == base) return as_made(checked(PyObject_GetItem(value, Py_Ellipsis)), recorded, row);
    int32_t type = 0, other = 0;
    const AtenTensorHandle tensor = plain(value);
    int64_t rank = 0, start = 0, *sizes = nullptr, *strides = nullptr;
    if (share(value, base) != 1 || torch.aoti_torch_get_dtype(tensor, &type) || torch.aoti_torch_get_dtype(plain(base), &other) ||
        type != other || torch.aoti_torch_get_dim(tensor, &rank) || torch.aoti_torch_get_sizes(tensor, &sizes) ||
        torch.aoti_torch_get_strides(tensor, &strides) || torch.aoti_torch_get_storage_offset(tensor, &start))
      return slow_view(row, value, base);
    const Reference extents = tuple_of(sizes, static_cast<uint32_t>(rank)), steps = tuple_of(strides, static_cast<uint32_t>(rank));
    const Reference offset = checked(PyLong_FromLongLong(start));
    // views that were made without recording refuse to be written to once it is on, and so do views of them
    if (!recorded) torch.aoti_torch_grad_mode_set_enabled(true);
    PyObject* made = PyObject_CallMethodObjArgs(base, names_.as_strided, extents.get(), steps.get(), offset.get(), nullptr);
    if (!recorded) torch.aoti_torch_grad_mode_set_enabled(false);
    return as_made(checked(made), true, row);
  }

  PyObject* slow_view(const Row& row, PyObject* value, PyObject* base) {
    const Reference creation = checked(row.extra ? PyObject_GetAttrString(row.extra, "name") : PyUnicode_FromString(""));
    return PyObject_CallFunctionObjArgs(functions_.make_view, value, base, creation.get(), nullptr);
  }

  PyObject* as_made(Reference view, bool recorded, const Row& row) {
    if (!row.extra || row.recorded == static_cast<int>(recorded)) return view.release();
    return with_creation(view.release(), row);
  }

  // Takes over the reference.
  PyObject* with_creation(PyObject* view, const Row& row) {
    Reference value(view);
    if (!is_tensor(view) || says(view, names_.is_inference)) return value.release();
    if (!says(view, names_.is_view)) {
      if (!row.of_parts) return value.release();
      value = checked(PyObject_CallMethodOneArg(view, names_.view_as, view));
    }
    checked(PyObject_CallFunctionObjArgs(functions_.set_creation, value.get(), row.extra, nullptr));
    return value.release();
  }

  PyObject* marked(const Row& row) {
    PyObject* value = read(row.value);
    Py_INCREF(value);
    Reference found(value);
    if (row.flags & 1) found = checked(PyObject_CallOneArg(functions_.negate, found.get()));
    if (row.flags & 2) found = checked(method(found.get(), names_.conj));
    if (says(value, names_.is_inference) || !says(value, names_.is_view))
      return row.flags & 4 ? found.release() : method(found.get(), names_.detach);
    // it takes the writes that the view takes
    const Reference creation = checked(PyObject_CallOneArg(row.extra, value));
    if (is_tensor(found.get())) checked(PyObject_CallFunctionObjArgs(functions_.set_creation, found.get(), creation.get(), nullptr));
    return found.release();
  }

  void make_results(const Row& row) {
    const Reference taken = checked(PyTuple_New(static_cast<Py_ssize_t>(row.takes.size())));
    for (size_t k = 0; k < row.takes.size(); ++k) {
      PyObject* value = read(row.takes[k]);
      Py_INCREF(value);
      PyTuple_SET_ITEM(taken.get(), static_cast<Py_ssize_t>(k), value);
    }
    const Reference made = checked(PyObject_CallObject(row.extra, taken.get()));
    const Reference listed = checked(PySequence_Fast(made.get(), "what makes results gives a sequence"));
    if (PySequence_Fast_GET_SIZE(listed.get()) != static_cast<Py_ssize_t>(row.gives.size())) {
      PyErr_Format(PyExc_ValueError, "%zu results are made, and %zd given", row.gives.size(), PySequence_Fast_GET_SIZE(listed.get()));
      throw_python();
    }
    for (size_t k = 0; k < row.gives.size(); ++k) {
      PyObject* value = PySequence_Fast_GET_ITEM(listed.get(), static_cast<Py_ssize_t>(k));
      Py_INCREF(value);
      write(row.gives[k], value);
    }
  }

  // As `is_transformed` in Python.
  bool is_transformed() const {
    PyObject* level = PyDict_GetItemWithError(functions_.levels, names_.level);
    if (!level) throw_python();
    if (PyLong_AsLong(level) >= 0) return true;
    const Reference interpreter = checked(PyObject_CallNoArgs(functions_.interpreters));
    if (interpreter.get() != Py_None) return true;
    if (functions_.batching == Py_None) return false;
    const Reference included = checked(PyObject_CallOneArg(functions_.has_key, functions_.batching));
    return included.get() == Py_True;
  }

  bool is_tensor(PyObject* value) const { return reinterpret_cast<PyObject*>(Py_TYPE(value)) == functions_.tensor; }
  static PyObject* method(PyObject* value, PyObject* name) { return PyObject_CallMethodNoArgs(value, name); }
  static bool says(PyObject* value, PyObject* name) { return checked(method(value, name)).get() == Py_True; }
  static bool says_attribute(PyObject* value, PyObject* name) { return checked(PyObject_GetAttr(value, name)).get() == Py_True; }

  const Roles& roles_;
  const RoleNames& names_;
  const RoleFunctions& functions_;
  List<PyObject*> kept_, hidden_;
  List<Copied> copies_;
  PyObject* results_ = nullptr;
};

// In roles.cpp: adds the type `Roles` to the module.
bool add_roles(PyObject* module);

}  // namespace coilwork
