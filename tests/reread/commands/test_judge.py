"""reread judge and reread verify on a verdict: what is printed, what is written, and the exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from reread.planning.claims import ClaimFile, read_claim_file
from reread.storage.source import ROOT

OLD = [0.800, 0.803, 0.798, 0.801, 0.799, 0.802]
BETTER, LITTLE_BETTER = [score + 0.025 for score in OLD], [score + 0.0052 for score in OLD]
SPREAD = [0.76, 0.84, 0.79, 0.85, 0.77, 0.81]
HEAVY = ("torch", "mlflow", "prefect", "pandas", "sklearn", "matplotlib", "pyarrow", "tensorboard", "dask", "optuna")


def table(path: Path, **arms) -> str:
    lines = [f"{arm},{seed},{score}" for arm, scores in arms.items() for seed, score in enumerate(scores)]
    path.write_text("\n".join(["arm,seed,score", *lines]) + "\n")
    return str(path)


@pytest.fixture
def scores(tmp_path):
    return table(tmp_path / "scores.csv", new=BETTER, old=OLD)


def test_a_claim_as_options_gives_a_verdict_and_writes_nothing(reread, scores):
    said = reread("judge", scores, "--treatment", "new", "--control", "old", "--margin", "0.005")
    assert "supported" in said and "new is better than old by 0.0250 [" in said
    assert "Judged over seeds only" in said
    assert [path.name for path in Path(scores).parent.iterdir()] == ["scores.csv"]


def test_too_few_seeds_have_no_interval_and_the_terminal_says_so(reread, tmp_path):
    few = table(tmp_path / "scores.csv", new=BETTER[:2], old=OLD[:2])
    said = reread("judge", few, "--treatment", "new", "--control", "old", "--margin", "0.005")
    assert "\ndifference +0.0250, no interval (too few seeds), corrected p of a difference 0.3333, of" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "give --treatment and --control, of the arms new, old of score, and --margin, the smallest difference"),
        (
            "--treatment new",
            "no margin is named: give --margin (margin in a claim file), the smallest difference that matters",
        ),
        ("--treatment new --margin 0", "margin is 0: give one above 0"),
        ("--treatment new --margin x", "margin is 'x': give a number, or a percentage such as 5%"),
        ("--treatment nwe --margin 1", "no arm 'nwe' with score: did you mean 'new'"),
        ("--control odl --margin 1", "no arm 'odl' with score: did you mean 'old'"),
        ("--treatment new --margin 1 --alpha 2", "alpha is 2: give the rate of errors"),
        ("--treatment new --margin 1 --column model", "write ROLE=NAME"),
        ("--treatment new --margin 1 --column modle=x", "--column modle=…"),
        ("--treatment new --margin 1 --column arm=modle", "no column 'modle' for arm"),
        ("--treatment new --margin 1 --from csv", "unknown format 'csv'"),
        ("--treatment new --margin 1 --metric loss", "whether less of 'loss' is better is not said"),
        ("--treatment new --control old --reference 0.8 --margin 1", "control is the arm 'old', and a reference"),
        ("--treatment new --margin 1 --column item=score", "has one item"),
        ("nowhere.csv", "nowhere.csv does not exist"),
        ("--reference 0.8 --margin 1", "give --treatment, of the arms new, old of score"),
        (f"--treatment new --margin 1 --output {__file__}", "is a file: give a folder"),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(reread, scores, options, said):
    assert said in reread("judge", scores, *options.split(), code=2)


LOWER = "valLoss val_loss NLLLoss top1_err cross_entropy val_bce logloss brier wall_clock_s regret bits_per_byte RMSE"
HIGHER = "accuracy F1Score auroc bleu rewards tokens_per_second pass@1 transfer"


@pytest.mark.parametrize("metric", LOWER.split())
def test_a_metric_that_may_be_better_when_lower_is_asked_about(reread, scores, metric):
    claim = ("judge", scores, "--control", "old", "--margin", "0.005", "--column", "score=score", "--metric", metric)
    assert f"whether less of '{metric}' is better is not said" in reread(*claim, code=2)
    assert "refuted" in reread(*claim, "--lower-is-better")


@pytest.mark.parametrize("metric", HIGHER.split())
def test_any_other_metric_is_better_when_higher_and_that_is_said(reread, scores, metric):
    claim = ("judge", scores, "--control", "old", "--margin", "0.005", "--column", "score=score", "--metric", metric)
    assert f"Higher is better: {metric}." in reread(*claim)
    assert "Higher is better" not in reread(*claim, "--lower-is-better")


def test_the_words_of_several_claims_name_their_treatment(reread, tmp_path):
    path = table(tmp_path / "s.csv", old=OLD, better=BETTER, open=SPREAD)
    claim = ("judge", path, "--control", "old", "--margin", "0.005", "--json", "--claim")
    assert "'All are better.' would stand for each of 2 treatments" in reread(*claim, "All are better.", code=2)
    claims = json.loads(reread(*claim, "{treatment} beats {control}."))["claims"]
    assert [entry["claim"] for entry in claims] == ["better beats old.", "open beats old."]
    text = "{control: old, margin: 0.005, name: NAME}".replace("NAME", "'{treatment}, 2020'")
    (tmp_path / "claim.yaml").write_text(text)
    claims = json.loads(reread("judge", str(tmp_path / "claim.yaml"), path, "--json"))["claims"]
    assert [entry["name"] for entry in claims] == ["better, 2020", "open, 2020"]
    (tmp_path / "claim.yaml").write_text(text.replace("{treatment}", "both"))
    assert "'both, 2020' would stand" in reread("judge", str(tmp_path / "claim.yaml"), path, code=2)


def test_a_single_arm_is_compared_with_nothing(reread, tmp_path):
    said = reread("judge", table(tmp_path / "one.csv", new=BETTER), "--margin", "0.005", code=2)
    assert "score has only the arm 'new': give a second one, or --reference FIGURE (reference in a claim" in said


@pytest.mark.parametrize(
    ("arms", "margin", "word", "code"),
    [
        ({"new": BETTER, "old": OLD}, "0.005", "supported", 0),
        ({"new": OLD, "old": BETTER}, "0.005", "refuted", 1),
        ({"new": OLD, "old": OLD[::-1]}, "0.01", "equivalent", 0),
        ({"new": LITTLE_BETTER, "old": OLD}, "0.005", "different", 0),
        ({"new": OLD, "old": LITTLE_BETTER}, "0.005", "different", 3),
        ({"new": SPREAD, "old": SPREAD[::-1]}, "0.005", "inconclusive", 3),
    ],
)
def test_the_exit_code_says_the_verdict(reread, tmp_path, arms, margin, word, code):
    claim = ("judge", table(tmp_path / "s.csv", **arms), "--treatment", "new", "--margin", margin)
    assert word in reread(*claim, "--exit-code", code=code)
    assert word in reread(*claim)  # without the option it is 0


def test_of_several_claims_the_worst_is_the_exit_code(reread, tmp_path):
    path = table(tmp_path / "s.csv", old=OLD, better=BETTER, open=SPREAD)
    everything = ("judge", path, "--control", "old", "--margin", "0.005", "--exit-code")
    assert reread(*everything, code=3).count("is better than old") >= 2
    worse = table(tmp_path / "w.csv", old=BETTER, worse=OLD, open=SPREAD)
    reread("judge", worse, *everything[2:], code=1)


CLAIM_FILE = """\
source: Author 2020
control: old
metric: accuracy
margin: 0.005
scores: scores.jsonl
columns: {arm: model}
provenance: {ran_by: a team, hardware: one GPU}
cautions: [The learning rate was not tuned.]
claims:
  - {name: first, claim: The new one is better., treatment: new}
  - {treatment: other, margin: 5%}
"""


@pytest.fixture
def claim_file(tmp_path):
    rows = [
        {"model": arm, "seed": seed, "item": f"q{item}", "accuracy": float((seed + item + shift) % 5 > 1)}
        for arm, shift in (("new", 0), ("old", 1), ("other", 1))
        for seed in range(6)
        for item in range(30)
    ]
    (tmp_path / "scores.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "claim.yaml").write_text(CLAIM_FILE)
    return tmp_path / "claim.yaml"


def test_a_claim_file_names_claims_scores_and_provenance(reread, claim_file):
    document = json.loads(reread("judge", str(claim_file), "--json"))
    first, second = document["claims"]
    assert (first["name"], first["claim"], first["source"]) == ("first", "The new one is better.", "Author 2020")
    assert (first["equivalence_margin"], first["ratio"], first["items"]) == (0.005, None, 30)
    assert second["name"] == "other against old" and second["ratio"]["margin"] == pytest.approx(1.05)
    assert first["analyses"] == ["over seeds", "over seeds and items"] and "not tuned" in first["sentence"]
    assert document["provenance"]["hardware"] == "one GPU" and document["columns"] == {"arm": "model"}
    assert "over seeds only" not in reread("judge", str(claim_file))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("margin: 0.005", "margn: 0.005", "unknown name 'margn' in claim.yaml: did you mean 'margin'"),
        ("margin: 0.005", "margin: [1]", "claim.yaml.margin"),
        (
            "{treatment: other, margin: 5%}",
            "{treatment: other, name: first}",
            "two claims are named 'first': give each its own name",
        ),
        ("{treatment: other, margin: 5%}", "{treatmnt: other}", "unknown name 'treatmnt' in claim.yaml.claims.1"),
        ("scores: scores.jsonl\n", "", "no scores are given"),
        ("scores: scores.jsonl", "scores: other.jsonl", "other.jsonl does not exist"),
        ("ran_by", "by", "unknown name 'by' in claim.yaml.provenance"),
        (CLAIM_FILE, "- a", "is no mapping"),
        (CLAIM_FILE, "a: [", "is no YAML"),
        (CLAIM_FILE, "claims: []\nscores: scores.jsonl", "claims is an empty list"),
        ("margin: 0.005", "margin: 0.005\nmargin: 0.2", "'margin' is here a second time"),
        ("treatment: other", "treatment: []", "claim.yaml: treatment is an empty list"),
        ("margin: 0.005", "margin: 0.005\nreference: 0.8", "control is the arm 'old', and a reference is given too"),
        ("margin: 0.005", "margin: 0.005\nearlier_reads: -1", "claim.yaml.earlier_reads is -1"),
        ("margin: 0.005", "margin: 0.005\nsecond_look: -3", "claim.yaml.second_look is -3"),
        ("margin: 0.005", "margin: 0.005\nsecond_look: 3", "an arm has 6 seeds and second_look is 3"),
    ],
)
def test_a_wrong_claim_file_is_one_line(reread, claim_file, old, new, said):
    text = claim_file.read_text()
    assert old in text
    claim_file.write_text(text.replace(old, new))
    assert said in reread("judge", str(claim_file), code=2)


def test_scores_of_a_claim_file_are_paths_from_its_folder_or_addresses(tmp_path):
    file, addresses = tmp_path / "claim.yaml", ["sqlite:///ml.db#swish", "relu=file:mlruns#relu", "file:///mlruns#a"]
    file.write_text(yaml.safe_dump({"scores": [*addresses, "new=a.csv", "b.csv"]}))
    read = read_claim_file(file, ClaimFile).scores
    assert read == [*addresses, f"new={tmp_path}/a.csv", f"{tmp_path}/b.csv"]


def test_a_claim_file_and_options_do_not_mix(reread, claim_file, scores):
    assert "--margin and" in reread("judge", str(claim_file), scores, "--margin", "1", code=2)
    said = reread("judge", str(claim_file), scores, "--from", "table", code=2)
    assert "--from and" in said and "write format in the file" in said
    assert "does not exist" in reread("judge", str(claim_file.parent / "other.yaml"), code=2)


def test_a_claim_that_may_grow_has_two_looks(reread, tmp_path):
    for seeds, look in ((6, 1), (4, 2)):
        path = table(tmp_path / "s.csv", new=BETTER[:seeds], old=OLD[:seeds])
        second = 12 if look == 1 else 4
        (tmp_path / "claim.yml").write_text(f"treatment: new\ncontrol: old\nmargin: 0.005\nsecond_look: {second}\n")
        assert f"look {look} of the 2" in reread("judge", str(tmp_path / "claim.yml"), path)


class Page(HTMLParser):
    """The words of a page, and what a browser would fetch for it."""

    def __init__(self, text: str):
        super().__init__()
        self.words, self.fetched = "", []
        self.feed(text)

    def handle_data(self, data):
        self.words += data

    def handle_starttag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name == "src" or (tag == "link" and name == "href")]


def test_the_output_is_a_verdict_a_page_and_a_badge(reread, claim_file):
    folder = claim_file.parent / "out"
    reread("judge", str(claim_file), "--output", str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["badge.svg", "report.html", "verdict.json"]
    content = json.loads((folder / "verdict.json").read_text())
    page = Page((folder / "report.html").read_text())
    for claim in content["claims"]:
        assert claim["sentence"] in page.words and claim["claim"] in page.words
    assert content["inputs"][0]["sha256"] in page.words and page.fetched == []
    assert (folder / "report.html").stat().st_size < 60_000
    badge = ElementTree.fromstring((folder / "badge.svg").read_text())
    words = sorted({claim["verdict"] for claim in content["claims"]})
    assert all(word in badge.attrib["aria-label"] for word in words)


def test_names_with_markup_are_shown_as_text(reread, tmp_path):
    path = table(tmp_path / "s.csv", **{"<script>a</script>": BETTER, "old": OLD})
    reread("judge", path, "--control", "old", "--margin", "0.005", "--output", str(tmp_path / "out"))
    assert "<script" not in (tmp_path / "out/report.html").read_text()
    assert ElementTree.fromstring((tmp_path / "out/badge.svg").read_text()) is not None


@pytest.fixture
def verdict(reread, claim_file):
    reread("judge", str(claim_file), "--output", str(claim_file.parent / "out"))
    return claim_file.parent / "out/verdict.json"


def test_a_verdict_is_computed_again_from_itself_and_from_its_files(reread, verdict):
    assert "2 from published scores: all values agree" in reread("verify", str(verdict))
    said = reread("verify", str(verdict), str(verdict.parents[1] / "scores.jsonl"))
    assert "2 from predictions on each item: all values agree" in said


def test_verify_names_what_differs_and_ends_with_code_1(reread, verdict):
    scores = verdict.parents[1] / "scores.jsonl"
    scores.write_text(scores.read_text().replace('"accuracy": 1.0', '"accuracy": 0.0', 3))
    lines = reread("verify", str(verdict), str(scores), code=1).splitlines()
    assert "scores.jsonl is not the file that was judged: its sha256" in lines[1]
    assert any("first: scores.treatment[0] is published as" in line for line in lines)
    content = json.loads(verdict.read_text())
    content["claims"][0]["verdict"] = "supported"
    verdict.write_text(json.dumps(content))
    assert "first: verdict is published as 'supported'" in reread("verify", str(verdict), code=1)


def test_verify_takes_the_folder_of_a_verdict_too(reread, verdict):
    folder, scores = str(verdict.parent), verdict.parents[1] / "scores.jsonl"
    assert f"{folder}: verdicts 2 from published scores: all values agree" in reread("verify", folder)
    assert "2 from predictions on each item: all values agree" in reread("verify", folder, str(scores))
    verdict.write_text(verdict.read_text().replace('"name": "first"', '"name": "1st"', 1))
    verdict.write_text(re.sub('"p": [0-9.]+', '"p": 0.99', verdict.read_text(), count=1))
    assert "1st: p is published as 0.99" in reread("verify", folder, code=1)
    assert "no folder has" in reread("verify", "--write", folder, code=2)
    assert "--write does not replace" in reread("verify", "--write", str(verdict), code=2)


def test_verify_takes_an_address(reread, verdict):
    said = reread("verify", str(verdict), "sqlite:///nowhere.db#swish", code=2)
    assert "sqlite:///nowhere.db#swish" in said and "is not the file that was judged" in said


def test_a_file_with_another_digest_is_named_first_even_if_it_cannot_be_judged(reread, verdict):
    scores = verdict.parents[1] / "scores.jsonl"
    scores.write_text(scores.read_text().replace('"accuracy": 1.0', '"accuracy": ""', 1))
    said = reread("verify", str(verdict), str(scores), code=2)
    assert said.index("scores.jsonl is not the file that was judged") < said.index("accuracy is empty")


def test_verify_refuses_what_is_no_verdict(reread, verdict):
    assert "is of 1 files, and 2 are given" in reread("verify", str(verdict), str(verdict), str(verdict), code=2)
    verdict.write_text("{")
    assert "is not valid JSON" in reread("verify", str(verdict), code=2)
    verdict.write_text('{"claims": []}')
    assert "schema_version: Field required" in reread("verify", str(verdict), code=2)
    assert "is missing" in reread("verify", str(verdict.parent / "other.json"), code=2)


def test_a_claim_on_speed_is_a_ratio(reread):
    path = ROOT / "tests/reread/importers/files/hyperfine.json"
    said = reread("judge", str(path), "--control", "./old", "--margin", "5%", "--exit-code")
    assert "supported" in said and "×1.35" in said and "drift of the machine" in said


PAGE = (ROOT / "docs/judge.md").read_text(encoding="utf-8")


def test_the_page_shows_what_is_printed(reread):
    command, shown = re.search(
        r"```sh\nreread (judge docs/scores.csv .*?)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL
    ).groups()
    printed = reread(*command.replace("docs/", f"{ROOT}/docs/").split())
    assert printed.strip("\n") == shown.strip("\n")
    claims = re.search(r"```yaml\n(source: .*?)```", PAGE, re.DOTALL)[1]
    assert claims == (ROOT / "docs/claim.yaml").read_text()
    assert reread("judge", str(ROOT / "docs/claim.yaml"), "--exit-code").count("equivalent") >= 2


@pytest.mark.parametrize(("loss", "code"), [(0.0, 0), (0.02, 1)])
def test_the_workflow_of_the_page_gates_a_branch(tmp_path, loss, code):
    """Its command lines, with training scripts that print a score."""
    workflow = yaml.safe_load(re.search(r"```yaml\n(on: .*?)```", PAGE, re.DOTALL)[1])
    lines = [step["run"] for step in workflow["jobs"]["judge"]["steps"] if "run" in step]
    assert lines[0].startswith("pip install git+") and len(lines) == 3
    for arm, lost in (("base", 0.0), ("branch", loss)):
        (tmp_path / arm).mkdir()
        script = f"import random, sys\nprint(0.9 - {lost} + random.Random(sys.argv[2] + {arm!r}).gauss(0, 0.001))\n"
        (tmp_path / arm / "train.py").write_text(script)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/reread").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m reread "$@"\n')
    (tmp_path / "bin/python").symlink_to(sys.executable)
    (tmp_path / "bin/reread").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    for number, line in enumerate(lines[1:], 1):
        done = subprocess.run(["bash", "-e", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == (code if number == 2 else 0), done.stdout + done.stderr
    assert (tmp_path / "verdict/report.html").is_file()


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_has_exited_is_no_verdict(scores, buffered):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "reread", "judge", scores, "--treatment", "new", "--margin", "0.005"]
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_fault_of_reread_is_no_verdict(scores):
    code = """
import sys
from reread.commands import judge
from reread.commands.app import main
judge.judged = lambda *_: 1 / 0
main(["judge", sys.argv[1], "--treatment", "new", "--margin", "0.005", "--exit-code"])
"""
    done = subprocess.run([sys.executable, "-c", code, scores], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 70
    assert done.stderr.startswith("Traceback") and done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_it_imports_no_heavy_library(scores, tmp_path):
    code = f"""
import sys
from reread.commands.app import main
sys.argv = ["reread", "judge", {scores!r}, "--treatment", "new", "--margin", "0.005", "--output", {str(tmp_path)!r}]
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
sys.argv = ["reread", "verify", {str(tmp_path / "verdict.json")!r}, {scores!r}]
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
