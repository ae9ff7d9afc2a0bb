"""verdict.json: verdicts with all that is needed to compute them again, in a versioned JSON schema.

    python -m reread.verdicts.document > docs/verdict.schema.json

The claims are those of verdicts.json of a published experiment, and ``reread verify`` computes them again.
"""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reread.storage.errors import InputError
from reread.verdicts.items import Items
from reread.verdicts.rule import PAIRS, RULE, VERSION, Side, Verdict
from reread.verdicts.scores import LARGEST, OVER_ITEMS, OVER_SEEDS, Claim, Scores, as_ratio, measure
from reread.verdicts.verify import judge_again, unlike

SCHEMA_VERSION = 1
FILE = "verdict.json"
SCHEMA_TITLE = "A verdict of reread"
Score = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Part(BaseModel):
    """A part of the document: its names are fixed, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Provenance(Part):
    """Who and what made the scores, as far as it is known."""

    ran_by: str | None = Field(None, description="Who ran it: a person, a team or a program.")
    date: str | None = Field(None, description="When it ran, ISO 8601.")
    command: str | None = Field(None, description="The command that makes the scores again.")
    source: str | None = Field(None, description="The source that ran: repository and commit, or a digest.")
    data: str | None = Field(None, description="The data: name, version or digest.")
    results: str | None = Field(None, description="Where the results are, or their digest.")
    hardware: str | None = Field(None, description="The machine and its accelerator.")


class Input(Part):
    """A source of scores."""

    file: str = Field(description="The path or address as it was given.")
    arm: str | None = Field(description="The arm that was named for the whole file; null: the file names the arms.")
    format: str = Field(description="The format it was read as.")
    sha256: Sha256 | None = Field(description="Of the file, or of a folder's files; null for a server.")


class Ends(Part):
    """An estimate with the ends of its interval; an end is null where so few seeds have none."""

    mean: float | None
    low: float | None
    high: float | None


class Ratio(Ends):
    """Margin, difference and interval as ratios, of a claim whose scores are logarithms; above 1 the treatment is
    better."""

    margin: float


class Seeds(Part):
    """The seeds of both sides; a published figure has none."""

    treatment: list[int | str]
    control: list[int | str]


class SideScores(Part):
    """The scores of both sides in the order of their seeds; of a ratio their natural logarithms."""

    treatment: list[Score]
    control: list[Score]


class Failing(Part):
    """The seeds of a side that are far worse than its median."""

    treatment: list[int | str] = []
    control: list[int | str] = []


class Judged(Part):
    """One claim with its verdict and its evidence."""

    name: str
    claim: str
    source: str
    treatment: str
    control: str
    metric: str
    metric_words: str
    higher_is_better: bool
    reference: float | None = Field(None, description="A published figure in place of a control.")
    baseline: str | None
    verdict: Literal["supported", "refuted", "equivalent", "different", "inconclusive"]
    sentence: str
    analyses: list[Literal["over seeds", "over seeds and items"]] = Field(
        description="Which analyses of the rule were made."
    )
    ratio: Ratio | None = Field(description="Null where scores are compared as they are.")
    equivalence_margin: Annotated[float, Field(gt=0, le=LARGEST)]
    alpha: Annotated[float, Field(gt=0, lt=1)]
    kind: Literal["two networks", "pairs", "one figure"]
    least_seeds: int
    seeds: Seeds
    scores: SideScores
    mean: float
    interval: Ends = Field(description="The interval that decides, at interval_level.")
    interval_level: Share
    over_seeds: Ends
    over_seeds_and_items: Ends = Field(description="Without rows per item: Student's interval over seeds.")
    method: str
    item_deviation: float = Field(
        ge=0, le=LARGEST, description="The standard error that the choice of items leaves in the difference."
    )
    item_units: int
    items: int = Field(description="0 where the scores have no rows per item.")
    resamples: int
    p: Share
    p_items: Share
    margin_p: Share
    equivalence_p: Share
    holm_p: Share
    holm_margin_p: Share
    holm_equivalence_p: Share
    level: Share
    equivalence_level: Share
    seeds_needed: int | None
    robust_mean: float
    failing: Failing
    flags: list[str]
    cautions: list[str]
    outliers: list[str]
    earlier_reads: Annotated[int, Field(ge=0)] = Field(description="Reads of the test split before, other settings.")
    other_version_reads: Annotated[int, Field(ge=0)] = Field(
        description="Those of other versions of the data; 0 where no ledger knows them."
    )
    related_reads: Annotated[int, Field(ge=0)] | None = Field(
        description="Those by the same experiment; null where none is known."
    )
    look: Literal[1, 2] | None
    test_to_train: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        None,
        description="Of cross-validation: the rows that a seed tests over those that one of its networks trains on, by "
        "which the variance between seeds is corrected. Absent of a fixed split.",
    )
    span: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        None,
        description="The largest difference that the metric can have, where an interval ends there. Absent elsewhere.",
    )
    rule: int

    @model_validator(mode="after")
    def related_are_earlier(self) -> Self:
        """Refuse more related reads than there were reads."""
        if (self.related_reads or 0) > self.earlier_reads + self.other_version_reads:
            raise ValueError("related_reads are more than earlier_reads and other_version_reads")
        return self


class Rule(Part):
    """The rule of the verdicts."""

    version: int
    text: str


Digests = Annotated[dict[str, Sha256], Field(description="The sha256 of files by their path from the claim file.")]


class Machine(Part):
    """The machine that commands ran on, without its name."""

    platform: str
    python: str
    gpus: list[str]


class Made(Part):
    """The command that made the scores of an arm."""

    repository: str | None = Field(description="The URL or the name of the repository; null: a folder as it was.")
    commit: str | None
    tree: str | None = Field(description="Git's digest of all files of the commit.")
    folder: str | None = Field(description="The folder of the revision in which the command ran; null: its root.")
    command: str = Field(description="With {seed}, {out}, and {folder} of the claim file.")
    sources: Digests
    lock: Digests
    data: Digests
    machine: Machine
    runs: dict[str, str] = Field(description="The key of each seed's run.")


class Document(Part):
    """The verdicts on claims that were named and judged together."""

    schema_version: Literal[1]
    rule: Rule
    inputs: list[Input]
    columns: dict[str, str] = Field(description="The columns that were named as arm, seed, score, item, group, metric.")
    provenance: Provenance
    arms: dict[str, Made] | None = Field(None, description="Of `reread claim`: how the scores of each arm were made.")
    claims: Annotated[list[Judged], Field(min_length=1)]


def record(claim: Claim, verdict: Verdict, analyses: Sequence[str]) -> dict[str, Any]:
    """Return the entry of one claim as JSON values."""
    values = verdict.as_dict()
    ratio = as_ratio(values) if claim.ratio else None
    # By way of JSON: numbers of NumPy become plain ones.
    entry: dict[str, Any] = json.loads(json.dumps({**values, "ratio": ratio, "analyses": list(analyses)}))
    return entry


def make_document(
    claims: Sequence[Claim],
    verdicts: Sequence[Verdict],
    scores: Mapping[str, Scores],
    inputs: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    provenance: Provenance,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return verdict.json as JSON values. It has no time and no host: equal scores and claims give equal bytes."""
    entries = [
        record(claim, verdict, scores[claim.metric].analyses) for claim, verdict in zip(claims, verdicts, strict=True)
    ]
    return with_claims(entries, inputs, columns, provenance, arms)


def with_claims(
    entries: Sequence[Mapping[str, Any]],
    inputs: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    provenance: Provenance,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return verdict.json with claims that are JSON values already, as those of a published experiment."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "rule": {"version": VERSION, "text": RULE},
        "inputs": list(inputs),
        "columns": dict(columns),
        "provenance": provenance.model_dump(),
        **({"arms": dict(arms)} if arms else {}),
        "claims": list(entries),
    }
    check(content, FILE)
    return content


def check(content: Any, where: str) -> None:
    """Raise InputError for the first value that the schema does not allow, and for another rule or schema."""
    rule = content.get("rule") if isinstance(content, Mapping) else None
    if isinstance(rule, Mapping):
        versions = content.get("schema_version"), rule.get("version")
        if versions != (SCHEMA_VERSION, VERSION):
            raise InputError(
                f"{where} has schema {versions[0]} and rule {versions[1]}, and this reread has schema {SCHEMA_VERSION} "
                f"and rule {VERSION}: use the version of reread that wrote it"
            )
    try:
        Document.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        raise InputError(f"{where}: {place}: {first['msg']}: restore the file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no verdict ({error}): restore the file") from None


def verify_document(content: Mapping[str, Any], scores: Mapping[str, Scores] | None = None) -> list[str]:
    """Return a line for each value that the rule does not give again, from the scores in it or from ``scores``.

    scores: of each metric, as its files have them. InputError where the claims cannot be judged from them.
    """
    entries = [dict(entry) for entry in content["claims"]]
    lines = [] if content["rule"]["text"] == RULE else ["rule.text is not that of this version of the rule"]

    def from_scores(entry: Mapping[str, Any]) -> tuple[Side, Side, Items] | None:
        if scores is None:
            return None
        measured = measure(claim_of(entry), scores[entry["metric"]])
        lines.extend(f"{entry['name']}: {line}" for line in unlike(entry["flags"], measured.flags, "flags"))
        return measured.treatment, measured.control, measured.items

    verdicts = judge_again(entries, from_scores)
    for entry, verdict in zip(entries, verdicts, strict=True):
        claim = claim_of(entry)
        analyses = [OVER_SEEDS, OVER_ITEMS] if verdict.items else [OVER_SEEDS]
        lines += [f"{claim.name}: {line}" for line in unlike(entry, record(claim, verdict, analyses))]
    return lines


def claim_of(entry: Mapping[str, Any]) -> Claim:
    """Return the claim of an entry."""
    return Claim(
        entry["name"],
        entry["claim"],
        entry["source"],
        entry["treatment"],
        entry["control"],
        entry["metric"],
        entry["equivalence_margin"],
        entry["higher_is_better"],
        entry["ratio"] is not None,
        entry["kind"] == PAIRS,
        entry.get("reference"),
    )


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of verdict.json."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:reread:verdict:{SCHEMA_VERSION}"}
    return {**about, **Document.model_json_schema(mode="serialization"), "title": SCHEMA_TITLE}


if __name__ == "__main__":
    json.dump(schema(), sys.stdout, indent=2)
    sys.stdout.write("\n")
