"""Prepared arrays to weights: ``python -m reread.training JOB.json`` trains one network with one seed.

Needs torch, numpy and safetensors, and nothing else.
"""
