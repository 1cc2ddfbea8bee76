"""A cuBLASLt that multiplies in memory of the CPU, slowly, and counts what it is asked."""

from __future__ import annotations

from pathlib import Path

from stub_library import ELEMENTS, StubLibrary

SOURCE = r"""
struct Layout { int32_t type; uint64_t rows, columns; int64_t leading, step; int32_t batch; };
struct Desc { int32_t compute, scale, transposed[2]; uint32_t epilogue; const void* bias; };
struct Preference { size_t most; uint32_t mask, alignment[4]; };
struct Found { uint64_t algo[8]; size_t workspace; int32_t state; float waves; int32_t reserved[4]; };
NUMBERS heuristics, products, created, destroyed, no_algorithm, fail_with, workspace_bytes, last_workspace;
NUMBERS last_mask, last_compute, last_alignment[4];

API int cublasLtCreate(void** handle) { *handle = reinterpret_cast<void*>(0x11); return 0; }
API int cublasLtMatmulDescCreate(void** made, int32_t compute, int32_t scale) {
  ++created; *made = new Desc{compute, scale, {0, 0}, 1, nullptr}; return 0;
}
API int cublasLtMatmulDescDestroy(void* desc) { ++destroyed; delete static_cast<Desc*>(desc); return 0; }
API int cublasLtMatmulDescSetAttribute(void* handle, int32_t what, const void* value, size_t size) {
  Desc* desc = static_cast<Desc*>(handle);
  if (what == 3 || what == 4) { if (size != 4) return 7; memcpy(&desc->transposed[what - 3], value, 4); return
      0; }
  if (what == 7) { if (size != 4) return 7; memcpy(&desc->epilogue, value, 4); return 0; }
  if (what == 8) { if (size != 8) return 7; memcpy(&desc->bias, value, 8); return 0; }
  return 7;
}
API int cublasLtMatrixLayoutCreate(void** made, int32_t type, uint64_t rows, uint64_t columns, int64_t
    leading) {
  ++created; *made = new Layout{type, rows, columns, leading, 0, 1}; return leading < int64_t(rows) ? 7 : 0;
}
API int cublasLtMatrixLayoutDestroy(void* layout) { ++destroyed; delete static_cast<Layout*>(layout); return
    0; }
API int cublasLtMatrixLayoutSetAttribute(void* handle, int32_t what, const void* value, size_t size) {
  Layout* layout = static_cast<Layout*>(handle);
  if (what == 5 && size == 4) { memcpy(&layout->batch, value, 4); return 0; }
  if (what == 6 && size == 8) { memcpy(&layout->step, value, 8); return 0; }
  return 7;
}
API int cublasLtMatmulPreferenceCreate(void** made) { ++created; *made = new Preference{}; return 0; }
API int cublasLtMatmulPreferenceDestroy(void* one) { ++destroyed; delete static_cast<Preference*>(one); return
    0; }
API int cublasLtMatmulPreferenceSetAttribute(void* handle, int32_t what, const void* value, size_t size) {
  Preference* one = static_cast<Preference*>(handle);
  if (what == 1 && size == 8) { memcpy(&one->most, value, 8); return 0; }
  if (what == 3 && size == 4) { memcpy(&one->mask, value, 4); return 0; }
  if (what >= 5 && what <= 8 && size == 4) { memcpy(&one->alignment[what - 5], value, 4); return 0; }
  return 7;
}
API int cublasLtMatmulAlgoGetHeuristic(void*, void* desc, void*, void*, void*, void*, void* preference, int,
    void* result, int* count) {
  ++heuristics;
  const Preference* wanted = static_cast<Preference*>(preference);
  last_mask = wanted->mask;
  last_compute = static_cast<Desc*>(desc)->compute;
  for (int k = 0; k < 4; ++k) last_alignment[k] = wanted->alignment[k];
  *count = no_algorithm ? 0 : 1;
  Found* found = static_cast<Found*>(result);
  memset(found, 0, sizeof *found);
  found->algo[0] = 0x77;
  found->workspace = workspace_bytes;
  return no_algorithm ? 15 : 0;
}
API int cublasLtMatmul(void* handle, void* desc_, const void* alpha, const void* a, void* al, const void* b,
    void* bl, const void* beta,
                       const void*, void*, void* d, void* dl, const void* algo, void* workspace, size_t size,
                           void*) {
  if (fail_with) return int(fail_with);
  const Desc& desc = *static_cast<Desc*>(desc_);
  const Layout &A = *static_cast<Layout*>(al), &B = *static_cast<Layout*>(bl), &D = *static_cast<Layout*>(dl);
  if (handle != reinterpret_cast<void*>(0x11) || *static_cast<const uint64_t*>(algo) != 0x77) return 7;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0 || int64_t(size) !=
      workspace_bytes) return 7;
  last_workspace = reinterpret_cast<int64_t>(workspace);
  const int64_t m = D.rows, n = D.columns, k = desc.transposed[0] ? A.rows : A.columns;
  if (k != int64_t(desc.transposed[1] ? B.columns : B.rows)) return 7;
  for (int64_t z = 0; z < D.batch; ++z)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l)
          sum += load(a, A.type, z * A.step + (desc.transposed[0] ? l + i * A.leading : i + l * A.leading)) *
                 load(b, B.type, z * B.step + (desc.transposed[1] ? j + l * B.leading : l + j * B.leading));
        if (desc.epilogue & 4) sum += load(desc.bias, D.type, i);
        if (desc.epilogue & 2) sum = sum > 0 ? sum : 0;
        if (desc.epilogue & 32) sum = 0.5f * sum * (1 + tanhf(0.79788456f * (sum + 0.044715f * sum * sum *
            sum)));
        store(d, D.type, z * D.step + i + j * D.leading, sum);
      }
  ++products;
  return 0;
}
"""


class StubProducts(StubLibrary):
    """The library and its counters."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "stub_cublasLt", ELEMENTS + SOURCE)

    def alignments(self) -> list[int]:
        """Of operands and result, as the last choice of an algorithm was told."""
        return self.numbers("last_alignment", 4)
