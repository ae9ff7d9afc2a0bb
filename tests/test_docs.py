"""The README and the pages: commands parse, marked snippets run, tables are current, and the site's checks work."""

import importlib
import importlib.util
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from cuda_ext import pairs
from reread.planning.experiment import load_experiment
from reread.verdicts.seeds import least_seeds
from tests.cuda_ext.test_exercise_gpu import kernels_of_the_sources
from tests.reread.evaluation.pages import published_report

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
FENCE = re.compile(r"(<!-- runnable -->\n\n)?```(sh|python)\n(.*?)```", re.DOTALL)


def shell_lines(text: str) -> list[str]:
    return [line.split(" #")[0].strip() for line in text.splitlines() if line.strip()]


LINES = sorted({line for text in PAGES.values() for _, kind, code in FENCE.findall(text) if kind == "sh"
                for line in shell_lines(code)})  # fmt: skip


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, also of one that ssh runs; redirections are left out."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    for word in (*reader, ";"):
        if not set(word) <= set("|&;()"):
            words.append(word)
            continue
        if words and words[0] == "ssh":
            yield from simple_commands(" ".join(words[2:]))  # after the host
        elif words:
            yield [part for before, part in zip(["", *words], words, strict=False) if not {before, part} & {"<", ">"}]
        words = []


def commands_of(program: str) -> list[list[str]]:
    """Return the words of each shown command of a program; variables before it are left out."""
    commands = []
    for command in (command for line in LINES for command in simple_commands(line)):
        words = [word for word in command if not re.match(r"[A-Z_]+=", word)]
        if words[:1] == [program] or (program == "python" and "python" in words):
            commands.append(words[words.index(program) + 1 :])
    return commands


def load(name: str):
    """Import a script of docs/."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("arguments", commands_of("reread"), ids=" ".join)
def test_a_command_that_a_page_shows_parses(arguments):
    if arguments[0].startswith("--"):
        return
    app = importlib.import_module("reread.commands.app")
    name, rest = app.file_of(arguments[0], arguments[1:])
    command = app.load(name)
    if arguments[0] == "study" and len(arguments) > 1:
        assert (ROOT / "reread/studies" / f"{arguments[1]}.py").is_file()
    options = [word for word in rest if word != "--help"]
    if options or "--help" not in arguments:
        command.make_context(arguments[0], options).close()


def test_each_example_of_an_extension_exists():
    paths = {path for path in re.findall(r"`([a-z_]+/[\w./-]+)`", PAGES["docs/extending.md"]) if "NAME" not in path}
    assert len(paths) > 15
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_adapter_of_reuters_gives_the_rows_of_mod_apte():
    adapter = load("reuters")
    kept = {"TOPICS": "YES", "LEWISSPLIT": "TRAIN"}

    def article(topics, number, **attributes):
        given = " ".join(f'{name}="{value}"' for name, value in {**kept, **attributes, "NEWID": number}.items())
        marks = "".join(f"<D>{topic}</D>" for topic in topics)
        return f"<REUTERS {given}>\n<TOPICS>{marks}</TOPICS>\n<TITLE>A &lt;B></TITLE><BODY>Text.\x03</BODY></REUTERS>\n"

    text = article(["oil", "tin"], 1) + article(["oil"], 2, LEWISSPLIT="TEST") + article([], 3)
    text += article(["oil"], 4, TOPICS="NO") + article(["oil"], 5, LEWISSPLIT="NOT-USED")
    first, second = adapter.with_shared_topics(adapter.articles(text))
    assert first == {"id": "1", "text": "A <B>\n\nText.", "topics": ["oil"], "split": "train"}
    assert (second["id"], second["split"]) == ("2", "test")


def test_each_target_of_make_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {words[0] for words in commands_of("make")}
    shown |= {target for text in PAGES.values() for target in re.findall(r"`make ([a-z-]+)", text)}
    assert shown
    assert shown <= targets


# Prints the help of programs, by name: in one process, because most import torch.
HELP = """
import contextlib, io, json, runpy, sys
texts = {}
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    texts[name] = printed.getvalue()
print(json.dumps(texts))
"""


def test_each_program_of_python_exists_and_knows_the_options_shown():
    options: dict[str, set[str]] = {}
    for words in commands_of("python"):
        if words[0] == "-m":
            options.setdefault(words[1], set()).update(word for word in words[2:] if word.startswith("--"))
        else:
            assert (ROOT / words[0]).is_file()
    assert "reread.training" in options
    for module in options:
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() or module == "pytest", module
    with_options = [module for module, shown in options.items() if shown]
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELP, *with_options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for module, help_text in json.loads(printed.splitlines()[-1]).items():
        missing = {option for option in options[module] if option not in help_text}
        assert not missing, f"python -m {module} has no {missing}"


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_each_case_that_a_page_times_beside_a_peer_exists():
    shown = [words[2:5] for words in commands_of("python") if words[:2] == ["-m", "cuda_ext.pairs"]]
    assert ["conv2d", "64 x 512 x 512, 3 x 3, tiled, float32", "cuDNN"] in shown
    for kernel, case, peer in shown:
        pairs.find_case(kernel, case, peer)


def test_each_deployment_exists_with_the_parameters_shown():
    deployments = {
        f"{Path(deployment['entrypoint'].partition(':')[0]).stem}/{deployment['name']}": deployment["entrypoint"]
        for deployment in yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    }
    shown = [words for words in commands_of("prefect") if words[:2] == ["deployment", "run"]]
    assert shown
    for words in shown:
        path, function = deployments[words[2]].split(":")
        signature = re.search(rf"def {function}\((.*?)\) ->", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL)[1]
        for parameter in (word.partition("=")[0] for before, word in itertools.pairwise(words) if before == "-p"):
            assert re.search(rf"\b{parameter}\b", signature), f"{words[2]} has no parameter {parameter}"


def test_the_runnable_snippets_and_the_notebook_run_one_after_another(finished):
    """On the tiny experiment, in a copy that has run it; `reread` is the copy's own."""
    ran = []
    for page, text in PAGES.items():
        for runnable, kind, code in FENCE.findall(text):
            if not runnable:
                continue
            if kind == "python":
                answer = finished.run("python", "-c", code + "print(list(answer.columns))").stdout
                assert "probabilities" in answer, page
                ran.append("python")
            for words in map(shlex.split, shell_lines(code) if kind == "sh" else []):
                assert words[0] == "reread", page
                ran.append(" ".join(words))
                # This one made the copy.
                if ran[-1] != "reread run --experiment tiny":
                    finished.run("python", "-m", "reread", *words[1:])
    assert len(ran) == 3 and "reread run --experiment tiny" in ran
    assert (finished.directory / "reports/tiny/report.html").is_file()
    run_tour(finished)


def run_tour(project):
    """The notebook, on the runs of the tiny experiment. All cells of the committed one were executed in order."""
    tour = nbformat.read(ROOT / "docs/tour.ipynb", as_version=4)
    code = [cell for cell in tour.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    client = NotebookClient(tour, timeout=120, resources={"metadata": {"path": str(project.directory)}})
    client.execute(env=project.environment)
    outputs = {output.output_type for cell in code for output in cell.outputs}
    assert outputs == {"execute_result", "display_data"}


def yaml_blocks(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", PAGES[page], re.DOTALL)


def commands_shown(text: str) -> list[list[str]]:
    """Return the words of each line of the shell blocks of a text."""
    code = [code for _, kind, code in FENCE.findall(text) if kind == "sh"]
    return [shlex.split(line) for block in code for line in shell_lines(block)]


def test_each_experiment_that_a_page_shows_whole_is_one():
    shown = [(page, block) for page in PAGES for block in yaml_blocks(page) if block.startswith("title:")]
    assert {"README.md", "docs/change.md", "docs/tutorial.md"} <= {page for page, _ in shown}
    for page, block in shown:
        assert load_experiment("shown", ROOT, content=yaml.safe_load(block)).variants, page


def test_the_tutorial_leads_from_its_experiment_to_a_verdict(project, prefect_api):
    """Its commands, one after another, with networks that are trained for two epochs on a few rows."""
    project = project.using(prefect_api)
    small = {"preprocessing": {"docstrings": {"rows_per_class": 12}}, "training": {"max_epochs": 2}}
    whole, second = yaml_blocks("docs/tutorial.md")
    first_commands, second_commands = map(commands_shown, PAGES["docs/tutorial.md"].split(second))
    file = project.directory / "experiments/word-order.yaml"
    fewer = whole.replace("[0, 1, 2, 3, 4, 5]", "[0, 1]")
    file.write_text(fewer + yaml.safe_dump({"parameters": small}), encoding="utf-8")
    who = {f"GIT_{role}_{part}": "test@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    assert first_commands[:2] == [["make", "install"], ["source", ".venv/bin/activate"]]

    def run_all(commands: list[list[str]]) -> str:
        """Return what the last of the commands says."""
        for words in commands:
            said = (project.run("python", "-m", *words) if words[0] == "reread" else project.run(*words, **who)).stdout
        return said

    said = run_all(first_commands[2:])
    assert "all values agree" in said
    report = project.directory / "reports/word-order"
    (verdict,) = json.loads((report / "verdicts.json").read_text())["verdicts"]
    assert verdict["claim"].startswith("A GRU") and "Fixed before the runs" in (report / "report.html").read_text()

    # The second question trains nothing, and comes after a look at the test split.
    runs = sorted((project.directory / "runs").glob("*/result.json"))
    times = [path.stat().st_mtime_ns for path in runs]
    project.edit("experiments/word-order.yaml", "equivalence_margin", f"{second}equivalence_margin")
    assert [words[0] for words in second_commands] == ["git", "reread"]
    said = run_all(second_commands)
    assert "warning" in said and "of these reads was by this experiment" in " ".join(said.split())
    assert len(json.loads((report / "verdicts.json").read_text())["verdicts"]) == 2
    assert "Changed after 1 read" in (report / "report.html").read_text()
    assert [path.stat().st_mtime_ns for path in runs] == times and len(runs) == 4


def test_the_report_of_published_results_can_be_drawn(tmp_path):
    """docs/report.png is a picture of it."""
    page = published_report(ROOT / "results/default", tmp_path).read_text(encoding="utf-8")
    assert "han" in page and 'id="curves"' in page


def test_the_tables_are_those_of_the_results():
    assert load("tables").main(["--check"]) == 0


def published(name: str) -> dict:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("experiment", ["copying", "default", "kin", "lars", "swish-resnet"])
def test_a_table_of_verdicts_has_their_reads_and_each_caution_once(experiment):
    judged = load("tables").judged_in(experiment)
    rows, _, notes = load("tables").verdicts(experiment).partition("\n\n")
    cautioned = {caution.split()[0] for comparison in judged for caution in comparison["cautions"]}
    for comparison, row in zip(judged, rows.splitlines()[2:], strict=True):
        assert (" † |" in row) == bool(comparison["cautions"])
        assert row.endswith(f"| {comparison['earlier_reads'] + comparison['other_version_reads']} |")
    named = [re.findall("`([^`]+)`", note.partition(": ")[0]) for note in notes.splitlines()]
    assert sorted(itertools.chain(*named)) == sorted(cautioned)


def test_a_table_leaves_out_a_caution_that_a_later_tuning_made_untrue():
    told = [line for judged in published("swish-resnet/verdicts.json")["verdicts"] for line in judged["cautions"]]
    assert "relu has the highest training.learning_rate that its tuning tried, 1.6." in told
    assert not any(judged["cautions"] for judged in load("tables").judged_in("swish-resnet"))


@pytest.mark.parametrize(
    ("caution", "note"),
    [
        (
            "a was still learning when it ended (6 of 6 seeds): raise max_epochs.",
            "on `a` of X: still learning at the end (6 of 6 seeds).",
        ),
        (
            "b has the lowest training.optimizer.weight_decay that its tuning tried, 0.1.",
            "on `b` of X: the lowest `weight_decay` that its tuning tried, 0.1.",
        ),
        (
            "a trains with training.learning_rate=8.0 (0.9394).",
            "on `a` of X: trains with `learning_rate` 8.0 (0.9394).",
        ),
        ("Sentences have ten words, e.g. these.", "on X: Sentences have ten words, e.g. these."),
    ],
)
def test_a_caution_is_shortened_to_its_sides_and_words(caution, note):
    comparison = {"treatment": "a", "control": "b", "cautions": [caution]}
    table = load("tables").with_cautions((["claim"], [["c"]]), {"X": [comparison, comparison]})
    assert table == f"| claim |\n| --- |\n| c |\n\n† Caution {note}\n"


def test_the_best_of_a_data_set_is_of_all_published_experiments():
    (line,) = (line for line in load("tables").use().splitlines() if "On cifar10" in line)
    tried = [json.loads(path.read_text(encoding="utf-8")) for path in ROOT.glob("results/*/metrics.json")]
    variants = [of["variants"].values() for of in tried if of["evaluated_on"] == "test"]
    cifar10 = [variant for of in variants for variant in of if variant["data"] == "cifar10"]
    best = max(cifar10, key=lambda variant: variant["validation"]["accuracy"]["mean"])
    scores = (f"{best[split]['accuracy']['mean']:.4f} on {split}" for split in ("validation", "test"))
    assert ", ".join(scores) in line


def test_the_fewest_seeds_in_words_are_those_of_the_rule():
    words = " ".join(PAGES["docs/verdicts.md"].split())
    assert "need 4 seeds each for one comparison, 5 for two to six, and 6 for seven to 23." in words
    assert [least_seeds(0.05, count) for count in (1, 2, 6, 7, 23, 24)] == [4, 5, 5, 6, 6, 7]


def test_the_tables_leave_out_an_experiment_that_no_page_shows(project):
    (project.directory / "experiments/dropout.yaml").write_text(yaml_blocks("README.md")[0])
    done = project.run("python", "docs/tables.py", "--check")
    assert done.stdout == ""


def test_no_page_is_written_where_a_table_of_another_cannot_be_made(tmp_path, monkeypatch):
    tables = load("tables")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    region = "<!-- table: {} -->\n<!-- end of table -->\n"
    (tmp_path / "README.md").write_text(region.format("fewest-seeds"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text(region.format("arms:missing"))
    with pytest.raises(FileNotFoundError):
        tables.main([])
    assert (tmp_path / "README.md").read_text() == region.format("fewest-seeds")


def test_a_chart_names_what_it_shows_and_is_drawn_the_same_each_time(tmp_path):
    pictures = load("pictures")
    charts = pictures.charts()
    draw, report = charts[ROOT / "docs/kernels/max_pool2d.png"]
    older = {**report, "results": report["results"][1:]}
    drawn = [tmp_path / f"{number}.png" for number in range(3)]
    for shown, path in zip((report, report, older), drawn, strict=True):
        draw(shown, path)
    assert drawn[0].read_bytes() == drawn[1].read_bytes() != drawn[2].read_bytes()
    digests = [pictures.evidence(path) for path in (ROOT / "docs/kernels/max_pool2d.png", *drawn)]
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert pictures.main(["--check"]) == 0


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ROOT.glob("cuda_ext/*/cases.py")))
def test_each_operation_has_a_page_with_its_signature_speed_and_limits(name):
    page = PAGES[f"docs/kernels/{name}.md"]
    assert re.search(rf"autofunction:: cuda_ext\.{name}\.", page)
    table = page.partition(f"<!-- table: kernel:{name} -->")[2].partition("<!-- end of table -->")[0]
    try:
        load("tables").kernel(name)
    except KeyError:
        assert "not been measured yet" in page and not table
    else:
        assert table.count("\n") > 3
    assert "## Limits" in page or name == "vector_add"


def test_a_profile_names_no_function_that_is_gone():
    tables = re.findall(r"<!-- table: profile:.*?<!-- end of table -->", PAGES["docs/kernels.md"], re.DOTALL)
    shown = {name for table in tables for name in re.findall(r"\| `(\w+)` \| reread ", table)}
    assert "products_back" in shown
    assert shown <= kernels_of_the_sources()


def test_a_figure_changed_by_hand_is_set_right():
    page = PAGES["docs/results/readers.md"]
    figure = re.search(r"\| HAN \| (0\.\d+)", page)[1]
    changed = page.replace(f"| HAN | {figure}", "| HAN | 0.9999")
    assert changed != page
    assert load("tables").with_tables(changed) == page


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('<p id="there">text</p><a href="#there">link</a>', None),
        ('<a href="#elsewhere">link</a>', "no such anchor"),
        ('<a href="other.html">link</a>', "does not exist"),
        ('<a href="https://no host/">link</a>', "not a valid address"),
    ],
)
def test_the_check_of_links_finds(tmp_path, content, fault):
    page = tmp_path / "index.html"
    page.write_text(content)
    check = load("check")
    faults = check.broken_links(tmp_path, {page: check.read_page(page)})
    assert (faults == []) if fault is None else (len(faults) == 1 and fault in faults[0])


@pytest.mark.parametrize(
    ("content", "loads"),
    [
        ('<script src="https://cdn.example.org/x.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', True),
        ('<a href="https://example.org/">link</a><script src="x.js"></script>', False),
    ],
)
def test_the_check_finds_what_a_page_loads_from_another_host(tmp_path, content, loads):
    page = tmp_path / "index.html"
    page.write_text(content)
    check = load("check")
    assert bool(check.remote_resources(tmp_path, {page: check.read_page(page)})) is loads


def test_the_check_finds_a_room_whose_page_is_empty(tmp_path):
    page = tmp_path / "api" / "reread.storage.html"
    page.parent.mkdir()
    page.write_text("<h1>reread.storage</h1>")
    check = load("check")
    faults = check.empty_api_pages(tmp_path, {page: check.read_page(page)})
    assert any(fault.startswith("api/reread.storage.html lacks reread.storage.") for fault in faults)
    assert any(fault == "api/reread.training.html does not exist" for fault in faults)
