
// Chooses the GPU, before the first call. Without it, the program runs on the one that it was compiled on.
COILWORK_EXPORT void coilwork_use_device(int index) { rt::gpu_index = index; }
