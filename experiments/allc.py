import sys,re
src=open(__file__.replace('allc','bench')).read().split("def launch")[0]
src=src.replace("triton.set_allocator","0 and triton.set_allocator")
exec(src)
from compile import build, report
seen=set()
for b,t,d,c,v in jobs:
    x=dict(base[d]); x.update(v); x.pop("one",0); x.pop("host",0); x["CAUSAL"]=c
    key=str(x)
    if key in seen: continue
    seen.add(key)
    try:
        k=build(**x); r=report(k); print(v,d,c,k.metadata.shared,[l[14:120] for l in r if 'spill' in l and ' 0 bytes spill st' not in l or 'Loss' in l],flush=True)
    except Exception as e: print(v,d,c,"ERR",repr(e)[-200:],flush=True)
