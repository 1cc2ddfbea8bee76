// What is not run natively, in Python: calls, launches, parts that something else stands in for, and the order of streams.
#pragma once
#include "call/allocation.hpp"

namespace coilwork {

// Asks for the form of a kernel that has chosen its configuration; null until then.
static void settle(Kernel& kernel) {
  const Reference bytes = checked(PyObject_CallNoArgs(kernel.settle));
  if (bytes.get() == Py_None) return;
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) throw_python();
  const Form* form = parse_form(data, static_cast<size_t>(size)).release();
  const Form* expected = nullptr;
  if (!kernel.form.compare_exchange_strong(expected, form, std::memory_order_acq_rel)) delete form;
}

static void launch_slowly(Call& call, Frame& frame, Memory& memory, Kernel& kernel, const Step& step) {
  const uint32_t* slots = frame.words(step.list);
  for (uint32_t k = 0; k < step.list.count; ++k) memory.tensor(slots[k]);
  WithPython python(call);
  if (call.work_queue) call.work_queue->settle_for_host();
  call.program.counters.python_launches.fetch_add(1, std::memory_order_relaxed);
  List<AtenTensorHandle> handles;
  for (uint32_t k = 0; k < step.list.count; ++k) handles.push_back(alias(memory.tensor(slots[k])));
  const Reference tensors = tensors_from(call.program, handles.data(), handles.size());
  const uint32_t* registers = frame.words(step.more);
  const Reference arguments = checked(PyTuple_New(step.list.count + step.more.count));
  for (uint32_t k = 0; k < step.list.count; ++k) {
    PyObject* tensor = PyList_GetItem(tensors.get(), k);
    Py_XINCREF(tensor);
    PyTuple_SET_ITEM(arguments.get(), k, tensor);
  }
  for (uint32_t k = 0; k < step.more.count; ++k) {
    PyObject* size = PyLong_FromLongLong(frame.registers[registers[k]]);
    PyTuple_SET_ITEM(arguments.get(), step.list.count + k, size);
  }
  checked(PyObject_CallObject(kernel.launcher, arguments.get()));
  if (kernel.settle && !kernel.form.load(std::memory_order_acquire)) settle(kernel);
  if (PyErr_CheckSignals() != 0) throw_python();
}

static void take_result(Call& call, Frame& frame, Memory& memory, const uint32_t* output, PyObject* value) {
  if (output[0] == TENSOR) {
    memory.slot(output[1]).own(handle_of(call.program, value));
    return;
  }
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred()) throw_python();
  frame.registers[output[1]] = number;
}

static void take_results(Call& call, Frame& frame, Memory& memory, const Plan& plan, const Step& step, PyObject* result) {
  const uint32_t* outputs = frame.words(step.list);
  for (uint32_t k = 0; k < step.list.count; ++k) {
    const uint32_t* output = outputs + 2 * k;
    if (output[0] == NOTHING) continue;
    if (plan.single) {
      take_result(call, frame, memory, output, result);
    } else {
      const Reference item = checked(PySequence_GetItem(result, k));
      take_result(call, frame, memory, output, item.get());
    }
  }
}

static void call_slowly(Call& call, Frame& frame, Memory& memory, const Plan& plan, const Step& step) {
  for (uint32_t slot : plan.slots) memory.tensor(slot);
  WithPython python(call);
  // the exception of a call that failed in a dispatch mode of Python is still there
  PyErr_Clear();
  call.program.counters.python_calls.fetch_add(1, std::memory_order_relaxed);
  List<AtenTensorHandle> handles;
  for (uint32_t slot : plan.slots) handles.push_back(alias(memory.tensor(slot)));
  const Reference tensors = tensors_from(call.program, handles.data(), handles.size());
  const Reference sizes = checked(PyList_New(static_cast<Py_ssize_t>(plan.sizes.size())));
  for (size_t k = 0; k < plan.sizes.size(); ++k)
    PyList_SET_ITEM(sizes.get(), static_cast<Py_ssize_t>(k), PyLong_FromLongLong(frame.registers[plan.sizes[k]]));
  const Reference made = checked(PyObject_CallFunctionObjArgs(plan.callable, tensors.get(), sizes.get(), nullptr));
  if (plan.route == Plan::LAUNCH && PyBytes_Check(made.get()))
    plan.launches.add(parse_user_launch(plan, PyBytes_AsString(made.get()), static_cast<size_t>(PyBytes_Size(made.get()))));
  take_results(call, frame, memory, plan, step, made.get());
  if (PyErr_CheckSignals() != 0) throw_python();
}

// Tells who asked of a change of memory: what happened, where, to which name, the tensor, and the step's words.
static void tell(Call& call, Memory& memory, const Frame& frame, const char* event, uint32_t slot) {
  AtenTensorHandle handle = slot != NONE && memory.slot(slot).handle ? memory.tensor(slot) : nullptr;
  WithPython python(call);
  const Program& program = call.program;
  const Reference tensor(handle ? object_of(program, handle).release() : nullptr);
  checked(PyObject_CallFunction(program.watch, "ssnsOs", event, program.text(frame.part.name),
                                static_cast<Py_ssize_t>(frame.at), slot == NONE ? "" : memory.name(slot),
                                tensor.get() ? tensor.get() : Py_None,
                                program.text(frame.part.steps[frame.at].place)));
}

// Streams and events are Python's: programs have few of them.
static void order_streams(Call& call, const Step& step) {
  const Program& program = call.program;
  WithPython python(call);
  if (!call.streams) call.streams = slowly(call, "make_streams", "()").release();
  const char* device = program.text(step.c);
  checked(PyObject_CallMethod(call.streams, "order", "iIIs", int(step.kind), step.a, step.b, device));
  if (step.kind != USE || !call.stream_known) return;
  call.stream_known = torch.aoti_torch_get_current_cuda_stream(program.cuda_device, &call.stream) == 0;
  // scratch memory is a stream's
  call.workspace_data = nullptr;
  call.workspace_bytes = 0;
}

static void append(const Reference& list, const Reference& item) {
  if (PyList_Append(list.get(), item.get()) != 0) throw_python();
}

// Calls what stands in the place of a part, with a list of its operands and the sizes that it is given. Returns new handles.
static List<AtenTensorHandle> run_replacement(Call& call, Frame& frame, Memory& memory, const Part& part, Span given, Span numbers,
                                              uint32_t wanted) {
  const auto number_of = [&](uint32_t place) { return checked(PyLong_FromLongLong(frame.registers[place])); };
  WithPython python(call);
  call.program.counters.python_calls.fetch_add(1, std::memory_order_relaxed);
  const uint32_t* operands = frame.words(given);
  const uint32_t* sizes = frame.words(numbers);
  const Reference list = checked(PyList_New(0));
  for (uint32_t k = 0; k < given.count; ++k, operands += 2)
    append(list, operands[0] ? number_of(operands[1]) : object_of(call.program, memory.tensor(operands[1])));
  for (uint32_t k = 0; k < numbers.count; ++k) append(list, number_of(sizes[k]));
  const Reference results = checked(PyObject_CallOneArg(part.replacement, list.get()));
  if (PySequence_Size(results.get()) != static_cast<Py_ssize_t>(wanted)) {
    PyErr_Format(PyExc_ValueError, "what runs in place of %s returns other results than its %u", call.program.text(part.name), wanted);
    throw_python();
  }
  List<AtenTensorHandle> handles;
  for (uint32_t k = 0; k < wanted; ++k) {
    const Reference item = checked(PySequence_GetItem(results.get(), k));
    handles.push_back(handle_of(call.program, item.get()));
  }
  return handles;
}

}  // namespace coilwork
