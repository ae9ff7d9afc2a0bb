import csv,glob,re,sys,os,collections,numpy as np,json
H=collections.defaultdict(dict)
for root in sys.argv[1:]:
    for f in glob.glob(root+'/cvruns/*/history.csv'):
        if not os.path.exists(f.replace('history.csv','result.json')): continue
        key=f.split('/')[-2]; m=re.match(r'(.+)-s(\d+)-([a-z])(\d)$',key)
        rows=list(csv.DictReader(open(f)))
        H[m[1]+('-s'+m[2] if m[2]!='100' else '')][int(m[4])]=[(float(r['validation_score']),float(r['validation_loss'])) for r in rows]
base=H.get('base',{})
b={k:max(x[0] for x in v) for k,v in base.items()}
out=[]
for n,v in H.items():
    L=max(len(x) for x in v.values())
    by=[(np.mean([x[e][0] for x in v.values() if len(x)>e]),sum(len(x)>e for x in v.values())) for e in range(L)]
    full=[m for m,c in by if c==len(v)]
    best=np.mean([max(y[0] for y in x) for x in v.values()])
    dif=np.mean([max(y[0] for y in v[k])-b[k] for k in v if k in b]) if b else 0
    loss=np.mean([min(y[1] for y in x) for x in v.values()])
    out.append((dif,n,len(v),best,max(full),int(np.argmax(full))+1,loss,[len(x) for x in v.values()],' '.join(f'{m:.4f}' for m in full)))
for o in sorted(out,reverse=True): print(f'{o[1]:24s} n{o[2]} best {o[3]:.4f} dif {o[0]:+.4f} | at one epoch {o[4]:.4f} ({o[5]}) loss {o[6]:.4f} {o[7]} {o[8]}')
