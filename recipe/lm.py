"""lm.py FOLDDIR OUT hidden epochs dropout lr: forward and backward language model of the word GRU, on the training rows."""
import sys, time, warnings, numpy as np, torch
from pathlib import Path
import models
from models import feeding
from models.layers.embedding import begin_with_prepared_vectors
from storage.prepared import open_prepared
from training import data_order
warnings.simplefilter("ignore")
folder,out,hidden,epochs,drop,lr=Path(sys.argv[1]),Path(sys.argv[2]),int(sys.argv[3]),int(sys.argv[4]),float(sys.argv[5]),float(sys.argv[6])
limit=int(sys.argv[7]) if len(sys.argv)>7 else 10**9
dev=torch.device('cuda' if torch.cuda.is_available() else 'cpu'); torch.manual_seed(1)
p=open_prepared(folder, verify=False)
net=models.build('han',{'embedding':200,'hidden':hidden,'word_vectors':'word2vec','dropout':drop},p.description)
begin_with_prepared_vectors(net,p); net.to(dev)
V=net.embedding.num_embeddings
proj=torch.nn.ModuleList([torch.nn.Linear(hidden,200) for _ in range(2)]).to(dev); bias=torch.nn.Parameter(torch.zeros(V,device=dev))
rows=p.rows('train'); val=p.rows('validation'); sizes=feeding.sizes(p,rows)
start,stop=p.first_words[rows[0]],p.first_words[rows[-1]+1]
q=torch.tensor(np.bincount(p.arrays['tokens'][start:stop],minlength=V),dtype=torch.float,device=dev); q[:2]=0; q=q.pow(.75); q/=q.sum(); logq=q.clamp(min=1e-12).log()
with torch.no_grad(): bias.copy_(q.clamp(min=1e-9).pow(4/3).log()); bias-=bias.mean()
params=[net.embedding.weight,*net.word_gru.parameters(),*proj.parameters(),bias]
opt=torch.optim.AdamW([{'params':[x for x in params if x.ndim>1]},{'params':[x for x in params if x.ndim<2],'weight_decay':0.}],lr=lr,weight_decay=.01)
K=8192
def batch_loss(batch, full=False):
    tokens,wcs,_=feeding.inputs(p,batch,dev,True)
    flat=wcs.flatten().long(); off=torch.nn.functional.pad(flat.cumsum(0),(1,0)).int()
    with torch.autocast(dev.type,torch.bfloat16,enabled=dev.type=='cuda'):
        states,_=net.word_gru.read_ragged(net.dropout(net.embedding(tokens)),off)
    M=int(off[-1]); t=tokens[:M].long(); sent=torch.repeat_interleave(torch.arange(len(flat),device=dev),flat)
    same=sent[1:]==sent[:-1]; loss=0.
    cand=torch.arange(V,device=dev) if full else torch.multinomial(q,K,True)
    for d,(inp,tgt) in enumerate(((slice(0,M-1),t[1:]),(slice(1,M),t[:-1]))):
        ok=(same&(tgt>1)).nonzero().squeeze(1)
        h=states[:M][inp][ok][:,d*hidden:(d+1)*hidden].float(); y=tgt[ok]
        with torch.autocast(dev.type,torch.bfloat16,enabled=dev.type=='cuda'):
            o=proj[d](net.dropout(h)); lg=o@net.embedding.weight[cand].t()
        if full:
            loss=loss+torch.nn.functional.cross_entropy((lg.float()+bias),y)
        else:
            lg=lg.float()+bias[cand]-logq[cand]-np.log(K)
            tl=(o.float()*net.embedding.weight[y]).sum(1)+bias[y]
            lg=lg.masked_fill(cand[None]==y[:,None],-1e9)
            loss=loss+(torch.logsumexp(torch.cat([tl[:,None],lg],1),1)-tl).mean()
    return loss/2
steps=-(-len(rows)//64)*epochs; done=0; t0=time.time()
for e in range(1,epochs+1):
    net.train(); tot=0.; n=0
    for b in data_order.batches(rows,sizes,64,7,e):
        if n>=limit: break
        for g in opt.param_groups: g['lr']=lr*min(1,(done+1)/200)*.5*(1+np.cos(np.pi*done/steps))
        opt.zero_grad(); l=batch_loss(b); l.backward(); torch.nn.utils.clip_grad_norm_(params,1.); opt.step(); tot+=l.detach(); n+=1; done+=1
        net.embedding.weight.data[0]=0
    net.eval()
    with torch.no_grad(): vl=np.mean([float(batch_loss(val[i:i+64],True)) for i in range(0,640 if limit>1000 else 64,64)])
    print(folder.name,hidden,'epoch',e,'train (sampled)',round(float(tot)/n,4),'validation',round(vl,4),f'{time.time()-t0:.1f}s',flush=True)
out.parent.mkdir(parents=True,exist_ok=True)
torch.save({k:v.cpu() for k,v in net.state_dict().items() if k.startswith(('embedding.','word_gru.'))},out)
