"""A space of settings, and the trials that a sampler proposes in it: a function of the seed and of earlier results.

    learning_rate: {low: 1.0e-4, high: 0.1, log: true}    a number between two, on a logarithmic scale
    hidden_size: {low: 16, high: 128, step: 16}           a whole number, if both ends are
    cell: [gru, minimal]                                  one of several values

The sampler is Optuna's: ``tpe`` (Bergstra et al., Algorithms for Hyper-Parameter Optimization, NIPS 2011, section 4) or
``random``. Trials are proposed ``parallel`` at a time, each batch from the results of all batches before it, so that
trials do not depend on the order in which runs end. Nothing is stored: proposals are made again from the results.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reread.storage.errors import InputError, refuse_unknown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SECTIONS = ("network", "training")
# Drawn numbers are rounded to so many digits: a trial's name has the value that it trains with.
DIGITS = 4
ENDS = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Axis:
    """One setting of a space: ``path`` is ("training", "learning_rate"); ``choices`` or an interval."""

    path: tuple[str, ...]
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path[1:])

    def distribution(self) -> "BaseDistribution":
        """Return Optuna's description of this axis."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(range(len(self.choices)))
        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, self.log, 1 if self.step is None else int(self.step))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def value(self, drawn: Any) -> Any:
        """Return the setting's value for what Optuna drew."""
        if self.choices:
            return self.choices[drawn]
        return float(f"{drawn:.{DIGITS}g}") if isinstance(drawn, float) else drawn


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by address, their names joined by dots; a list is one value."""
    addresses: dict[str, Any] = {}
    for name, value in values.items():
        addresses |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return addresses


def nested(values: Iterable[tuple[Iterable[str], Any]]) -> dict[str, Any]:
    """Return the mapping that has each value at its path: {"training": {"learning_rate": 0.01}}."""
    settings: dict[str, Any] = {}
    for (*outer, last), value in values:
        place = settings
        for step in outer:
            place = place.setdefault(step, {})
        place[last] = value
    return settings


def axes(space: Mapping[str, Any], where: str) -> list[Axis]:
    """Return the axes of a space, none of an empty one; InputError names the place of what is wrong."""
    refuse_unknown(space, SECTIONS, where)
    return list(_axes(space, (), where)) if space else []


def _axes(space: Any, path: tuple[str, ...], where: str) -> Iterator[Axis]:
    here = ".".join([where, *path])
    if isinstance(space, Mapping) and len(path) >= 2 and {"low", "high"} & set(space):
        yield _interval(space, path, here)
    elif isinstance(space, Mapping) and space:
        for key, inner in space.items():
            yield from _axes(inner, (*path, str(key)), where)
    elif isinstance(space, list) and len(path) >= 2 and space and len(set(map(repr, space))) == len(space):
        yield Axis(path, choices=tuple(space))
    else:
        raise InputError(f"{here} is {space!r}: write a list of values, or {{low: NUMBER, high: NUMBER, log: true}}")


def _interval(given: Mapping[str, Any], path: tuple[str, ...], here: str) -> Axis:
    refuse_unknown(given, ENDS, here)
    for name in {"low", "high", "step"} & {"low", "high", *given}:
        value = given.get(name)
        infinite = isinstance(value, float) and not math.isfinite(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or infinite:
            raise InputError(f"{here}.{name} is {value!r}: give a number")
    if not isinstance(given.get("log", False), bool):
        raise InputError(f"{here}.log is {given['log']!r}: give true or false")
    axis = Axis(path, **given)
    if axis.low >= axis.high:
        raise InputError(f"{here}: low is {axis.low} and high {axis.high}: low must be less")
    try:
        with warnings.catch_warnings():
            # Optuna only warns of a step that does not divide the interval, and lowers its end.
            warnings.simplefilter("error", UserWarning)
            axis.distribution()
    except (ValueError, UserWarning) as error:
        raise InputError(f"{here}: {error}") from None
    return axis


def propose(
    search: Mapping[str, Any], space: list[Axis], score: Callable[[str, dict[str, Any]], float | None]
) -> dict[str, dict[str, Any]]:
    """Return the trials that can be proposed now: of each its name ("learning_rate=0.01") and its settings.

    search: sampler, trials, parallel, startup and seed. score: of a trial, by name and settings, the higher the better,
    or None while it is not known; the batch of such a trial is the last.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = optuna.samplers
    sampler = (
        samplers.TPESampler(seed=search["seed"] % 2**32, n_startup_trials=search["startup"])
        if search["sampler"] == "tpe"
        else samplers.RandomSampler(seed=search["seed"] % 2**32)
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {".".join(axis.path): axis.distribution() for axis in space}
    sections: dict[str, dict[str, Any]] = {}
    for start in range(0, search["trials"], search["parallel"]):
        asked = [study.ask(distributions) for _ in range(start, min(start + search["parallel"], search["trials"]))]
        names = []
        for trial in asked:
            values = [(axis, axis.value(trial.params[".".join(axis.path)])) for axis in space]
            names.append(",".join(f"{axis.name}={value}" for axis, value in values))
            sections[names[-1]] = nested((axis.path, value) for axis, value in values)
        scores = [score(name, sections[name]) for name in names]
        if None in scores:
            break
        for trial, value in zip(asked, scores, strict=True):
            study.tell(trial, value)
    return sections
