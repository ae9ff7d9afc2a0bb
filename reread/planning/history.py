"""Since when an experiment's file names what its verdicts are decided by.

Its form is the comparisons (treatment, control, metric, margin), the margin and alpha of all, the seeds, the split and
the second look. The wording of a claim, its source and its name are no part of it, and neither are the settings of
variants: each plan with other settings has an entry of its own in the ledger. The form is fixed by the oldest commit
since which all commits of the file have the same one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yaml import YAMLError

from reread.planning.experiment import EXPERIMENTS, expanded
from reread.planning.plan import DECIDED_BY, Plan
from reread.planning.schema import ComparisonGroup, parse_yaml, read_yaml
from reread.planning.validation import validate
from reread.storage.errors import ROOT, InputError
from reread.storage.git import Commit, commits, file_at
from reread.verdicts import rule
from reread.verdicts.reads import Fixed

NUMBERS = ("equivalence_margin", "alpha", "evaluate_on", "metric", "withhold_untuned", "second_look", "seeds", "folds")
RULE_FILE = Path(rule.__file__)
# The line of reread/verdicts/rule.py that has the version of the rule.
VERSION_LINE = "^VERSION = "


def fixed(plan: Plan) -> Fixed | None:
    """Return the commits that fixed a plan's form and the rule.

    None where it is not known: without git or its whole history, with changes that are not committed, and of a plan
    with selected variants or seeds or with overrides, which no file has.
    """
    if plan.partial:
        return None
    form = form_since(plan.name)
    versions = commits(ROOT, [RULE_FILE.relative_to(ROOT)], VERSION_LINE)
    return Fixed(form, versions[0]) if form and versions else None


def form_since(name: str, root: Path = Path()) -> Commit | None:
    """Return the oldest commit since which experiments/NAME.yaml has had its present form; None where not known."""
    own = EXPERIMENTS / f"{name}.yaml"
    if not (root / own).is_file():
        return None
    other = read_yaml(root / own).get("comparisons")
    paths = [own, EXPERIMENTS / f"{other}.yaml"] if isinstance(other, str) else [own]
    since = None
    now = None
    for commit in commits(root, paths) or ():
        form = form_at(root, commit, own)
        now = form if since is None else now
        if form is None or form != now:
            break
        since = commit
    return since


def form_at(root: Path, commit: Commit, path: Path) -> dict[str, Any] | None:
    """Return the form that an experiment's file has in a commit; None where it has none that can be read."""
    content = _read(root, commit, path)
    if content is None:
        return None
    form = {name: content.get(name) for name in NUMBERS}
    comparisons = content.get("comparisons")
    if isinstance(comparisons, str):
        # Of another experiment's it has those of its own variants.
        form["variants"] = sorted(content.get("variants") or ())
        comparisons = (_read(root, commit, EXPERIMENTS / f"{comparisons}.yaml") or {}).get("comparisons")
    try:
        groups = validate(list[ComparisonGroup], comparisons or [], str(path))
        every = list(expanded(groups, str(path)))
    except InputError:
        return None
    return {**form, "comparisons": [{name: comparison.get(name) for name in DECIDED_BY} for comparison in every]}


def _read(root: Path, commit: Commit, path: Path) -> Mapping[str, Any] | None:
    text = file_at(root, commit.sha, path)
    try:
        content = None if text is None else parse_yaml(text)
    except (ValueError, YAMLError, RecursionError):
        return None
    return content if isinstance(content, Mapping) else None
