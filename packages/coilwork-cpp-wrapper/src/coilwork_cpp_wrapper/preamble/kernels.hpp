namespace rt {

// Launches kernels that have no form: the handles are its own. 0, or it has failed in its own words.
using HostLaunch = int (*)(int kernel, const AtenTensorHandle* tensors, int count, const int64_t* sizes, int numbers);
static HostLaunch host_launch = nullptr;

// Scratch memory of one launch.
struct Scratch {
  static constexpr int MOST = 16;
  AtenTensorHandle held[MOST];
  int count = 0;
  ~Scratch() {
    for (int k = 0; k < count; ++k) aoti_torch_delete_tensor_object(held[k]);
  }
  static uint64_t give(void* context, int64_t bytes) {
    Scratch& self = *static_cast<Scratch*>(context);
    if (self.count == MOST) fail(CHECK_FAILED, "a kernel takes more than %d pieces of scratch memory", MOST);
    Tensor made = empty({bytes}, {1}, aoti_torch_dtype_uint8(), gpu());
    const uint64_t address = (uint64_t)made.data();
    self.held[self.count++] = made.release();
    return address;
  }
};

// The kernels that the library brings, put on the device that the program runs on.
static bool load_embedded() {
  char words[512];
  if (!coilwork_embedded) return false;
  for (int k = 0; k < KERNELS; ++k) {
    const void* form = coilwork_load_form(&coilwork_embedded[k], gpu().index, words, sizeof words);
    if (!form) fail(OPERATOR_FAILED, "kernel %s cannot be loaded: %s", kernels[k].name, words);
    __atomic_store_n(&kernels[k].form, form, __ATOMIC_RELEASE);
  }
  return true;
}

// How a kernel is launched, null if the host does it.
static const void* find_form(int number) {
  const void* form = __atomic_load_n(&kernels[number].form, __ATOMIC_ACQUIRE);
  if (form || host_launch) return form;
  static const bool is_loaded = load_embedded();
  return is_loaded ? __atomic_load_n(&kernels[number].form, __ATOMIC_ACQUIRE) : nullptr;
}

// Where the tensors of a launch begin, written `{at_x, at_y}` at the call.
struct Addresses {
  const void* const* data;
  int64_t count;
  Addresses(std::initializer_list<const void*> values) : data(values.begin()), count((int64_t)values.size()) {}
};

// A tensor of a launch, which lives until the end of the statement.
struct Given {
  AtenTensorHandle handle;
  Given(const Tensor& tensor) : handle(tensor.get()) {}
};

COILWORK_OUT_OF_LINE static void launch_by_host(int number, std::initializer_list<Given> tensors, Ints sizes) {
  if (!host_launch) fail(OPERATOR_FAILED, "kernel %s is not loaded", kernels[number].name);
  AtenTensorHandle given[MOST_TENSORS];
  int count = 0;
  for (const Given& tensor : tensors) check(aoti_torch_new_tensor_handle(tensor.handle, &given[count++]));
  if (host_launch(number, given, count, sizes.data, (int)sizes.count)) fail(HOST_FAILED, "kernel %s is not launched", kernels[number].name);
}

// False if that is left to the host.
COILWORK_OUT_OF_LINE static bool launch(int number, Addresses tensors, Ints sizes) {
  const void* form = find_form(number);
  if (!form) return false;
  char words[512];
  Scratch scratch;
  const CoilworkLaunch launched{tensors.data, (size_t)tensors.count, sizes.data, (size_t)sizes.count, gpu().index, stream,
                                Scratch::give, &scratch, words, sizeof words};
  const int failed = coilwork_launch(form, &launched);
  if (failed > 0) fail(failed, "%s", words);
  return failed == 0;
}

}  // namespace rt
