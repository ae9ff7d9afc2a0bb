"""The words on MLflow's pages: who ran what, from which source, with which result, and where the report is.

MLflow shows the tags that begin with ``mlflow.`` in places of their own: user, source, commit and description. The
result of a variant is a tag as well, so that one column has the mean with its interval.
"""

import contextlib
import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread.storage.files import read_json
from reread.storage.job import Job

NOTE = "mlflow.note.content"
RESULT, VERDICT = "result", "verdict"
# What a run is on the pages of an experiment: "variant" or "baseline" in the table, "seed" in the charts. Runs with
# other settings than the experiment's file have none, unless a report has them; those that a report leaves out lose it.
ROLE, SEED = "role", "seed"
METRICS, VERDICTS, PLAN, PAGE = "metrics.json", "verdicts.json", "plan.json", "report.html"


def registered_name(data: str) -> str:
    """Return the name of a data set's registered model."""
    return f"reread-{data}"


def origin(command: str, about: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the tags of who made a run and how: user, the command that makes it again, and the commit."""
    tags = {"mlflow.source.name": command, "mlflow.source.type": "LOCAL"}
    # A container may have a user without a name.
    with contextlib.suppress(OSError, KeyError):
        tags["mlflow.user"] = getpass.getuser()
    commit = (about or {}).get("git.commit")
    if commit and commit != "none":
        tags["mlflow.source.git.commit"] = commit
    return tags


def command_of(job: Job, seed: bool) -> str:
    """Return the command that makes the run of a job again, or all seeds of its variant."""
    command = f"reread train --experiment {job.experiment} --variant {job.variant}"
    return f"{command} --seed {job.seed}" if seed else command


def seed_note(job: Job) -> str:
    """Return the description of the run of one seed."""
    fold = (
        f" Cross-validation, fold {job.fold} of {job.folds}: that fold is the test split of this run, and each "
        "row is tested by one run of the seed."
        if job.fold is not None
        else ""
    )
    return f"Variant **{job.variant}** on {job.data}, seed {job.seed}.{fold} Network: `{job.model}`."


def baseline_tags(score: float | None) -> dict[str, str]:
    """Return the tags of a baseline's run: it has one result and no interval."""
    from reread.evaluation.page import number

    return {ROLE: "baseline", RESULT: number(score), VERDICT: "–"}


class Results:
    """The results in an experiment's report, as MLflow's pages show them. ``directory``: the report's."""

    def __init__(self, directory: Path) -> None:
        self.metrics = read_json(directory / METRICS)
        self.plan = read_json(directory / PLAN)
        self.verdicts = read_json(directory / VERDICTS)["verdicts"]

    @property
    def runs(self) -> set[tuple[str, str]]:
        """(variant, run key) of the report's runs, of cross-validation those of all folds."""
        return {
            (name, key)
            for name, about in self.metrics["variants"].items()
            for seed in about["seeds"].values()
            for key in seed.get("folds", [seed["run_key"]])
        }

    @property
    def split(self) -> str:
        return str(self.metrics["evaluated_on"])

    @property
    def scores(self) -> list[str]:
        """The metrics that the variants are judged by, each once."""
        return list(dict.fromkeys(about["score"] for about in self.metrics["variants"].values()))

    def note(self, links: str) -> str:
        """Return the description of the experiment: its title and its claims with their verdicts."""
        lines = [f"- **{verdict['verdict']}**: {verdict['claim']} {verdict['sentence']}" for verdict in self.verdicts]
        title = self.plan["title"]
        return "\n".join(
            [
                f"{title if title.endswith(('?', '!', '.')) else f'{title}.'} {links}",
                "",
                *(lines or ["No comparison is judged."]),
            ]
        )

    def model_link(self, variant: str) -> str:
        """Return a link to the registered models of a variant's data; an experiment that tunes, or is cross-validated,
        registers none."""
        if self.plan.get("folds"):
            return ""
        data = self.metrics["variants"][variant]["data"]
        return f", [models of {data}](#/models/{registered_name(data)})" if self.split == "test" else ""

    def variant_tags(self, variant: str, links: str) -> dict[str, str]:
        """Return the tags of a variant's run: its result with the interval, and the verdicts on it."""
        from reread.evaluation.page import interval, number
        from reread.goals import metric_title

        about = self.metrics["variants"][variant]
        result = about[self.split][about["score"]]
        shown = number(result["mean"]) if result["low"] is None else f"{number(result['mean'])} {interval(result)}"
        judged = [
            f"{verdict['verdict']} (against {verdict['control']})"
            for verdict in self.verdicts
            if verdict["treatment"] == variant
        ]
        folds = self.plan.get("folds")
        rows = (
            f"on all rows, each by the {self.split} split of one of {folds} folds,"
            if folds
            else f"on the {self.split} split"
        )
        note = (
            f"**{variant}** on {about['data']}: {metric_title(about['score'])} {shown} {rows} over "
            f"{about['n']} {'seed' if about['n'] == 1 else 'seeds'}, {about['parameters']:,} parameters. "
            f"{'; '.join(judged)}\n\n{links}\n\nThe duration is that of its seeds together."
        )
        return {ROLE: "variant", RESULT: shown, VERDICT: "; ".join(judged) or "–", NOTE: note}
