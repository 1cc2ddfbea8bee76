import sys, re, subprocess, tempfile, os, itertools
sys.path.insert(0, os.path.dirname(__file__))
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
import attn

def build(fn=None, **c):
    fn = fn or attn.attend
    names = fn.arg_names
    sig = {n: ("*bf16" if n in ("q_ptr","k_ptr","v_ptr","o_ptr") else "*fp32" if n == "lse_ptr" else "fp32" if n == "scale" else "i32") for n in names}
    consts = {}
    for n in c:
        sig[n] = "constexpr"; consts[(names.index(n),)] = c[n]
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in names if n not in c and n not in ("scale","heads")}
    src = GluonASTSource(fn, sig, consts, attrs)
    return triton.compile(src, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})

def report(k):
    from triton import knobs
    with tempfile.TemporaryDirectory() as d:
        open(d + "/k.ptx", "w").write(k.asm["ptx"])
        r = subprocess.run([knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", d + "/k.ptx", "-o", d + "/k.o"], capture_output=True, text=True)
        out = r.stderr
    lines = [l for l in out.splitlines() if "spill" in l or "Used" in l or "serializ" in l.lower() or "Loss" in l]
    return lines

if __name__ == "__main__":
    c = dict(G=2, BN=128, D=128, S=2, CAUSAL=True, SNAKE=False, GROUP=32, PING=False, OVERLAP=4, REGS=240, ARR=0, QREG=0)
    for a in sys.argv[1:]:
        k, v = a.split("="); c[k] = eval(v)
    k = build(**c)
    print(c, "shared", k.metadata.shared, "warps", k.metadata.num_warps, "scratch", k.metadata.global_scratch_size)
    print("\n".join(report(k)))
    open("/work/wt/tmp-gluonattn/k.ptx", "w").write(k.asm["ptx"]); open("/work/wt/tmp-gluonattn/k.ttgir", "w").write(k.asm["ttgir"])
    open("/work/wt/tmp-gluonattn/k.cubin", "wb").write(k.asm["cubin"])
