"""Flow: evaluate what is trained of an experiment and write its report."""

from pathlib import Path

from flows.definition import project_flow
from flows.parameters import GivenPlan
from flows.preprocess import preprocess
from reread.planning.search import with_known_trials
from tasks.show import show_results


@project_flow("evaluate")
def evaluate(plan: GivenPlan, prepared: dict[str, str] | None = None, so_far: bool = False) -> str:
    """Evaluate the finished runs of a plan; return the folder of its report.

    prepared: folders by prepared key, where they are known. so_far: some runs may be missing, which the report then
    says.
    """
    from tasks.evaluate import evaluate as evaluate_plan  # torch and scikit-learn take two seconds to import

    # The plan was made before its trials were trained.
    chosen = with_known_trials(plan)
    report = evaluate_plan(chosen, preprocess(plan=chosen) if prepared is None else prepared, so_far)
    show_results(Path(report))
    return report
