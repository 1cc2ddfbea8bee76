// What a launch passes to its kernel, in the order of the kernel's parameters, and the launch on a GPU. The executor launches by it,
// and so do the programs that coilwork-cpp-wrapper writes.
//
// `Around` is who launches:
//   uint64_t address(size_t tensor)               where a tensor lies, by its number among the launch's
//   uint64_t scratch(const Form&, int64_t bytes)  memory until the launch is under way
//   [[noreturn]] void overflow(const char* format, ...)
#pragma once
#include "program/model.hpp"

namespace coilwork {

constexpr uint32_t GRID_WORDS = 3;  // of a kernel's work, before its parameters

// What one launch passes to its kernel, behind room for the grid.
struct Passed {
  uint64_t room[GRID_WORDS + MOST_WORDS];
  uint64_t* const words = room + GRID_WORDS;
  int64_t sizes[MOST_WORDS];
  size_t count = 0;

  // Of a GPU's kernel: the grid, its parameters, and the two that Triton adds.
  uint32_t all() const { return GRID_WORDS + static_cast<uint32_t>(count) + 2; }
};

// The first of `form` and those after it that is for these sizes.
inline const Form& select_version(const Form& form, const int64_t* sizes) {
  const Form* found = &form;
  while (found->otherwise && found->guard(sizes) != 0) found = found->otherwise.get();
  return *found;
}

// Lays out tensors, scratch memory and sizes, which are read already, in the order of the kernel's parameters.
template <class Around>
void lay_out(const Form& form, Passed& passed, Around& around) {
  size_t tensor = 0, size = 0;
  for (const Form::Parameter& parameter : form.parameters) {
    uint64_t& word = passed.words[passed.count++];
    switch (parameter.role) {
      case Form::Parameter::POINTER:
        word = around.address(tensor++);
        break;
      case Form::Parameter::SCRATCH:
        word = around.scratch(form, parameter.elements(passed.sizes) * parameter.item_bytes);
        break;
      default: {
        const int64_t number = passed.sizes[size++];
        if (parameter.role == Form::Parameter::SIZE32 && (number > INT32_MAX || number < INT32_MIN))
          around.overflow("size %lld does not fit the 32 bits that the kernel was compiled for", static_cast<long long>(number));
        word = static_cast<uint64_t>(number);
      }
    }
  }
}

// Puts the grid in front of a GPU's parameters, which are laid out, and Triton's own scratch memory behind them. False: there are
// no blocks, and nothing is to be launched.
template <class Around>
bool surround(const Form& form, const int64_t* grid, Passed& passed, Around& around) {
  int64_t blocks = 1;
  for (uint32_t axis = 0; axis < GRID_WORDS; ++axis) {
    const int64_t extent = grid[axis];
    blocks *= extent;
    if (extent == 0) return false;
    if (extent < 0 || extent > INT32_MAX)
      around.overflow("kernel %s: a grid of %lld blocks cannot be launched", form.name.c_str(), static_cast<long long>(extent));
    passed.room[axis] = static_cast<uint64_t>(extent);
  }
  // of the launch, and for profiling
  uint64_t* own = passed.words + passed.count;
  own[0] = own[1] = 0;
  if (form.compiler_scratch_bytes) own[0] = around.scratch(form, blocks * static_cast<int64_t>(form.compiler_scratch_bytes));
  return true;
}

// Lays out all that a launch on a GPU takes. False: there are no blocks.
template <class Around>
bool lay_out_on_gpu(const Form& form, Passed& passed, Around& around) {
  int64_t grid[GRID_WORDS];
  for (uint32_t axis = 0; axis < GRID_WORDS; ++axis) {
    grid[axis] = form.grid[axis](passed.sizes);
    if (grid[axis] == 0) return false;
  }
  lay_out(form, passed, around);
  return surround(form, grid, passed, around);
}

// 0, or the number of an error of the driver's. `words`: the grid, then parameters.
inline int launch(const Form& form, const uint64_t* words, uint32_t count, void* stream) {
  const int64_t grid[GRID_WORDS] = {static_cast<int64_t>(words[0]), static_cast<int64_t>(words[1]), static_cast<int64_t>(words[2])};
  // the driver only reads what they point at
  void* parameters[MOST_WORDS];
  for (uint32_t k = GRID_WORDS; k < count; ++k) parameters[k - GRID_WORDS] = const_cast<uint64_t*>(words + k);
  const int result = form.how(grid, stream, parameters);
  if (result != INVALID_CONTEXT || !form.set_context || !form.context) return result;
  // a thread that has not used the device yet
  if (reinterpret_cast<SetContext>(form.set_context)(form.context) != 0) return result;
  return form.how(grid, stream, parameters);
}

}  // namespace coilwork
