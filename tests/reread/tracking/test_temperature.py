"""Temperature scaling: the temperature that was drawn is found, and served probabilities have it."""

import numpy as np
import pytest

from reread.storage.files import read_json, write_json
from reread.storage.prepared import open_prepared
from reread.tracking.registry import load_model, log_model
from reread.tracking.temperature import LEAST, Calibration, calibration_of, fitted_temperature, tempered
from tests.reread.tracking.examples import TEXTS, evaluate_run, prepared_text
from tests.reread.tracking.test_served_model import kept_files, register


def draw(rows: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels of 4 classes, and the probabilities of a model whose logits are ``temperature`` times too large."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(rows, 4)) * 1.5
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    powers = np.exp(temperature * logits)
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_found(temperature):
    probabilities, labels = draw(20_000, temperature)
    assert fitted_temperature(probabilities, labels) == pytest.approx(temperature, rel=0.05)


def test_tempered_probabilities_are_the_softmax_of_divided_logits():
    logits = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 9.0]])
    plain = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    divided = np.exp(logits / 2.5) / np.exp(logits / 2.5).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(tempered(plain, 2.5), divided, rtol=1e-12)
    # A probability that float32 rounded to zero stays the smallest.
    assert tempered([[1.0, 0.0]], 1.0).tolist() == [[1.0, pytest.approx(0.0, abs=1e-300)]]


def test_a_model_that_is_right_on_every_row_gets_the_lowest_temperature():
    assert fitted_temperature(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([0, 1])) == pytest.approx(LEAST, rel=0.01)


def test_a_served_network_gives_tempered_probabilities_and_its_card_says_so(folder):
    data = prepared_text(folder / "prepared" / "docs")
    tracking, run_id, run, plain = register(folder, data, "word_average")
    before = load_model("snippets", version=plain).predict(TEXTS)
    prepared = open_prepared(data)
    evaluation, rows = evaluate_run(run), len(prepared.labels[prepared.rows("validation")])
    drawn = np.random.default_rng(0).dirichlet(np.ones(len(prepared.classes)), rows)
    np.save(evaluation / "validation.npy", drawn.astype(np.float32))
    calibration = calibration_of(evaluation, prepared)
    assert isinstance(calibration, Calibration) and calibration.temperature > 1

    tracking.client.delete_model_version("reread-snippets", plain)
    version = log_model(tracking, run_id, run, evaluation)
    files = kept_files(tracking, "snippets", version)
    (written,) = files.rglob("temperature.json")
    assert read_json(written) == {"temperature": calibration.temperature}
    assert (
        f"temperature of {calibration.temperature:.3g}"
        in tracking.client.get_model_version("reread-snippets", version).description
    )
    after = load_model("snippets", version=version).predict(TEXTS)
    assert list(after["label"]) == list(before["label"])
    plain_rows = [list(row.values()) for row in before["probabilities"]]
    expected = tempered(plain_rows, calibration.temperature)
    np.testing.assert_allclose([list(row.values()) for row in after["probabilities"]], expected, rtol=1e-9)
    np.testing.assert_allclose(after["probability"], expected.max(axis=1), rtol=1e-9)


def test_no_temperature_without_probabilities_or_with_several_labels(folder):
    data = prepared_text(folder / "prepared" / "docs")
    assert calibration_of(folder, open_prepared(data)) is None
    np.save(folder / "validation.npy", np.zeros((2, 2)))
    write_json(data / "prepared.json", {**read_json(data / "prepared.json"), "task": "multi-label"})
    assert calibration_of(folder, open_prepared(data, verify=False)) is None
