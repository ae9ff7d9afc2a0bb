"""A page of documents with words and sentences shaded by the attention of one network, or of two side by side.

Source: Yang et al., Hierarchical Attention Networks for Document Classification, NAACL 2016, figure 5: words are shaded
by sqrt(p_s) p_w, the word's weight damped by its sentence's, so that the chief word of a sentence of no
importance stays pale.

The page has the readings of several seeds of every variant that attends. Its reader chooses network, seed, class, and
right or wrong. One hue in steps of even lightness, so that colour-blind readers and grey print keep the order; the text
on each step is black or white, whichever has the higher contrast (WCAG 2.2, at least 4.5 to 1).
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from models.objectives import to_probabilities
from reread.batches.answers import attends
from reread.batches.collation import inputs
from reread.evaluation.page import render
from reread.evaluation.records import RunRecord, best_first
from reread.goals import goal
from reread.kinds import Explanation
from reread.runtime.determinism import threads
from reread.storage.files import read_json, write_text
from reread.storage.prepared import Prepared
from reread.storage.run_folder import WEIGHTS

PAGE = "attention.html"
DOCUMENTS = "example_documents.json"
LEVELS = 10
# Of each variant the best seed, then further seeds in turn, so that the page stays below some megabytes.
MOST_READINGS = 24
# Weights are written as whole multiples of this.
UNIT = 1e-4
# From the page's own colour to a strong blue: light pages, dark pages.
LIGHT = ((255, 255, 255), (8, 81, 156))
DARK = ((22, 27, 34), (121, 190, 255))


def explain(records: Sequence[RunRecord], best_seeds: Mapping[str, int], folder: Path) -> Explanation | None:
    """Write the attention page into ``folder``; None where no network has attention to show."""
    readings = chosen_runs(records, best_seeds)
    if not readings:
        return None
    title = "What the networks attend to"
    write_text(folder / PAGE, attention_page(readings, title))
    return Explanation(PAGE, title, "documents of the test split with words and sentences shaded by attention")


def chosen_runs(records: Sequence[RunRecord], best_seeds: Mapping[str, int]) -> list[RunRecord]:
    """Return the runs that the page shows, in order of variant, the best seed of each first."""
    ordered = best_first(records, best_seeds)
    shown = {
        variant for variant, seed in best_seeds.items()
        if any(record.seed == seed and has_attention(record.run_directory, record.prepared)
               for record in ordered if record.variant == variant)
    }  # fmt: skip
    by_variant = [
        [record for record in ordered if record.variant == variant and (record.run_directory / WEIGHTS).is_file()]
        for variant in best_seeds if variant in shown
    ]  # fmt: skip
    in_turn = [record for of_rank in itertools.zip_longest(*by_variant) for record in of_rank if record is not None]
    return best_first(in_turn[:MOST_READINGS], best_seeds)


def has_attention(run_directory: Path, prepared: Prepared) -> bool:
    """Return whether the network attends, its weights are still there, and there are words to show it on."""
    if not (prepared.directory / DOCUMENTS).is_file() or not (run_directory / WEIGHTS).is_file():
        return False
    return attends(models.load(run_directory, prepared.description))


def attention_page(records: Sequence[RunRecord], title: str) -> str:
    """Return the page as one HTML text: the documents of example_documents.json as each run's network reads them."""
    sets: dict[str, Prepared] = {record.prepared_directory.name: record.prepared for record in records}
    payload = {
        "unit": UNIT,
        "sets": {key: document_set(prepared) for key, prepared in sets.items()},
        "readings": [
            {
                "variant": record.variant,
                "seed": record.seed,
                "set": record.prepared_directory.name,
                "documents": read_documents(record.run_directory, record.prepared),
            }
            for record in records
        ],
    }
    return render(
        "attention.html",
        ["attention.js"],
        title=title,
        payload=payload,
        data=sorted({record.data for record in records}),
        levels={"light": palette(*LIGHT), "dark": palette(*DARK)},
    )


def document_set(prepared: Prepared) -> dict[str, Any]:
    """Return a data set's name and classes, and the id and words of its example documents, empty sentences left out.

    Padding is not in example_documents.json, so it has no entry here.
    """
    documents = [
        {"id": document["id"], "sentences": [words for words in document["words"] if words]}
        for document in read_json(prepared.directory / DOCUMENTS)
    ]
    return {"data": prepared.description["name"], "classes": prepared.classes, "documents": documents}


@torch.no_grad()
def read_documents(run_directory: Path, prepared: Prepared) -> list[dict[str, Any]]:
    """Return what one network makes of the example documents: labels, probabilities, and weights with their shades."""
    shown = read_json(prepared.directory / DOCUMENTS)
    if not shown:
        return []
    rows = np.array([document["row"] for document in shown])
    with threads(1):
        network: Any = models.load(run_directory, prepared.description).eval()
        logits, words, sentences = (part.numpy() for part in network.attend(*inputs(prepared, rows)))
    probabilities = to_probabilities(network.objective, logits)
    return [
        shade(document["words"], words[place], sentences[place])
        | judged(probabilities[place : place + 1], prepared.labels[rows[place : place + 1]], prepared)
        for place, document in enumerate(shown)
    ]


def judged(probabilities: np.ndarray, labels: np.ndarray, prepared: Prepared) -> dict[str, Any]:
    """The target and the prediction of one document: probabilities [1, K], labels [1] or [1, K]."""
    asked, classes = goal(prepared.task), prepared.classes
    described, true = asked.described(probabilities[0], classes), asked.named(labels[0], classes)
    return {
        "predicted": [
            [name, None if probability is None else round(probability, 3)] for name, probability in described
        ],
        "true": true,
        "right": [name for name, _ in described] == true,
    }


def shade(words: list[list[str]], word_weights: np.ndarray, sentence_weights: np.ndarray) -> dict[str, Any]:
    """Return the ``sentences`` that have words: weight, words' weights, and their shades, one digit per word.

    words: the kept words of each sentence; word_weights float [S, W]; sentence_weights float [S]. The darkest word of
    the document has the shade LEVELS - 1. Weights are multiples of UNIT.
    """
    shown = [np.sqrt(sentence_weights[s]) * word_weights[s, : len(sentence)] for s, sentence in enumerate(words)]
    darkest = max((float(of_sentence.max()) for of_sentence in shown if len(of_sentence)), default=0.0) or 1.0
    return {
        "sentences": [
            {
                "weight": round(float(sentence_weights[s]) / UNIT),
                "weights": [round(float(weight) / UNIT) for weight in word_weights[s, : len(sentence)]],
                "shades": "".join(str(min(LEVELS - 1, int(LEVELS * weight / darkest))) for weight in shown[s].tolist()),
            }
            for s, sentence in enumerate(words)
            if sentence
        ]
    }


def palette(start: tuple[int, int, int], end: tuple[int, int, int]) -> list[dict[str, str]]:
    """LEVELS steps from one colour to the other, each with black or white text, whichever reads better."""
    steps = []
    for level in range(LEVELS):
        share = level / (LEVELS - 1)
        colour = tuple(round(a + share * (b - a)) for a, b in zip(start, end, strict=True))
        ink = max(((0, 0, 0), (255, 255, 255)), key=lambda ink: contrast(colour, ink))
        steps.append({"background": hexadecimal(colour), "ink": hexadecimal(ink)})
    return steps


def contrast(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """The contrast ratio of two sRGB colours, 1 to 21 (WCAG 2.2)."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: tuple[int, ...]) -> float:
    """Relative luminance of an sRGB colour (WCAG 2.2)."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def hexadecimal(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)
