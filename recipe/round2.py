from jobs import S
F=range(4)
def V(name, rate=.1, lr=.002, ep=6, net={}, tr={}, kind='f'):
    return S(name,{'vector_rate':rate,**net},{'maximum_epochs':ep,'warmup_epochs':.5,'learning_rate':lr,**tr},kind,F)
R=[V('v.1-ep6'),V('v.2-ep6',.2),V('v.1-lr.005-ep6',.1,.005),V('v.04-lr.005-ep6',.04,.005),V('v.2-lr.005-ep4',.2,.005,4),
 V('v.1-lr.005-ep6-batch128',.1,.005,tr={'batch_size':128}),V('v.1-lr.005-ep6-adv0',.1,.005,tr={'adversarial':0.}),
 V('v.1-ep6-wd.01',tr={'weight_decay':.01}),V('v.1-ep6-smooth0',tr={'label_smoothing':0.}),V('v.1-ep6-drop.5',net={'dropout':.5}),
 V('v.1-ep6-adv2',tr={'adversarial':2.}),V('v.1-ep6-w2v15',kind='v'),V('v.1-ep6-hidden100',net={'hidden':100}),
 V('v.1-ep6-sent.3',net={'sentence_dropout':.3}),V('v.1-lr.005-ep10',.1,.005,10), V('v.1-lr.005-ep6-drop.5',.1,.005,net={'dropout':.5}), V('v.05-lr.01-ep6',.05,.01)]
