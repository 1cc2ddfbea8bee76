import sys, os, importlib.util, subprocess
sys.path.insert(0, "experiments")
from show import *
def source(**k):
    return TritonCodegen().emit(parse_kernel(kernel(**k)), get_target("sm_90"), {})
CASES = {"c64": {}, "c128": dict(length=128), "full128": dict(length=128, mask=False), "alibi": dict(score=ALIBI), "cap": dict(score=CAP), "gqa": dict(group=4), "ragged": dict(keys=4000)}
if __name__ == "__main__":
    for n in sys.argv[1:] or CASES:
        s = source(**CASES[n])
        open(f"{os.environ['TMPDIR']}/src_{n}.py", "w").write(s.text)
        import json
        json.dump([dict(c.meta) for c in s.configs], open(f"{os.environ['TMPDIR']}/src_{n}.json", "w"))
