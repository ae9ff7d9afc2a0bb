"""The baselines learn, choose C on validation, and are found again."""

import itertools

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from reread import kinds
from reread.evaluation import baselines
from reread.evaluation.baselines import bigram_features, evaluate_baseline
from reread.evaluation.char_svm import LONGEST
from reread.evaluation.nb_svm import fit_nb_svm, one_against_the_rest
from reread.goals.classification import row_losses
from reread.storage.errors import InputError
from tests.damage import damages


def split_of(values, *edges):
    return {name: values[slice(*edge)] for name, edge in zip(("train", "validation", "test"), edges, strict=True)}


def texts_of(labels) -> list[str]:
    """A third of the words of a text tell its label."""
    rng = np.random.default_rng(0)
    common = [f"common{number}" for number in range(50)]
    return [
        " ".join([*rng.choice(common, 12), *rng.choice([f"only{label}{number}" for number in range(9)], 6)])
        for label in labels
    ]


TEXT = [baseline.name for baseline in kinds.baselines_of("text", "single-label")]
EDGES = ((0, 90), (90, 130), (130, 200))
LABELS = np.random.default_rng(1).integers(0, 3, 200)


@pytest.mark.parametrize("name", TEXT)
def test_text(name):
    texts = texts_of(LABELS)
    baseline = evaluate_baseline(
        name, split_of(texts, *EDGES), split_of(LABELS, *EDGES), "single-label", ["a", "b", "c"]
    )
    assert baseline.metrics["test"]["accuracy"] > 0.9 and baseline.metrics["test"]["rows"] == 70
    assert baseline.probabilities["test"].shape == (70, 3) and baseline.name == kinds.baselines()[name].title
    assert baseline.probabilities["test"].sum(axis=1) == pytest.approx(1, abs=1e-6)
    strengths = [f"{strength:g}" for strength in kinds.baselines()[name].grid]
    assert list(baseline.grid) == strengths[: len(baseline.grid)] and f"{baseline.chosen:g}" in baseline.grid
    assert baseline.grid[f"{baseline.chosen:g}"] == max(baseline.grid.values())


def test_weaker_regularisation_is_not_tried_once_three_in_a_row_are_no_better(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (200, 6, 6, 1), dtype=np.uint8)
    given = ("linear", split_of(images, *EDGES), split_of(LABELS, *EDGES), "single-label", ["a", "b", "c"])
    baseline = evaluate_baseline(*given)
    monkeypatch.setattr(baselines, "PATIENCE", 99)
    whole = evaluate_baseline(*given)
    assert len(whole.grid) == 8 and list(baseline.grid.items()) == list(whole.grid.items())[: len(baseline.grid)]
    assert list(baseline.grid).index(f"{baseline.chosen:g}") == len(baseline.grid) - 4 < 4


def test_a_slow_fit_is_told(monkeypatch):
    given = (TEXT[0], split_of(texts_of(LABELS), *EDGES), split_of(LABELS, *EDGES), "single-label", ["a", "b", "c"])
    lines: list[str] = []
    evaluate_baseline(*given, tell=lines.append)
    assert lines == []
    monkeypatch.setattr(baselines, "SLOW_SECONDS", 0.0)
    baseline = evaluate_baseline(*given, tell=lines.append)
    assert len(lines) == len(baseline.grid)
    assert all(f"C = {strength}," in line for strength, line in zip(baseline.grid, lines, strict=True))


def test_each_baseline_has_as_many_trials():
    assert {len(set(baseline.grid)) for baseline in kinds.baselines().values()} == {8}


def test_nb_svm_is_the_one_of_the_paper():
    """Word for word from section 2.3, with sets of words and loops over them."""
    documents = [("good film .", True), ("good , good .", True), ("bad film .", False), ("bad", False), ("film", True)]
    features = bigram_features({"train": [text for text, _ in documents], "test": ["good bad good unheard"]})

    def grams(text):
        words = text.split()
        return {*words, *(f"{a} {b}" for a, b in itertools.pairwise(words))}

    vocabulary = sorted({gram for text, _ in documents for gram in grams(text)})
    f = np.array([[gram in grams(text) for gram in vocabulary] for text, _ in documents], float)
    assert (features["train"].toarray() == f).all()
    assert features["test"].toarray().tolist() == [[float(gram in ("good", "bad")) for gram in vocabulary]]
    positive = np.array([label for _, label in documents])
    p = [1 + sum(f[row, column] for row in (0, 1, 4)) for column in range(len(vocabulary))]
    q = [1 + sum(f[row, column] for row in (2, 3)) for column in range(len(vocabulary))]
    r = np.log(np.array(p) / sum(p)) - np.log(np.array(q) / sum(q))
    machine = LinearSVC(C=0.5, loss="squared_hinge", dual=False).fit(f * r, positive)
    w = 0.75 * np.mean(np.abs(machine.coef_[0])) + 0.25 * machine.coef_[0]
    weights, intercept = one_against_the_rest(features["train"], positive, 0.5)
    b = 0.75 * np.mean(np.abs(machine.coef_[0])) * np.log(3 / 2) + 0.25 * machine.intercept_[0]
    assert weights == pytest.approx(r * w, abs=1e-3) and intercept == pytest.approx(b, abs=1e-3)


def test_nb_svm_turns_scores_into_probabilities_by_one_temperature():
    # Every fourth label is wrong: sure of itself it would be punished.
    labels = np.where(np.arange(200) % 4, LABELS, (LABELS + 1) % 3)
    inputs, labels = split_of(texts_of(LABELS), *EDGES), split_of(labels, *EDGES)
    baseline = evaluate_baseline("nb-svm", inputs, labels, "single-label", list("abc"))
    features = bigram_features(inputs)
    machine = fit_nb_svm(features["train"], labels["train"], 3, "single-label", baseline.chosen)
    scores = {split: machine.scores(features[split]) for split in ("validation", "test")}
    expected = softmax(scores["test"] / baseline.temperature, axis=1)
    assert baseline.probabilities["test"] == pytest.approx(expected, abs=1e-6)

    def loss(temperature):
        return row_losses(softmax(scores["validation"] / temperature, axis=1), labels["validation"]).mean()

    assert loss(baseline.temperature) < min(loss(baseline.temperature * 1.2), loss(baseline.temperature / 1.2))


def test_the_svm_on_characters_is_scikit_learns_and_reads_the_beginning():
    texts = texts_of(LABELS)
    texts[0] = f"{texts[0]} ".ljust(LONGEST) + "zzzz yyyy"
    inputs, labels = split_of(texts, *EDGES), split_of(LABELS, *EDGES)
    baseline = evaluate_baseline("char-svm", inputs, labels, "single-label", list("abc"))
    vectoriser = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2, dtype=np.float32)
    train = vectoriser.fit_transform([text[:LONGEST] for text in inputs["train"]])
    machine = LinearSVC(C=baseline.chosen, dual=True, random_state=0).fit(train, labels["train"])
    scores = machine.decision_function(vectoriser.transform(inputs["test"]))
    expected = softmax(scores / baseline.temperature, axis=1)
    assert baseline.probabilities["test"] == pytest.approx(expected, abs=1e-5)
    assert baseline.parameters == 3 * (len(vectoriser.vocabulary_) + 1)


def test_the_svm_on_characters_reads_words_that_come_once():
    """Each word is of its own, and its middle tells the label."""
    rng = np.random.default_rng(0)
    letters = list("abcdefghij")
    words = ["".join(rng.choice(letters, 4)) + ("xyx", "yxy")[label] + "".join(rng.choice(letters, 4))
             for label in LABELS % 2]  # fmt: skip
    inputs, labels = split_of([f"the {word} is" for word in words], *EDGES), split_of(LABELS % 2, *EDGES)
    accuracy = {
        name: evaluate_baseline(name, inputs, labels, "single-label", list("ab")).metrics["test"]["accuracy"]
        for name in ("tf-idf", "char-svm")
    }
    assert accuracy["char-svm"] == 1 and accuracy["tf-idf"] < 0.8


def test_two_classes_are_one_problem():
    labels = LABELS == 1
    features = bigram_features({"train": texts_of(LABELS)})["train"]
    machine = fit_nb_svm(features, labels.astype(int), 2, "single-label", 0.1)
    scores = machine.scores(features)
    assert machine.parameters == features.shape[1] + 1
    assert (scores[:, 0] == -scores[:, 1]).all() and ((scores[:, 1] > 0) == labels).mean() > 0.95


def test_images_reach_what_a_linear_model_can():
    digits = load_digits()
    images = digits.images.astype(np.uint8)[..., None]
    edges = ((0, 1000), (1000, 1300), (1300, 1797))
    baseline = evaluate_baseline(
        "linear", split_of(images, *edges), split_of(digits.target, *edges), "single-label", list("0123456789")
    )
    assert baseline.metrics["validation"]["accuracy"] > 0.9 and baseline.temperature is None


@pytest.mark.parametrize("name", TEXT)
def test_several_labels_one_of_them_never_there(name):
    labels = np.stack([LABELS == 0, LABELS != 1, np.zeros(200)], axis=1).astype(np.uint8)
    baseline = evaluate_baseline(
        name,
        split_of(texts_of(LABELS), *EDGES),
        split_of(labels, *EDGES),
        "multi-label",
        ["zero", "not one", "never"],
    )
    assert baseline.metrics["test"]["macro_auroc"] > 0.9 and (baseline.probabilities["test"][:, 2] == 0).all()


@pytest.mark.parametrize("name", TEXT)
def test_a_class_without_training_rows_gets_probability_zero(name):
    labels = LABELS.copy()
    labels[:90][labels[:90] == 2] = 0
    baseline = evaluate_baseline(
        name, split_of(texts_of(LABELS), *EDGES), split_of(labels, *EDGES), "single-label", ["a", "b", "c"]
    )
    assert (baseline.probabilities["test"][:, 2] == 0).all() and np.isfinite(baseline.metrics["test"]["loss"])


def test_found_again_by_content(tmp_path, monkeypatch):
    arguments = (split_of(texts_of(LABELS), *EDGES), split_of(LABELS, *EDGES), "single-label", ["a", "b", "c"])
    first = evaluate_baseline("nb-svm", *arguments, cache=tmp_path)
    monkeypatch.setattr(baselines, "_fit", lambda *_: pytest.fail("fitted again"))
    second = evaluate_baseline("nb-svm", *arguments, cache=tmp_path)
    assert first.metrics == second.metrics and first.grid == second.grid and first.temperature == second.temperature
    assert (first.probabilities["test"] == second.probabilities["test"]).all()
    monkeypatch.undo()
    arguments[0]["train"][0] += " another"
    evaluate_baseline("nb-svm", *arguments, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("file", ["baseline.json", "validation.npy", "test.npy", "model.safetensors", "digests.json"])
def test_each_damage_of_a_kept_baseline_is_found(tmp_path, file):
    inputs, labels = split_of(texts_of(LABELS), *EDGES), split_of(LABELS, *EDGES)
    arguments = ("nb-svm", inputs, labels, "single-label", ["a", "b", "c"], tmp_path)
    folder = evaluate_baseline(*arguments).directory
    for damage in damages(folder / file):
        with pytest.raises(InputError, match=f"remove {folder} and run again"):
            assert not evaluate_baseline(*arguments), damage
    evaluate_baseline(*arguments)
    (folder / file).unlink()
    with pytest.raises(InputError, match=f"remove {folder} and run again"):
        evaluate_baseline(*arguments)


def test_a_test_split_that_is_not_given_is_not_measured():
    inputs, labels = split_of(texts_of(LABELS), *EDGES), split_of(LABELS, *EDGES)
    del inputs["test"]
    assert set(evaluate_baseline("tf-idf", inputs, labels, "single-label", list("abc")).metrics) == {"validation"}


@pytest.mark.parametrize(
    ("name", "texts", "fault"),
    [("tf-idf", ["one", "two"], "no word occurs in two"), ("nb-svm", ["", " "], "no training document has a word"),
     ("char-svm", ["ab", "cd"], "no two characters")],
)  # fmt: skip
def test_nothing_to_learn_from_is_refused(name, texts, fault):
    with pytest.raises(InputError, match=fault):
        evaluate_baseline(
            name,
            {"train": texts, "validation": ["three"]},
            {"train": np.array([0, 1]), "validation": np.array([0])},
            "single-label",
            ["a", "b"],
        )
    with pytest.raises(InputError, match="validation split"):
        evaluate_baseline(name, {"train": ["a"], "validation": []}, {}, "single-label", ["a", "b"])


def test_a_baseline_that_is_none():
    with pytest.raises(InputError, match="did you mean 'nb-svm'"):
        evaluate_baseline("nbsvm", {}, {}, "single-label", ["a", "b"])


def test_c_is_chosen_by_the_metric_that_is_asked(tmp_path):
    """Of several labels the best C by macro AUROC is not the one by micro F1, which is read at one half."""
    labels = (np.random.default_rng(2).random((200, 4)) < 0.15).astype(np.uint8)
    texts = [
        " ".join([text, *(f"topic{k}" for k in np.flatnonzero(row))])
        for text, row in zip(texts_of(LABELS), labels, strict=True)
    ]
    arguments = ("tf-idf", split_of(texts, *EDGES), split_of(labels, *EDGES), "multi-label", list("abcd"), tmp_path)
    by_area, by_f1 = evaluate_baseline(*arguments), evaluate_baseline(*arguments, metric="micro_f1")
    by_loss = evaluate_baseline(*arguments, metric="loss")
    assert by_f1.grid[f"{by_f1.chosen:g}"] == max(by_f1.grid.values()) == by_f1.metrics["validation"]["micro_f1"]
    assert by_loss.grid[f"{by_loss.chosen:g}"] == min(by_loss.grid.values())
    assert (
        by_area.grid != by_f1.grid
        and by_f1.metrics["validation"]["micro_f1"] >= (by_area.metrics["validation"]["micro_f1"])
    )


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
@pytest.mark.parametrize("name", [*TEXT, "linear"])
def test_what_is_saved_answers_raw_rows_as_the_baseline_did(name, task, tmp_path):
    """To the last bit, and also with a class that was never there."""
    baseline = kinds.baselines()[name]
    if name == "linear":
        inputs = split_of(load_digits().images[:200, :, :, None].astype(np.uint8), *EDGES)
    else:
        inputs = split_of(texts_of(LABELS), *EDGES)
    labels = LABELS if task == "single-label" else np.stack([k == LABELS for k in range(4)], axis=1).astype(np.uint8)
    fitted = evaluate_baseline(name, inputs, split_of(labels, *EDGES), task, list("abcd"), tmp_path)
    state = load_file(fitted.directory / "model.safetensors")
    answer = kinds.load(baseline.serve)(state, 4, task)
    for split in ("validation", "test"):
        np.testing.assert_array_equal(answer(inputs[split]), fitted.probabilities[split])
    np.testing.assert_array_equal(answer(inputs["test"][:1]), fitted.probabilities["test"][:1])
