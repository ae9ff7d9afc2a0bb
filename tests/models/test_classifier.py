"""The last layer of a text network."""

import torch
from torch.nn import functional

from models.layers.classifier import Classifier


def test_the_classifier_stays_in_float32_under_autocast():
    classifier = Classifier(6, 3)
    x = torch.randn(4, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        logits, rounded = classifier(x), classifier(x.bfloat16())
    assert torch.equal(logits, functional.linear(x, classifier.weight, classifier.bias))
    assert torch.equal(rounded, functional.linear(x.bfloat16().float(), classifier.weight, classifier.bias))


def test_the_classifier_computes_in_the_dtype_of_its_weights():
    classifier = Classifier(6, 3).double()
    assert classifier(torch.randn(4, 6, dtype=torch.float64)).dtype == torch.float64
