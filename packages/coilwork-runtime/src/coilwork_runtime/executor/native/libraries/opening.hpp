// Finding a library of the vendor's that the process has loaded, or a file.
#pragma once
#include "interfaces/torch.hpp"

namespace coilwork {

// Opens what torch has loaded, also under one of the library's names (`Library::FILES`) by other means; null, and the name of a
// function in `missing`, if it is not to be had. Each call makes another one, which stays.
template <class Library>
static Library* open_loaded(const char** missing) {
  *missing = "libtorch_cuda.so";
  // a symbol is looked for in what libtorch_cuda itself needs, too
  Library* made = torch.cuda ? Library::open(torch.cuda, missing) : nullptr;
  for (const char* name : Library::FILES)
    if (void* loaded = made || !torch.cuda ? nullptr : dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) made = Library::open(loaded, missing);
  return made;
}

}  // namespace coilwork
