"""A claim from its file to its verdict: what is run, what is cached, and what is said of a run that fails."""

import csv
import json
import os
import shutil
import subprocess
import sys

import pytest

from reread.arms.settings import read_arms_file
from reread.runtime.gpu_lease import LOCKS
from reread.storage.files import sha256_file
from reread.storage.source import ROOT
from tests.conftest import run_reread


def verdict(claim, *options):
    return json.loads(claim.run("--json", *options)[0])


def test_a_claim_on_two_branches_gives_the_verdict_of_judge_with_how_it_was_made(claim):
    document = verdict(claim, "--workers", "2", "--output", "verdict", "--exit-code")
    assert document["claims"][0]["verdict"] == "supported"
    assert document["claims"][0]["scores"]["control"] == [0.8, 0.803, 0.798, 0.801, 0.799, 0.802]
    made = document["arms"]["treatment"]
    assert (made["commit"], made["tree"]) == (claim.git("rev-parse", "idea"), claim.git("rev-parse", "idea^{tree}"))
    assert made["repository"] == "repository" and list(made["runs"]) == list("012345")
    folder = claim.folder / "verdict"
    assert sorted(path.name for path in folder.iterdir()) == ["badge.svg", "report.html", "scores.csv", "verdict.json"]
    assert json.loads((folder / "verdict.json").read_text()) == document
    assert made["commit"] in (folder / "report.html").read_text()
    for command in (("verify", "verdict/verdict.json", "verdict/scores.csv"), ("judge", "verdict/scores.csv")):
        claimed = ["--treatment", "treatment", "--margin", "0.005", "--json"] if command[0] == "judge" else []
        again = run_reread(*command, *claimed, folder=claim.folder)
        assert again.returncode == 0, again.stderr
    # The last was judge's: the same verdict from the same table.
    assert json.loads(again.stdout)["claims"] == document["claims"]
    # Nothing is left in the repository, and git does not see the runs.
    assert claim.git("status", "--porcelain", "--ignored") == "" and claim.git("worktree", "list").count("\n") == 0
    subprocess.run(["git", "init", "-q"], cwd=claim.folder, check=True)
    seen = subprocess.run(["git", "status", "--porcelain"], cwd=claim.folder, capture_output=True, text=True).stdout
    assert ".reread" not in seen and "claim.yaml" in seen


def test_finished_runs_are_cached_and_a_changed_commit_runs_its_arm_again(claim):
    first = verdict(claim)
    began = {path: path.read_text() for path in claim.folder.glob(".reread/runs/*/out/began")}
    assert len(began) == 12 and set(began.values()) == {"x"}
    printed, said = claim.run("--json")
    assert json.loads(printed) == first and said.count(": cached") == 12
    assert began == {path: path.read_text() for path in began}
    claim.commit("pass", branch="idea", base=0.825)
    states = claim.states()
    assert {arm for (arm, _), state in states.items() if state == "run"} == {"treatment"}
    # A commit of the same files is the same run.
    claim.commit(branch="idea", base=0.825)
    assert set(claim.states().values()) == {"cached"}
    claim.run("--no-cache", "--seeds", "2")
    assert len(claim.runs) == 12 and set(claim.states().values()) == {"cached"}


def test_other_data_another_command_and_another_seed_are_other_runs(claim):
    (claim.folder / "data.csv").write_text("1\n")
    claim.write(data="data.csv", seeds=2)
    claim.run()
    assert set(claim.states().values()) == {"cached"}
    (claim.folder / "data.csv").write_text("2\n")
    assert set(claim.states().values()) == {"run"}
    (claim.folder / "data.csv").write_text("1\n")
    claim.write(data="data.csv", seeds=[1, 7])
    assert claim.states() == {(arm, 1): "cached" for arm in ("control", "treatment")} | {
        (arm, 7): "run" for arm in ("control", "treatment")
    }
    # Settings that change no result change no key.
    claim.write(data="data.csv", seeds=2, retries=3, time_limit="1 h")
    assert set(claim.states().values()) == {"cached"}


def test_a_damaged_score_is_made_again(claim):
    first = verdict(claim)
    scores = claim.runs[0] / "out/metrics.json"
    scores.write_text('{"accuracy": 0.99}')
    printed, said = claim.run("--json")
    assert "is damaged" in said and said.count(": cached") == 11 and json.loads(printed) == first


ITEMS = """
with open(out / "items.csv", "w") as file:
    print("item,score", file=file)
    for item in range(40):
        print(f"q{item},{int((item * 7 + seed) % 10 < 10 * BASE)}", file=file)
"""


def test_items_are_judged_over_items(claim):
    claim.commit(ITEMS, branch="main", base=0.5)
    claim.commit(ITEMS, branch="idea", base=0.8)
    document = verdict(claim)
    assert document["claims"][0]["analyses"] == ["over seeds", "over seeds and items"]
    assert document["claims"][0]["items"] == 40
    with open(claim.folder / ".reread/claim/scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 480 and rows[0].keys() == {"arm", "seed", "metric", "item", "score"}


def test_an_arm_without_git_runs_in_its_folder_and_is_known_by_its_sources(claim):
    script = claim.folder / "script.py"
    script.write_text((claim.repository / "train.py").read_text().replace("0.8 +", "0.9 +"))
    run = f"{sys.executable} {{folder}}/script.py {{seed}} {{out}} && pwd > {{out}}/where"
    arms = {
        "control": {
            "git": "main",
            "repository": "repository",
            "run": f"cd . && {sys.executable} train.py {{seed}} {{out}}",
        }
    }
    claim.write(repository=None, arms={**arms, "treatment": {"run": run, "sources": "*.py", "folder": "repository"}})
    document = verdict(claim)
    assert document["claims"][0]["verdict"] == "supported"
    made = document["arms"]["treatment"]
    assert made["commit"] is None and list(made["sources"]) == ["script.py"]
    places = {path.read_text().strip() for path in claim.folder.glob(".reread/runs/*/out/where")}
    assert places == {str(claim.repository)}
    script.write_text(script.read_text() + "\n")
    assert {arm for (arm, _), state in claim.states().items() if state == "run"} == {"treatment"}


def test_a_run_whose_declared_file_changes_before_it_ends_has_failed(claim):
    """Else its scores would stand under the key of a file that they were not made from."""
    script = claim.folder / "script.py"
    script.write_text((claim.repository / "train.py").read_text())
    train = f"{sys.executable} {{folder}}/script.py {{seed}} {{out}}"
    change = f"{train} && if [ {{seed}} = 1 ]; then echo '#' >> {{folder}}/script.py; fi"
    claim.write(
        repository=None, sources="script.py", arms={"control": {"run": train}, "treatment": {"run": change}}, seeds=2
    )
    _, said = claim.run(code=2)
    assert "treatment, seed 1: script.py has changed since this command began: run it again" in said
    done = [run for run in claim.runs if (run / "result.json").is_file()]
    made = [json.loads((run / "job.json").read_text()) for run in done]
    assert {(job["arm"], job["seed"]) for job in made} == {("control", 0), ("treatment", 0), ("control", 1)}


def test_each_run_has_its_own_copy_of_the_revision(claim):
    """A file that one command writes beside its script is seen by no other one."""
    claim.commit('pathlib.Path("own").touch(exist_ok=False)\ntime.sleep(0.2)')
    claim.run("--workers", "3")
    assert not list(claim.folder.glob(".reread/runs/*/source"))


def test_a_url_is_mirrored_once_and_asked_again_for_a_branch(claim):
    url = f"file://{claim.repository}"
    claim.write(repository=url, seeds=2)
    document = verdict(claim)
    assert document["arms"]["control"]["repository"] == url
    claim.commit("pass")
    assert {arm for (arm, _), state in claim.states().items() if state == "run"} == {"control"}
    commits = {arm: made["commit"] for arm, made in document["arms"].items()}
    claim.write(repository=url, seeds=2, arms={arm: {"git": commit} for arm, commit in commits.items()})
    shutil.rmtree(claim.repository)
    # Commits that the mirror has need no repository.
    assert set(claim.states().values()) == {"cached"}
    claim.write(repository=url, seeds=2)
    assert "cannot be fetched" in claim.run(code=2)[1]


def test_a_fetch_that_fails_leaves_nothing_that_git_sees(claim):
    claim.write(repository="file:///nowhere")
    subprocess.run(["git", "init", "-q"], cwd=claim.folder, check=True)
    claim.run(code=2)
    seen = subprocess.run(["git", "status", "--porcelain"], cwd=claim.folder, capture_output=True, text=True).stdout
    assert (claim.folder / ".reread").is_dir() and ".reread" not in seen


TEXTS = """
with open(out / "items.csv", "w") as file:
    print("item,prediction,reference,seconds", file=file)
    for item in range(40):
        kept = " ".join(f"w{place}" for place in range(12) if (item * 7 + place + seed) % 10 < 10 * BASE)
        print(f"q{item},{kept},{' '.join(f'w{place}' for place in range(12))},{2 - BASE + seed / 100}", file=file)
"""


def test_texts_are_judged_by_a_metric_of_sums_and_are_not_stored(claim):
    claim.commit(TEXTS, branch="main", base=0.5)
    claim.commit(TEXTS, branch="idea", base=0.8)
    sides = {"treatment": "treatment", "control": "control"}
    claims = [
        {"name": "bleu", "metric": "bleu", "margin": 1.0, **sides},
        {"name": "speed", "metric": "seconds", "margin": "5%", "lower_is_better": True, **sides},
    ]
    claim.write(metric=None, margin=None, claims=claims)
    claims = verdict(claim)["claims"]
    assert [judged["analyses"][-1] for judged in claims] == ["over seeds and items"] * 2
    assert [judged["verdict"] for judged in claims] == ["supported"] * 2
    assert claims[0]["interval"]["mean"] > 10
    table = (claim.folder / ".reread/claim/scores.csv").read_text()
    assert "w1" not in table and table.startswith("arm,seed,metric,item,bleu.1,")


@pytest.mark.parametrize(
    ("inserted", "said"),
    [
        ("raise RuntimeError('no such layer')", ["ended with exit code 1", "RuntimeError: no such layer", "log.txt"]),
        ("sys.exit()", ["ended without scores", "neither metrics.json nor items.csv"]),
        ('(out / "metrics.json").write_text("{"); sys.exit()', ["ended without scores", "is not valid JSON"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["was killed by SIGKILL"]),
    ],
)
def test_a_command_that_fails_is_named_with_the_end_of_its_log(claim, inserted, said):
    claim.commit(f"print('epoch 1', flush=True)\nif seed == 3:\n    {inserted}", branch="idea", base=0.825)
    printed, errors = claim.run("--exit-code", code=2)
    assert printed == "" and "Traceback (most recent call last)" not in errors.splitlines()[-1]
    assert all(words in errors for words in [*said, "epoch 1", "error: treatment, seed 3"])
    # The others have finished, and are not run again.
    assert [run for run, state in claim.states().items() if state == "run"] == [("treatment", 3)]


@pytest.mark.parametrize(
    ("inserted", "said"),
    [
        ('(out / "metrics.json").write_text(\'{"acuracy": 1}\'); sys.exit()', "no metric 'accuracy': did you mean"),
        ('(out / "metrics.json").write_text(\'{"accuracy": NaN}\'); sys.exit()', "accuracy is 'nan', no finite number"),
        ('(out / "items.csv").write_text("item,score\\nq,1\\nr,0\\n"); sys.exit()', "are scores of two kinds"),
    ],
)
def test_a_score_that_is_missing_or_no_number_is_one_line_and_no_other_run_is_lost(claim, inserted, said):
    claim.commit(f"if seed == 3:\n    {inserted}", branch="idea", base=0.825)
    claim.run(code=2)
    printed, errors = claim.run(code=2)
    last = errors.splitlines()[-1]
    assert printed == "" and last.startswith("error: ") and said in last and errors.count(": cached") == 11
    # A row of a run's file is not for a person to remove.
    assert "or leave seed 3 out of `seeds`" in last and "remove the row" not in last
    claim.write(seeds=[0, 1, 2, 4, 5])
    assert verdict(claim)["claims"][0]["verdict"] == "supported"


@pytest.mark.parametrize(
    ("inserted", "said"),
    [
        ('(out / "items.csv").write_text("item,score\\nq,1\\n")', "has one item"),
        ('(out / "items.csv").write_text("item,score\\nq,maybe\\nr,1\\n")', "score is 'maybe', no finite number"),
        ('(out / "metrics.json").write_text(\'{"acuracy": 1}\'); sys.exit()', "did you mean 'acuracy'"),
    ],
)
def test_a_claim_whose_first_two_runs_fail_starts_no_other(claim, inserted, said):
    claim.commit(inserted)
    claim.commit(inserted, branch="idea", base=0.825)
    _, errors = claim.run(code=2)
    last = errors.splitlines()[-1]
    assert said in last and last.endswith("2 of 12 runs failed, and 10 were not started") and len(claim.runs) == 2


def test_a_cached_run_without_a_metric_of_the_claim_is_named_before_anything_runs(claim):
    claim.run("--seeds", "4")
    claim.write(metric="acuracy")
    printed, said = claim.run(code=2)
    assert printed == "" and said.startswith("error: control, seed 0 is cached: ") and said.count("\n") == 1
    assert "did you mean 'accuracy'" in said and "or leave seed 0 out of `seeds`" in said
    claim.write()
    assert claim.run()[1].count(": cached") == 8


def test_a_failed_attempt_is_tried_again_from_nothing(claim):
    flag = claim.folder / "failed"
    claim.commit(
        f"flag = pathlib.Path({str(flag)!r})\nif seed == 1 and not flag.exists():\n    flag.touch()\n    sys.exit(3)"
    )
    claim.write(retries=1, seeds=2)
    _, said = claim.run()
    assert "control, seed 1: ended with exit code 3" in said and "tried again, 1 of 1" in said
    assert {path.read_text() for path in claim.folder.glob(".reread/runs/*/out/began")} == {"x"}


def test_changes_that_are_not_committed_are_named(claim):
    (claim.repository / "train.py").write_text("broken")
    _, said = claim.run()
    assert "warning: arm 'control' runs commit" in said and "'treatment'" not in said


def test_fewer_seeds_than_declared_are_said_in_the_verdict(claim):
    document = verdict(claim, "--seeds", "4")
    assert "judged on 4 seeds per arm, and the claim file declares 6" in document["claims"][0]["sentence"]
    assert not any("declares" in line for line in verdict(claim)["claims"][0]["cautions"])


def test_seeds_that_can_decide_nothing_are_said_before_the_runs(claim):
    claim.write(seeds=3)
    line = "warning: 3 seeds decide nothing: a difference needs 4 of each arm (1 claim, alpha 0.05)\n"
    assert claim.run("--dry-run")[1] == line
    assert claim.run()[1].startswith(line)
    assert "warning" not in claim.run("--dry-run", "--seeds", "4")[1]
    _, said = claim.run("--seeds", "1", "--no-cache", code=2)
    assert said.count("\n") == 1 and "one seed has no spread, and a difference needs 4 of each arm" in said


def test_commands_see_the_variables_of_the_user_alone(claim):
    claim.commit('(out / "seen").write_text(json.dumps(dict(os.environ)))')
    claim.write(seeds=2)
    claim.run(MINE="1")
    seen = json.loads(next(claim.folder.glob(".reread/runs/*/out/seen")).read_text())
    assert seen["MINE"] == "1" and not {"MKL_NUM_THREADS", "MPLCONFIGDIR", "PREFECT_HOME"} & seen.keys()


TORCH = """\
class device: ...
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    get_device_properties = staticmethod(lambda index: type("GPU", (), {"uuid": UUID}))
"""


def test_commands_that_need_a_gpu_take_turns_on_it(claim):
    """On one GPU of a torch and an nvidia-smi that stand in for it."""
    programs = claim.folder / "programs"
    programs.mkdir()
    uuid = f"test-{os.getpid()}"
    (programs / "torch.py").write_text(TORCH.replace("UUID", repr(uuid)))
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho A GPU\n")
    (programs / "nvidia-smi").chmod(0o755)
    alone = claim.folder / "alone"
    for branch, base in (("main", 0.8), ("idea", 0.825)):
        lines = f"pathlib.Path({str(alone)!r}).mkdir()\ntime.sleep(0.5)\npathlib.Path({str(alone)!r}).rmdir()\n"
        claim.commit(f'{lines}(out / "gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"])', branch, base)
    claim.write(seeds=2, gpu=True)
    environment = {"PYTHONPATH": f"{programs}:{ROOT}", "PATH": f"{programs}:{os.environ['PATH']}"}
    printed = claim.run("--workers", "2", "--json", **environment)[0]
    assert json.loads(printed)["arms"]["control"]["machine"]["gpus"] == ["A GPU"]
    assert {path.read_text() for path in claim.folder.glob(".reread/runs/*/out/gpu")} == {f"GPU-{uuid}"}
    logs = [path.read_text() for path in claim.folder.glob(".reread/runs/*/log.txt")]
    assert any("waiting: other jobs have the visible GPUs" in log for log in logs)
    (LOCKS / f"gpu-{uuid}.lock").unlink()


def test_the_verdict_of_the_page_is_computed_again_and_is_of_its_claim_file():
    folder = ROOT / "docs/makemore"
    done = run_reread("verify", folder / "verdict.json", folder / "scores.csv")
    assert done.returncode == 0 and "all values agree" in done.stdout, done.stderr
    document, given = json.loads((folder / "verdict.json").read_text()), read_arms_file(folder / "claim.yaml")
    for name, arm in given.resolved_arms().items():
        made = document["arms"][name]
        assert (made["command"], made["commit"], made["repository"]) == (arm.run, arm.git, arm.repository)
        assert made["sources"] == {arm.sources: sha256_file(folder / arm.sources)}
