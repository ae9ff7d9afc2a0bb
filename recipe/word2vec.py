import sys, json, numpy as np, time
sys.path.insert(0,'.')
from preprocessing.word_vectors import _Sentences, NEGATIVE_SAMPLES
from gensim.models import Word2Vec
P='prepared/b6ad729f38d00ed3/'
d=json.load(open(P+'prepared.json'))
tok=np.load(P+'tokens.npy',mmap_mode='r'); wc=np.load(P+'word_counts.npy')[:22483]
n=int(wc.sum()); tok=np.array(tok[:n]); V=d['vocabulary_size']
epochs,window,name=int(sys.argv[1]),int(sys.argv[2]),sys.argv[3]
s=_Sentences(tok,wc,V); c=np.bincount(tok,minlength=V)
m=Word2Vec(vector_size=200,window=window,sg=1,negative=NEGATIVE_SAMPLES,min_count=1,seed=0,workers=int(sys.argv[4]))
m.build_vocab_from_freq({s.names[w]:int(c[w]) for w in np.flatnonzero(c)})
t=time.time(); m.train(s,total_examples=int(np.count_nonzero(wc)),total_words=n,epochs=epochs); print(time.time()-t)
v=np.zeros((V,200),np.float32); v[np.array(m.wv.index_to_key,np.int64)]=m.wv.vectors
np.save('recipe/w2v_'+name+'.npy',v)
