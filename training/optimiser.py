"""AdamW or Nesterov SGD, and the learning rate of each step: linear warm-up, then a cosine to zero.

Sources: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019 (AdamW) and SGDR, 2017 (cosine).
"""

import math

import torch
from torch import nn

from models.layers.embedding import word_embedding
from training.settings import Settings


def make_optimiser(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Weight decay on matrices and kernels alone: not on biases, norms, a context vector or Swish's beta.

    Each group of parameters has a ``share`` of the learning rate, which ``set_rate`` gives it. InputError where
    word_vector_rate is not 1 and the network has no word vectors.
    """
    slow = word_embedding(network, "word_vector_rate", 1).weight if settings.word_vector_rate != 1 else None
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad and parameter is not slow]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay, "share": 1.0},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "share": 1.0},
    ]
    if slow is not None:
        groups.append({"params": [slow], "weight_decay": settings.weight_decay, "share": settings.word_vector_rate})
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    nesterov = settings.momentum > 0
    return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum, nesterov=nesterov, fused=True)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Let the next step be at learning rate ``rate``, of which each group has its share."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["share"]


def learning_rate(step: int, steps_per_epoch: int, settings: Settings) -> float:
    """The learning rate of step 0, 1, ... of the whole run; the peak comes right after the warm-up."""
    warmup = round(settings.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return settings.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / (settings.maximum_epochs * steps_per_epoch - warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
