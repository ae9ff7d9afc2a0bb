"""Write the tables of the pages from the evidence in results/ and benchmarks/results/, and from the code.

    python docs/tables.py            # rewrite the marked regions of README.md and docs/
    python docs/tables.py --check    # change nothing; exit with code 1 where a page differs

A region begins with `<!-- table: NAME -->` and ends with `<!-- end of table -->`. NAME is a function of this file, with
hyphens for underscores; or that of a function in BY_NAME, a colon, and its argument. The function returns the table's
header and rows, or text that is taken as it is.
"""

import csv
import difflib
import functools
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The script reads the code of the project it stands in.
sys.path.insert(0, str(ROOT))
REGION = re.compile(r"(<!-- table: ([a-z0-9_:/-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
Table = tuple[list[str], list[list[str]]]
# The pages that show an experiment's verdicts among others.
ON_READERS = ("imdb", "newsgroups20", "quantiles-docstrings", "quantiles-imdb", "quantiles-newsgroups20")
PAGES = {"default": "#the-default-experiment", **dict.fromkeys(ON_READERS, "readers.md")}
READERS = {
    "han": "HAN",
    "han-ave": "HAN, mean instead of attention (HN-AVE)",
    "han-max": "HAN, maximum instead of attention (HN-MAX)",
    "han-random": "HAN, random word vectors",
    "han-rnn": "HAN, plain recurrent networks",
    "han-no-reset": "HAN, no reset gate",
    "han-no-update": "HAN, no update gate",
    "han-minimal": "HAN, one gate for both",
    "han-gru-relu": "HAN, ReLU in the candidate",
    "gru-flat": "flat GRU",
    "gru-flat-attention": "flat GRU with attention",
    "word-average": "mean of word vectors",
    "nb-svm": "NB-SVM on bigrams",
    "tf-idf": "TF-IDF, logistic regression",
}
SEVERAL_GPUS = "benchmarks/results/2026-11-22-nvidia-h200-x2-training.json"


def read_json(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def read_rows(name: str) -> list[dict[str, str]]:
    with (ROOT / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ends(row: Mapping[str, str], *columns: str) -> dict[str, float]:
    """Return the mean, low and high of a row of CSV, for ``interval``; columns: where they have other names."""
    names = ("mean", "low", "high")
    return {name: float(row[column]) for name, column in zip(names, columns or names, strict=True)}


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def interval(of: dict[str, float], digits: int, sign: bool = True) -> str:
    """Return `mean [low, high]`, with signs for differences; the mean alone where one seed leaves no interval."""
    first, low, high = (
        "none" if of[key] is None else signed(of[key], digits) if sign else f"{of[key]:.{digits}f}"
        for key in ("mean", "low", "high")
    )
    if of["low"] is None and of["high"] is None:
        return first
    # The interval is not broken over two lines.
    return f"{first} [{low},\N{NO-BREAK SPACE}{high}]"


def verdict(name: str) -> str:
    return f"**{name}**" if name in ("supported", "refuted", "holds", "fails") else name


def marked(comparison: dict[str, Any]) -> str:
    """Return a comparison's verdict, with a dagger where cautions stand beside it."""
    return verdict(comparison["verdict"]) + " †" * bool(comparison["cautions"])


def with_cautions(table: Table, judged: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return a table and, below it, the cautions of its comparisons: those that differ in their side alone in one line.

    judged: by where the comparisons are from, "" where they are all from one experiment.
    """
    # By place and words; the dicts are ordered sets.
    sides: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for place, comparisons in judged.items():
        for comparison in comparisons:
            for caution in comparison["cautions"]:
                side, _, words = caution.partition(" ")
                if side in (comparison["treatment"], comparison["control"]):
                    sides[place, shortened(words)][f"`{side}`"] = None
                else:
                    sides[place, caution] = {}
    lines = [markdown(table)]
    for (place, words), names in sides.items():
        about = " of ".join(filter(None, (", ".join(names), place)))
        lines.append(f"† Caution{' on ' * bool(about)}{about}: {words}\n")
    return "\n".join(lines)


def shortened(caution: str) -> str:
    """Return what a caution says of its side, without advice and with the last word of a setting's address."""
    for pattern, shorter in (
        (r"^(was|has) |: raise max_epochs", ""),
        ("when it ended", "at the end"),
        (r"(?:[a-z_]+\.)+([a-z_]+)=?", lambda match: f"`{match[1]}` "),
        (" {2,}", " "),
    ):
        caution = re.sub(pattern, shorter, caution)
    return caution


def reads_of(comparison: dict[str, Any]) -> str:
    """Return how often the test split of a comparison had been read before, in any version."""
    return str(comparison["earlier_reads"] + comparison["other_version_reads"])


def reads_by_data(judged: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the line on earlier reads below a table that has a column for each data set, not for the reads."""
    counts = (f"{data} {' or '.join(sorted(set(map(reads_of, of)), key=int))} times" for data, of in judged.items())
    return f"\nTest split read before: {', '.join(counts)}.\n"


def rule() -> str:
    """Return the rule of verdicts as reread/verdicts/rule.py words it, in a block of plain text."""
    from reread.verdicts.rule import RULE

    return f"```text\n{RULE.strip()}\n```\n"


def fewest_seeds() -> Table:
    """Return the fewest seeds that can show a direction by the number of comparisons, today and by version 1."""
    from reread.verdicts.seeds import least_seeds

    head = ["comparisons", "two networks, seeds of each", "pairs, or one figure", "two networks by version 1"]
    counts = [(n, least_seeds(0.05, n), least_seeds(0.05, n, one_figure=True)) for n in (1, 2, 3, 4, 6, 7, 9, 13, 23)]
    return head, [[str(n), str(networks), str(figure), str(figure)] for n, networks, figure in counts]


def seeds_of_experiments() -> Table:
    """Return each published experiment's seeds beside the fewest that version 1 of the rule and today's need for it."""
    from reread.verdicts.seeds import least_seeds

    rows = []
    for name, judged in judged_experiments():
        kinds = {comparison["kind"] for comparison in judged}
        least = {comparison["least_seeds"] for comparison in judged}
        before = least_seeds(judged[0]["alpha"], len(judged), one_figure=True)
        counts = " or ".join(sorted({seeds_of(comparison) for comparison in judged}))
        cells = [f"`{name}`", str(len(judged)), counts, str(before), " or ".join(map(str, sorted(least)))]
        rows.append([*cells, "yes" if "one figure" in kinds else ""])
    head = ["experiment", "comparisons", "seeds", "fewest by version 1", "fewest today", "has one with one figure"]
    return head, rows


def judged_experiments() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the published experiments that judge a comparison, each with its verdicts."""
    experiments = [
        (path.parent.name, read_json(str(path))["verdicts"]) for path in (ROOT / "results").glob("*/verdicts.json")
    ]
    return sorted((name, judged) for name, judged in experiments if judged)


def newest(name: str) -> dict[str, Any]:
    """Return the newest file of benchmarks/results/ with a name."""
    return read_json(str(max((ROOT / "benchmarks/results").glob(f"*-{name}.json"))))


def simulated() -> dict[str, Any]:
    """Return the newest figures of benchmarks.verdicts."""
    return newest("verdicts")


def simulation() -> str:
    """Return how many experiments were drawn, and how exact a rate is."""
    figures = simulated()
    draws, alpha = figures["draws"], figures["alpha"]
    most, error = max(row["comparisons"] for row in figures["rates"]), math.sqrt(alpha * (1 - alpha) / draws)
    return (
        f"{draws:,} experiments of {most} comparisons were drawn, and cut into smaller ones. Alpha is {alpha:g}. The\n"
        f"standard error of a rate of {percent(alpha)} is {percent(error)} with {most} comparisons, less with fewer.\n"
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def error_rates(kind: str) -> Table:
    """Return the simulated rate of ``direction`` or ``equivalence`` by the shape of scores, seeds and comparisons."""
    rows: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for row in simulated()["rates"]:
        rows[row["shape"], row["seeds"]][row["comparisons"]] = percent(row[kind])
    head = ["seeds' scores", "seeds", *compared(next(iter(rows.values())))]
    return head, [[shape, str(seeds), *cells.values()] for (shape, seeds), cells in rows.items()]


def compared(counts: Iterable[int]) -> list[str]:
    return [f"{count} comparison{'s' if count > 1 else ''}" for count in counts]


def wrong_sizes() -> Table:
    """Return the highest simulated rate of a wrong 'supported' or 'refuted' of any number of seeds."""
    rows: dict[str, dict[int, float]] = defaultdict(dict)
    for row in simulated()["rates"]:
        cells, many = rows[row["shape"]], row["comparisons"]
        cells[many] = max(cells.get(many, 0.0), row["size"])
    head = ["seeds' scores", *compared(next(iter(rows.values())))]
    return head, [[shape, *map(percent, cells.values())] for shape, cells in rows.items()]


def coverage() -> Table:
    """Return how often the simulated 95 % interval has the true difference."""
    rows: dict[str, dict[int, str]] = defaultdict(dict)
    for row in simulated()["rates"]:
        rows[row["shape"]][row["seeds"]] = percent(row["coverage"])
    head = ["seeds' scores", *(f"{seeds} seeds" for seeds in next(iter(rows.values())))]
    return head, [[shape, *cells.values()] for shape, cells in rows.items()]


def wrong_directions_by_items() -> Table:
    """Return the simulated rate of wrong directions with spreads of 3 to 1 by the error that items leave."""
    rows: dict[float, dict[int, str]] = defaultdict(dict)
    for row in simulated()["by_items"]:
        rows[row["item_deviation"]][row["seeds"]] = percent(row["direction"])
    head = ["error of items", *(f"{seeds} seeds" for seeds in next(iter(rows.values())))]
    return head, [[f"{deviation:g}", *cells.values()] for deviation, cells in rows.items()]


def second_looks() -> Table:
    """Return the simulated rate of wrong directions where seeds are added."""
    return ["looks", "wrong direction"], [[row["looks"], percent(row["direction"])] for row in simulated()["looks"]]


def cross_validation() -> Table:
    """Return the simulated rate of wrong directions of cross-validation, with and without its correction."""
    measured = newest("folds")
    columns = ("seeds_alone", "uncorrected", "of_a_fold", "corrected")
    head = ["rows", "folds", "seeds", "features", "a seed's chance", "over seeds", "not corrected"]
    return [*head, "a fold's test / train", "the rule"], [
        [
            *(str(design[name]) for name in ("rows", "folds", "seeds", "features")),
            "folds and bootstrap" if design["bootstrap"] else "folds",
            *(percent(design[name]) for name in columns),
        ]
        for design in measured["designs"]
    ]


POWER_SHOWN = 0.8
# Numbers of comparisons and of seeds that the table of power has.
COMPARED, TRAINED = (1, 3, 5, 9, 13), (6, 8, 10)


def powers() -> dict[int, dict[int, dict[str, float]]]:
    """Return the simulated power of a direction by the number of comparisons, then of seeds."""
    by_comparisons: dict[int, dict[int, dict[str, float]]] = defaultdict(dict)
    for row in simulated()["power"]:
        by_comparisons[row["comparisons"]][row["seeds"]] = row
    return by_comparisons


def power() -> Table:
    by_comparisons, rows = powers(), []
    for comparisons in COMPARED:
        for seeds in TRAINED:
            cells = [percent(by_comparisons[comparisons][seeds][kind]) for kind in ("pairs", "rule", "other_items")]
            rows.append([str(comparisons), str(seeds), *cells])
    return ["comparisons", "seeds", "version 1", "today", "today, other test items too"], rows


def power_of_experiments() -> Table:
    """Return for two networks of each published experiment the simulated power, and the seeds that 80 % would need."""
    by_comparisons, rows = powers(), []
    for name, judged in judged_experiments():
        networks = [
            comparison for comparison in judged if comparison["kind"] == "two networks" and comparison["scores"]
        ]
        # Each of two looks has half of alpha, as each of twice as many comparisons.
        comparisons = len(judged) * (1 if judged[0]["look"] is None else 2)
        seeds = min(len(side) for comparison in networks for side in comparison["seeds"].values())
        by_seeds = by_comparisons[comparisons]
        cells = [f"`{name}`", str(len(judged)), str(seeds)]
        # Fewer seeds than were simulated cannot show a difference.
        cells += [percent(by_seeds[seeds][kind] if seeds in by_seeds else 0.0) for kind in ("pairs", "rule")]
        rows.append([*cells, *(enough(by_seeds, kind) for kind in ("pairs", "rule"))])
    head = ["experiment", "comparisons", "seeds", "power by version 1", "power today"]
    return [*head, "seeds for 80 % by version 1", "today"], rows


def enough(by_seeds: dict[int, dict[str, float]], kind: str) -> str:
    """Return the fewest seeds whose power is POWER_SHOWN, of those that were simulated without a gap."""
    seeds = min(by_seeds)
    while by_seeds[seeds][kind] < POWER_SHOWN:
        if seeds + 1 not in by_seeds:
            return f"over {seeds}"
        seeds += 1
    return str(seeds)


def service_settings() -> Table:
    """Return the variables of reread/commands/service_settings.py."""
    from reread.commands.service_settings import table

    return ["variable", "default", "content"], [[f"`{name}`", value, text] for name, value, text in table()]


def environment() -> Table:
    """Return the variables of reread/planning/environment.py."""
    from reread.planning.environment import table

    return ["variable", "meaning", "default"], [[f"`{name}`", text, default] for name, default, text in table()]


def sources() -> Table:
    """Return the data sets of reread/preprocessing/sources/, each with the first line of its file."""
    from reread.commands.options import first_line
    from reread.preprocessing.sources import SOURCES

    rows = [[f"`{name}`", first_line(SOURCES, name)] for name in SOURCES.available()]
    return ["name", "content"], rows


def published(experiment: str, name: str) -> Any:
    """Return a file of an experiment's results; None where it is not published yet."""
    path = f"results/{experiment}/{name}"
    return read_json(path) if (ROOT / path).exists() else None


@functools.cache
def judged_in(experiment: str) -> list[dict[str, Any]]:
    """Return an experiment's verdicts, without the cautions that its tuning does not give any more."""
    from reread.planning.tuning import outdated

    outdated_here = outdated(ROOT / "results" / experiment)
    return [
        {**judged, "cautions": [caution for caution in judged["cautions"] if caution not in outdated_here]}
        for judged in read_json(f"results/{experiment}/verdicts.json")["verdicts"]
    ]


def claims(experiment: str) -> list[str]:
    """Return the claims that an experiment compares."""
    from reread.planning.experiment import load_experiment

    return [comparison["claim"] for comparison in load_experiment(experiment, ROOT).comparisons]


def not_run(experiment: str) -> str:
    """Return what is written in place of an experiment's results: its command, and the claims that it compares."""
    command, compared = f"`reread run --experiment {experiment}`", claims(experiment)
    if not compared:
        return f"Not run yet: {command}\n"
    return "".join(
        f"{line}\n" for line in [f"Not run yet. {command} compares:", "", *(f"- {claim}" for claim in compared)]
    )


def overview() -> Table:
    """Return each experiment whose claims a page shows, with its seeds and its verdicts, or that it was not run."""
    from reread.planning.experiment import load_experiment

    rows = []
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        name = path.stem
        # The networks of tiny are too small to conclude anything.
        if name == "tiny" or name.endswith("-tuning") or not (page := page_of(name)) or not claims(name):
            continue
        link, judged = f"[`{name}`]({page})", published(name, "verdicts.json")
        if judged is None:
            rows.append([link, str(len(claims(name))), "", "not run yet"])
            continue
        words = Counter(comparison["verdict"] for comparison in judged["verdicts"])
        said = ", ".join(f"{count} {word}" for word, count in words.most_common())
        # "6 of 8" where seeds are missing.
        so_far = {text.removesuffix(" seeds") for text in judged.get("so_far", {}).values()}
        seeds = " or ".join(sorted(so_far)) or str(len(load_experiment(name, ROOT).seeds))
        rows.append([link, str(len(judged["verdicts"])), seeds, said])
    return ["experiment", "claims", "seeds", "verdicts"], sorted(rows, key=lambda row: row[-1] == "not run yet")


def page_of(experiment: str) -> str | None:
    """Return the page that shows an experiment's verdicts, relative to docs/results; None where none does."""
    if experiment in PAGES:
        return PAGES[experiment]
    mark = f"<!-- table: verdicts:{experiment} -->"
    pages = sorted((ROOT / "docs/results").glob("*.md"))
    return next((page.name for page in pages if mark in page.read_text(encoding="utf-8")), None)


def verdicts(experiment: str) -> str:
    if published(experiment, "verdicts.json") is None:
        return not_run(experiment)
    return verdict_table(judged_in(experiment))


def verdict_table(judged: list[dict[str, Any]]) -> str:
    """Return claims with their verdicts and cautions; a ratio and its margin are factors."""
    rows = []
    for claim in judged:
        sizes = [interval(claim["interval"], 4), f"{claim['equivalence_margin']:g}"]
        if ratio := claim.get("ratio"):
            sizes = [f"×{interval(ratio, 2, sign=False)}", f"×{ratio['margin']:g}"]
        rows.append([claim["claim"], marked(claim), *sizes, f"{claim['holm_p']:.3f}", reads_of(claim)])
    head = ["claim", "verdict", "difference", "margin", "p after Holm", "test split read before"]
    return with_cautions((head, rows), {"": judged})


TIMING_COLUMNS = ["claim", "verdict", "peer", "times as fast", "margin", "GPU"]


def names_of_claims() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "results/claims").glob("*/verdict.json"))


def timed_claims(name: str) -> list[dict[str, Any]]:
    """Return the claims of results/claims/NAME that are judged on scores of cuda_ext.pairs."""
    claims = read_json(f"results/claims/{name}/verdict.json")["claims"]
    return [claim for claim in claims if claim["metric"].endswith(", ms")]


def timing_claims() -> list[dict[str, Any]]:
    """Return all claims on the time of a kernel, those of a folder together."""
    return [claim for name in names_of_claims() for claim in timed_claims(name)]


def timing_verdicts() -> Table:
    return TIMING_COLUMNS, [row for name in names_of_claims() for row in timings(name)[1]]


def timings(name: str) -> Table:
    """Return the claims on time of results/claims/NAME, with their GPU."""
    timed = timed_claims(name)
    gpus = gpus_of(name) if timed else {}
    rows = []
    for claim in timed:
        cells = [claim["claim"], verdict(claim["verdict"]), f"`{claim['control']}`"]
        cells += [interval(claim["ratio"], 3, sign=False), f"{claim['ratio']['margin']:g}"]
        rows.append([*cells, gpus[claim["metric"]]])
    return TIMING_COLUMNS, rows


def gpus_of(name: str) -> dict[str, str]:
    """Return the GPU, such as H200, on which each metric of results/claims/NAME/scores.jsonl was measured."""
    with open(ROOT / "results/claims" / name / "scores.jsonl", encoding="utf-8") as lines:
        scores = [json.loads(line) for line in lines]
    return {score["metric"]: gpu_of(score) for score in scores}


def gpu_of(measured: dict[str, Any]) -> str:
    """Return the short name of the GPU that figures were measured on: H100."""
    return measured["environment"]["gpu"].removeprefix("NVIDIA ").split()[0]


def command_claims(name: str) -> str:
    """Return the claims on commands that results/claims/NAME has, with their verdicts."""
    return verdict_table(read_json(f"results/claims/{name}/verdict.json")["claims"])


def arms(name: str) -> Table:
    """Return each arm of results/claims/NAME with the mean of its scores and the score of each seed, by metric."""
    rows = {}
    for claim in read_json(f"results/claims/{name}/verdict.json")["claims"]:
        for side in ("treatment", "control"):
            scores = claim["scores"][side]
            if claim["ratio"]:  # Their logarithms are judged.
                scores = [math.exp(score) for score in scores]
            digits = 3 if max(scores) >= 0.1 else 5
            shown = [f"{score:.{digits}f}" for score in (mean(scores), *scores)]
            rows[claim["metric"], claim[side]] = [claim["metric"], f"`{claim[side]}`", shown[0], ", ".join(shown[1:])]
    if len({metric for metric, _ in rows}) > 1:
        return ["metric", "arm", "mean", "each seed"], sorted(rows.values())
    return ["arm", "mean", "each seed"], [row[1:] for row in rows.values()]


def accuracies(experiment: str) -> Table | str:
    """Return what each variant and baseline reaches on the test split, in the experiment's own metric, and its cost."""
    metrics = published(experiment, "metrics.json")
    if metrics is None:
        # Where an experiment compares claims, the page says it in place of their verdicts.
        return "" if claims(experiment) else not_run(experiment)
    rows = []
    for data, baselines in metrics["baselines"].items():
        for name, variant in metrics["variants"].items():
            if variant["data"] == data:
                score = interval(variant["test"][variant["score"]], 4, sign=False)
                rows.append([data, f"`{name}`", f"{variant['parameters']:,}", str(variant["n"]), score])
        rows += [
            [data, baseline["name"], "", "", f"{baseline['test'][score_of(metrics, data)]:.4f}"]
            for baseline in baselines.values()
        ]
    return ["data", "variant or baseline", "parameters", "seeds", "test score"], rows


def score_of(metrics: dict[str, Any], data: str) -> str:
    """Return the metric that the variants on a data set are compared by."""
    return next(variant["score"] for variant in metrics["variants"].values() if variant["data"] == data)


def chestxray_findings() -> Table:
    """Return the AUROC of each variant, over all findings and of each, with the rows and patients that have it."""
    metrics = read_json("results/chestxray/metrics.json")
    names = list(metrics["variants"])
    whole = [interval(metrics["variants"][name]["test"]["macro_auroc"], 3, sign=False) for name in names]
    rows = [["mean", "", "", *whole]]
    by_label: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in read_rows("results/chestxray/classes.csv"):
        if row["metric"] == "auroc":
            by_label[row["label"]][row["variant"]] = row
    for label, of in by_label.items():
        first = of[names[0]]
        cells = [of_class(of[name]) for name in names]
        rows.append([label.replace("_", " "), first["positives"], first["positive_groups"], *cells])
    return ["finding", "images", "patients", *(f"`{name}`" for name in names)], rows


def of_class(row: dict[str, str]) -> str:
    """Return a class's mean with its interval where it has one."""
    if not row["mean"]:
        return ""
    if not row["low"]:
        return f"{float(row['mean']):.2f}"
    return interval(ends(row), 2, sign=False)


def costs(experiment: str) -> Table:
    """Return what training one run of each variant took, as means over seeds."""
    from reread.storage.run_folder import FILES, read_files

    files = read_files(ROOT / "results" / experiment / FILES)
    rows = []
    for name, variant in read_json(f"results/{experiment}/metrics.json")["variants"].items():
        timings = [files[run["run_key"]]["timing"] for run in variant["seeds"].values()]
        taken, rate, memory = (
            mean(timing[what] for timing in timings) for what in ("seconds", "samples_per_second", "peak_memory_bytes")
        )
        rows.append([f"`{name}`", f"{taken:.1f}", f"{rate:,.0f}", f"{memory / 2**30:.2f}"])
    return ["variant", "seconds of training", "rows per second", "peak memory in GiB"], rows


# Image and text experiments on whole data sets, each claim in full.
HEADLINES = (
    ("fastnet", "swish-beta-or-relu", "CIFAR-10", "Swish with a trained beta is better than ReLU."),
    ("fastnet", "swish-beta-or-gelu", "CIFAR-10", "Swish with a trained beta is better than GELU."),
    ("swish-densenet", "swish", "CIFAR-10", "Swish is better than ReLU in DenseNet-BC-100-12."),
    ("swish-resnet", "swish", "CIFAR-10", "Swish is better than ReLU in pre-activation ResNet-110."),
    ("swish-wrn", "swish", "CIFAR-10", "Swish is better than ReLU in WRN-16-4."),
    ("multimnist", "capsules-equal", "MultiMNIST", "Capsules find both digits more often than equal convolutions."),
    ("multimnist", "routing", "MultiMNIST", "Three iterations of routing find both digits more often than one."),
    (
        "affnist",
        "capsules-equal",
        "affine MNIST",
        "Capsules are more robust to affine transforms than equal convolutions.",
    ),
    (
        "lars-tuned",
        "lars-or-tuned-warmup",
        "CIFAR-10",
        "At a batch of 16384, LARS is better than tuned SGD with warm-up.",
    ),
    ("lars", "lars-or-nesterov-8192", "CIFAR-10", "At a batch of 8192, LARS is better than tuned Nesterov momentum."),
    ("kin", "dense", "CIFAR-10", "A DenseNet-BC is better than a ResNet of equal parameters."),
    ("kin", "stochastic-depth", "CIFAR-10", "Stochastic depth improves a ResNet of 56 layers in 20 epochs."),
    ("imdb", "hierarchy", "IMDB", "A hierarchical attention network (HAN) is better than a flat recurrent network."),
    ("imdb", "nb-svm", "IMDB", "HAN is better than NB-SVM."),
    ("newsgroups20", "hierarchy", "20 Newsgroups", "HAN is better than a flat recurrent network."),
    ("precision-resnet18", "fp16", "CIFAR-10", "Training ResNet-18 in fp16 in place of float32 changes its accuracy."),
    ("precision-han", "bf16", "IMDB", "Training HAN in bf16 in place of float32 changes its accuracy."),
)

# Those of the README, by experiment and name.
README_HEADLINES = {
    ("fastnet", "swish-beta-or-relu"),
    ("kin", "stochastic-depth"),
    ("imdb", "hierarchy"),
    ("lars-tuned", "lars-or-tuned-warmup"),
}
HEADLINE_COLUMNS = ["claim", "data", "verdict", "difference in accuracy", "margin", "seeds", "test split read before"]


def headline_table(entries: Iterable[tuple[str, str, str, str]]) -> str:
    """Return published verdicts, each entry as one of HEADLINES."""
    rows, judged = [], defaultdict(list)
    for experiment, name, data, claim in entries:
        comparison = next(comparison for comparison in judged_in(experiment) if comparison["name"] == name)
        judged[f"`{experiment}`"].append(comparison)
        cells = [claim, data, marked(comparison), interval(comparison["interval"], 4)]
        rows.append([*cells, f"{comparison['equivalence_margin']:g}", seeds_of(comparison), reads_of(comparison)])
    return with_cautions((HEADLINE_COLUMNS, rows), judged)


def headlines() -> str:
    return headline_table(HEADLINES)


def readme_headlines() -> str:
    return headline_table(entry for entry in HEADLINES if entry[:2] in README_HEADLINES)


def larger_experiments() -> Table:
    """Return the accuracies of whole data sets on one GPU: the line of texts, then that of images."""
    rows = []
    for name, title in (("imdb", "IMDB, 25,000 test reviews"), ("newsgroups20", "20 Newsgroups, 7,309 test posts")):
        metrics = read_json(f"results/{name}/metrics.json")
        han = metrics["variants"]["han"]["test"]["accuracy"]
        baselines = metrics["baselines"][name].values()
        best = max(baselines, key=lambda baseline: baseline["test"]["accuracy"])
        cells = [title, "HAN", interval(han, 4, sign=False), str(len(metrics["variants"]["han"]["seeds"]))]
        rows.append([*cells, f"{best['name']}: {best['test']['accuracy']:.4f}"])
    for name in ("94", "96"):
        record = read_json(f"benchmarks/results/2026-11-29-nvidia-h200-speed-{name}.json")
        cells = ["CIFAR-10, 10,000 test images", f"fastnet {name}", interval(record["accuracy"], 4, sign=False)]
        rows.append([*cells, str(record["n"]), f"trained in {record['seconds']['whole']:.1f} s"])
    metrics = read_json("results/lars-tuned/metrics.json")["variants"]
    lars, sgd = (metrics[name]["test"]["accuracy"] for name in ("lars", "sgd-warmup"))
    cells = [rows[-1][0], "fastnet, LARS, batch 16384", interval(lars, 4, sign=False)]
    rows.append([*cells, str(len(metrics["lars"]["seeds"])), f"tuned SGD with warm-up: {sgd['mean']:.4f}"])
    return ["data", "network", "test accuracy", "seeds", "beside it"], rows


# The data sets of docs/results/index.md whose best network or baseline it names.
USED = ("digits", "docstrings", "imdb", "newsgroups20", "cifar10")


def use() -> str:
    """Return the line on what to use for each data set of USED: the best on validation of all published experiments."""
    from reread.evaluation.head import recommendations
    from reread.evaluation.summary import champion_of

    lines: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for path in sorted((ROOT / "results").glob("*/metrics.json")):
        metrics = read_json(str(path))
        if metrics["evaluated_on"] == "test":
            # A grid has champions, and no line on what to use.
            for data, line in zip(metrics["champions"], recommendations(metrics), strict=False):
                lines[data].append((champion_of(data, metrics)[1], f"- {line} Experiment: `{path.parent.name}`.\n"))
    return "".join(max(lines[data], key=lambda scored: scored[0])[1] for data in USED)


# What the learning rate of each method of LARS was, and the published experiment that has them.
LARS_RATES = {
    "lars": "tuned at this batch",
    "nesterov": "tuned at this batch",
    "sgd-warmup": "linear rule",
    "sgd": "linear rule",
}


def lars_rates() -> Table:
    """Return each method at the large batches: the rate it trained with, and the best one of its tuning.

    Where the two differ, the test accuracy is of the first.
    """
    plan, tests = read_json("results/lars/plan.json"), read_json("results/lars/metrics.json")["variants"]
    tuned, tuning = (read_json(f"results/lars-tuning/{name}.json") for name in ("metrics", "plan"))

    def rate(variant: dict[str, Any]) -> float:
        return variant["training"]["learning_rate"]

    rows = []
    for batch in (8192, 16384):
        for method, how in LARS_RATES.items():
            name = f"{method}-{batch}"
            choice = tuned["tuned"][name]
            best, score = rate(tuning["variants"][choice["chosen"]]), choice["trials"][choice["chosen"]]
            cells = [str(batch), f"`{method}`", how, "", "not trained by eight seeds"]
            if name in tests:
                cells[3:] = [
                    f"{rate(plan['variants'][name]):g}",
                    interval(tests[name]["test"]["accuracy"], 4, sign=False),
                ]
            rows.append([*cells, f"{best:g}", f"{score:.4f}"])
    head = ["batch", "method", "learning rate set by", "rate", "test accuracy, 8 seeds"]
    return [*head, "best rate of its tuning", "validation there, 1 seed"], rows


def grid_ends() -> Table:
    """Return each choice of a published tuning at an end of what it tried, with what the experiment tries today."""
    from reread.planning.experiment import load_experiment
    from reread.planning.resolve import make_plan
    from reread.planning.tuning import choices, differing, edges

    rows = []
    for path in sorted((ROOT / "results").glob("*tuning/plan.json")):
        name = path.parent.name
        today = make_plan(name, root=ROOT)
        trials = load_experiment(name, ROOT).trials
        for variant, choice in choices(path.parent).items():
            tried = differing({trial: vars(today.variants[trial]) for trial in trials[variant]})
            for address, end in edges(choice.chosen, choice.settings.values()).items():
                before, now = ({settings[address] for settings in of.values()} for of in (choice.settings, tried))
                added = ", ".join(f"{value:g}" for value in sorted(now - before))
                span = ", ".join(f"{value:g}" for value in sorted(before))
                label = address.rpartition(".")[2]
                rows.append([f"`{name}`", f"`{variant}`", f"{end} `{label}`: {choice.chosen[address]:g}", span, added])
    return ["tuning", "variant", "its choice", "tried", "added since, not run"], rows


def readers_accuracies() -> Table:
    imdb, news = read_json("results/imdb/metrics.json"), read_json("results/newsgroups20/metrics.json")
    unrepeated = imdb["without_repeated"]["imdb"]

    def accuracy(metrics: dict, data: str, name: str) -> str:
        if name in metrics["variants"]:
            return interval(metrics["variants"][name]["test"]["accuracy"], 4, sign=False)
        if name in metrics["baselines"][data]:
            return f"{metrics['baselines'][data][name]['test']['accuracy']:.4f}"
        return ""

    rows = []
    for name, title in READERS.items():
        network = unrepeated["variants"].get(name)
        other = network["mean"] if network else unrepeated["baselines"][name]
        rows.append([title, accuracy(imdb, "imdb", name), f"{other:.4f}", accuracy(news, "newsgroups20", name)])
    left_out = unrepeated["rows_left_out"]
    return ["reader", "IMDB", f"IMDB without {left_out} repeated reviews", "20 Newsgroups"], rows


def readers_verdicts() -> str:
    judged = {title: judged_in(name) for name, title in (("imdb", "IMDB"), ("newsgroups20", "20 Newsgroups"))}
    rows: dict[str, list[str]] = {}
    for number, of in enumerate(judged.values()):
        for comparison in of:
            cells = rows.setdefault(comparison["name"], [comparison["claim"], *[""] * 4])
            cells[2 * number + 1 : 2 * number + 3] = marked(comparison), interval(comparison["interval"], 4)
    head = ["claim", *(cell for title in judged for cell in (title, "difference"))]
    return with_cautions((head, list(rows.values())), judged) + reads_by_data(judged)


def choices() -> Table:
    """Return for each data set of a published experiment which variant or baseline to take, by validation and verdicts.

    Left out are tunings, which choose settings and read no test split, and experiments whose variants are prepared
    differently or are one network, trained differently.
    """
    from reread.goals import metric_words

    rows = []
    for path in sorted((ROOT / "results").glob("*/verdicts.json")):
        metrics, verdicts = read_json(f"results/{path.parent.name}/metrics.json"), read_json(str(path))["verdicts"]
        if metrics["evaluated_on"] != "test":
            continue
        plan = read_json(f"results/{path.parent.name}/plan.json")
        for data in sorted(metrics["champions"]):
            variants = {name: variant for name, variant in metrics["variants"].items() if variant["data"] == data}
            of_variants = [plan["variants"][name] for name in variants]
            preparations = {json.dumps(variant["preprocessing"], sort_keys=True) for variant in of_variants}
            networks = {json.dumps([variant["model"], variant["network"]], sort_keys=True) for variant in of_variants}
            if len(preparations) > 1 or len(networks) == 1:
                continue
            baselines = metrics["baselines"].get(data, {})
            score = metrics["champions"][data]["metric"]
            means = {name: variant["validation"][score]["mean"] for name, variant in variants.items()}
            means |= {name: baseline["validation"][score] for name, baseline in baselines.items()}
            decided = [
                comparison for comparison in verdicts if {comparison["treatment"], comparison["control"]} <= set(means)
            ]
            losers = {loser(comparison) for comparison in decided} - {None}
            best = max((name for name in means if name not in losers), key=means.__getitem__)
            equal = equivalents(best, decided) - losers
            measured = variants[best]["test"][score] if best in variants else {"mean": baselines[best]["test"][score]}
            shown = interval(measured, 4, sign=False) if "low" in measured else f"{measured['mean']:.4f}"
            about = [f"`{data}` ({plan['data'][data]['kind']})", f"`{path.parent.name}`"]
            rows.append(
                [*about, f"`{best}`", f"{metric_words(score)} {shown}"]
                + [listed(names) for names in (equal, losers, set(means) - losers - equal - {best})]
            )
    head = ["data", "experiment", "best on validation", "its test score"]
    return [*head, "equivalent", "shown worse", "not decided"], rows


def loser(verdict: dict[str, Any]) -> str | None:
    """Return the side that a verdict shows to be worse, or None."""
    sides = {"supported": "control", "refuted": "treatment"}
    if verdict["verdict"] == "different":
        return verdict["control" if verdict["mean"] > 0 else "treatment"]
    return verdict[sides[verdict["verdict"]]] if verdict["verdict"] in sides else None


def equivalents(name: str, verdicts: list[dict[str, Any]]) -> set[str]:
    """Return the names that were compared with ``name`` itself and found equivalent to it."""
    pairs = [
        {comparison["treatment"], comparison["control"]}
        for comparison in verdicts
        if comparison["verdict"] == "equivalent"
    ]
    return {other for pair in pairs if name in pair for other in pair - {name}}


def seeds_of(verdict: dict[str, Any]) -> str:
    """Return the number of seeds of each side that has any: one number where they agree."""
    counts = {len(seeds) for seeds in verdict["seeds"].values() if seeds}
    return " and ".join(map(str, sorted(counts)))


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


QUANTILES = {"imdb": "IMDB", "newsgroups20": "20 Newsgroups", "docstrings": "docstrings"}


def quantiles() -> Table:
    rows: dict[float, list[str]] = defaultdict(list)
    for number, data in enumerate(QUANTILES):
        for row in read_rows(f"results/studies/quantiles/{data}/truncation.csv"):
            accuracy = ends(row, "test_accuracy", "test_low", "test_high")
            cells = rows[float(row["quantile"])]
            cells += [""] * (2 * number - len(cells))
            knee = " (knee)" if row["knee"] == "True" else ""
            cells += [f"{100 * float(row['train_words_kept']):.0f} %{knee}", interval(accuracy, 3, sign=False)]
    header = ["quantile", *(cell for title in QUANTILES.values() for cell in (f"{title}: words kept", "test accuracy"))]
    ordered = sorted(rows.items())
    return header, [[f"{quantile:g}", *cells, *[""] * (len(header) - 1 - len(cells))] for quantile, cells in ordered]


def quantile_verdicts() -> str:
    judged = {title: judged_in(f"quantiles-{data}") for data, title in QUANTILES.items()}
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for title, of in judged.items():
        for comparison in of:
            rows[comparison["name"]][title] = f"{marked(comparison)}, {interval(comparison['interval'], 3)}"
    body = [[f"{int(name[1:]) / 100:g}", *(cells.get(title, "") for title in judged)] for name, cells in rows.items()]
    table = ["whole texts are better than those truncated at", *judged], body
    return with_cautions(table, judged) + reads_by_data(judged)


def padding() -> Table:
    """Return the time of a step and the share of padding on IMDB, by the quantile of words and sentences alike."""
    rows: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for row in read_rows("benchmarks/results/2026-11-21-nvidia-h200-padding.csv"):
        if row["data"] == "imdb" and row["words"] == row["sentences"]:
            cells = [f"{float(row['median_ms']):.2f}", f"{100 * float(row['padding']):.1f} %"]
            rows[row["words"]][row["way"]] = cells
    header = ["quantile", "lengths respected: ms", "padding", "padded to the cut: ms", "padding"]
    ordered = sorted(rows.items(), key=lambda item: float(item[0]))
    return header, [[quantile, *ways["project"], *ways["cut length"]] for quantile, ways in ordered]


def copying_recall() -> Table:
    """Return the mean recall of each cell over seeds, on the test split, by lag."""
    recall: dict[str, dict[int, float]] = defaultdict(dict)
    for name, variant in read_json("results/copying/metrics.json")["variants"].items():
        cell, lag = name.split("/lag=")
        recall[cell][int(lag)] = variant["test"]["recall"]["mean"]
    lags = sorted({lag for of_cell in recall.values() for lag in of_cell})
    rows = [[f"`{cell}`", *(f"{of_cell[lag]:.2f}" for lag in lags)] for cell, of_cell in recall.items()]
    return ["cell", *(f"lag {lag}" for lag in lags)], rows


def claims_of(study: str) -> Table:
    claims = read_json(f"results/studies/{study}/results.json")["claims"]
    rows = []
    for entry in claims:
        claim = f"`{entry['claim']}`" if "\\" in entry["claim"] else entry["claim"]
        rows.append([claim, verdict(entry["verdict"]), entry["says"]])
    return ["claim", "verdict", "measured"], rows


def tuning_variance() -> Table:
    """Return each verdict beside the one by an interval that has the variance of its experiment's tuning."""
    rows = []
    for folder in sorted((ROOT / "results/studies/tuning_variance").iterdir()):
        differences: dict[str, list[str]] = defaultdict(list)
        for row in read_rows(f"{folder}/differences.csv"):
            differences[row["comparison"]].append(signed(float(row["difference"]), 4))
        for row in read_rows(f"{folder}/intervals.csv"):
            own = ends(row, "difference", "low", "high")
            wider = ends(row, "mean_of_tunings", "low_with_tuning", "high_with_tuning")
            about = [f"`{folder.name}`", f"`{row['comparison']}`", row["margin"]]
            before = [verdict(row["verdict"]), interval(own, 4)]
            after = [verdict(row["verdict_with_tuning"]), interval(wider, 4)]
            rows.append([*about, ", ".join(differences[row["comparison"]]), *before, *after])
    head = ["experiment", "comparison", "margin", "difference by each tuning", "verdict", "interval"]
    return [*head, "verdict with tuning", "interval with tuning"], rows


def batch_scores() -> dict[str, dict[int, dict[str, float]]]:
    """Return by method and batch size of lars-batches the test accuracy with its interval, and the learning rate."""
    planned = read_json("results/lars-batches/plan.json")["variants"]
    scores: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for name, variant in sorted(read_json("results/lars-batches/metrics.json")["variants"].items()):
        method, _, batch = name.rpartition("-")
        rate = planned[name]["training"]["learning_rate"]
        scores[method][int(batch)] = {**variant["test"]["accuracy"], "learning_rate": rate}
    return {method: dict(sorted(by_batch.items())) for method, by_batch in scores.items()}


def accuracy_by_batch() -> Table:
    """Return a row for each batch size, a column for each method, of lars-batches."""
    scores = batch_scores()
    rows: dict[int, list[str]] = defaultdict(list)
    for by_batch in scores.values():
        for batch, score in by_batch.items():
            rows[batch].append(f"{interval(score, 4, sign=False)}, rate {score['learning_rate']:g}")
    return ["batch", *(f"`{method}`" for method in scores)], [[str(batch), *cells] for batch, cells in rows.items()]


def deletion() -> Table:
    measured: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in read_rows("results/studies/deletion/imdb/deletion.csv"):
        if row["level"] == "words":
            measured[int(row["removed"]), row["method"]].append((float(row["fall"]), float(row["accuracy"])))
    methods = list(dict.fromkeys(method for _, method in measured))
    rows = []
    for removed in sorted({removed for removed, _ in measured} - {0}):
        cells = [str(removed)]
        for method in methods:
            falls, accuracies = zip(*measured[removed, method], strict=True)
            cells.append(f"{mean(falls):.3f}; {mean(accuracies):.3f}")
        rows.append(cells)
    return ["words removed", *methods], rows


def deletion_verdicts() -> Table:
    """Return the verdict on attended and random words of each data set."""
    rows = []
    for data in ("imdb", "docstrings"):
        (comparison,) = (
            claim["measured"]
            for claim in read_json(f"results/studies/deletion/{data}/results.json")["claims"]
            if "equivalence_margin" in claim["measured"]
        )
        cells = [data, comparison["claim"], verdict(comparison["verdict"]), interval(comparison["interval"], 3)]
        rows.append([*cells, f"{comparison['equivalence_margin']:g}"])
    return ["data", "claim", "verdict", "difference in the fall", "margin"], rows


def reported(name: str) -> dict[str, Any]:
    """Return the newest report of cuda_ext/results/ that has a kernel, with its cases; parts/ has reports of one."""
    for path in sorted((ROOT / "cuda_ext/results").rglob("*.json"), key=lambda path: path.name, reverse=True):
        report = json.loads(path.read_text(encoding="utf-8"))
        if cases := [case for case in report["results"] if case["kernel"].split()[0] == name]:
            return {**report, "results": cases}
    raise KeyError(f"no kernel {name} in cuda_ext/results")


def kernel(name: str) -> Table:
    rows = []
    for case in reported(name)["results"]:
        ratio = f"{case['times_best_peer']:.2f}"
        cells = [", ".join([*case["kernel"].split()[1:], case["shape"]]), case["dtype"], f"{case['median_ms']:.4f}"]
        cells += [f"{case['share_of_floor']:.0%}", case["best_peer"], ratio, f"{case['relative_error']:.0e}"]
        rows.append(cells)
    return ["case", "dtype", "ms", "share of the floor", "best peer", "times as fast", "error"], rows


def speed_han() -> Table:
    rows = []
    # Of each batch the newest measurement.
    files = sorted((ROOT / "benchmarks/results").glob("*-nvidia-h200-han.json"))
    results = [result for file in files for result in json.loads(file.read_text(encoding="utf-8"))["results"]]
    for result in {result["batch"]: result for result in results}.values():
        own, peer = (f"{result['timed'][result[key]]['documents_a_second']:,.0f}" for key in ("best", "best_peer"))
        precision, name = result["best"].removeprefix("reread, "), result["best_peer"].removeprefix("CUDA graph, ")
        rows.append([str(result["batch"]), own, precision, peer, name, f"{result['times_best_peer']:.1f}"])
    return ["batch", "documents per second", "precision", "best peer", "its form, in a CUDA graph", "ratio"], rows


def speed_densenet() -> Table:
    rows = []
    for name in ("densenet-bc-100-12", "densenet-121"):
        for result in newest(f"nvidia-h200-{name}")["results"]:
            rows.append(
                [
                    result["network"],
                    str(result["batch"]),
                    re.sub("^this", "reread", result["variant"]),
                    f"{result['images_per_second']:,.0f}",
                    f"{result['low_quartile_ms']:.1f} to {result['high_quartile_ms']:.1f}",
                    f"{result['peak_memory_gib']:.1f}",
                ]
            )
    return ["network", "batch", "variant", "images per second", "quartiles, ms per step", "peak GiB"], rows


# Whose a kernel is, by what its name holds; else it is the project's own.
OWNERS = {
    "cuDNN": ("cudnn", "xmma", "convolve_common_engine"),
    "cuBLAS": ("cublas", "cutlass", "nvjet"),
    "PyTorch": ("at::native", "at_cuda_detail"),
}
KERNELS_SHOWN = 12


def profile(name: str) -> Table:
    """Return the longest kernels of a step, of the newest profile of benchmarks/results/ with that name."""
    measured = newest(f"profile-{name}")
    by_kernel: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0])
    for row in measured["kernels"]:
        for column, key in enumerate(("calls", "microseconds")):
            by_kernel[short_kernel(row["kernel"])][column] += row[key]
    whole = sum(microseconds for _, microseconds in by_kernel.values())
    ordered = sorted(by_kernel.items(), key=lambda item: -item[1][1])
    shown, others = ordered[:KERNELS_SHOWN], [counts for _, counts in ordered[KERNELS_SHOWN:]]
    lines = [(f"`{kernel}`", owner, *counts) for (kernel, owner), counts in shown]
    lines.append((f"{len(others)} others", "", *map(sum, zip(*others, strict=True))))
    rows = [[kernel, owner, f"{calls:g}", f"{us:,.0f}", f"{us / whole:.1%}"] for kernel, owner, calls, us in lines]
    step = measured["step"]["median_ms"] * 1e3
    return ["kernel", "of", "calls", "us", "share"], [
        *rows,
        ["the step, without the profiler", "", "", f"{step:,.0f}", ""],
    ]


def short_kernel(name: str) -> tuple[str, str]:
    """Return a kernel's own name, with the function that a general one of PyTorch's applies, and whose it is."""
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    path = re.match(r"[\w:]*", plain)[0]
    owner = next((owner for owner, words in OWNERS.items() if any(word in name for word in words)), "reread")
    own = path.rpartition("::")[2] or plain.partition(" ")[0]
    if owner == "cuDNN":
        kind = re.search("wgrad|dgrad|fprop", name)
        own = kind[0] if kind else "others"
    elif owner == "cuBLAS":
        own = "matrix products"
    elif owner == "PyTorch" and (
        applied := re.search(r"\w+(?:Functor|Ops|_functor|_kernel_cuda)\b", plain[len(path) :])
    ):
        own += f": {applied[0]}"
    return own, "CUB" if "cub::" in path else owner


def gpu_seconds() -> Table:
    """Return the seconds of a GPU that whole experiments took, with their tuning and their evaluation."""
    rows = []
    trips = [read_json(str(path)) for path in sorted((ROOT / "benchmarks/results").glob("*-experiments.json"))]
    for experiment in (experiment for trip in trips for experiment in trip["experiments"]):
        taken = [experiment["gpu_seconds"][stage] for stage in ("training", "evaluation")]
        cells = [f"`{experiment['experiment']}`", str(experiment["runs"]), str(experiment["runs_per_gpu"])]
        rows.append([*cells, *map(str, taken), f"{sum(taken) / experiment['runs']:.1f}"])
    return ["experiment", "runs", "runs at once", "training, s", "evaluation, s", "together per run, s"], rows


def speed_records() -> Table:
    """Return the recipes for 94 and 96 %, each with the mean of its seeds."""
    rows = []
    for file in Path("benchmarks/results").glob("*-speed-9[46]*.json"):
        record = read_json(file)
        # The files of peers have no recipe of their own.
        if "recipe" not in record:
            continue
        accuracy = {key: 100 * value for key, value in record["accuracy"].items()}
        rows.append(
            [
                f"{record['recipe']} %",
                {"sgd": "momentum", "muon": "Muon"}[record["training"]["optimizer"]["name"]],
                str(record["training"]["max_epochs"]),
                interval(accuracy, 2, sign=False),
                str(record["n"]),
                f"{record['seconds']['whole']:.2f}",
                file.name[: len("2026-11-29")],
            ]
        )
    headings = ["goal", "optimizer", "epochs", "test accuracy, %", "seeds", "seconds", "measured"]
    return headings, sorted(rows, key=lambda row: (row[0], float(row[-2])))


def speed_peers() -> Table:
    """Return the recipes for 94 % that were timed beside each other, each with the mean of its runs."""
    from reread.verdicts.statistics import mean_interval

    rows = []
    for file in sorted(Path("benchmarks/results").glob("*-speed-94-peers.json")):
        measured = read_json(file)
        for recipe in measured["recipes"]:
            name = f"[{recipe['name']}]({recipe['source']})" if "source" in recipe else recipe["name"]
            accuracy = interval(asdict(mean_interval([100 * share for share in recipe["accuracies"]])), 2, sign=False)
            seconds = interval(asdict(mean_interval(recipe["seconds"])), 2, sign=False)
            rows.append([gpu_of(measured), name, f"{accuracy} %", seconds, str(len(recipe["seconds"]))])
    return ["GPU", "recipe", "test accuracy", "seconds", "runs"], rows


def memory() -> Table:
    peaks: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for result in read_json("benchmarks/results/2026-11-29-nvidia-h200-memory.json")["results"]:
        peaks[result["network"], result["batch"]][result["variant"]] = result["peak_bytes"] / 2**30
    ways = ("this", "modules", "modules, checkpointed")
    rows = [[name, str(batch), *(f"{of[way]:.2f}" for way in ways)] for (name, batch), of in peaks.items()]
    return ["network", "batch", "reread, GiB", "modules, GiB", "modules, recomputed, GiB"], rows


def speed_capsules() -> Table:
    """Return the time of a training step of the capsule network on MNIST, the longest first."""
    results = read_json("benchmarks/results/2026-11-22-nvidia-h200-capsules.json")["results"]
    rows = []
    for result in sorted(results, key=lambda result: -result["median_ms"]):
        name = result["variant"].replace("plain", "plain PyTorch").replace("this", "reread")
        cells = [name, f"{result['median_ms']:.2f}", f"{result['times_plain']:.2f}", f"{result['peak_memory_gib']:.2f}"]
        rows.append(cells)
    return ["step", "ms", "times as fast", "peak GiB"], rows


def checkpoints() -> Table:
    """Return what a checkpoint per epoch of CIFAR-10 costs."""
    rows = []
    for name, result in read_json("benchmarks/results/2026-11-22-nvidia-h200-checkpoint.json")["results"].items():
        waited, epoch = result["medians"]["waited"], result["epoch"]
        cells = [name, f"{result['megabytes']:.1f}", f"{waited:.3f}", f"{epoch:.2f}", f"{100 * waited / epoch:.2f} %"]
        rows.append([*cells, f"{100 * result['difference']:.2f} %"])
    head = ["network, on one H200", "checkpoint, MB", "training waits, s", "epoch, s", "share"]
    return [*head, "epochs with checkpoints are longer by"], rows


def large_batch() -> Table:
    rows = [
        [
            str(run["processes"]),
            str(run["seed"]),
            f"{run['seconds']:.1f}",
            f"{run['peak_memory_bytes'] / 2**30:.1f}",
            f"{run['validation_accuracy']:.2%}",
            f"{run['test_accuracy']:.2%}",
        ]
        for run in read_json(SEVERAL_GPUS)["large_batch"]["runs"]
    ]
    return ["GPUs", "seed", "seconds", "peak GiB per GPU", "validation accuracy", "test accuracy"], rows


def speed_prediction() -> Table:
    rows = []
    for data in ("docstrings", "imdb"):
        for result in read_json(f"benchmarks/results/2026-11-21-prediction-{data}.json")["results"]:
            if result["span"] == "answer":
                rows.append(
                    [data, result["way"], str(result["batch"]), f"{result['documents_a_second']['median']:,.0f}"]
                )
    return ["data", "processes", "batch", "documents per second"], rows


def speed_serving() -> Table:
    rows = []
    measured = read_json("benchmarks/results/2026-11-22-serving.json")
    for way, result in measured["ways"].items():
        times = (f"{result['milliseconds'][name]:.1f} ms" for name in ("median", "p99"))
        load = f"{measured['load_before']:.1f}"
        rows.append([way, str(result["documents_per_request"]), f"{result['documents_per_second']:,.0f}", *times, load])
    return ["way", "documents per request", "documents per second", "median", "p99", "other load"], rows


def tracking_load() -> Table:
    measured = read_json("benchmarks/results/2026-11-22-tracking-load.json")
    names = ["workers", "seconds", "requests per second", "metrics per second", "median", "p99"]
    names += ["errors", "lost metrics", "other load"]
    row = [str(measured["workers"]), f"{measured['seconds']:.0f}"]
    row += [f"{measured[name]:,.0f}" for name in ("requests_per_second", "metrics_per_second")]
    row += [f"{measured['milliseconds'][name]:.0f} ms" for name in ("median", "p99")]
    return names, [[*row, str(measured["errors"]), str(measured["lost_metrics"]), f"{measured['load_before']:.1f}"]]


def speed_preprocessing() -> Table:
    ways = read_json("benchmarks/results/2026-11-21-preprocessing-imdb.json")["ways"]
    rows = [
        [way, f"{speeds['megabytes_a_second']['median']:.1f}", f"{speeds['megabytes_a_core_second']['median']:.1f}"]
        for way, speeds in ways.items()
    ]
    return ["program", "MB per second", "MB per second and core"], rows


def markdown(table: Table | str) -> str:
    if isinstance(table, str):
        return table
    header, rows = table
    lines = [header, ["---"] * len(header), *rows]
    assert all(len(line) == len(header) for line in lines)
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def with_tables(text: str) -> str:
    """Return a page with each marked region replaced by its table."""
    return REGION.sub(lambda match: match[1] + markdown(table_of(match[2])) + match[4], text)


def table_of(name: str) -> Table | str:
    """Return the table of a region."""
    function, _, argument = name.partition(":")
    return BY_NAME[function](argument) if argument else globals()[function.replace("-", "_")]()


BY_NAME = {
    "arms": arms,
    "command-claims": command_claims,
    "timings": timings,
    "kernel": kernel,
    "profile": profile,
    "verdicts": verdicts,
    "accuracies": accuracies,
    "costs": costs,
    "claims": claims_of,
    "error-rates": error_rates,
}


def main(arguments: Iterable[str]) -> int:
    check = "--check" in arguments
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    # All are made before one is written.
    different = {page: made for page, text in texts.items() if (made := with_tables(text)) != text}
    for page, made in different.items():
        if check:
            text = texts[page]
            name = str(page.relative_to(ROOT))
            changes = difflib.unified_diff(text.splitlines(), made.splitlines(), name, "generated", lineterm="", n=0)
            print("\n".join(changes))
        else:
            page.write_text(made, encoding="utf-8")
    if check and different:
        print("error: tables differ from results/; run: python docs/tables.py", file=sys.stderr)
    return int(check and bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
