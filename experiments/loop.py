import re,sys
from collections import Counter
L=[l for l in sys.stdin if re.search(r'/\*[0-9a-f]{4,5}\*/',l)]
c=Counter()
for l in L[:int(sys.argv[1])]:
    l=l.split('*/',1)[1]
    m=re.search(r'\s*(@!?U?P\w+\s+)?([A-Z0-9_.]+)',l)
    if not m: continue
    b=m.group(2).split('.')[0]
    if b in('HGMMA','WARPGROUP','BAR','SYNCS','BRA','USETMAXREG','UTMALDG','UTMASTG'):
        if sum(c.values())>0: print('   ',dict(c.most_common(9)),sum(c.values()))
        c=Counter(); print(re.sub(r'\s+',' ',l)[:70])
    else: c[b]+=1
