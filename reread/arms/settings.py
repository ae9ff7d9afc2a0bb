"""Claim files whose scores are made by commands: `reread claim`.

arms:
  control:   {git: main,    run: "python train.py --seed {seed} --out {out}"}
  treatment: {git: my-idea, run: "python train.py --seed {seed} --out {out}"}
metric: accuracy        # of {out}/metrics.json, or of the items of {out}/items.csv
margin: 0.005
seeds: 6

What stands above ``arms`` holds for all of them. The claims are named as in any claim file (reread.planning.claims).
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reread.planning.claims import ClaimFile, filled, is_claim_file, read_claim_file, resolve
from reread.storage.errors import InputError, nearest, refuse_unknown
from reread.verdicts.scores import Claim, Scores
from reread.verdicts.seeds import few_seeds, least_seeds, refuse_further_seeds

SEED, OUT, FOLDER = PLACEHOLDERS = ("seed", "out", "folder")
# {name}; {{name}} is {name} of the shell, and ${NAME} its own.
PLACEHOLDER = re.compile(r"\{\{(?P<kept>\w+)\}\}|(?<!\$)\{(?P<name>\w+)\}")
DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|seconds?|min|minutes?|h|hours?|d|days?)")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MADE_HERE = ("scores", "format", "columns")


@dataclass(frozen=True)
class Arm:
    """How the scores of an arm are made; None: as above ``arms``, or by default.

    run: the command. git: the revision that it runs in, of ``repository``, a path or an address. folder: where it runs:
    inside the revision or, without git, from the folder of the claim file. sources, lock, data: files, folders or
    patterns, from the folder of the claim file, whose digests belong to the key of a run. retries: after a failure.
    time_limit: of one attempt, in seconds or as ``10 min``. gpu: whether it has a GPU of its own. resumes: whether the
    command goes on from what an unfinished run left in {out}.
    """

    run: str | None = None
    git: str | None = None
    repository: str | None = None
    folder: str | None = None
    sources: str | list[str] | None = None
    lock: str | list[str] | None = None
    data: str | list[str] | None = None
    retries: int | None = None
    time_limit: float | str | None = None
    gpu: bool | None = None
    resumes: bool | None = None

    @property
    def seconds(self) -> float | None:
        """The time limit of an attempt in seconds."""
        return None if self.time_limit is None else seconds_of(self.time_limit)


@dataclass(frozen=True)
class ArmsFile(ClaimFile, Arm):
    """A claim file with arms. seeds: how many, from 0, or a list of them."""

    arms: dict[str, Arm] | None = None
    seeds: int | list[int] | None = None

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds or []

    def resolved_arms(self) -> dict[str, Arm]:
        """Return each arm with what stands above the arms filled in."""
        return {name: filled(arm, self) for name, arm in (self.arms or {}).items()}


def read_arms_file(path: Path) -> ArmsFile:
    """Read a claim file with arms; InputError names the first that is wrong, before anything runs."""
    if not is_claim_file(path.name):
        raise InputError(f"{path} is no claim file: give a YAML file")
    given = read_claim_file(path, ArmsFile)
    where = path.name
    if not given.arms:
        raise InputError(f"{where} has no arms: write `arms: {{control: {{run: COMMAND}}, treatment: ...}}`")
    for name in MADE_HERE:
        if getattr(given, name):
            raise InputError(f"{where} has {name}, and its arms make the scores: remove {name}, or judge them instead")
    if not given.seed_list or min(given.seed_list) < 0 or len({*given.seed_list}) < len(given.seed_list):
        raise InputError(f"{where}: seeds is {given.seeds}: give how many, such as 6, or a list without repeats")
    for name, arm in given.resolved_arms().items():
        refuse_unusable(arm, f"{where}.arms.{name}")
    claims_of(given)
    return given


def refuse_unusable(arm: Arm, where: str) -> None:
    """Raise InputError for an arm that cannot be run, or whose seeds would all be the same run."""
    if not arm.run or not arm.run.strip():
        raise InputError(f"{where} has no command: write run: COMMAND")
    names = [match["name"] for match in PLACEHOLDER.finditer(arm.run) if match["name"]]
    for name in names:
        if name not in PLACEHOLDERS:
            raise InputError(
                f"{where}.run has the unknown placeholder {{{name}}}: {nearest(name, PLACEHOLDERS)} "
                f"(braces of the shell are written {{{{{name}}}}})"
            )
    if SEED not in names:
        raise InputError(f"{where}.run has no {{seed}}, so that every seed would be the same run: pass it on")
    if OUT not in names:
        raise InputError(f"{where}.run has no {{out}}, the folder of its metrics.json or items.csv: pass it on")
    if arm.retries is not None and arm.retries < 0:
        raise InputError(f"{where}.retries is {arm.retries}: give 0 or more")
    if arm.seconds is not None and arm.seconds <= 0:
        raise InputError(f"{where}.time_limit is {arm.time_limit}: give more than 0")
    if arm.git is None and arm.repository is not None:
        raise InputError(f"{where} has a repository and no revision: write git: REVISION")
    if arm.git is None and arm.sources is None:
        raise InputError(
            f"{where} has neither git nor sources, so that a change of its code would go unseen: write git: REVISION, "
            "or sources: [FILE, ...] ([] if it has none)"
        )


def seconds_of(limit: float | str) -> float:
    """Return a time limit in seconds: a number of them, or a text such as ``10 min``."""
    if isinstance(limit, int | float):
        return float(limit)
    match = DURATION.fullmatch(limit.strip())
    if match is None:
        raise InputError(f"time_limit is '{limit}': give seconds, or a time such as 90 s, 10 min or 2 h")
    return float(match[1]) * UNITS[match[2][0]]


def claims_of(given: ArmsFile) -> list[Claim]:
    """Return the claims as they will be judged; InputError for an arm, metric or margin that is missing."""
    arms = given.arms or {}

    def no_scores_yet(metric: str | None) -> Scores:
        if metric is None:
            raise InputError("no metric is named: write metric: NAME, of {out}/metrics.json or {out}/items.csv")
        return Scores(metric, {arm: {} for arm in arms})

    claims = resolve(given, no_scores_yet)
    for claim in claims:
        sides = [claim.treatment] if claim.reference is not None else [claim.treatment, claim.control]
        refuse_unknown(sides, arms, "the arms")
    return claims


def metrics_of(given: ArmsFile) -> tuple[str, ...]:
    """Return the metrics of the claims, each once."""
    return tuple(dict.fromkeys(claim.metric for claim in claims_of(given)))


def undecidable(given: ArmsFile) -> list[str]:
    """Return a line where so few seeds can reach no verdict, or no difference, whatever they measure.

    InputError for one seed, by which nothing is judged, and for more than a second look declares.
    """
    refuse_further_seeds("an arm", len(given.seed_list), given.second_look, "a claim")
    claims, number = claims_of(given), len(given.seed_list)
    alpha = given.alpha if given.second_look is None else given.alpha / 2
    lines = []
    for one_figure in (False, True):
        named = [claim.name for claim in claims if (claim.paired or claim.reference is not None) == one_figure]
        if named and number == 1:
            needed = least_seeds(alpha, len(claims), one_figure=one_figure)
            raise InputError(f"one seed has no spread, and a difference needs {needed} of each arm: give more `seeds`")
        names = ", ".join(named) if len(named) < len(claims) else ""
        if named and (line := few_seeds(number, alpha, len(claims), one_figure, "claim", "arm", names)):
            lines.append(line)
    return lines


def command_of(arm: Arm, seed: int, out: Path, folder: Path) -> str:
    """Return the command of a seed for the shell, with the paths quoted."""
    values = {SEED: str(seed), OUT: shlex.quote(str(out)), FOLDER: shlex.quote(str(folder))}
    return PLACEHOLDER.sub(
        lambda match: f"{{{match['kept']}}}" if match["kept"] else values[match["name"]], arm.run or ""
    )


def listed(paths: str | Sequence[str] | None) -> list[str]:
    """Return paths as a list, whether one or several are written."""
    return [paths] if isinstance(paths, str) else list(paths or ())
