"""The pipeline in this process, without its servers: what a study reads of an experiment."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reread.evaluation.records import RunRecord
from reread.evaluation.report import evaluate_experiment
from reread.evaluation.run import evaluate_run
from reread.planning.plan import Plan
from reread.planning.resolve import make_plan
from reread.preprocessing.prepare import prepare
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import TrainingJob
from tests.reads import every_test_split


def run_pipeline(root: Path, experiment: str, overrides: Sequence[str] = ()) -> Plan:
    """Prepare, train and evaluate an experiment of ``root``, a folder with data/, params.yaml and experiments/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        plan = make_plan(experiment, overrides=overrides)
        # Tests use the plan from other folders.
        folders = {name: getattr(plan.environment, name).resolve() for name in ("runs", "prepared", "reports")}
        plan = replace(plan, environment=plan.environment.model_copy(update=folders))
        for about in plan.preparations().values():
            prepare(about["data"], about["settings"], prepared_root=folders["prepared"])
        records = []
        for job in plan.jobs():
            job.write()
            read = TrainingJob.read(job.file)
            run(read, job.to_json(), Progress(read, events=None))
            places = (job.run_directory, job.prepared)
            with every_test_split():
                evaluation = evaluate_run(*places, plan.splits)
            records.append(RunRecord(job.variant, job.data, job.seed, *places, evaluation))
        with every_test_split():
            evaluate_experiment(plan.to_json(), records, {}, plan.report_directory, record=plan.record())
    return plan
