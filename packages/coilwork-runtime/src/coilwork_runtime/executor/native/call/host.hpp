// What the executor asks of the process around it, its host: to raise errors, to see to signals, and to do what is rare. An extension
// module's host is Python. A library's is C++ alone, and refuses what only Python can do. Both have
//
//   struct Raised                     an error on its way
//   raise_text, annotate_here, forget an error begins, is told where it happened, and is dropped
//   look_for_signals                  sees to an interrupt, if it has not been done for a while
//   *_slowly, check_rank, fail_check  what failed natively: done again, or refused in words
//   read_settings                     what torch says of products and convolutions, before a call
//   count_allocated, close_streams    of a device
//   Observed                          tells a profiler of programs and launches
//
// and, in running/host_calls.hpp, calls, launches and parts that are not run natively.
#pragma once
#include <stdarg.h>
#include <stdio.h>

#include "call/frames.hpp"

namespace coilwork {

[[noreturn]] inline void raise_text(Call& call, Fault fault, const char* text);

// Raises an error with a text as printf makes it.
[[noreturn]] __attribute__((format(printf, 3, 4))) inline void raise(Call& call, Fault fault, const char* format, ...) {
  char text[1024];
  va_list given;
  va_start(given, format);
  vsnprintf(text, sizeof text, format, given);
  va_end(given);
  raise_text(call, fault, text);
}

}  // namespace coilwork

#ifdef COILWORK_WITHOUT_PYTHON
#include "call/plain_side.hpp"
#else
#include "call/observing.hpp"
#endif
