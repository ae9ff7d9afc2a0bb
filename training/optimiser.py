"""AdamW or Nesterov SGD, and the learning rate of each step: linear warm-up, then a cosine to zero.

Sources: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019 (AdamW) and SGDR, 2017 (cosine).
"""

import math

import torch
from torch import nn

from training.settings import Settings


def make_optimiser(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Weight decay on matrices and kernels alone: not on biases, norms, a context vector or Swish's beta."""
    from models.layers.embedding import WordEmbedding
    scaled = {id(m.weight): m.rate for m in network.modules() if isinstance(m, WordEmbedding) and getattr(m, 'rate', 1.0) != 1.0}
    parameters = [p for p in network.parameters() if p.requires_grad and id(p) not in scaled]
    slow = [p for p in network.parameters() if id(p) in scaled]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups += [{"params": [p], "weight_decay": settings.weight_decay, "scale": scaled[id(p)]} for p in slow]
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    nesterov = settings.momentum > 0
    return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum, nesterov=nesterov, fused=True)


def learning_rate(step: int, steps_per_epoch: int, settings: Settings) -> float:
    """The learning rate of step 0, 1, ... of the whole run; the peak comes right after the warm-up."""
    warmup = round(settings.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return settings.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / (settings.maximum_epochs * steps_per_epoch - warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
