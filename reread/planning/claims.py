"""Claims on scores from elsewhere: a YAML file, or the options of `reread judge`, to what reread.verdicts.scores
judges.

claim: Swish is better than ReLU.         # in words; default: {treatment} is better than {control}.
source: Ramachandran et al. 2017
treatment: swish                          # an arm, or a list of arms; each is a claim
control: relu                             # an arm; or reference: 0.9549, a published figure
metric: accuracy
margin: 0.005                             # in the unit of the score; 5% of ratios
lower_is_better: false
paired: false                             # equal seeds are pairs: one unit, measured under both arms
alpha: 0.05

Several claims are a list under ``claims``, each with these names; what stands above the list holds for all of them.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import yaml
from pydantic import Field

from reread.importers import ADDRESS
from reread.planning.schema import parse_yaml
from reread.planning.validation import validate
from reread.storage.errors import InputError, nearest
from reread.verdicts.document import Provenance
from reread.verdicts.scores import LARGEST, Claim, Scores

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SUFFIXES = (".yaml", ".yml")
TREATMENT, CONTROL = "treatment", "control"
PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?%")
# The words of a name: of val_loss, valLoss and VALLoss alike.
WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Of a metric with such a word it must be said which direction is better.
LOWER = re.compile(
    "[a-z]*(loss|losses|err|error|errors|entropy|perplexity|mse|msle|mae|mape|time|clock)"
    "|brier|regret|nll|ppl|ce|bce|ece|mce|xent|kl|kld|crps|divergence|distance|dist|bits|nats|bp[bcd]"
    "|wer|cer|ter|eer|fid|kid|lpips|false|fpr|fnr|failures?|misses|violations|neg|negative|rank|gap|std|deviation|variance"
    "|latency|latencies|duration|elapsed|delay|ms|secs?|seconds|minutes|hours|memory|cost|energy|flops|steps|epochs"
)
MARGIN_IS = "the smallest difference that matters, in the unit of the score, or a percentage of ratios such as 5%"


@dataclass(frozen=True)
class Named:
    """One claim as people write it; None: from above the list, or by default.

    In ``name`` and ``claim``, {treatment} and {control} are replaced by the names of the two.
    """

    name: str | None = None
    claim: str | None = None
    source: str | None = None
    treatment: str | list[str] | None = None
    control: str | None = None
    reference: float | None = None
    metric: str | None = None
    margin: float | str | None = None
    lower_is_better: bool | None = None
    paired: bool | None = None


@dataclass(frozen=True)
class ClaimFile(Named):
    """A claim file. scores: the files of scores, as ``[ARM=]PATH``. format, columns: of reread.importers.rows.Reader.

    second_look: the seeds per arm in the end, of two looks that were declared. earlier_reads: how often the test split
    had been read before with other settings. cautions: what a reader of the verdict should know.
    """

    scores: str | list[str] | None = None
    format: str | None = None
    columns: dict[str, str] | None = None
    alpha: float = 0.05
    second_look: Annotated[int, Field(ge=2, le=10_000)] | None = None
    earlier_reads: Annotated[int, Field(ge=0)] = 0
    cautions: list[str] | None = None
    provenance: Provenance = dataclasses.field(default_factory=Provenance)
    claims: list[Named] | None = None


Kind = TypeVar("Kind", bound=ClaimFile)
Part = TypeVar("Part", bound="DataclassInstance")


def is_claim_file(text: str) -> bool:
    return text.lower().endswith(SUFFIXES)


def read_claim_file(path: Path, kind: type[Kind]) -> Kind:
    """Read a claim file as ``kind``; InputError names what is wrong in it. Paths of scores are as from the file's
    folder."""
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: give a claim file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, Mapping):
        raise InputError(f"{path} is no mapping: write `treatment: NAME`, `control: NAME` and `margin: NUMBER`")
    if "arms" in content and not hasattr(kind, "arms"):
        raise InputError(f"{path} has arms, whose commands make the scores: give it to `reread claim`")
    given = checked(dict(content), path.name, kind)
    scores = [given.scores] if isinstance(given.scores, str) else given.scores or []
    return replace(given, scores=[beside(path, text) for text in scores])


def beside(claim_file: Path, text: str) -> str:
    """Return ``[ARM=]PATH`` with its path from the folder of the claim file."""
    folder = claim_file.parent
    arm, equals, path = text.partition("=")
    if ADDRESS.match(path if equals and "/" not in arm else text):
        return text
    # As on the command line, a path may contain "=".
    named = equals and "/" not in arm and not (folder / text).exists()
    return f"{arm}={folder / path}" if named else str(folder / text)


def checked(values: Mapping[str, Any], where: str, kind: type[Kind]) -> Kind:
    """Return a claim file's content as ``kind``; InputError names the first wrong name or value."""
    content: Kind = validate(kind, values, where)
    if not 0 < content.alpha < 1:
        raise InputError(f"{where}: alpha is {content.alpha:g}: give the rate of errors, such as 0.05")
    if any(named.treatment == [] for named in (content, *(content.claims or ()))):
        raise InputError(f"{where}: treatment is an empty list: name an arm, or leave it out")
    return content


# The scores of a metric; of None those of the only one there is.
ScoresOf = Callable[[str | None], Scores]


def filled(own: Part, above: object) -> Part:
    """Return a part of a claim file with what stands above it for each name that it leaves out."""
    return replace(own, **{name: getattr(above, name) for name, value in vars(own).items() if value is None})


def resolve(given: ClaimFile, scores_of: ScoresOf) -> list[Claim]:
    """Return the claims with their names, arms, margins and directions; InputError says what is missing."""
    if given.claims is not None and not given.claims:
        raise InputError("claims is an empty list: name one")
    claims: list[Claim] = []
    for written in given.claims or [Named()]:
        named = filled(written, given)
        scores = scores_of(named.metric)
        treatments: list[str | None]
        treatments = [*named.treatment] if isinstance(named.treatment, list) else [named.treatment]
        if named.treatment is None and named.control is not None:
            # Each other arm is compared with the control that is named.
            treatments = [arm for arm in scores.arms if arm != named.control] or [None]
        claims += [resolve_one(named, treatment, len(treatments), scores) for treatment in treatments]
    names = [claim.name for claim in claims]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two claims are named '{twice}': give each its own name")
    return claims


def resolve_one(named: Named, treatment: str | None, count: int, scores: Scores) -> Claim:
    """Return one claim about ``treatment``, one of ``count`` of these names."""
    treatment, control = arms_of(named, treatment, scores)
    if named.margin is None:
        raise InputError(f"no margin is named: give --margin (margin in a claim file), {MARGIN_IS}")
    margin, ratio = margin_of(named.margin)
    lower = named.lower_is_better if named.lower_is_better is not None else scores.lower_is_better
    if lower is None and any(LOWER.fullmatch(word.lower()) for word in WORD.findall(scores.metric)):
        raise InputError(
            f"whether less of '{scores.metric}' is better is not said: give --lower-is-better or --higher-is-better "
            "(lower_is_better in a claim file)"
        )
    name, text = named.name or "{treatment} against {control}", named.claim or "{treatment} is better than {control}."
    for words in (name, text):
        if count > 1 and "{treatment}" not in words:
            raise InputError(
                f"'{words}' would stand for each of {count} treatments: write {{treatment}} in it for the arm's name"
            )
    name, text = (words.replace("{treatment}", treatment).replace("{control}", control) for words in (name, text))
    return Claim(
        name,
        text,
        named.source or "",
        treatment,
        control,
        scores.metric,
        margin,
        not lower,
        ratio,
        bool(named.paired),
        named.reference,
    )


def arms_of(named: Named, treatment: str | None, scores: Scores) -> tuple[str, str]:
    """Return treatment and control: those named, the other of two arms, or the arms that are called so."""
    arms = list(scores.arms)
    if named.reference is not None:
        if named.control in arms:
            raise InputError(
                f"control is the arm '{named.control}', and a reference is given too: leave out one of them"
            )
        if treatment is None and len(arms) == 1:
            treatment = arms[0]
        if treatment is not None:
            return treatment, named.control or f"{named.reference:g}"
    elif treatment is None and named.control is None and {TREATMENT, CONTROL} <= set(arms):
        return TREATMENT, CONTROL
    elif treatment is not None and named.control is None and len(arms) == 2 and treatment in arms:
        return treatment, next(arm for arm in arms if arm != treatment)
    elif treatment is not None and named.control is not None:
        return treatment, named.control
    if len(arms) == 1 and named.reference is None:
        raise InputError(
            f"{scores.metric} has only the arm '{arms[0]}': give a second one, or --reference FIGURE "
            "(reference in a claim file)"
        )
    unknown = next((arm for arm in (treatment, named.control) if arm is not None and arm not in arms), None)
    if unknown is not None:
        raise InputError(f"there is no arm '{unknown}' with {scores.metric}: {nearest(unknown, arms)}")
    names = "--treatment" if named.reference is not None else "--treatment and --control"
    margin = "" if named.margin is not None else f", and --margin, {MARGIN_IS}"
    raise InputError(f"the claim is not named: give {names}, of the arms {', '.join(arms)} of {scores.metric}{margin}")


def margin_of(margin: float | str) -> tuple[float, bool]:
    """Return the margin as the rule takes it, and whether it is one of ratios: 5% is the logarithm of 1.05."""
    try:
        value, ratio = float(margin), False
    except ValueError:
        percent = PERCENT.fullmatch(str(margin).strip())
        if percent is None:
            raise InputError(f"margin is '{margin}': give a number, or a percentage such as 5%") from None
        value, ratio = math.log1p(float(percent[1]) / 100), True
    if not 0 < value <= LARGEST:
        raise InputError(f"margin is {margin}: give one above 0, {MARGIN_IS}")
    return value, ratio


def options(values: Mapping[str, Any]) -> ClaimFile:
    """Return a claim file's content from options that were given."""
    return checked({name: value for name, value in values.items() if value is not None}, "the options", ClaimFile)


def refuse_options(values: Mapping[str, Any], path: str) -> None:
    """Raise InputError where options say what the claim file is for."""
    given = next((name for name, value in values.items() if value is not None), None)
    if given is not None:
        option = {"columns": "column", "format": "from"}.get(given, given.replace("_", "-"))
        raise InputError(f"--{option} and {path} are both given: write {given} in the file")


def score_files(given: ClaimFile, texts: Sequence[str]) -> list[str]:
    """Return the files of scores: those of the command line, else those of the claim file."""
    files = list(texts) or ([given.scores] if isinstance(given.scores, str) else given.scores or [])
    if not files:
        raise InputError("no scores are given: name a file of scores, or `scores` in the claim file")
    return files
