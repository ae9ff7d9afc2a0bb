"""A network of another package, through the commands: planned, trained, evaluated, registered and asked."""

import json
import sqlite3

import pytest

NETS = '''
import torch
from torch import Tensor, nn

from .pooling import mean_of_words


class TextCNN(nn.Module):
    KIND = "text"
    DEBUG = {"filters": 4}

    def __init__(self, description, filters: int = 16):
        super().__init__()
        self.embedding = nn.Embedding(description["vocabulary_size"], filters, padding_idx=0)
        self.convolution = nn.Conv1d(filters, filters, 3, padding=1)
        self.classify = nn.Linear(filters, len(description["classes"]))

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S], sentence_counts int [N] -> logits float [N, K]."""
        real = torch.arange(tokens.shape[2], device=tokens.device) < word_counts.unsqueeze(2)
        words = self.embedding(tokens.masked_fill(~real, 0))
        features = self.convolution(words.flatten(0, 1).transpose(1, 2)).relu().transpose(1, 2)
        return self.classify(mean_of_words(features.unflatten(0, tokens.shape[:2]), real))
'''
POOLING = '''
"""Pooling."""

SCALE = 1.0


def mean_of_words(words, real):
    """words float [N, S, W, F], real bool [N, S, W] -> float [N, F]."""
    real = real.unsqueeze(3)
    return SCALE * (words * real).sum(dim=(1, 2)) / real.sum(dim=(1, 2)).clamp(min=1)
'''
EXPERIMENT = """
title: A network from outside
variants:
  cnn: {model: textcnn, data: docstrings, network: {filters: 8}}
seeds: [0]
parameters:
  preprocessing: {docstrings: {rows_per_class: 20}}
  training: {max_epochs: 2, batch_size: 8}
evaluate_on: test
"""


@pytest.fixture
def project(project, prefect_api):
    """A fresh copy of the project, whose commands share a server of Prefect."""
    return project.using(prefect_api)


@pytest.fixture
def site(tmp_path, project):
    """The folder of the package my_package, installed by hand, on the path of the project's commands."""
    site = tmp_path / "site"
    about = site / "my_package-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "top_level.txt").write_text("my_package\n")
    (about / "entry_points.txt").write_text("[reread.models]\ntextcnn = my_package.nets:TextCNN\n")
    (site / "my_package").mkdir()
    for name, text in {"__init__": "", "nets": NETS, "pooling": POOLING}.items():
        (site / f"my_package/{name}.py").write_text(text)
    (project.directory / "experiments/outside.yaml").write_text(EXPERIMENT)
    project.environment["PYTHONPATH"] = str(site)
    return site


def test_a_network_of_another_package_goes_through_every_command(project, site, tmp_path):
    def reread(*words, **keywords):
        return project.run("python", "-m", "reread", *words, **keywords)

    def jobs():
        paths = project.directory.glob("runs/*/job.json")
        return {path.parent.name: json.loads(path.read_text()) for path in paths}

    reread("run", "--experiment", "outside")
    ((first, job),) = jobs().items()
    assert job["model"] == "my_package.nets:TextCNN" and job["key_parts"]["version"] == "1.0"
    with sqlite3.connect(project.directory / "mlflow.db") as database:
        logged = database.execute("SELECT DISTINCT value FROM params WHERE key = 'model'").fetchall()
    assert logged == [("my_package.nets:TextCNN",)]
    ask = ("predict", "--data", "docstrings", "--variant", "cnn", "Return the eigenvalues of a matrix.")
    assert reread(*ask).stdout.strip()
    tried = reread("try", "docstrings", "--variant", "my_package.nets:TextCNN", "--epochs", "2", "--dry-run").stdout
    assert "my_package-nets-TextCNN" in tried

    # Another docstring is no other code; another constant trains again, and the old weights answer no more.
    pooling = site / "my_package/pooling.py"
    pooling.write_text(POOLING.replace("Pooling.", "Means."))
    assert "1 cached, 0 to train" in reread("run", "--experiment", "outside", "--dry-run").stdout
    pooling.write_text(POOLING.replace("SCALE = 1.0", "SCALE = 2.0"))
    refused = reread(*ask, code=2).stderr
    assert "has changed since it was registered" in refused and refused.count("\n") == 1
    reread("run", "--experiment", "outside")
    assert len(jobs()) == 2 and first in jobs()

    # Where the package is missing or another one, a job does not train.
    (path,) = reread("jobs", "--experiment", "outside", "--seed", "1").stdout.split()
    train = ("python", "-m", "reread.training", path)
    refused = project.run(*train, code=2, PYTHONPATH="").stderr
    assert "'my_package.nets' is not importable here" in refused and refused.count("\n") == 1
    pooling.write_text(POOLING)
    assert "my_package/pooling.py" in project.run(*train, code=2).stderr
    pooling.write_text(POOLING.replace("SCALE = 1.0", "SCALE = 2.0"))
    project.run(*train)
    assert (project.directory / path).with_name("result.json").is_file()


def test_a_network_of_another_package_that_reads_padding_is_not_trained(project, site):
    nets = site / "my_package/nets.py"
    nets.write_text(NETS.replace("tokens.shape[:2]), real)", "tokens.shape[:2]), real | True)"))
    done = project.run("python", "-m", "reread", "run", "--experiment", "outside", code=None)
    assert done.returncode and "my_package.nets:TextCNN lets padding into its output" in done.stdout + done.stderr
