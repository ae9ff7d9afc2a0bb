"""What the README and its pages say to type works: each command is run here, in a copy, or by the test named for it."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
# Commands that another test runs for real, with the words that its file must contain.
ELSEWHERE = {
    "make ui": ("tests/flows/test_serve.py", "flows.ui"),
    "make serve": ("tests/flows/test_serve.py", "flows.serve"),
    "make test": (".ci/run", "make test"),
    "make ext": ("tests/cuda_ext/test_build.py", "from cuda_ext import build"),
    "make doctor": ("tests/flows/test_doctor.py", "flows.doctor"),
    "python -m flows.compare": ("tests/flows/test_compare.py", "flows.compare"),
    "python -m flows.compare RUN_A RUN_B": ("tests/flows/test_compare.py", "flows.compare"),
    "python -m flows.reproduce RUN_KEY": ("tests/flows/test_reproduce.py", "flows.reproduce"),
    "python -m tasks.ingest imdb": ("tests/preprocessing/test_published.py", "imdb"),
    "python -m studies.copying": ("tests/studies/test_copying.py", '"-m", "studies.copying"'),
    "python -m studies.gradients": ("tests/studies/test_gradients.py", '"studies.gradients"'),
    "python -m benchmarks.densenet": ("tests/benchmarks/test_training_steps.py", "benchmarks.densenet"),
    "python -m benchmarks.han": ("tests/benchmarks/test_training_steps.py", "benchmarks.han"),
    "REREAD_PREPROCESSING=1 python -m flows.preprocess --data docstrings --fresh": (
        "tests/preprocessing/test_workers.py",
        "workers.VARIABLE",
    ),
    "REREAD_PREPROCESSING=dask python -m flows.preprocess --data docstrings --fresh": (
        "tests/preprocessing/test_workers.py",
        "workers.VARIABLE",
    ),
    "DASK_SCHEDULER_ADDRESS=tcp://HOST:8786 make run": (
        "tests/preprocessing/test_workers.py",
        "workers.ADDRESS_VARIABLE",
    ),
    "python -m training JOB.json": ("tests/training/test_runs.py", "training"),
    "prefect deployment run pipeline/default --watch": ("tests/flows/test_serve.py", "pipeline/default"),
    "prefect deployment run pipeline/default -p experiment=tiny --watch": ("tests/flows/test_serve.py", "tiny"),
    "prefect deployment run train/variant -p experiment=tiny -p variants='[\"han\"]' --watch": (
        "tests/flows/test_serve.py",
        "train/variant",
    ),
    "python -m studies.quantiles --prepared FOLDER ...": ("tests/studies/test_quantiles.py", "studies.quantiles"),
    "python -m studies.gates --runs RUN ... --prepared FOLDER": ("tests/studies/test_gates.py", "studies.gates"),
    "python -m studies.deletion --runs RUN ... --prepared FOLDER": (
        "tests/studies/test_deletion.py",
        "studies.deletion",
    ),
    "python -m training.machine > machine.json": ("tests/training/test_several_jobs.py", "training.machine"),
    "REREAD_MACHINE=machine.json python -m tasks.jobs --experiment imdb > jobs.txt": (
        "tests/tasks/test_jobs.py",
        "tasks.jobs",
    ),
    "REREAD_RUNS_A_GPU=6 xargs -n 8 -P 6 python -m training < jobs.txt": (
        "tests/training/test_several_jobs.py",
        "training",
    ),
    "xargs -n 1 dirname < jobs.txt | xargs python -m evaluation --test": ("tests/tasks/test_jobs.py", "evaluation"),
    "REREAD_MACHINE=machine.json python -m flows.evaluate --experiment imdb": (
        "tests/tasks/test_jobs.py",
        "REREAD_MACHINE",
    ),
    'python -m flows.predict --data docstrings "Return the eigenvalues of a matrix. They are sorted."': (
        "tests/flows/test_predict.py",
        "flows.predict",
    ),
    "python -m flows.predict --data docstrings --variant han --file README.md": (
        "tests/flows/test_predict.py",
        "flows.predict",
    ),
    "python -m flows.predict --data docstrings --file DOCUMENTS.txt --lines --json": (
        "tests/flows/test_predict.py",
        "flows.predict",
    ),
    "MLFLOW_TRACKING_URI=sqlite:///mlflow.db mlflow models serve -m models:/reread-docstrings@champion "
    "--env-manager local --host 127.0.0.1 --port 5001": ("tests/flows/test_predict.py", "models:/reread-snippets/1"),
    "python -m benchmarks.prediction --model runs/KEY": ("tests/benchmarks/test_prediction.py", "prediction.main"),
}
# Long ones are run with the tiny experiment.
RUN = {
    "make run": "make run EXPERIMENT=tiny",
    "make run EXPERIMENT=tiny": "make run EXPERIMENT=tiny",
    "make repro": None,
    "python -m flows.prune --dry-run": "python -m flows.prune --dry-run",
}

SHOW = "print(f'label={answer.label[0]} columns={list(answer.columns)}')"


def commands() -> list[str]:
    """Each line of the shell blocks, without its comment."""
    blocks = [block for text in PAGES.values() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("line", dict.fromkeys(commands()))
def test_every_command_of_the_readme_is_tested(line):
    assert line in RUN or line in ELSEWHERE, f"the README says `{line}` and no test runs it"
    if line in ELSEWHERE:
        file, words = ELSEWHERE[line]
        assert words in (ROOT / file).read_text(encoding="utf-8"), f"{file} no longer runs `{line}`"


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the README says `make {target}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_picture_and_file_that_a_page_names_is_there(page):
    for name in re.findall(r"\]\(([^)#:]+)\)", PAGES[page]):
        assert (page.parent / name).is_file(), name
    for name in re.findall(r"`([a-z_]+/[\w/.-]+\.(?:py|yaml|md|csv))`", PAGES[page]):
        if "NAME" not in name:
            assert (ROOT / name).is_file(), name


def test_every_folder_that_the_readme_names_is_there():
    for folder in re.findall(r"^\| `(\w+)/` \|", README, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_make_run_ends_with_verdicts_a_report_and_what_to_type_next(project):
    # The environment is the one that runs this test; make finds it installed.
    (project.directory / ".venv").symlink_to(ROOT / ".venv")
    done = project.run(*shlex.split(RUN["make run"]), timeout=400)
    for words in ("inconclusive", "gru-flat", "TF-IDF", "reports/tiny/report.html", "make ui", "make repro"):
        assert words in done.stdout, f"'{words}' is not in:\n{done.stdout}"
    report = (project.directory / "reports/tiny/report.html").read_text(encoding="utf-8")
    assert "A hierarchical attention network" in report and "not converged" in report
    assert (project.directory / "reports/tiny/attention.html").is_file()

    # Again: everything is taken up, nothing is trained.
    again = project.run(*shlex.split(RUN["make run"]), timeout=400)
    assert again.stdout.count("finished before") == 8
    assert "epoch 1 of" not in again.stdout

    # What the README says of serving the champion, as it stands there.
    (served,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    answer = project.run("python", "-c", served.replace("model.predict(", "answer = model.predict(") + SHOW).stdout
    assert "label=" in answer and "'probabilities'" in answer

    pruned = project.run(*shlex.split(RUN["python -m flows.prune --dry-run"]))
    assert "last.safetensors" in pruned.stdout or "checkpoint" in pruned.stdout.lower()
