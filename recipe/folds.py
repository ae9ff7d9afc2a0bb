"""folds.py OUT: prepared sets KIND+FOLD from cv.npz: f plain, m rare words unknown, v longer word2vec."""
import json, sys, hashlib, numpy as np
from pathlib import Path
here=Path(sys.argv[1]); out=Path(sys.argv[2]); kinds=sys.argv[3]
z=np.load(here/'cv.npz'); d=json.load(open(here/'prepared.json'))
wc=z['word_counts'].astype(np.int32); fold=z['fold']; tok=z['tokens'].astype(np.int32)
first=np.append(0,np.cumsum(wc.sum(1)))
vec={'f':np.load(here/"w2v_base.npy").astype(np.float32)}; vec['m']=vec['f']
if (here/'w2v_e15w10.npy').is_file(): vec['v']=np.load(here/'w2v_e15w10.npy').astype(np.float32)
counts=np.bincount(tok,minlength=d['vocabulary_size'])
for kind in kinds:
    for k in range(5):
        t=np.where(counts<15,1,np.arange(len(counts)))[tok].astype(np.int32) if kind=='m' else tok
        order=np.concatenate([np.flatnonzero(fold!=k),np.flatnonzero(fold==k)])
        n=int((fold!=k).sum())
        arrays={'tokens':np.concatenate([t[first[r]:first[r+1]] for r in order]),'word_counts':wc[order],'sentence_counts':z['sentence_counts'].astype(np.int32)[order],'labels':z['labels'].astype(np.int32)[order],'source_rows':order.astype(np.int64),'word_vectors':vec[kind]}
        p=out/f'{kind}{k}'; p.mkdir(parents=True,exist_ok=True); about={}
        for name,a in arrays.items():
            np.save(p/f'{name}.npy',a); about[name]={**d['arrays'][name],'file':f'{name}.npy','shape':list(a.shape),'sha256':hashlib.sha256((p/f'{name}.npy').read_bytes()).hexdigest()}
        json.dump({**d,'arrays':about,'splits':{'train':[0,n],'validation':[n,25000],'test':[25000,25000]}},open(p/'prepared.json','w'))
        Path(f'recipe/ready-{kind}{k}').touch()
