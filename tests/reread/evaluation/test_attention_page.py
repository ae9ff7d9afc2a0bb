"""The attention page: escaped, without padding, readable, and true to the weights."""

import json
import re

import numpy as np
import pytest
import torch

import models
from reread.batches import collation
from reread.evaluation.attention import (
    DARK,
    LEVELS,
    LIGHT,
    UNIT,
    attention_page,
    chosen_runs,
    contrast,
    explain,
    has_attention,
    palette,
    shade,
)
from reread.evaluation.records import RunRecord
from reread.storage.files import read_json
from reread.storage.prepared import open_prepared


@pytest.fixture
def record(tools, tmp_path, text_data):
    return record_of(tools, tmp_path, text_data, "han", "han", 0)


def record_of(tools, tmp_path, data, variant, model, seed, **settings) -> RunRecord:
    directory = tools["write_run"](tmp_path / "runs" / f"{variant}-{seed}", variant, model, "corpus", seed=seed)
    tools["add_weights"](directory, model, read_json(data / "prepared.json"), seed=seed, **settings)
    return RunRecord(variant, "corpus", seed, directory, data, directory)


def payload_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="payload">(.*?)</script>', page)[1])


def test_the_page_has_each_word_once_and_escapes_it(record, text_data):
    page = attention_page([record], "What <han> attends to")
    shown = read_json(text_data / "example_documents.json")
    payload = payload_of(page)
    (documents,) = (data_set["documents"] for data_set in payload["sets"].values())
    assert [document["sentences"] for document in documents] == [
        [words for words in document["words"] if words] for document in shown
    ]
    # No weight for padding, although every row of the arrays has it.
    for words, read in zip(documents, payload["readings"][0]["documents"], strict=True):
        for sentence, weighed in zip(words["sentences"], read["sentences"], strict=True):
            assert len(sentence) == len(weighed["weights"]) == len(weighed["shades"])
    assert "<script>alert" not in page and "<i>" not in page and "What &lt;han&gt; attends to" in page
    assert "<pad>" not in json.dumps(payload)
    assert "://" not in page and "unsafe-eval" not in page


def test_weights_and_probability_are_the_networks(record, text_data):
    prepared = open_prepared(text_data)
    (reading,) = payload_of(attention_page([record], "title"))["readings"]
    row = read_json(text_data / "example_documents.json")[0]["row"]
    with torch.no_grad():
        logits, words, sentences = models.load(record.run_directory, prepared.description).attend(
            *collation.inputs(prepared, np.array([row]))
        )
    first = reading["documents"][0]
    guess = int(logits.argmax())
    assert first["predicted"] == [[prepared.classes[guess], round(torch.softmax(logits.double(), 1).max().item(), 3)]]
    assert first["true"] == [prepared.classes[int(prepared.labels[row])]]
    assert first["right"] == (first["true"] == [prepared.classes[guess]])
    assert first["sentences"][0]["weight"] * UNIT == pytest.approx(sentences[0, 0].item(), abs=UNIT)
    assert first["sentences"][0]["weights"][0] * UNIT == pytest.approx(words[0, 0, 0].item(), abs=UNIT)


def test_shade_is_damped_by_the_sentence_and_full_at_the_darkest():
    shaded = shade([["a", "b"], [], ["c"]], np.array([[0.5, 0.5], [0, 0], [1.0, 0.0]]), np.array([0.96, 0, 0.04]))
    # sqrt(0.96) 0.5 = 0.49, sqrt(0.04) 1 = 0.2
    assert [sentence["shades"] for sentence in shaded["sentences"]] == ["99", "4"]
    assert [sentence["weight"] for sentence in shaded["sentences"]] == [9600, 400]


@pytest.mark.parametrize("ends", [LIGHT, DARK])
def test_text_is_readable_on_every_shade(ends):
    def colour(text: str) -> tuple[int, ...]:
        return tuple(bytes.fromhex(text[1:]))

    steps = palette(*ends)
    assert len(steps) == LEVELS
    assert min(contrast(colour(step["background"]), colour(step["ink"])) for step in steps) >= 4.5
    # One step can be told from the next in grey.
    greys = [contrast(colour(step["background"]), (0, 0, 0)) for step in steps]
    assert greys == sorted(greys) or greys == sorted(greys, reverse=True)


def test_contrast_of_black_and_white():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)


def test_which_networks_have_a_page(tools, tmp_path, record, text_data, image_data):
    """HAN with attention, and a flat network with it; not the mean, a flat network without, or images."""
    prepared = open_prepared(text_data)
    assert has_attention(record.run_directory, prepared)
    assert not has_attention(record.run_directory, open_prepared(image_data))
    mean = record_of(tools, tmp_path, text_data, "mean", "han", 0, pooling="mean")
    flat = record_of(tools, tmp_path, text_data, "flat", "gru_flat", 0)
    both = record_of(tools, tmp_path, text_data, "both", "gru_flat", 0, pooling="attention")
    assert [has_attention(record.run_directory, prepared) for record in (mean, flat, both)] == [False, False, True]
    best = {"mean": 0, "flat": 0}
    assert explain([mean, flat], best, tmp_path) is None and not (tmp_path / "attention.html").exists()


def test_every_seed_of_each_variant_that_attends_is_on_the_page_the_best_first(tools, tmp_path, text_data):
    variants = {"han": ("han", {}), "flat": ("gru_flat", {}), "both": ("gru_flat", {"pooling": "attention"})}
    records = [
        record_of(tools, tmp_path, text_data, name, model, seed, **settings)
        for name, (model, settings) in variants.items()
        for seed in (0, 1, 2)
    ]
    best = {"han": 2, "flat": 0, "both": 1}
    (records[0].run_directory / "best.safetensors").unlink()
    shown = chosen_runs(records, best)
    ranked = [(record.variant, record.seed) for record in shown]
    assert ranked == [("han", 2), ("han", 1), ("both", 1), ("both", 0), ("both", 2)]
    page = explain(records, best, tmp_path)
    readings = payload_of((tmp_path / page.file).read_text())["readings"]
    assert [(reading["variant"], reading["seed"]) for reading in readings] == ranked
