// What is not run natively, without Python: it is refused, in torch's words where it failed in torch. A loader refuses beforehand
// what only Python can do.
#pragma once
#include "call/allocation.hpp"

namespace coilwork {

static void call_slowly(Call& call, Frame& frame, Memory&, const Plan& plan, const Step&) {
  const char* place = call.program.text(frame.part.steps[frame.at].place);
  const char* what = last_torch_error();
  raise(call, Fault::RUNTIME, "%s failed%s%s (%s)", plan.name.c_str(), *what ? ": " : "", what, place);
}

static void launch_slowly(Call& call, Frame&, Memory&, const Kernel& kernel, const Step&) {
  raise(call, Fault::RUNTIME, "kernel %s cannot be launched with these arguments", call.program.text(kernel.name));
}

static void order_streams(Call& call, const Step&) { raise_text(call, Fault::RUNTIME, "a program with several streams needs Python"); }

static void tell(Call&, Memory&, const Frame&, const char*, uint32_t) {}

static List<AtenTensorHandle> run_replacement(Call&, Frame&, Memory&, const Part&, Span, Span, uint32_t) { return {}; }

}  // namespace coilwork
