"""Loss and score on the validation split, which early stopping and the best checkpoint use."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from models.objectives import Objective
from reread.batches.collation import labels
from reread.batches.inference import Predictor
from reread.storage.prepared import Prepared


@dataclass(frozen=True)
class Validation:
    """loss: the objective's on held-out rows; accuracy: share of right labels; score: what is maximised, the
    accuracy of single labels or the macro AUROC of several; comparable_loss: the loss as training has it, with label
    smoothing and class weights, for learning curves alone."""

    loss: float
    score: float
    accuracy: float
    comparable_loss: float | None = None


def validate(network: nn.Module, objective: Objective, prepared: Prepared, predictor: Predictor) -> Validation:
    """Compute loss, score and accuracy on the rows of ``predictor``, those of the validation split."""
    scores = predictor(network)
    target = labels(prepared, predictor.rows)
    loss = float(objective.held_out_loss(torch.from_numpy(scores), target))
    accuracy = float(objective.correct(torch.from_numpy(scores), target).double().mean())
    score = macro_auroc(scores, target.numpy()) if prepared.task == "multi-label" else accuracy
    comparable_loss = getattr(objective, "comparable_loss", objective.held_out_loss)
    comparable = float(comparable_loss(torch.from_numpy(scores), target))
    return Validation(loss, score, accuracy, comparable)


def macro_auroc(scores: np.ndarray, target: np.ndarray) -> float:
    """Return the mean over classes of the area under the ROC curve, scores and target [N, K]; ties count one half.

    By ranks (Mann-Whitney). A class that has no row or every row has no area and is left out; 0.5 if all are.
    """
    areas = []
    for score, positive in zip(scores.T, target.T.astype(bool), strict=True):
        positives = int(positive.sum())
        negatives = len(positive) - positives
        if positives and negatives:
            _, place, count = np.unique(score, return_inverse=True, return_counts=True)
            ranks = (np.cumsum(count) - (count - 1) / 2)[place]
            areas.append((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    return float(np.mean(areas)) if areas else 0.5
