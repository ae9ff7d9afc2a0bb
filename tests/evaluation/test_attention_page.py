"""The attention page: escaped, without padding, readable, and true to the weights."""

import re

import numpy as np
import pytest
import torch

import models
from batches import collation
from evaluation.attention import DARK, LEVELS, LIGHT, attention_page, contrast, has_attention, palette, shade
from storage.files import read_json
from storage.prepared import open_prepared


@pytest.fixture
def run(tools, tmp_path, text_data):
    directory = tools["write_run"](tmp_path / "runs" / "0", "han", "han", "corpus", seed=0)
    tools["add_weights"](directory, "han", read_json(text_data / "prepared.json"), seed=0)
    return directory


def test_the_page_shows_each_word_once_and_escapes_it(run, text_data):
    page = attention_page(run, open_prepared(text_data), "What <han> attends to")
    shown = read_json(text_data / "example_documents.json")
    words = [word for document in shown for sentence in document["words"] for word in sentence]
    assert "<script" not in page and "<i>" not in page.split("<main")[1].replace('<i style="', "")
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == words.count("<script>alert(1)</script>") > 0
    assert "What &lt;han&gt; attends to" in page and "b&lt;i&gt;" in page
    # No word for padding, although every row of the arrays has it.
    assert len(re.findall(r'<span class="l\d" title="', page)) == len(words)
    assert page.count('title="sentence weight') == sum(len(document["words"]) for document in shown)
    assert "&lt;pad&gt;" not in page and "://" not in page
    right = page.count("✓ right")
    assert (
        f"{right} of {len(shown)} documents are classified right" in page
        and page.count("✗ wrong") == len(shown) - right
    )


def test_weights_and_probability_are_the_networks(run, text_data):
    prepared = open_prepared(text_data)
    page = attention_page(run, prepared, "title")
    row = read_json(text_data / "example_documents.json")[0]["row"]
    with torch.no_grad():
        logits, words, sentences = models.load(run, prepared.description).attend(
            *collation.inputs(prepared, np.array([row]))
        )
    first = page.split("<article")[1]
    probability = torch.softmax(logits.double(), 1).max().item()
    assert f"({probability:.3f})" in first
    assert f'title="sentence weight {sentences[0, 0].item():.4f}"' in first
    assert f'title="{words[0, 0, 0].item():.4f}"' in first


def test_shade_is_damped_by_the_sentence_and_full_at_the_darkest():
    found = shade([["a", "b"], ["c"]], np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0.96, 0.04]))
    levels = [word["level"] for sentence in found["sentences"] for word in sentence["words"]]
    # sqrt(0.96) 0.5 = 0.49, sqrt(0.04) 1 = 0.2
    assert levels == [9, 9, 4]
    assert [sentence["bar"] for sentence in found["sentences"]] == [100, 4]


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


def test_a_flat_network_and_images_have_no_page(tools, tmp_path, text_data, image_data):
    flat = tools["write_run"](tmp_path / "runs" / "1", "flat", "gru_flat", "corpus", seed=0)
    tools["add_weights"](flat, "gru_flat", read_json(text_data / "prepared.json"), seed=0)
    assert not has_attention(flat, open_prepared(text_data))
    assert not has_attention(flat, open_prepared(image_data))


def test_a_network_that_takes_the_mean_in_place_of_attention_has_no_page(run, tools, text_data):
    prepared = open_prepared(text_data)
    assert has_attention(run, prepared)
    tools["add_weights"](run, "han", prepared.description, seed=0, pooling="mean")
    assert not has_attention(run, prepared)


def test_a_flat_network_with_attention_has_a_page(tools, tmp_path, text_data):
    prepared = open_prepared(text_data)
    directory = tools["write_run"](tmp_path / "runs" / "2", "flat", "gru_flat", "corpus", seed=0)
    tools["add_weights"](directory, "gru_flat", prepared.description, seed=0, pooling="attention")
    assert has_attention(directory, prepared)
    page = attention_page(directory, prepared, "flat")
    shown = read_json(text_data / "example_documents.json")
    assert page.count('title="sentence weight') == sum(len(document["words"]) for document in shown)
