"""Settings to JSON and back without a validation library, and less their defaults for keys."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from reread.storage.errors import InputError
from reread.storage.settings import OneOf, Range, Tagged, from_json, members, tagged, to_json, without_defaults


@dataclass(frozen=True)
class Lengths:
    words: Annotated[float, Range(0, 1, exclusive=True)] = 0.95
    sentences: float = 0.9


@dataclass(frozen=True)
class Settings:
    units: Annotated[int, Range(1, 4096)] = 32
    pooling: Literal["last", "mean"] = "last"
    rows: Annotated[int, Range(1)] | None = None
    lengths: Lengths = Lengths()
    maybe: Lengths | None = None
    first: Annotated[Tagged, OneOf("reread.batches.augmentations")] = tagged("flip")
    many: tuple[Annotated[Tagged, OneOf("reread.batches.augmentations")], ...] = ()


OTHER = Settings(
    units=7, lengths=Lengths(sentences=0.5), maybe=Lengths(), many=({"name": "shift", "pixels": 2}, {"name": "flip"})
)


@pytest.mark.parametrize("settings", [Settings(), OTHER])
def test_settings_come_back_from_json(settings):
    value = json.loads(json.dumps(to_json(settings)))
    assert from_json(Settings, value) == settings
    assert from_json(Settings, without_defaults(settings)) == settings


def test_what_is_left_out_has_its_default_and_what_is_unknown_is_refused():
    assert from_json(Settings, {"lengths": {"words": 0.5}}).lengths == Lengths(0.5)
    with pytest.raises(InputError, match="'unit'"):
        from_json(Settings, {"unit": 3})
    with pytest.raises(InputError, match="'word'"):
        from_json(Settings, {"lengths": {"word": 3}})


def test_defaults_are_left_out_also_of_members_and_of_nested_settings():
    assert without_defaults(Settings()) == {}
    assert without_defaults(Settings(lengths=Lengths(0.5))) == {"lengths": {"words": 0.5}}
    assert without_defaults(Settings(maybe=Lengths())) == {"maybe": {}}
    # All settings of a member written out are the same as its name alone.
    usual = {"name": "flip", "probability": 0.5}
    assert without_defaults(Settings(first=usual, many=(usual,))) == {"many": [{"name": "flip"}]}
    assert without_defaults(Settings(first={"name": "flip", "probability": 0.1}))["first"]["probability"] == 0.1
    assert without_defaults(Settings(first={"name": "shift"})) == {"first": {"name": "shift"}}


def test_the_members_that_settings_name_are_found():
    named = [(package, member["name"]) for package, member in members(OTHER)]
    assert named == [("reread.batches.augmentations", name) for name in ("flip", "shift", "flip")]
