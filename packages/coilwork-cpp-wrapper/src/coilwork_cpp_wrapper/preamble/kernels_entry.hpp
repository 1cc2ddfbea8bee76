
// Lets the host launch kernels that nobody has bound.
COILWORK_EXPORT void coilwork_set_host(rt::HostLaunch launch) { rt::host_launch = launch; }

// Binds a kernel to code on a device: `data` is its launch descriptor, which may go. Returns 0, or 1 with `coilwork_last_error`.
COILWORK_EXPORT int coilwork_bind(int kernel, const char* data, size_t size) {
  if (kernel < 0 || kernel >= rt::KERNELS) return 1;
  const void* form = coilwork_read_form(data, size, rt::last_error, sizeof rt::last_error);
  if (form) __atomic_store_n(&rt::kernels[kernel].form, form, __ATOMIC_RELEASE);
  return form == nullptr;
}
