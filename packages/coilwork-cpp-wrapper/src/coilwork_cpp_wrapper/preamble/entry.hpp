#define COILWORK_EXPORT extern "C" __attribute__((visibility("default")))

constexpr int INPUTS = @INPUTS@;
constexpr int OUTPUTS = @OUTPUTS@;

// What the program takes and returns, for people.
COILWORK_EXPORT const char* coilwork_signature() { return @SIGNATURE@; }

// Why the last call in this thread failed.
COILWORK_EXPORT const char* coilwork_last_error() { return rt::last_error; }

// Runs the program. `constants` are borrowed. `inputs` are taken over, also when the call fails. `sizes` holds the integer
// inputs. `outputs` receives new handles (null for a result that is nothing), `output_sizes` the integer results.
// Returns 0, or the kind of failure: 1 a torch operator, 2 a check, 3 an index out of range, 4 the layout of an input,
// 5 an operator's result or a view that is not as planned, 6 a division by zero, 7 a size that does not fit, 8 the host.
COILWORK_EXPORT int coilwork_run(const AtenTensorHandle* constants, AtenTensorHandle* inputs, const int64_t* sizes,
                                 AtenTensorHandle* outputs, int64_t* output_sizes) {
  rt::Tensor args[INPUTS + 1];
  rt::Tensor results[OUTPUTS + 1];
  for (int k = 0; k < INPUTS; ++k) args[k] = rt::Tensor(inputs[k]);
  rt::at("");
  try {
    const rt::NoGrad mode;@AROUND@
    @RUN@(constants, args, sizes, results, output_sizes);
  } catch (const rt::Failure& failure) {
    return failure.kind;
  } catch (...) {
    snprintf(rt::last_error, sizeof rt::last_error, "out of memory");
    return rt::OPERATOR_FAILED;
  }
  for (int k = 0; k < OUTPUTS; ++k) outputs[k] = results[k].release();
  return 0;
}
