"""The Python interface: runs, curves, comparisons and verdicts as pandas tables, and models that predict.

    import reread

    runs = reread.runs("tiny")                      # one row per run: settings and metrics
    curves = reread.curves(runs)                    # one row per run and epoch
    reread.compare(runs.index[0], runs.index[1])    # what differs between two runs
    reread.scores("tiny")                           # the report's numbers
    reread.comparisons("tiny")                      # its verdicts
    reread.predictions(runs.index[0])               # what a run predicted, one row per item
    reread.try_("reviews", epochs=10)               # tune, train and compare networks on own data
    answers = reread.load_model("docstrings").predict(["Return the eigenvalues of a matrix."])
    reread.attention(answers)                       # one row per word

Everything is read from the project's folder, which is the current one. Nothing is started, trained or changed but by
``try_``, and but for the ledger of reads of a test split, where ``predictions`` reads one. reread/data.py adds data.
docs/tour.ipynb is a tour.
"""

import importlib
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

import tasks  # noqa: F401  (settles the process's environment: nothing is sent to anybody)
from reread.commands.compare import compare as _compare
from reread.evaluation.records import RunRecord
from reread.goals import goal
from reread.planning.resolve import make_plan
from reread.planning.runs import all_runs, find_run
from reread.planning.trial import folds_name
from reread.preprocessing.manifest import open_data_set
from reread.preprocessing.own_data import row_ids
from reread.storage.digests import require_intact
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.job import Job
from reread.storage.ledger import open_run_test_split
from reread.storage.run_folder import EVALUATION, HISTORY, RunFolder
from reread.tracking.predictor import labels_from
from reread.tracking.registry import LoadedModel, load_model
from reread.tracking.serving import label_threshold

_try = importlib.import_module("reread.commands.try")  # whose name is a keyword

__all__ = [
    "LoadedModel",
    "attention",
    "compare",
    "comparisons",
    "curves",
    "load_model",
    "predictions",
    "runs",
    "scores",
    "try_",
]

NAMES = ["experiment", "variant", "model", "data", "seed"]
RESULTS = ["finished", "epochs", "best_epoch"]


def runs(experiment: str | None = None) -> pd.DataFrame:
    """Return every run of runs/, or those of an experiment, by key: its names, metrics and settings.

    Columns: experiment (that trained it), variant, model, data, seed, finished, epochs, best_epoch; then
    ``SPLIT.METRIC`` of its newest evaluation, and ``network.SETTING`` and ``training.SETTING``; NaN where a run has
    none. With an experiment, also runs that another one trained, under the names that variants have here.
    InputError for an unknown experiment.
    """
    if experiment is None:
        rows = [_row(run, run.job) for run in all_runs()]
    else:
        jobs = make_plan(experiment).known().jobs()
        folders = {run.key: run for run in all_runs()}
        rows = [_row(folders[job.run_key], job.to_json()) for job in jobs if job.run_key in folders]
    table = pd.DataFrame(rows, columns=None if rows else ["run_key", *NAMES, *RESULTS]).set_index("run_key")
    settings = [name for name in table if name.startswith(("network.", "training."))]
    metrics = [name for name in table if "." in name and name not in settings]
    return table[[*NAMES, *RESULTS, *metrics, *settings]]


def _row(run: RunFolder, job: Mapping[str, Any]) -> dict[str, Any]:
    result = run.result if run.finished else {}
    row = {"run_key": run.key, "experiment": run.job.get("experiment", "")}
    row |= {name: job[name] for name in NAMES if name != "experiment"}
    row |= {"finished": run.finished, "epochs": result.get("epochs"), "best_epoch": result.get("best_epoch")}
    evaluations = list(run.evaluations().values())
    for split, metrics in (evaluations[-1] if evaluations else {}).items():
        if isinstance(metrics, Mapping):
            row |= {f"{split}.{name}": value for name, value in metrics.items() if isinstance(value, int | float)}
    for group in ("network", "training"):
        row |= {f"{group}.{name}": value for name, value in job.get(group, {}).items()}
    return row


def curves(runs: pd.DataFrame | Iterable[str] | str) -> pd.DataFrame:
    """Return history.csv of runs, given as ``runs`` returns them or by their keys: one row per run and epoch.

    Columns: run_key, variant, seed, epoch, learning_rate, training_loss, validation_loss, ... To compare the loss on
    both splits take ``validation_comparable_loss``: it has the label smoothing and class weights of training_loss.
    """
    keys = [runs] if isinstance(runs, str) else list(runs.index if isinstance(runs, pd.DataFrame) else runs)
    parts = []
    for key in keys:
        run = find_run(key)
        run.history()  # refuses a damaged one
        history = pd.read_csv(run.directory / HISTORY)
        named = runs.loc[key] if isinstance(runs, pd.DataFrame) else run.job
        for place, (name, value) in enumerate(
            {"run_key": run.key, "variant": named["variant"], "seed": named["seed"]}.items()
        ):
            history.insert(place, name, value)
        parts.append(history)
    if not parts:
        raise InputError("no run is given: name one, or pass what reread.runs() returns")
    return pd.concat(parts, ignore_index=True)


def compare(a: str, b: str, everything: bool = False) -> pd.DataFrame:
    """Return what differs between two runs, given by key or a prefix of it; with ``everything``, also what is equal.

    Columns: a, b, and difference (b - a of numbers); index: section (parameters, data, source, environment, results,
    time) and name.
    """
    rows = [
        {"section": section, "name": pair.name, "a": pair.a, "b": pair.b, "difference": pair.difference}
        for section, pairs in _compare(find_run(a), find_run(b)).items()
        for pair in pairs
        if everything or not pair.equal
    ]
    columns = ["section", "name", "a", "b", "difference"]
    return pd.DataFrame(rows, columns=columns).set_index(["section", "name"])


def scores(experiment: str) -> pd.DataFrame:
    """Return the metrics of an experiment's report: a row per data set, variant or baseline, split and metric.

    Columns: mean, low and high (95 % t interval over seeds; NaN of a baseline), seeds (0 of a baseline).
    InputError where the experiment has no report.
    """
    metrics = _report_file(experiment, "metrics.json")
    splits = ("validation", "test")
    rows = [
        {"data": about["data"], "name": name, "split": split, "metric": metric, "seeds": about["n"]}
        | {key: value[key] for key in ("mean", "low", "high")}
        for name, about in metrics["variants"].items()
        for split in splits
        for metric, value in about.get(split, {}).items()
        if "mean" in value
    ]
    rows += [
        {"data": data, "name": name, "split": split, "metric": metric, "seeds": 0, "mean": value}
        for data, baselines in metrics["baselines"].items()
        for name, about in baselines.items()
        for split in splits
        for metric, value in about.get(split, {}).items()
    ]
    table = pd.DataFrame(rows).set_index(["data", "name", "split", "metric"])
    return table[["mean", "low", "high", "seeds"]].astype({"mean": float, "low": float, "high": float})


def comparisons(experiment: str) -> pd.DataFrame:
    """Return the verdicts of an experiment's report, one row per comparison.

    Columns: claim, verdict, treatment, control, metric, difference, low, high (the interval that decides), holm_p,
    seeds, sentence. InputError where the experiment has no report.
    """
    rows = []
    for verdict in _report_file(experiment, "verdicts.json")["verdicts"]:
        interval = verdict["interval"] or {}
        rows.append(
            {name: verdict[name] for name in ("name", "claim", "verdict", "treatment", "control", "metric")}
            | {"difference": interval.get("mean"), "low": interval.get("low"), "high": interval.get("high")}
            | {
                "holm_p": verdict["holm_p"],
                "seeds": max(map(len, verdict["seeds"].values()), default=0),
                "sentence": verdict["sentence"],
            }
        )
    return pd.DataFrame(rows).set_index("name") if rows else pd.DataFrame(rows)


def predictions(run: str, split: str = "test") -> pd.DataFrame:
    """Return what a run predicted in its newest evaluation, one row per item; ``run`` is a key or a prefix of it.

    Index: item, the id of a document or of an image that was added, such as its path, or else the number of the row in
    its data set. Columns: label and prediction, each a list where a row has several, or a number where the data asks
    for one; then ``probability.CLASS`` of each class. Of several labels those are predicted whose probability is at
    least the threshold with the best micro F1 on validation: the one of ``tuned_micro_f1``, by which the served model
    answers, too. The data set itself is read for the ids. A read of the test split is entered in the ledger. InputError
    where the run is not evaluated on ``split``, and where the data set has been replaced since.
    """
    folder = find_run(run)
    evaluations = list(folder.evaluations())
    if not evaluations:
        raise InputError(f"run {folder.key} is not evaluated: run `python -m reread.evaluation {folder.directory}`")
    job = Job.read(folder)
    newest = folder.directory / EVALUATION / evaluations[-1]
    record = RunRecord(job.variant, job.data, job.seed, folder.directory, job.prepared, newest)
    threshold = label_threshold(record.metrics(["validation", split]))
    classes, version = record.description["classes"], record.description["data_version"]
    data = open_data_set(job.data)
    if data.entry.version != version:
        raise InputError(
            f"run {folder.key} was trained on version {version[:12]} of data set '{job.data}', and {data.directory} "
            f"has version {data.entry.version[:12]}: run the experiment again on this one, or add the old one again"
        )
    with open_run_test_split(folder, record.description) if split == "test" else nullcontext():
        labels, probabilities = record.labels(split), record.probabilities(split)
        rows = record.prepared.arrays["raw_indices"][record.prepared.rows(split)]
    ids = row_ids(data)
    items = [ids[row] for row in rows] if ids else list(rows)
    asked = goal(record.description["task"])
    answers = asked.columns(probabilities, classes)
    columns: dict[str, Any] = {
        "label": asked.target_values(labels, classes),
        "prediction": answers.get("label", answers.get("prediction")),
    }
    if threshold is not None:
        columns["prediction"] = [list(row) for row in labels_from(threshold, answers["probabilities"])]
    if "probabilities" in answers:
        columns |= {f"probability.{name}": probabilities[:, k] for k, name in enumerate(classes)}
    return pd.DataFrame(columns, index=pd.Index(items, name="item"))


def try_(
    data: str,
    *,
    seeds: int | None = None,
    epochs: int | None = None,
    variants: Iterable[str] = (),
    metric: str | None = None,
    minutes: int | None = None,
    folds: int | None = None,
) -> pd.DataFrame:
    """Tune, train and compare networks and baselines on a data set, as `reread try` does; return its comparisons.

    The arguments are the command's options; ``comparisons`` describes the columns. Finished runs are cached, and the
    same call resumes an interrupted one. ``scores(data)`` has the metrics, with ``folds`` ``scores(f"{data}-folds")``.
    InputError for what the command refuses.
    """
    for name, value, least in (("seeds", seeds, 1), ("epochs", epochs, 2), ("minutes", minutes, 0)):
        if value is not None and value < least:
            raise InputError(f"{name} is {value}: give {least} or more")
    chosen = [variants] if isinstance(variants, str) else list(variants)
    _try.try_networks(data, seeds, epochs, chosen, metric, minutes, folds)
    return comparisons(data if folds is None else folds_name(data))


def _report_file(experiment: str, name: str) -> Any:
    plan, again = make_plan(experiment), f"run `reread run --experiment {experiment}`"
    for folder in (plan.report_directory, Path("results") / experiment):
        if (folder / name).is_file():
            return read_json(require_intact(folder / name, again))
    raise InputError(f"experiment '{experiment}' has no report: {again}")


def attention(answers: pd.DataFrame) -> pd.DataFrame:
    """Return the attention in a model's answers (``predict``), one row per word that was read.

    Columns: document (number of the answer), sentence, word (numbers from 0), text, sentence_weight, word_weight, and
    shade: sqrt(sentence_weight) word_weight, as Yang et al. 2016 draw it. InputError where the network has none.
    """
    if "attention" not in answers:
        raise InputError("these answers have no attention: their network has none, or predict had attention=False")
    return pd.DataFrame(
        [
            {
                "document": document,
                "sentence": number,
                "word": place,
                "text": text,
                "sentence_weight": sentence["weight"],
                "word_weight": weight,
                "shade": sentence["weight"] ** 0.5 * weight,
            }
            for document, sentences in enumerate(answers["attention"])
            for number, sentence in enumerate(sentences)
            for place, (text, weight) in enumerate(zip(sentence["words"], sentence["word_weights"], strict=True))
        ]
    )
