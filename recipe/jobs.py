"""jobs.py OUT ROUND: job files of settings x folds, and the queue."""
import json, sys
from pathlib import Path
B_NET={'embedding':200,'hidden':50,'word_vectors':'word2vec','dropout':.3}
B_TR={'batch_size':64,'maximum_epochs':15,'patience':2,'learning_rate':.002,'average_decay':.999,'adversarial':1.0}
def S(name, net={}, tr={}, kind='f', folds=range(5), seeds=(100,)): return name,net,tr,kind,folds,seeds
R1=[
 S('base'), S('base',seeds=(101,)),
 S('lr.001',tr={'learning_rate':.001}), S('lr.0005',tr={'learning_rate':.0005}),
 S('drop.5',{'dropout':.5}), S('drop.5-lr.001',{'dropout':.5},{'learning_rate':.001}),
 S('in.5',{'input_dropout':.5}), S('adv3',tr={'adversarial':3.}), S('adv5',tr={'adversarial':5.}), S('adv3-drop.5',{'dropout':.5},{'adversarial':3.}),
 S('norm-adv5',{'normalised':True},{'adversarial':5.}),
 S('word.2',{'word_dropout':.2}), S('word.4',{'word_dropout':.4}), S('type.2',{'type_dropout':.2}),
 S('sent.3',{'sentence_dropout':.3}), S('rec.3',{'recurrent_dropout':.3}),
 S('ep4',tr={'maximum_epochs':4,'warmup_epochs':.3}), S('ep6',tr={'maximum_epochs':6,'warmup_epochs':.5}),
 S('ep4-adv3-drop.5',{'dropout':.5},{'maximum_epochs':4,'warmup_epochs':.3,'adversarial':3.}),
 S('min15',kind='m'), S('w2v15',kind='v'),
 S('smooth0',tr={'label_smoothing':0.}), S('wd1',tr={'weight_decay':1.}),
 S('cons1',tr={'consistency':1.}), S('hidden100',{'hidden':100}),
 S('vec.1',{'vector_rate':.1}), S('vec0',{'vector_rate':0.}),
 S('ema.998',tr={'average_decay':.998}), S('batch128',tr={'batch_size':128}),
 S('lm50',{'pretrained':'recipe/lm/h50-'}), S('lm50-lr.001-drop.5',{'pretrained':'recipe/lm/h50-','dropout':.5},{'learning_rate':.001}),
 S('lm100',{'pretrained':'recipe/lm/h100-','hidden':100}),
]
ROUNDS={'1':R1}
def write(out, settings):
    q=[]
    for name,net,tr,kind,folds,seeds in settings:
        for k in folds:
            for s in seeds:
                n={**B_NET,**net}; key=f'{name}-s{s}-{kind}{k}'; d=Path(out)/'cvruns'/key; d.mkdir(parents=True,exist_ok=True)
                json.dump({'run_key':key,'variant':f'cv/{name}','model':'han','seed':s,'network':n,'training':{**B_TR,**tr},'prepared':f'prepared/{kind}{k}','run_directory':f'cvruns/{key}','data':'cv'},open(d/'job.json','w'))
                q.append((k, f'cvruns/{key}/job.json', 'lm' in name))
    return q
if __name__=='__main__':
    sys.path.insert(0,'recipe')
    if sys.argv[2]!='1':
        import importlib; ROUNDS[sys.argv[2]]=importlib.import_module('round'+sys.argv[2]).R
    q=write(sys.argv[1],ROUNDS[sys.argv[2]])
    q.sort(key=lambda x:(x[2],x[0]))
    print(len(q),file=sys.stderr)
    Path(sys.argv[1],'queue.txt').write_text('\n'.join(x[1] for x in q)+'\n')
