"""Accuracy by batch size: the table, the figure, and the experiments that are refused."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from reread.storage.errors import InputError
from reread.studies import batch_size, study_io

SEEDS = (0, 1, 2)


def variant(batch, **training):
    training = {"batch_size": batch, "max_epochs": 3, "learning_rate": batch / 1000} | training
    return SimpleNamespace(model="fastnet", network={"views": "image"}, training=training)


@dataclass(frozen=True)
class Source:
    """What the study asks of an evaluated experiment."""

    variants: dict
    accuracy: dict
    data: str = "cifar10"
    verdicts: tuple = ({"source": "a paper", "claim": "more", "verdict": "supported", "sentence": "it is"},)
    plan: SimpleNamespace = field(init=False)

    def __post_init__(self):
        plan = SimpleNamespace(
            variants=self.variants, splits=["validation", "test"], seeds=SEEDS, equivalence_margin=0.01, alpha=0.05
        )
        object.__setattr__(self, "plan", plan)

    def scores(self, name, split, metric):
        assert (split, metric) == ("test", "accuracy")
        return self.accuracy[name]


VARIANTS = {
    name: variant(int(name.rpartition("-")[2])) for name in ("lars-256", "lars-8192", "lars-16384", "my-sgd-256")
}
ACCURACY = {
    "lars-256": [0.94, 0.941, 0.942],
    "lars-8192": [0.936, 0.937, 0.938],
    "lars-16384": [0.90, 0.91, 0.93],
    "my-sgd-256": [0.94, 0.94, 0.94],
}


@pytest.fixture
def findings():
    return batch_size.study(batch_size.Settings(), Source(VARIANTS, ACCURACY), torch.device("cpu"))


def test_each_method_has_a_row_for_each_batch_size(findings):
    table = findings.tables["accuracy"]
    rows = table[["method", "batch", "learning_rate", "n"]].to_numpy().tolist()
    assert rows == [
        ["lars", 256, 0.256, 3],
        ["lars", 8192, 8.192, 3],
        ["lars", 16384, 16.384, 3],
        ["my-sgd", 256, 0.256, 3],
    ]
    assert (
        table["mean"].iloc[1] == pytest.approx(0.937) and table["low"].iloc[1] < 0.936 < 0.938 < table["high"].iloc[1]
    )


def test_the_figure_is_drawn_from_the_table_alone(findings, tmp_path):
    place = study_io.destination(tmp_path, "batch_size", "cifar10")
    study_io.publish(place, findings, {}, batch_size.draw_figure)
    assert sorted(path.name for path in place.iterdir()) == ["accuracy.csv", "figure.png", "results.json"]
    assert len(pd.read_csv(place / "accuracy.csv")) == 4
    batch_size.draw_figure(place, tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (place / "figure.png").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("lars-512", variant(256), "METHOD-BATCH"),
        ("512", variant(512), "METHOD-BATCH"),
        ("lars-512", variant(512, max_epochs=4), "another epochs"),
    ],
)
def test_variants_that_do_not_fit_in_one_figure_are_refused(name, content, fault):
    source = Source({**VARIANTS, name: content}, ACCURACY)
    with pytest.raises(InputError, match=fault):
        batch_size.methods_of(replace(source))
