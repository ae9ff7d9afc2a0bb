"""Settings are checked against their annotations, and what is wrong is named in one line with its place."""

import functools
import threading
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import pytest

from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.storage.settings import OneOf, Range, Tagged, tagged


@dataclass(frozen=True)
class Lengths:
    words: Annotated[float, Range(0, 1, exclusive=True)] = 0.95


@dataclass(frozen=True)
class Settings:
    units: Annotated[int, Range(1, 4096)] = 32
    rate: Annotated[float, Range(1e-8, 100)] = 0.01
    pooling: Literal["last", "mean"] = "last"
    rows: Annotated[int, Range(1)] | None = None
    on: bool = True
    lengths: Lengths = Lengths()
    maybe: Lengths | None = None
    either: int | list[int] | None = None
    steps: tuple[int, ...] = ()
    first: Annotated[Tagged, OneOf("reread.batches.augmentations")] = tagged("flip")
    list: tuple[Annotated[Tagged, OneOf("reread.batches.augmentations")], ...] = ()

    def __post_init__(self):
        if self.units == 13:
            raise InputError("units is 13: choose another")


@pytest.mark.parametrize(
    ("values", "place", "right"),
    [
        ({"unit": 1}, "'unit' in params", "'units'"),
        ({"lengths": {"wrods": 1}}, "'wrods' in params.lengths", "words"),
        ({"maybe": {"wrods": 1}}, "'wrods' in params.maybe", "words"),
        ({"pooling": "man"}, "params.pooling is 'man'", "'mean'"),
        ({"units": 0}, "params.units is 0", "1"),
        ({"units": 2.5}, "params.units is 2.5", "integer"),
        ({"units": True}, "params.units is True", "integer"),
        ({"units": 13}, "params", "units is 13"),
        ({"rate": "1e-3"}, "params.rate is '1e-3'", "1.0e-3"),
        ({"rate": 10**400}, "params.rate is 1", "finite"),
        ({"rate": float("nan")}, "params.rate is nan", "finite"),
        ({"rows": 0}, "params.rows is 0", "1"),
        ({"on": 1}, "params.on is 1", "boolean"),
        ({"lengths": {"words": 0}}, "params.lengths.words is 0", "greater than 0"),
        ({"lengths": 3}, "params.lengths is 3", "object"),
        ({"either": "a"}, "params.either is 'a'", "integer"),
        ({"either": [1, "a"]}, "params.either is [1, 'a']", "integer"),
        ({"steps": [1, "a"]}, "params.steps.1 is 'a'", "integer"),
        ({5: 1}, "'5' in params", "units"),
        (5, "params is 5", "object"),
        ({"pooling": "\ud800"}, "params has a character", "UTF-8"),
        ({"steps": functools.reduce(lambda inner, _: [inner], range(300), [])}, "params", "nested"),
        ({"first": "flap"}, "params.first: unknown", "'flip'"),
        ({"first": {"name": "shift", "pixel": 1}}, "'pixel' in params.first", "pixels"),
        ({"first": 3}, "params.first is 3", "name"),
        ({"list": [{"pixels": 1}]}, "params.list has no 'name'", "shift"),
        ({"list": "flip"}, "params.list is 'flip'", "array"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_the_right_name(values, place, right):
    with pytest.raises(InputError) as refused:
        read(Settings, values, "params")
    message = str(refused.value)
    assert place in message and right in message and "\n" not in message and "pydantic" not in message


def test_values_and_defaults_are_filled_in_and_whole_numbers_become_numbers():
    settings = read(Settings, {"rate": 1, "lengths": {}, "maybe": {"words": 1}, "steps": [1, 2]}, "params")
    assert settings == replace(read(Settings, {}, "params"), rate=1.0, maybe=Lengths(1.0), steps=(1, 2))
    assert isinstance(settings.rate, float) and isinstance(settings.maybe.words, float)


def test_a_member_of_a_registry_is_named_alone_or_with_its_settings():
    whole = read(Settings, {"first": "shift"}, "params").first
    assert whole["name"] == "shift" and set(whole) > {"name"}
    pixels = whole["pixels"] + 1
    settings = read(Settings, {"first": {"name": "shift", "pixels": pixels}, "list": ["flip", whole]}, "params")
    assert settings.first == {**whole, "pixels": pixels}
    flip = read(Settings, {}, "params").first
    assert flip["name"] == "flip" and len(flip) > 1 and settings.list == (flip, whole)
    # Settings without a name are of the usual member.
    assert read(Settings, {"first": {"probability": 0.1}}, "params").first == {"name": "flip", "probability": 0.1}


def test_a_value_that_is_no_number_gets_no_advice_on_exponents():
    with pytest.raises(InputError) as refused:
        read(Settings, {"rate": "fast"}, "params")
    assert "params.rate is 'fast'" in str(refused.value) and "1e-3" not in str(refused.value)


class NoDataclass:
    units: int = 3


@dataclass
class NotFrozen:
    units: int = 3


@dataclass(frozen=True)
class Misspelt:
    units: "Anotated[int, Range(1)]" = 3  # noqa: F821


@dataclass(frozen=True)
class NoSetting:
    units: threading.Lock = None


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (NoDataclass, "NoDataclass is no dataclass"),
        (NotFrozen, "NotFrozen is not frozen"),
        (Misspelt, "Misspelt has an annotation .*'Anotated'"),
        (NoSetting, "NoSetting has an annotation "),
    ],
)
def test_settings_that_cannot_be_read_are_named_with_their_file(cls, problem):
    with pytest.raises(InputError, match=rf"^tests/reread/planning/test_validation.py: {problem}.*$"):
        read(cls, {}, "params")


def test_settings_that_are_no_class_are_named_by_their_place():
    with pytest.raises(InputError, match=r"^params: Settings is no dataclass"):
        read(None, {}, "params")
