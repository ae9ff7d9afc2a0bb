"""A goal, its objective and a data set of it are one new file each, and no other file changes."""

import json

from reread.storage.files import sha256_file

GOAL = '''
"""A direction in the plane: a target is a unit vector, float32 [m, 2], a prediction any vector but 0."""

from dataclasses import dataclass

import numpy as np

from reread.goals import Goal, Metric


def angles(prediction, target):
    """Return the angle between the two in degrees, float64 [m, 1]."""
    prediction, target = np.asarray(prediction, np.float64), np.asarray(target, np.float64)
    across = prediction[:, 0] * target[:, 1] - prediction[:, 1] * target[:, 0]
    return np.degrees(np.arctan2(np.abs(across), (prediction * target).sum(axis=1)))[:, None]


def near(prediction, target):
    return (angles(prediction, target) < 30).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Directions(Goal):
    def targets(self, labels, outputs):
        return np.array(labels, dtype=np.float32).reshape(len(labels), outputs)

    def fault(self, labels):
        length = sum(number * number for number in labels) ** 0.5
        return "" if abs(length - 1) < 1e-3 else f"its length is {length:.3g} and not 1"

    def named(self, target, outputs):
        return [f"{np.degrees(np.arctan2(target[1], target[0])):.0f} degrees"]


GOAL = Directions(
    task="direction",
    metrics=(
        Metric("near", "Within 30 degrees", near),
        Metric("angle", "Angle", angles, higher_is_better=False, bounds=(0.0, 180.0)),
    ),
    shown=2,
    compared_by="angle",
    objective="cosine",
)
'''

OBJECTIVE = '''
"""1 less the cosine of the angle between scores and target."""

from dataclasses import dataclass

from torch.nn import functional

from models.objectives import scores


@dataclass(frozen=True)
class Settings:
    """No settings."""


class Cosine:
    def loss(self, network, outputs, target, inputs):
        return self.held_out_loss(scores(outputs), target)

    def held_out_loss(self, scores, target):
        return (1 - functional.cosine_similarity(scores, target)).mean()

    def probabilities(self, scores):
        return scores

    def correct(self, scores, target):
        return functional.cosine_similarity(scores, target)


def build(settings, description, labels):
    return Cosine()
'''

SOURCE = '''
"""Images that grow brighter in one direction."""

import numpy as np

from reread.preprocessing.raw import About
from reread.preprocessing.raw_images import ImageRows

ABOUT = About(classes=("x", "y"), source="drawn by the test", licence="none", task="direction")


def rows(progress):
    generator = np.random.default_rng(0)
    angle = generator.uniform(0, 2 * np.pi, 600)
    target = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    row, column = np.mgrid[-1:1:8j, -1:1:8j]
    images = 128 + 50 * (target[:, :1, None] * column + target[:, 1:, None] * row)
    images = (images + generator.normal(0, 8, images.shape)).astype(np.uint8)[..., None]
    return ImageRows(ABOUT, images, target, np.repeat(np.arange(3), (400, 100, 100)))
'''

EXPERIMENT = """
title: Which direction?
defaults:
  model: densenet
  data: slopes
  network: {depth: 10, growth_rate: 4}
  training: {learning_rate: 0.01, batch_size: 20}
variants:
  short: {training: {max_epochs: 1, patience: 1, schedule: {warmup_epochs: 0.2}}}
  long: {training: {max_epochs: 6, patience: 6}}
seeds: [0, 1, 2, 3, 4, 5]
comparisons:
  - {claim: Six epochs point nearer than one., treatment: long, control: short, metric: angle}
equivalence_margin: 1.0
alpha: 0.05
evaluate_on: test
"""


def digests(root):
    return {str(path.relative_to(root)): sha256_file(path) for path in root.rglob("*.py")}


def test_a_new_goal_is_one_file(project, prefect_api):
    project, root = project.using(prefect_api), project.directory
    before = digests(root)
    new = {
        "reread/goals/direction.py": GOAL,
        "models/objectives/cosine.py": OBJECTIVE,
        "reread/preprocessing/sources/slopes.py": SOURCE,
        "experiments/slopes.yaml": EXPERIMENT,
    }
    for name, source in new.items():
        (root / name).write_text(source)
    project.run("python", "-m", "reread", "data", "slopes")
    project.run("python", "-m", "reread", "run", "--experiment", "slopes")

    metrics = json.loads((root / "reports/slopes/metrics.json").read_text())
    of_long = metrics["variants"]["long"]
    assert of_long["score"] == "near" and set(of_long["test"]) == {"angle", "near"}
    assert of_long["test"]["angle"]["mean"] < 15 and of_long["test"]["near"]["mean"] > 0.9
    (verdict,) = json.loads((root / "reports/slopes/verdicts.json").read_text())["verdicts"]
    assert (verdict["metric"], verdict["verdict"]) == ("angle", "supported")
    after = digests(root)
    assert {name: after[name] for name in before} == before and set(after) - set(before) <= set(new)
