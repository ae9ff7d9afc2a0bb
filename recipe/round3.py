from round2 import V
R=[V('v.05-lr.01-ep10',.05,.01,10),V('v.05-lr.005-ep10',.05,.005,10),V('v.1-lr.01-ep6',.1,.01),V('v.02-lr.01-ep10',.02,.01,10),
 V('v.05-lr.01-ep6-smooth0',.05,.01,tr={'label_smoothing':0.}),V('v.05-lr.01-ep6-hidden100',.05,.01,net={'hidden':100}),V('v.05-lr.02-ep6',.05,.02),
 V('v.05-lr.01-ep6-w2v15',.05,.01,kind='v'),V('v.05-lr.01-ep6-wd.01',.05,.01,tr={'weight_decay':.01}),V('v.05-lr.01-ep6-adv.5',.05,.01,tr={'adversarial':.5}),V('v.05-lr.01-ep6-drop.2',.05,.01,net={'dropout':.2})]
