"""Mistakes of a user: one line that names each, exit code 2, and nothing is written or started."""

import shutil

import pytest

from reread.storage.source import ROOT
from tests.reread.commands.conftest import make_folder


def written(folder):
    return sorted(path.name for path in folder.iterdir() if path.name in ("runs", "prepared", "reports", ".prefect"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("run --experiment defualt", "'default'"),
        ("run --experiment tiny --variant hann", "'han'"),
        ("run --experiment tiny --seed -1", "seed -1"),
        ("run --experiment tiny --seed 0 --seed 0", "seed 0"),
        ("train --experiment tiny --variant gru-flt", "'gru-flat'"),
        ("evaluate --experiment nope", "'nope'"),
        ("jobs --experiment tiny --seed -1", "seed -1"),
        ("preprocess --experiment nope", "'nope'"),
        ("preprocess --experiment tiny --data imbd", "'imbd'"),
        ("data imbd", "'imdb'"),
        ("data --experiment nope", "'nope'"),
        ("compare a b c", "RUN"),
        ("reproduce 3f2a", "'3f2a'"),
        ("predict --data docstrings --variant han --version 1 text", "--version"),
        ("predict --data docstrings --lines text", "--lines"),
        ("data add ../评论.csv", "--name"),
        ("ui --mlflow-port 4321 --prefect-port 4321", "port 4321"),
        ("ui --mlflow-port 0", "--mlflow-port"),
        ("serve --prefect-port 65536", "--prefect-port"),
        ("serve model digits --host 192.0.2.1", "--host"),
        ("prune --json", "--dry-run"),
    ],
)
def test_a_wrong_name_is_named_with_the_nearest_right_one(reread, shared_folder, arguments, named):
    assert named in reread(*arguments.split(), code=2)
    assert written(shared_folder) == []


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Go to a project folder of the test's own, with one file changed."""

    def change(name, old, new):
        folder = make_folder(tmp_path)
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(old) == 1
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")
        monkeypatch.chdir(folder)
        return folder

    return change


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "are cut.\n    length_quantile: {words: 0.95",
            "are cut.\n    length_quantile: {words: 1.5",
            "length_quantile.words is 1.5",
        ),
        ("min_count: 5        #", "min_cuont: 5        #", "'min_count'"),
        ("max_grad_norm: 1.0", "max_grad_nrom: 1.0", "'max_grad_norm'"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_starts(reread, changed, old, new, named):
    folder = changed("params.yaml", old, new)
    assert named in reread("train", "--experiment", "tiny", code=2)
    assert written(folder) == []


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"train": 1265', '"train": "1265"', "datasets.digits.splits.train is '1265'"),
        ('"train": 1265', '"trian": 1265', "datasets.digits.splits has test, trian, validation"),
        ('"bytes": 115136', '"bytes": null', "datasets.digits.files.images.npy.bytes is None"),
        ('"images.npy": {', '"../../images.npy": {', "datasets.digits.files names it"),
        ('"version": "7b', '"version": ["7b"], "licence": "7b', "datasets.digits.version is ['7b']"),
    ],
)
def test_a_wrong_value_in_the_manifest_is_refused_before_anything_starts(reread, changed, old, new, named):
    folder = changed("data.manifest.json", old, new)
    for command in ("train --experiment tiny", "data", "try digits --dry-run", "data add experiments"):
        said = reread(*command.split(), code=2)
        assert f"data.manifest.json: {named}" in said and "restore the file" in said
    assert written(folder) == []


@pytest.mark.parametrize(
    ("variable", "value"), [("REREAD_WORKERS", "two"), ("PREFECT_API_URL", "http://127.0.0.1:9/api")]
)
def test_a_wrong_variable_of_the_environment_is_refused(reread, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert f"{variable}={value}" in reread("train", "--experiment", "tiny", code=2)


def test_a_variable_that_is_not_json_is_refused_and_an_empty_one_counts_as_none(reread, monkeypatch):
    monkeypatch.setenv("REREAD_RUNS", "")
    assert "runs/" in reread("compare", code=2)
    monkeypatch.setenv("REREAD_SLURM", "{")
    assert "REREAD_SLURM" in reread("compare", code=2)


def test_training_on_data_that_is_not_here_names_the_command_that_fetches_it(reread, changed):
    folder = changed("data.manifest.json", '"schema"', '"schema"')
    text = (folder / "experiments/tiny.yaml").read_text(encoding="utf-8")
    (folder / "experiments/films.yaml").write_text(text.replace("docstrings", "movie_reviews"))
    assert "`reread data movie_reviews`" in reread("train", "--experiment", "films", "--variant", "han", code=2)
    assert written(folder) == []


def test_altered_data_is_refused(reread, changed):
    folder = changed("data.manifest.json", '"schema"', '"schema"')
    (folder / "data").unlink()
    shutil.copytree(ROOT / "data" / "digits", folder / "data" / "digits")
    images = folder / "data/digits/images.npy"
    content = bytearray(images.read_bytes())
    content[-1] ^= 1
    images.write_bytes(content)
    assert "data/digits/images.npy" in reread("data", "digits", code=2)
    assert images.read_bytes() == bytes(content)
