"""The schema of params.yaml and experiments/NAME.yaml, and their reader.

Files are read by YAML's safe loader: no tags that make objects. A mapping has each name once, as YAML itself
requires; a name that ``<<`` merges may be repeated.
"""

import copy
import functools
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from reread.storage.errors import BREAKS, InputError

MERGE = "tag:yaml.org,2002:merge"  # of `<<`
MAX_BYTES = 1_000_000
MAX_NODES = 100_000  # also those that aliases repeat: nested aliases grow a small file without bounds
SEEDS = 2**63  # how many there are: torch takes a seed as a signed integer of 64 bits
EQUIVALENCE_MARGIN = 0.01  # where an experiment sets none


def _printable(text: str) -> str:
    """Return a text that terminals, pages and MLflow show. ValueError for control characters but line breaks."""
    if not all(character.isprintable() or character in BREAKS for character in text):
        raise ValueError(f"{text!r} has a control character")
    return text


def _name(text: str) -> str:
    """Return a name. ValueError where it has a line break or could be read as a path."""
    if not text.isprintable() or set(text) & set("/\\"):
        raise ValueError(f"{text!r} is no name: use no line break, control character, / or \\")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
Name = Annotated[str, Field(min_length=1), AfterValidator(_name)]
Margin = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
# `docstrings:` with nothing after it is an empty section.
OrEmpty = BeforeValidator(lambda value: {} if value is None else value)
Section = Annotated[dict[str, Any], OrEmpty]


class File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ModelSection(File):
    """Settings of one model: of its network and of its training."""

    network: Section = {}
    training: Section = {}


class Parameters(File):
    """params.yaml: preprocessing by data set, training, and models by name."""

    preprocessing: dict[str, Section]
    training: dict[str, Any]
    models: dict[str, Annotated[ModelSection, OrEmpty]]


Grid = Any  # a mapping of settings to lists of values, or a list of such: reread/planning/experiment.py reads it


class VariantSection(File):
    """The settings of a variant or, under ``defaults``, of all variants of an experiment."""

    model: Text | None = None
    data: Name | None = None
    preprocessing: Section = {}
    network: Section = {}
    training: Section = {}


class OwnGrid(File):
    """The grid or the space of one variant, which replaces that of the experiment or of its search.

    An experiment that tunes another gives its variants these alone.
    """

    grid: Grid = None
    space: dict[str, Any] | None = None


class Variant(VariantSection, OwnGrid):
    """One variant."""


class Search(File):
    """A search for settings on validation: ``trials`` of each variant, ``parallel`` at a time
    (reread/planning/space.py).

    startup: trials that are drawn at random before ``tpe`` uses results.
    """

    sampler: Literal["tpe", "random"] = "tpe"
    trials: Annotated[int, Field(ge=1, le=10_000)]
    parallel: Annotated[int, Field(ge=1, le=1_000)] = 4
    startup: Annotated[int, Field(ge=1, le=1_000)] = 10
    seed: Seed = 0
    space: dict[str, Any] = {}


class Control(File):
    """One control of a group of comparisons; what it leaves out is the group's.

    equivalence_margin: None for the experiment's.
    """

    name: Text | None = None
    claim: Text | None = None
    source: Text | None = None
    metric: Text | None = None
    equivalence_margin: Margin | None = None


class ComparisonGroup(Control):
    """A treatment against one control, against each of several, or against a published figure of the metric.

    In ``claim``, {treatment} and {control} are replaced by the names of the two.
    """

    treatment: Text
    control: Text | None = None
    controls: dict[str, Annotated[Control, OrEmpty]] = {}
    reference: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class Tuning(BaseModel):
    """The tuning of an experiment: notes, the spread between seeds, and settings that it did not choose.

    kept: by variant why it trains with other settings than the tuning chose; `reread publish` asks for it.
    evidence: metrics.json of the tuning. spread: the standard deviation of the difference between a seed
    of each side, used in its place.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    evidence: Text | None = None
    spread: Annotated[float, Field(gt=0)] | None = None
    kept: dict[Name, Text] | None = None


class ExperimentFile(File):
    """experiments/NAME.yaml.

    summary: the trial of a grid, as ``lag=100``, that results/NAME/summary.json shows of each variant; None for the
    best on validation. A grid of conditions has no best one.
    metric: of validation, that chooses trials, best seeds and champions; None for the first of the data's task.
    second_look: seeds of each variant that may be reached by adding some after a first verdict. Each of the two looks
    has half of alpha.
    withhold_untuned: no verdict on a side that was still learning, or whose settings are at the edge of its tuning.
    folds: of cross-validation; each seed then has a run for each fold (reread/preprocessing/folds.py).
    """

    title: Text
    variants: Annotated[dict[Name, Annotated[Variant, OrEmpty]], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    parameters: Section = {}
    defaults: VariantSection = VariantSection()
    grid: Grid = {}
    search: Search | None = None
    comparisons: list[ComparisonGroup] = []
    equivalence_margin: Margin = EQUIVALENCE_MARGIN
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    evaluate_on: Annotated[str, Field(pattern="^(validation|test)$")] = "validation"
    metric: Text | None = None
    withhold_untuned: bool = False
    second_look: Annotated[int, Field(ge=2, le=10_000)] | None = None
    folds: int | None = None
    tuning: Tuning = Tuning()
    tunes: Text | None = None
    variants_of: Text | None = None
    summary: Text | None = None


class _Loader(yaml.SafeLoader):
    """YAML whose mappings have each name once: the format's own rule, which PyYAML does not enforce."""

    # types-PyYAML has the anchor as a mapping.
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # As it is written: what `<<` merges into it later may be named again.
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if key.tag != MERGE]
        names = [self.construct_object(key, deep=True) for key in keys]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{name}' is here a second time", keys[place].start_mark
                )
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. InputError names the file, and the line of a syntax error or of a doubled name."""
    try:
        value = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing: run this from the project's folder") from None
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a mapping of names to values, not {type(value).__name__}")
    return value


def parse_yaml(text: str) -> Any:
    """Return the value that YAML text holds. ValueError where it, or what its aliases expand to, is too large."""
    return copy.deepcopy(_parsed(text))


@functools.lru_cache
def _parsed(text: str) -> Any:
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} characters")
    # _Loader is a SafeLoader.
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count_nodes(node, {}, ())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count_nodes(node: yaml.Node, known: dict[int, int], above: tuple[int, ...]) -> int:
    """The nodes under ``node`` once its aliases are expanded; ValueError for too many, or for one within itself."""
    if id(node) in above:
        raise ValueError("an alias is inside its own anchor")
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        inner = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_count_nodes(part, known, (*above, id(node))) for part in inner)
    if known[id(node)] > MAX_NODES:
        raise ValueError(f"its aliases expand to more than {MAX_NODES:,} values")
    return known[id(node)]
