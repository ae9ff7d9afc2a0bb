"""Trained networks that a study reads: finished runs of one variant, one a seed, and the arrays of their training."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import models
from batches import collation
from batches.subsets import segment_arange, select_rows
from storage.errors import InputError
from storage.files import read_object
from storage.prepared import Prepared, open_prepared
from studies import evidence
from training.device import acquire_device, configure
from training.settings import Settings

BATCH = 64


def command_line(name: str, description: str, plan: Any, debug: Any, study: Callable[..., dict[str, Any]]) -> None:
    """The command of a study of trained networks: ``study(plan, runs, prepared text, place, device)`` with what the
    options say, ``plan`` being a dataclass with the number of ``documents``, and ``debug`` the same in small.

    Its evidence goes to a folder of the study's name and the data's."""
    parser = evidence.options(name, description, of_data=True)
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="folders of finished runs, one a seed")
    parser.add_argument("--prepared", type=Path, required=True, help="the folder of the arrays they were trained on")
    parser.add_argument("--documents", type=int, default=plan.documents, help="how many are drawn (%(default)s)")
    arguments = parser.parse_args()
    if arguments.documents < 1:
        raise InputError(f"--documents is {arguments.documents}: give 1 or more")
    prepared = open_text(arguments.prepared)
    place = evidence.destination(arguments.to / name, prepared.description["name"])
    plan = debug if arguments.debug else dataclasses.replace(plan, documents=arguments.documents)
    with acquire_device() as device:
        configure(Settings())
        print(evidence.told(study(plan, arguments.runs, prepared, place, device), place))


def open_text(directory: Path) -> Prepared:
    """The prepared text of ``directory``; InputError where it is something else, or has several labels."""
    prepared = open_prepared(directory)
    if prepared.kind != "text" or prepared.task != "single-label":
        raise InputError(
            f"{directory} is {prepared.task} {prepared.kind} data: give the arrays of texts that have one label each"
        )
    return prepared


def networks(runs: Sequence[Path], prepared: Prepared) -> dict[int, nn.Module]:
    """Each run's network with its best weights, on the CPU and in evaluation mode, by its seed.

    InputError where a run is not finished, is of another variant than the first, repeats a seed, or does not fit
    ``prepared``.
    """
    found: dict[int, nn.Module] = {}
    variant = None
    for run in runs:
        if not (run / "result.json").is_file():
            raise InputError(f"{run} has no result.json: give folders of finished runs")
        job = read_object(run / "job.json", "variant", "seed")
        variant = variant or job["variant"]
        if job["variant"] != variant:
            raise InputError(f"{run} is of variant {job['variant']}, {runs[0]} of {variant}: give the runs of one")
        if job["seed"] in found:
            raise InputError(f"{run} has seed {job['seed']}, as another run that is given: give each seed once")
        found[job["seed"]] = models.load(run, prepared.description)
    return dict(sorted(found.items()))


def drawn_rows(prepared: Prepared, split: str, count: int) -> Prepared:
    """``count`` documents of a split, or all where it has fewer, drawn by chance and the same each time."""
    rows = prepared.rows(split)
    drawn = np.random.default_rng(0).choice(rows, min(count, len(rows)), replace=False)
    return select_rows(prepared, np.sort(drawn))


def batches(prepared: Prepared, size: int = BATCH) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of like length, int [n], and where their words stand in ``tokens``, int [their words]: every row once."""
    sizes = collation.sizes(prepared, np.arange(len(prepared.labels)))
    order = np.argsort(sizes, kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield rows, np.repeat(prepared.first_words[rows], sizes[rows]) + segment_arange(sizes[rows])


@torch.no_grad()
def attention(network: nn.Module, prepared: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """A network's attention to every word, its weight times that of its sentence, float64 [M], and to every sentence,
    float64 [sentences of all rows]."""
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


def gradient_times_input(network: nn.Module, prepared: Prepared) -> np.ndarray:
    """What every word adds to its document's highest logit, to first order: the word vector times the gradient with
    regard to it (Shrikumar et al. 2016, arXiv 1605.01713), float64 [M]."""
    device = next(network.parameters()).device
    found, vectors = np.empty(len(prepared.arrays["tokens"])), []
    word_counts = np.asarray(prepared.arrays["word_counts"])
    hook = network.embedding.register_forward_hook(lambda module, given, out: vectors.append(out))
    try:
        for rows, places in batches(prepared):
            vectors.clear()
            logits = network(*collation.inputs(prepared, rows, device, ragged=True))
            (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), vectors)
            scores = (gradient * vectors[0]).sum(dim=-1).detach().double().cpu().numpy()
            if scores.ndim == 2:
                # The network has laid its words out in rows, one a sentence.
                scores = scores[np.arange(scores.shape[1]) < word_counts[rows].reshape(-1, 1)]
            found[places] = scores[: len(places)]
    finally:
        hook.remove()
    return found
