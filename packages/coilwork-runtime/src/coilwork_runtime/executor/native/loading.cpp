// From what Python hands over to a program: its bytes, plans, kernels and constants.
#include <new>
#include <utility>

#include "call/tensor_kinds.hpp"
#include "call/timing.hpp"
#include "program/plans.hpp"
#include "program/resolving.hpp"
#include "replay/replayed_call.hpp"

namespace coilwork {

static void parse_plans(Program& program, PyObject* plans) {
  for (Part& part : program.parts) {
    for (const Step& step : part.steps) {
      if (step.code != CALL) continue;
      PyObject* pair = PySequence_Check(plans) && step.a < static_cast<size_t>(PyTuple_GET_SIZE(plans))
                           ? PyTuple_GET_ITEM(plans, step.a)
                           : nullptr;
      const char* data = nullptr;
      Py_ssize_t size = 0;
      PyObject* callable = nullptr;
      if (!pair) throw Damaged{"a call has no plan"};
      if (!PyArg_ParseTuple(pair, "y#O", &data, &size, &callable)) throw_python();
      auto plan = Owned<Plan>(new Plan());
      Py_INCREF(callable);
      plan->callable = callable;
      const auto make_part = [&](Reader& in) {
        return PartParser(in, program, part, program.plans.size(), program.parts.size());
      };
      parse_plan(data, static_cast<size_t>(size), make_part, *plan);
      program.user_launches = program.user_launches || plan->route == Plan::LAUNCH;
      program.plans[step.a] = std::move(plan);
    }
  }
}

static void parse_kernels(Program& program, PyObject* kernels) {
  if (static_cast<size_t>(PyTuple_GET_SIZE(kernels)) != program.kernels.size()) throw Damaged{"kernels are missing"};
  for (size_t k = 0; k < program.kernels.size(); ++k) {
    PyObject *launcher = nullptr, *form = nullptr, *settle = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(kernels, static_cast<Py_ssize_t>(k)), "OOO", &launcher, &form, &settle))
      throw_python();
    Kernel& kernel = *program.kernels[k];
    Py_INCREF(launcher);
    kernel.launcher = launcher;
    if (settle != Py_None) {
      Py_INCREF(settle);
      kernel.settle = settle;
    }
    if (form == Py_None) continue;
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(form, &data, &size) != 0) throw_python();
    kernel.form = parse_form(data, static_cast<size_t>(size)).release();
    program.on_gpu = program.on_gpu || kernel.form.load(std::memory_order_relaxed)->gpu;
  }
}

void unload_program(Program* program) {
  for (auto& plan : program->plans)
    if (plan) Py_CLEAR(plan->callable);
  for (auto& kernel : program->kernels) {
    Py_CLEAR(kernel->launcher);
    Py_CLEAR(kernel->settle);
    delete kernel->form.exchange(nullptr);
  }
  for (AtenTensorHandle constant : program->constants) torch.aoti_torch_delete_tensor_object(constant);
  PyObject** const objects[] = {&program->handles_of,       &program->tensors_of, &program->faults, &program->fallback, &program->operators,
                                &program->watch,      &program->regions,      &program->replacements, &program->product_settings, &program->convolution_settings};
  for (PyObject** object : objects) Py_CLEAR(*object);
  if (program->replay) drop_replay(program->replay);
  delete program;
}

static PyObject* keep(PyObject* object) {
  if (object == Py_None) return nullptr;
  Py_INCREF(object);
  return object;
}

Program* load_program(PyObject* args) {
  const char* data = nullptr;
  Py_ssize_t size = 0;
  PyObject *plans, *kernels, *constants, *handles_of, *tensors_of, *faults, *fallback, *operators, *watch, *product_settings,
      *convolution_settings, *replacements, *regions;
  unsigned long long products = 0, convolutions = 0, graphs = 0, allowed = 0, required = 0;
  unsigned long long refused = 0;
  int resizes = 0, strict = 0;
  if (!PyArg_ParseTuple(args, "y#O!O!O!OOOOO(KKKpp)OKOKOKOO", &data, &size, &PyTuple_Type, &plans, &PyTuple_Type, &kernels, &PyList_Type,
                        &constants, &handles_of, &tensors_of, &faults, &fallback, &operators, &allowed, &required, &refused, &resizes, &strict, &watch, &products, &product_settings, &convolutions,
                        &convolution_settings, &graphs, &replacements, &regions))
    return nullptr;
  Program* program = new Program();
  try {
    program->handles_of = keep(handles_of);
    program->tensors_of = keep(tensors_of);
    program->faults = keep(faults);
    program->fallback = keep(fallback);
    program->operators = keep(operators);
    program->kinds = {allowed, required};
    program->refused = refused;
    program->resizes = resizes != 0;
    program->strict = strict != 0;
    program->watch = keep(watch);
    program->products = reinterpret_cast<ProductLibrary*>(static_cast<uintptr_t>(products));
    program->product_settings = keep(product_settings);
    program->convolutions = reinterpret_cast<ConvolutionLibrary*>(static_cast<uintptr_t>(convolutions));
    program->convolution_settings = keep(convolution_settings);
    parse_program(data, static_cast<size_t>(size), *program);
    program->replacements = keep(replacements);
    if (program->replacements)
      for (Part& part : program->parts)
        part.replacement = PyDict_GetItemString(program->replacements, program->text(part.name));
    parse_plans(*program, plans);
    parse_kernels(*program, kernels);
    handles_from(*program, constants, program->constants);
    for (AtenTensorHandle constant : program->constants)
      if (!tensor_kinds.fits_inside(constant, program->kinds)) throw Damaged{"a constant is no tensor in memory"};
    if (program->constants.size() != program->keys.size()) throw Damaged{"constants are missing"};
    if (!program->watch)
      for (Part& part : program->parts) Resolver(*program, part).resolve();
    auto* library = reinterpret_cast<GraphLibrary*>(static_cast<uintptr_t>(graphs));
    const bool is_plain = !program->streams && !program->several_devices && !program->watch;
    if (program->captures && is_plain) program->regions = keep(regions);
    if (library && program->captures && is_plain)
      program->replay = make_replay(*library, program->cuda_device);
    return program;
  } catch (const Damaged& damaged) {
    PyErr_Format(PyExc_ValueError, "the program cannot be read: %s%s", damaged.what, damaged.name);
  } catch (Raised& raised) {
    PyErr_Restore(raised.type, raised.value, raised.trace);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  }
  unload_program(program);
  return nullptr;
}

}  // namespace coilwork
