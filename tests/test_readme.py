"""What the README and its pages say to type works: each command is run here, in a copy, or by the test named for it."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
# Commands that another test runs: its file, its name, and the words that it must name where those are others than the
# command's program and long options. Where a test enters below the command, they say where.
JOBS = ("tests/planning/test_jobs.py", "test_runs_of_another_machine_come_back_without_their_weights")
SERVE = ("tests/commands/test_serve.py", "test_a_deployment_runs_the_tiny_experiment_and_the_pages_show_it")
WORKERS = ("tests/preprocessing/test_workers.py", "test_one_process_two_and_dask_give_the_same_bytes")
COMPARE = "tests/commands/test_compare.py"
PREDICT = "tests/commands/test_predict.py"
STEPS = ("tests/benchmarks/test_training_steps.py", "test_without_a_gpu_a_benchmark_says_so_in_one_line")
AS_A_COMMAND = "test_it_runs_as_a_command_and_repeats_byte_for_byte"
ELSEWHERE = {
    "make ui": SERVE,
    "make serve": SERVE,
    # The suite cannot run itself: a line of what continuous integration runs.
    "make test": (".ci/run", "make test"),
    # What it adds to `dvc repro`, that other data is refused, has a test of its own in the same file.
    "make repro": (
        "tests/test_dvc.py",
        "test_both_doors_give_the_same_bytes_and_dvc_takes_up_what_the_flow_trained",
        "dvc",
        "repro",
    ),
    "make ext": ("tests/cuda_ext/test_build.py", "test_the_kernels_compile_for_every_gpu_and_are_published_whole"),
    "make doctor": ("tests/commands/test_doctor.py", "test_it_runs_without_any_package_or_environment"),
    "python -m commands.compare": (COMPARE, "test_without_a_name_the_runs_are_listed"),
    "python -m commands.compare RUN_A RUN_B": (
        COMPARE,
        "test_the_table_shows_differences_alone_unless_all_is_asked_for",
    ),
    "python -m commands.reproduce RUN_KEY": (
        "tests/commands/test_reproduce.py",
        "test_a_run_is_reproduced_and_what_has_changed_is_named",
    ),
    # The archives are too large to be fetched by a test; it reads them from a mirror where there is one.
    "python -m tasks.ingest imdb": (
        "tests/preprocessing/test_published.py",
        "test_the_published_archives_have_the_recorded_content",
        "preprocessing.ingest",
        "imdb",
    ),
    "python -m studies.copying": ("tests/studies/test_copying.py", "test_it_repeats_byte_for_byte"),
    "python -m studies.gradients": ("tests/studies/test_gradients.py", AS_A_COMMAND),
    "python -m studies.quantiles --prepared FOLDER ...": (
        "tests/studies/test_quantiles.py",
        "test_what_repeats_repeats_byte_for_byte_however_many_processes_there_are",
    ),
    "python -m studies.gates --runs RUN ... --prepared FOLDER": ("tests/studies/test_gates.py", AS_A_COMMAND),
    "python -m studies.deletion --runs RUN ... --prepared FOLDER": ("tests/studies/test_deletion.py", AS_A_COMMAND),
    # They need a GPU, and are run where there is none: they must start and say so.
    "python -m benchmarks.densenet": STEPS,
    "python -m benchmarks.han": STEPS,
    "DASK_SCHEDULER_ADDRESS=tcp://HOST:8786 make run": (*WORKERS, "preprocessing.workers.ADDRESS_VARIABLE"),
    "prefect deployment run pipeline/default --watch": (*SERVE, "prefect", "pipeline/default", "--watch"),
    "prefect deployment run pipeline/default -p experiment=tiny --watch": (
        *SERVE,
        "prefect",
        "pipeline/default",
        "experiment=tiny",
    ),
    "prefect deployment run train/variant -p experiment=tiny -p variants='[\"han\"]' --watch": (
        *SERVE,
        "prefect",
        "train/variant",
        'variants=["han"]',
    ),
    "python -m training.machine > machine.json": (
        "tests/training/test_several_jobs.py",
        "test_the_machine_is_printed_as_json",
    ),
    "REREAD_MACHINE=machine.json python -m commands.jobs --experiment imdb > jobs.txt": JOBS,
    "REREAD_RUNS_A_GPU=6 xargs -n 8 -P 6 python -m training < jobs.txt": JOBS,
    "xargs -n 1 dirname < jobs.txt | xargs python -m evaluation --test": JOBS,
    'python -m commands.predict --data docstrings "Return the eigenvalues of a matrix. They are sorted."': (
        PREDICT,
        "test_a_person_reads_what_an_answer_rests_on",
    ),
    "python -m commands.predict --data docstrings --variant han --file README.md": (
        PREDICT,
        "test_a_program_reads_all_of_an_answer",
    ),
    "python -m commands.predict --data docstrings --file DOCUMENTS.txt --lines --json": (
        PREDICT,
        "test_a_program_reads_all_of_an_answer",
    ),
    "MLFLOW_TRACKING_URI=sqlite:///mlflow.db mlflow models serve -m models:/reread-docstrings@champion "
    "--env-manager local --host 127.0.0.1 --port 5001": (PREDICT, "test_a_server_answers_any_document"),
}
# Commands that are run here, and how: the long ones with the tiny experiment, or with little to measure.
FEW = "from benchmarks import prediction as it; it.ON_CPU, it.WAYS = {2: 4}, {'1 process': (1, 1)}; it.main()"
RUN = {
    "make run": "make run EXPERIMENT=tiny",
    "make run EXPERIMENT=tiny": "make run EXPERIMENT=tiny",
    "python -m commands.prune --dry-run": "python -m commands.prune --dry-run",
    "REREAD_MACHINE=machine.json python -m commands.evaluate --experiment imdb": (
        "env REREAD_MACHINE=machine.json python -m commands.evaluate --experiment tiny"
    ),
    "python -m benchmarks.prediction --model runs/KEY": f'python -c "{FEW}" --rounds 1 --model',
    "REREAD_PREPROCESSING=1 python -m commands.preprocess --data docstrings --fresh": (
        "env REREAD_PREPROCESSING=1 python -m commands.preprocess --experiment tiny --data docstrings --fresh"
    ),
    "REREAD_PREPROCESSING=dask python -m commands.preprocess --data docstrings --fresh": (
        "env REREAD_PREPROCESSING=dask python -m commands.preprocess --experiment tiny --data docstrings --fresh"
    ),
}

SHOW = "print(f'label={answer.label[0]} columns={list(answer.columns)}')"


def commands() -> list[str]:
    """Each line of the shell blocks, without its comment."""
    blocks = [block for text in PAGES.values() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def asked_for(line: str) -> list[str]:
    """What a command starts, a target of make by its recipe, and its long options: what a test of it must name."""
    words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        (recipe,) = re.findall(rf"^{words[1]}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        words = recipe.splitlines()[-1].split()
    program = words[words.index("-m") + 1].rstrip(";") if {"python", "$(PYTHON)"} & set(words) else words[0]
    return [program, *(word for word in words if word.startswith("--"))]


def named(file: str, test: str) -> set[str]:
    """What a test names: the strings, and the dotted names by their imports, of itself and of all that it uses there.

    That is: what it calls, its fixtures and the constants of its file. Comments and docstrings name nothing.
    """
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    at_the_top = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            at_the_top[node.name] = node
        elif isinstance(node, ast.Assign):
            targets = [one for target in node.targets for one in ast.walk(target)]
            at_the_top |= {one.id: node for one in targets if isinstance(one, ast.Name)}
    assert isinstance(at_the_top.get(test), ast.FunctionDef), f"{file} has no {test}"
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    reached, names, strings = [test], set(), set()
    for used in reached:
        for node in ast.walk(at_the_top[used]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                strings.add(node.value)
            elif isinstance(node, ast.Name | ast.Attribute | ast.arg):
                first, dot, rest = ast.unparse(node).partition(":")[0].partition(".")
                names.add(imported.get(first, first) + dot + rest)
                if first in at_the_top and first not in reached:
                    reached.append(first)
    # A module is named by what is taken from it, and a program by a word of a command.
    modules = {name.rpartition(".")[0] for name in names}
    return names | modules | strings | {word for one in strings for word in re.findall(r"[\w./-]+", one)}


def test_each_command_is_run_here_or_by_a_test_that_is_named():
    assert set(ELSEWHERE) | set(RUN) == set(commands()) and not set(ELSEWHERE) & set(RUN)


@pytest.mark.parametrize("line", ELSEWHERE)
def test_the_test_that_is_named_for_a_command_is_there_and_names_it(line):
    file, test, *words = ELSEWHERE[line]
    if not file.endswith(".py"):
        assert test in (ROOT / file).read_text(encoding="utf-8").splitlines()
        return
    missing = set(words or asked_for(line)) - named(file, test)
    assert not missing, f"{test} of {file} does not name {sorted(missing)} of `{line}`"


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


def of_han(result: Path) -> bool:
    return json.loads((result.parent / "job.json").read_text(encoding="utf-8"))["variant"] == "han"


def test_make_run_ends_with_verdicts_a_report_and_what_to_type_next(project):
    # The environment is the one that runs this test; make finds it installed.
    (project.directory / ".venv").symlink_to(ROOT / ".venv")
    done = project.run(*shlex.split(RUN["make run"]), timeout=400)
    for words in ("inconclusive", "gru-flat", "TF-IDF", "reports/tiny/report.html", "make ui"):
        assert words in done.stdout, f"'{words}' is not in:\n{done.stdout}"
    # It takes up the default experiment alone.
    assert "make repro" not in done.stdout
    report = (project.directory / "reports/tiny/report.html").read_text(encoding="utf-8")
    assert "A hierarchical attention network" in report and "schedule completed" in report
    assert (project.directory / "reports/tiny/attention.html").is_file()

    # Again: everything is taken up, nothing is trained.
    again = project.run(*shlex.split(RUN["make run"]), timeout=400)
    assert again.stdout.count("finished before") == 8
    assert "epoch 1 of" not in again.stdout

    # What the README says of serving the champion, as it stands there.
    (served,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    answer = project.run("python", "-c", served + SHOW).stdout
    assert "label=" in answer and "'probabilities'" in answer

    # What another machine trained is reported here; this one may stand for it.
    (project.directory / "machine.json").write_text(project.run("python", "-m", "training.machine").stdout)
    report_of = "REREAD_MACHINE=machine.json python -m commands.evaluate --experiment imdb"
    assert "report: reports/tiny/report.html" in project.run(*shlex.split(RUN[report_of])).stdout

    (run, *_) = (path.parent for path in sorted(project.directory.glob("runs/*/result.json")) if of_han(path))
    timed = project.run(*shlex.split(RUN["python -m benchmarks.prediction --model runs/KEY"]), str(run)).stdout
    assert "best on the CPU, answer, batch 2: " in timed

    pruned = project.run(*shlex.split(RUN["python -m commands.prune --dry-run"]))
    assert "last.safetensors" in pruned.stdout or "checkpoint" in pruned.stdout.lower()


def test_text_is_prepared_anew_with_the_same_bytes_by_one_process_and_by_dask(project):
    made = []
    for how in ("1", "dask"):
        line = f"REREAD_PREPROCESSING={how} python -m commands.preprocess --data docstrings --fresh"
        said = project.run(*shlex.split(RUN[line])).stdout
        (folder,) = (path for path in (project.directory / "prepared").iterdir() if not path.name.startswith("."))
        assert f"rows in prepared/{folder.name}" in said
        files = sorted(folder.iterdir())
        made.append(({path.name: path.read_bytes() for path in files}, {path.stat().st_mtime_ns for path in files}))
    (one, when_one), (dask, when_dask) = made
    assert one == dask and not when_one & when_dask
