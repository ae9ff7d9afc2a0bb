"""The results of an experiment on Prefect's pages: the table of variants, the verdicts, and links to the report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from reread.evaluation.page import interval, number
from reread.goals import metric_title
from reread.planning.plan import PLAN
from reread.storage.files import read_json
from reread.tracking.runs import report_page
from tasks.progress import artifact_key, in_outermost_flow, log


def show_results(report: Path) -> None:
    """Log the verdicts of the report in a folder, and attach its results to the flow run that was entered first.

    Does nothing in a subflow, whose caller shows them, and outside a flow run.
    """
    if not in_outermost_flow():
        return
    metrics, plan = read_json(report / "metrics.json"), read_json(report / PLAN)
    verdicts = read_json(report / "verdicts.json")["verdicts"]
    name = report.name
    for verdict in verdicts:
        log(f"{verdict['verdict']}: {verdict['claim']} {verdict['sentence']}")
    page, file = report_page(plan["name"]) if not plan["partial"] else None, (report / "report.html").resolve()
    log(f"report: {file}")
    if page:
        log(f"report in MLflow, while `reread ui` runs: {page}")
    split = metrics["evaluated_on"]
    where = f"the {split} split" + (f" of each of {metrics['folds']} folds" if "folds" in metrics else "")
    create_table_artifact(
        table=[*(_row(variant, about, split) for variant, about in metrics["variants"].items()), *_baselines(metrics)],
        key=artifact_key(name, "variants"),
        description=f"Variants and baselines of {name} on {where}: mean and 95 % interval over seeds",
    )
    lines = [
        f"- **{verdict['verdict']}**: {verdict['claim']} {verdict['sentence']}"
        + (f" ({verdict['source']})" if verdict["source"] else "")
        for verdict in verdicts
    ]
    judged = lines or ["No comparison is judged in this experiment."]
    create_markdown_artifact(
        markdown="\n".join([f"# {plan['title']}", "", *judged, "", f"Report: `{file}`"]),
        key=artifact_key(name, "verdicts"),
        description=f"Verdicts of {name}",
    )
    where = f"The report in MLflow, while `reread ui` runs. Its file: {file}" if page else f"The report: {file}"
    create_link_artifact(
        link=page or file.as_uri(),
        link_text=f"Report of {name}",
        key=artifact_key(name, "report"),
        description=where,
    )


def _row(variant: str, about: Mapping[str, Any], split: str) -> dict[str, Any]:
    score = about["score"]
    result = about[split][score]
    return {
        "variant": variant,
        "data": about["data"],
        metric_title(score): number(result["mean"]),
        "95 % interval": interval(result) if result["low"] is not None else "one seed: none",
        "seeds": about["n"],
        "parameters": f"{about['parameters']:,}",
    }


def _baselines(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the baselines, by the score of the variants on the same data."""
    scores = {about["data"]: about["score"] for about in metrics["variants"].values()}
    return [
        {
            "variant": baseline["name"],
            "data": data,
            metric_title(scores[data]): number(baseline[metrics["evaluated_on"]][scores[data]]),
            "95 % interval": "baseline: none",
            "seeds": "–",
            "parameters": f"{baseline['parameters']:,}",
        }
        for data, baselines in metrics["baselines"].items()
        for baseline in baselines.values()
    ]
