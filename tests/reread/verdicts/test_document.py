"""verdict.json: its published schema, and that every changed value is found."""

import copy
import dataclasses
import json
from typing import get_args

import jsonschema
import numpy as np
import pytest

from reread.storage.errors import InputError
from reread.storage.source import ROOT
from reread.verdicts.document import Document, Judged, Provenance, check, make_document, schema, verify_document
from reread.verdicts.rule import NETWORKS, ONE_FIGURE, PAIRS, VERSION, WORDS
from reread.verdicts.scores import OVER_ITEMS, OVER_SEEDS, collect, judge_claims
from tests.reread.verdicts.test_scores import CLAIM, NEW, OLD, item_rows, rows

INPUT = {"file": "scores.csv", "arm": None, "format": "table", "sha256": "0" * 64}


def document(table=None, **changes):
    claims = [dataclasses.replace(CLAIM, **changes)]
    scores = {"accuracy": collect(table or rows(new=NEW, old=OLD))}
    provenance = Provenance(ran_by="a team", hardware="one GPU")
    return make_document(
        claims, judge_claims(claims, scores), scores, [dict(INPUT)], {"arm": "model"}, provenance
    ), scores


def test_the_published_schema_is_the_one_of_the_code():
    published = json.loads((ROOT / "docs/verdict.schema.json").read_text())
    assert published == schema(), "run: python -m reread.verdicts.document > docs/verdict.schema.json"
    jsonschema.Draft202012Validator.check_schema(published)


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        (None, {}),
        (None, {"paired": True}),
        (None, {"ratio": True, "margin": 0.02}),
        (rows(new=NEW), {"reference": 0.8, "control": "a paper"}),
        (rows(new=NEW[:2], old=OLD[:3]), {}),
        (item_rows({"new": np.eye(4), "old": np.eye(4)[::-1]}), {}),
        (rows(new=[1.0] * 4, old=OLD), {}),
    ],
)
def test_every_kind_of_verdict_has_the_published_schema_and_is_computed_again(table, changes):
    content, scores = document(table, **changes)
    written = json.loads(json.dumps(content, allow_nan=False))
    jsonschema.validate(written, json.loads((ROOT / "docs/verdict.schema.json").read_text()))
    assert verify_document(written) == [] and verify_document(written, scores) == []


def test_the_schema_has_the_words_of_the_rule():
    fields = Judged.model_fields
    assert get_args(fields["verdict"].annotation) == WORDS
    assert set(get_args(fields["kind"].annotation)) == {NETWORKS, PAIRS, ONE_FIGURE}
    assert get_args(get_args(fields["analyses"].annotation)[0]) == (OVER_SEEDS, OVER_ITEMS)


def leaves(value, path=()):
    """Yield the path of each value that is no object and no list."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def test_every_changed_number_and_word_is_found_or_refused():
    """All values of a claim but those that nothing can be computed from: names, texts, and what was read before."""
    content, scores = document(item_rows({"new": np.eye(4)[[0, 1, 2, 3, 0]], "old": 1 - np.eye(4)[[0, 1, 2, 3, 1]]}))
    given = {"name", "claim", "source", "treatment", "control", "metric"}
    changed = 0
    for path in leaves(content["claims"][0]):
        if path[0] in given or (path[0] == "metric_words"):
            continue
        edited = copy.deepcopy(content)
        place = edited["claims"][0]
        for key in path[:-1]:
            place = place[key]
        old = place[path[-1]]
        place[path[-1]] = (
            not old if isinstance(old, bool) else old + 1 if isinstance(old, int | float) else 0.5 if old is None
            else [*old, "x"] if isinstance(old, list) else old + "x"
        )  # fmt: skip
        changed += 1
        try:
            check(edited, "verdict.json")
        except InputError:
            continue
        assert verify_document(edited, scores), path
    assert changed > 60


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all_: all_.update(schema_version=2), f"has schema 2 and rule {VERSION}, and this reread"),
        (lambda all_: all_["rule"].update(version=0), "rule 0, and this reread has"),
        (lambda all_: all_.pop("inputs"), "inputs: Field required"),
        (lambda all_: all_.update(more=1), "more: Extra inputs"),
        (lambda all_: all_.update(claims=[]), "claims"),
        (lambda all_: all_["claims"][0].update(p=2.0), "claims.0.p: Input should be less"),
        (lambda all_: all_["inputs"][0].update(sha256="1"), "inputs.0.sha256"),
        (lambda all_: all_["claims"][0].update(item_deviation=1e300), "claims.0.item_deviation"),
        (lambda all_: all_["claims"][0].update(alpha=0.0), "claims.0.alpha: Input should be greater than 0"),
    ],
)
def test_what_is_no_verdict_is_one_line(change, said):
    content = document()[0]
    change(content)
    with pytest.raises(InputError, match=said) as raised:
        check(content, "verdict.json")
    assert "\n" not in str(raised.value)


def test_another_text_of_the_rule_is_a_difference():
    content = document()[0]
    content["rule"]["text"] += "."
    assert verify_document(content) == ["rule.text is not that of this version of the rule"]


def test_equal_scores_give_equal_documents():
    assert document()[0] == document()[0] and Document.model_validate_json(json.dumps(document()[0]))
