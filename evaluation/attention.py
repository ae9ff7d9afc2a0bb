"""A page of documents with words and sentences shaded by their attention.

Source: Yang et al., Hierarchical Attention Networks for Document Classification, NAACL 2016, figure 5: words are shaded
by sqrt(p_s) p_w, the word's weight damped by its sentence's, so that the chief word of a sentence of no
importance stays pale.

One hue in steps of even lightness, so that colour-blind readers and grey print keep the order; the text on each
step is black or white, whichever has the higher contrast (WCAG 2.2, at least 4.5 to 1).
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from batches.answers import attends
from batches.collation import inputs
from evaluation.metrics import predicted
from evaluation.page import render
from evaluation.records import RunRecord
from kinds import Explanation
from models.objectives import to_probabilities
from runtime.determinism import threads
from storage.files import read_json, write_text
from storage.prepared import Prepared
from storage.run_folder import WEIGHTS

PAGE = "attention.html"
LEVELS = 10
# From the page's own colour to a strong blue: light pages, dark pages.
LIGHT = ((255, 255, 255), (8, 81, 156))
DARK = ((22, 27, 34), (121, 190, 255))


def explain(record: RunRecord, prepared: Prepared, folder: Path) -> Explanation | None:
    """Write the attention page of a run into ``folder``; None where its network has no attention to show."""
    if not has_attention(record.run_directory, prepared):
        return None
    title = f"What {record.variant} attends to (seed {record.seed})"
    write_text(folder / PAGE, attention_page(record.run_directory, prepared, title))
    shows = "documents of the test split with words and sentences shaded by their attention"
    return Explanation(PAGE, title, shows)


def has_attention(run_directory: Path, prepared: Prepared) -> bool:
    """Return whether the network attends, its weights are still there, and there are words to show it on."""
    if not (prepared.directory / "example_documents.json").is_file():
        return False
    if not (run_directory / WEIGHTS).is_file():
        return False
    return attends(models.load(run_directory, prepared.description))


def attention_page(run_directory: Path, prepared: Prepared, title: str) -> str:
    """The page as one HTML text: the documents of example_documents.json as the run's network reads them."""
    return render(
        "attention.html",
        title=title,
        documents=shown_documents(run_directory, prepared),
        data=prepared.description["name"],
        levels={"light": palette(*LIGHT), "dark": palette(*DARK)},
    )


@torch.no_grad()
def shown_documents(run_directory: Path, prepared: Prepared) -> list[dict[str, Any]]:
    """Return the example documents: words with shades (0 to LEVELS - 1), sentence weights, labels and probabilities.

    Weights are exact; only their print is rounded. Padding is not in example_documents.json, so it has no entry here.
    """
    shown = read_json(prepared.directory / "example_documents.json")
    documents = []
    with threads(1):
        network: Any = models.load(run_directory, prepared.description).eval()
        for document in shown:
            rows = np.array([document["row"]])
            logits, words, sentences = (part.numpy() for part in network.attend(*inputs(prepared, rows)))
            documents.append(
                shade(document["words"], words[0], sentences[0])
                | {"id": document["id"]}
                | judged(to_probabilities(network.objective, logits), prepared.labels[rows], prepared)
            )
    return documents


def judged(probabilities: np.ndarray, labels: np.ndarray, prepared: Prepared) -> dict[str, Any]:
    """True and predicted labels of one document (probabilities [1, K]; labels [1] or [1, K])."""
    classes = prepared.classes
    guess = predicted(probabilities, prepared.task)[0]
    if prepared.task == "single-label":
        guesses, truths = [int(guess)], [int(labels[0])]
    else:
        guesses, truths = np.flatnonzero(guess).tolist(), np.flatnonzero(labels[0]).tolist()
    return {
        "predicted": [{"name": classes[one], "probability": float(probabilities[0, one])} for one in guesses],
        "true": [classes[one] for one in truths],
        "right": guesses == truths,
    }


def shade(words: list[list[str]], word_weights: np.ndarray, sentence_weights: np.ndarray) -> dict[str, Any]:
    """Each sentence with its weight and bar, each word with its weight and shade; the darkest of the document is full.

    words: the kept words of each sentence; word_weights float [S, W]; sentence_weights float [S].
    """
    shown = [
        [float(np.sqrt(sentence_weights[s]) * word_weights[s, w]) for w in range(len(sentence))]
        for s, sentence in enumerate(words)
    ]
    darkest = max((value for sentence in shown for value in sentence), default=0.0) or 1.0
    heaviest = float(max(sentence_weights[: len(words)], default=0.0)) or 1.0
    return {
        "sentences": [
            {
                "weight": float(sentence_weights[s]),
                "bar": round(100 * float(sentence_weights[s]) / heaviest),
                "words": [
                    {
                        "text": word,
                        "weight": float(word_weights[s, w]),
                        "level": min(LEVELS - 1, int(LEVELS * shown[s][w] / darkest)),
                    }
                    for w, word in enumerate(sentence)
                ],
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
