"""What a user gets wrong: one line that says what, where and what to do, exit code 2, and nothing half-written."""

import pytest


def refused(project, *command: str) -> str:
    """Run a command that must be refused; return its one line."""
    done = project.run(*command, code=2)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("commands.run --experiment defualt", "did you mean 'default'?"),
        ("commands.run --experiment tiny --variants hann", "did you mean 'han'?"),
        ("commands.run --experiment tiny --seeds -1", "seed -1"),
        ("commands.run --experiment tiny --seeds 0 0", "has seed 0 twice"),
        ("commands.preprocess --experiment nope", "no experiment 'nope'"),
        ("commands.preprocess --experiment tiny --data imbd", "unknown name 'imbd'"),
        ("commands.ingest --data imbd", "did you mean 'imdb'?"),
        ("tasks.train --experiment tiny --variant gru-flt", "did you mean 'gru-flat'?"),
        ("tasks.ingest imbd", "did you mean 'imdb'?"),
        ("tasks.evaluate --experiment tiny", "are not trained"),
    ],
)
def test_a_wrong_name_is_named_with_the_nearest_right_one(project, command, said):
    assert said in refused(project, "python", "-m", *command.split())
    # No run was begun, and no server was started for one.
    assert not (project.directory / "runs").exists() and not (project.directory / ".prefect/prefect.db").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "are cut.\n    length_quantile: {words: 0.95",
            "are cut.\n    length_quantile: {words: 1.5",
            "length_quantile: words is 1.5: it must lie above 0 and at most 1",
        ),
        ("min_count: 5        #", "min_cuont: 5        #", "did you mean 'min_count'?"),
        ("max_grad_norm: 1.0", "max_grad_nrom: 1.0", "did you mean 'max_grad_norm'?"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_starts(project, old, new, said):
    project.edit("params.yaml", old, new)
    assert said in refused(project, "python", "-m", "commands.train", "--experiment", "tiny")
    assert not (project.directory / "runs").exists() and not (project.directory / "prepared").exists()


def test_a_wrong_number_of_workers_is_refused(project):
    done = project.run("python", "-m", "commands.train", "--experiment", "tiny", code=2, REREAD_WORKERS="two")
    assert done.stderr.startswith("error: REREAD_WORKERS=two") and done.stderr.count("\n") == 1
    assert not (project.directory / "runs").exists()


def test_a_prefect_server_that_does_not_answer_is_refused(project):
    command = ["python", "-m", "commands.run", "--experiment", "tiny"]
    done = project.run(*command, code=2, PREFECT_API_URL="http://127.0.0.1:9/api")
    said = "error: PREFECT_API_URL=http://127.0.0.1:9/api does not answer: start that server or unset the variable\n"
    assert done.stderr == said


def test_training_on_data_that_is_not_here_names_the_command_that_fetches_it(project):
    experiment = (project.directory / "experiments/tiny.yaml").read_text(encoding="utf-8")
    (project.directory / "experiments/films.yaml").write_text(experiment.replace("docstrings", "movie_reviews"))
    line = refused(project, "python", "-m", "commands.train", "--experiment", "films", "--variants", "han")
    assert "run `python -m tasks.ingest movie_reviews`" in line
    assert not (project.directory / ".prefect/prefect.db").exists()


def test_altered_data_is_refused_by_the_flow(project):
    images = project.directory / "data/digits/images.npy"
    content = bytearray(images.read_bytes())
    content[-1] ^= 1
    images.write_bytes(content)
    pipeline = ["python", "-m", "commands.run", "--experiment", "tiny", "--variants", "densenet-relu"]
    assert "data/digits/images.npy" in refused(project, *pipeline)
    assert images.read_bytes() == bytes(content)
    assert not (project.directory / "prepared").exists()
