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

static void launch_by_host(int number, Handles tensors, Ints sizes) {
  if (!host_launch) fail(OPERATOR_FAILED, "kernel %s is not loaded", kernels[number].name);
  AtenTensorHandle given[MOST_TENSORS];
  for (int k = 0; k < tensors.count; ++k) check(aoti_torch_new_tensor_handle(tensors.data[k], &given[k]));
  if (host_launch(number, given, (int)tensors.count, sizes.data, (int)sizes.count)) fail(HOST_FAILED, "kernel %s is not launched", kernels[number].name);
}

COILWORK_OUT_OF_LINE static void launch(int number, Handles tensors, Ints sizes) {
  const void* form = find_form(number);
  if (form) {
    uint64_t addresses[MOST_TENSORS];
    for (int k = 0; k < tensors.count; ++k) {
      void* data = nullptr;
      check(aoti_torch_get_data_ptr(tensors.data[k], &data));
      addresses[k] = (uint64_t)data;
    }
    char words[512];
    Scratch scratch;
    const CoilworkLaunch launched{addresses, (size_t)tensors.count, sizes.data, (size_t)sizes.count, gpu().index, stream,
                                  Scratch::give, &scratch, words, sizeof words};
    const int failed = coilwork_launch(form, &launched);
    if (failed > 0) fail(failed, "%s", words);
    if (failed == 0) return;
  }
  launch_by_host(number, tensors, sizes);
}

}  // namespace rt
