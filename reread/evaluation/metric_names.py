"""Metrics as sentences have them. What evaluations compute does not depend on this, so neither do their keys."""

from reread.evaluation.metrics import TITLES, metric_title

OF_TUNED = {
    "tuned_micro_f1": "micro F1 at a tuned threshold",
    "tuned_macro_f1": "macro F1 at tuned thresholds",
}


def metric_words(name: str) -> str:
    """Return a metric as a sentence has it: "macro F1", "AUROC of CLASS". A study's own metric is in words already."""
    if name in OF_TUNED:
        return OF_TUNED[name]
    if name not in TITLES and ":" not in name:
        return name
    title = metric_title(name)
    return title if title.startswith(("AUROC", "F1")) else title[0].lower() + title[1:]
