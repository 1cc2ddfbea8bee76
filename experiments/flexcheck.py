import sys, time, math
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
import benchmarks.flex_attention as B
import coilwork_triton.attention_plan as plan
import coilwork_triton.statements.attention as emit
import os; sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
form6 = emit.emit_specialised_attention
from dataclasses import replace
begin = time.time()

def measure(f):
    for _ in range(3): f()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record(); f(); b.record(); torch.cuda.synchronize()
    n = max(5, int(60 / max(a.elapsed_time(b), .05)))
    a.record()
    for _ in range(n): f()
    b.record(); torch.cuda.synchronize()
    return a.elapsed_time(b) / n

def reference(v, q, k, x, rows, heads):
    g = q.shape[1] // k.shape[1]
    k, x = (t.repeat_interleave(g, 1)[-1:, heads].double() for t in (k, x))
    q = q[-1:, heads][:, :, rows].double()
    s = q @ k.mT / math.sqrt(q.shape[-1])
    h, i, j = heads[:, None, None], rows[:, None], torch.arange(k.shape[2], device="cuda")
    b = torch.full((), B.BATCH - 1, device="cuda")
    if v.score is not None: s = v.score(s, b, h, i, j)
    if v.mask is not None: s = s.masked_fill(~v.mask(b, h, i, j), -math.inf)
    return s.softmax(-1) @ x, s.logsumexp(-1)

def run(v, many, note, lse=False, length=None):
    old, B.LENGTH = B.LENGTH, length or B.LENGTH
    plan._MANY_ROWS = 1 << 30 if note == "old" else 512
    torch._dynamo.reset()
    mask = None if v.mask is None else create_block_mask(v.mask, None, None, B.LENGTH, B.LENGTH, device="cuda")
    f = torch.compile(lambda q, k, x: flex_attention(q, k, x, score_mod=v.score, block_mask=mask, enable_gqa=v.key_heads != 16, return_lse=lse), backend="coilwork", dynamic=False, options={"cache": False, "strict": True})
    try:
        given = B.draw(v, "cuda")
        with torch.no_grad():
            t = time.time(); r = f(*given); torch.cuda.synchronize(); t = time.time() - t
            o, l = r if lse else (r, None)
            r2 = f(*given)
            same = torch.equal(o, r2[0] if lse else r2)
            ms = measure(lambda: f(*given))
            g = torch.Generator("cuda").manual_seed(1)
            rows = torch.randperm(B.LENGTH, device="cuda", generator=g)[:256]; rows[0] = 0; rows[1] = B.LENGTH - 1
            heads = torch.tensor([0, 7, 15], device="cuda")
            want, wl = reference(v, *given, rows, heads)
            off = float((o[-1:, heads][:, :, rows].double() - want).abs().max() / want.abs().max())
            rms = float((o[-1:, heads][:, :, rows].double() - want).norm() / want.norm())
            tail = "" if l is None else f" lse {float((l[-1:, heads][:, :, rows] - wl).abs().max()):.1e}"
        fl = 4 * B.BATCH * 16 * B.LENGTH ** 2 * v.head * v.share
        print(f"{v.name:10} {note:7} {ms:.3f} ms {fl/ms/1e9:4.0f} TF off {off:.1e} rms {rms:.1e}{tail} {'same' if same else 'DIFFERS'} [{t:.0f}s at {time.time()-begin:.0f}]", flush=True)
    except Exception as e:
        
        m = str(e); i = m.find("CompilationError"); chain = []
        while e is not None: chain.append(repr(e)[:100]); e = e.__cause__ or e.__context__
        import re as _re
        print(v.name, note, "FAILED", [l for l in m.splitlines() if "rror" in l][:12], m[-600:], flush=True)
    B.LENGTH = old

vs = {v.name: v for v in B.list_variants("cuda")}
def go(names, notes, **k):
    for name in names:
        for note in notes: run(vs[name], 0, note, **k)
go(["causal128", "causal", "full128", "full"], ["four"])
go(["alibi", "cap", "gqa", "window", "document", "captured"], ["four"])
run(vs["causal"], 0, "four", lse=True)
run(vs["cap"], 0, "four", lse=True, length=4000)
go(["full128", "alibi", "cap", "gqa", "window", "document", "captured"], ["old"])
