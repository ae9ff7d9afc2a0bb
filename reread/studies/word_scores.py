"""The score of each word of a document for a network: its attention, and its gradient times input.

Shape legend: M words of all rows.
"""

import numpy as np
import torch

import models
from reread.batches import collation
from reread.storage.arrays import Float64Array
from reread.storage.prepared import Prepared
from reread.studies.load_runs import batches


@torch.no_grad()
def attention(network: "models.Network", prepared: Prepared) -> tuple[Float64Array, Float64Array]:
    """Return a network's attention to every word, its weight times that of its sentence, float64 [M], and to every
    sentence, float64 [sentences of all rows]."""
    device = next(network.parameters()).device
    words = np.empty(len(prepared.arrays["tokens"]))
    word_counts = np.asarray(prepared.arrays["word_counts"])
    sentences = np.empty(word_counts.shape)
    for rows, places in batches(prepared):
        given = collation.inputs(prepared, rows, device)
        _, of_words, of_sentences = (part.double().cpu().numpy() for part in network.attend(*given))
        real = np.arange(of_words.shape[2]) < word_counts[rows, : of_words.shape[1], None]
        words[places] = (of_words * of_sentences[..., None])[real]
        sentences[rows, : of_sentences.shape[1]] = of_sentences
    return words, sentences[word_counts > 0]


def gradient_times_input(network: "models.Network", prepared: Prepared) -> Float64Array:
    """Return what every word adds to its document's highest logit, to first order, float64 [M].

    It is the word vector times the gradient with respect to it (Shrikumar et al. 2016, arXiv 1605.01713).
    """
    device = next(network.parameters()).device
    of_words, vectors = np.empty(len(prepared.arrays["tokens"])), []
    word_counts = np.asarray(prepared.arrays["word_counts"])
    hook = network.embedding.register_forward_hook(lambda module, given, out: vectors.append(out))
    try:
        for rows, places in batches(prepared):
            vectors.clear()
            logits = network(*collation.inputs(prepared, rows, device, ragged=True))
            (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), vectors)
            scores = (gradient * vectors[0]).sum(dim=-1).detach().double().cpu().numpy()
            if scores.ndim == 2:
                # The network has laid its words out in rows, one per sentence.
                scores = scores[np.arange(scores.shape[1]) < word_counts[rows].reshape(-1, 1)]
            of_words[places] = scores[: len(places)]
    finally:
        hook.remove()
    return of_words
