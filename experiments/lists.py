import sys; sys.path[:0]=["packages/coilwork-triton/tests","experiments"]
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
import test_attention as T
t = T.write_kernel(dtype="bf16", keys=1024, length=64).replace("// 16","// 128").replace("16 by 16","128 by 128").replace("64 * (y1 // 128)","8 * (y1 // 128)").replace("span `64`","span `8`").replace("span `4096`","span `64`")
s = TritonCodegen().emit(parse_kernel(t), get_target("sm_90"), {})
import os, json
open(f"{os.environ['TMPDIR']}/src_lists.py", "w").write(s.text.replace("documents","causal"))
json.dump([dict(c.meta) for c in s.configs], open(f"{os.environ['TMPDIR']}/src_lists.json", "w"))
if __name__ == "__main__": print(s.text[s.text.index("@gluon.jit"):] if "gluon" in s.text else s.text)
