"""imdb's training and validation rows, with the fold of each by films, for the device."""
import json, re, sys, numpy as np
P='prepared/b6ad729f38d00ed3/'
d=json.load(open(P+'prepared.json'))
wc=np.load(P+'word_counts.npy')[:25000]; sc=np.load(P+'sentence_counts.npy')[:25000]; lab=np.load(P+'labels.npy')[:25000]
src=np.load(P+'source_rows.npy')[:25000]; n=int(wc.sum()); tok=np.load(P+'tokens.npy')[:n]
ids=[json.loads(l)['id'] for l in open('data/imdb/documents.jsonl')]
neg=[(0,345,11595,12500),(345,770,4000,4824),(770,1120,4824,5724),(1120,1430,5724,6664),(1430,1900,6664,7444)]
fold=np.full(25000,-1,np.int8); fold[22483:]=0
for r in range(22483):
    m=re.match(r'train/(pos|neg)/(\d+)_',ids[src[r]]); i=int(m[2])
    for k in range(1,5):
        a,b,c,e=neg[k]
        if (m[1]=='pos' and 1250*k<=i<1250*(k+1)) or (m[1]=='neg' and (a<=i<b or c<=i<e)): fold[r]=k
print(np.bincount(fold+1), [lab[fold==k].mean().round(3) for k in range(5)])
assert tok.max()<65536
np.savez_compressed('recipe/cv.npz',tokens=tok.astype(np.uint16),word_counts=wc.astype(np.uint8),sentence_counts=sc.astype(np.uint8),labels=lab.astype(np.int8),fold=fold)
json.dump(d,open('recipe/prepared.json','w'))
