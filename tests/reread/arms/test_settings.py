"""Refusals before anything runs, in one line, and how a command is filled in."""

from pathlib import Path

import pytest

from reread.arms import jobs
from reread.arms.jobs import make_jobs
from reread.arms.revisions import without_password
from reread.arms.settings import Arm, command_of, read_arms_file, seconds_of, undecidable
from reread.planning.claims import ClaimFile, read_claim_file
from reread.storage.errors import InputError

ARM = "python train.py {seed} {out}"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"arms": None}, "has no arms"),
        ({"arms": {"control": {"git": "main", "rnu": "x"}}}, "unknown name 'rnu' in claim.yaml.arms.control"),
        ({"run": None}, "claim.yaml.arms.control has no command"),
        ({"run": "python train.py {out}"}, "no {seed}, so that every seed would be the same run"),
        ({"run": "python train.py {seed}"}, "no {out}"),
        ({"run": f"{ARM} {{sede}}"}, "unknown placeholder {sede}: did you mean 'seed'"),
        ({"seeds": None}, "seeds is None"),
        ({"seeds": [1, 1]}, "a list without repeats"),
        ({"seeds": 0}, "seeds is 0"),
        ({"metric": None}, "no metric is named"),
        ({"margin": None}, "no margin is named"),
        ({"metric": "loss"}, "whether less of 'loss' is better is not said"),
        ({"control": "contrl"}, "unknown name 'contrl' in the arms: did you mean 'control'"),
        ({"scores": "scores.csv"}, "claim.yaml has scores, and its arms make the scores"),
        ({"retries": -1}, "retries is -1"),
        ({"time_limit": "soon"}, "time_limit is 'soon'"),
        ({"arms": {"a": {}, "b": {}}}, "has a repository and no revision"),
        ({"arms": {"a": {}, "b": {}}, "repository": None}, "has neither git nor sources"),
        ({"arms": {"a": {"git": "mian"}, "b": {"git": "idea"}}}, "has no revision 'mian': did you mean 'main'"),
        ({"arms": {"a": {"git": "--help"}, "b": {"git": "idea"}}}, "has no revision '--help'"),
        ({"arms": {"a": {"git": "main"}, "b": {"git": "main"}}}, "'a' and 'b' are the same files and command"),
        ({"repository": "."}, "is in no git repository"),
        ({"repository": "nowhere"}, "is in no git repository"),
        ({"repository": "file:///nowhere/at/all"}, "file:///nowhere/at/all cannot be fetched"),
        ({"data": "nowhere.csv"}, "nowhere.csv does not exist"),
    ],
)
def test_what_cannot_be_run_is_one_line(claim, values, said):
    treatment = {"treatment": "b", "control": "a"} if "a" in (values.get("arms") or {}) else {}
    claim.write(**{"run": ARM, **treatment, **values})
    path = claim.folder / "claim.yaml"
    with pytest.raises(InputError) as raised:
        make_jobs(read_arms_file(path), path)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_the_command_refuses_before_it_writes(claim):
    claim.write(run="python train.py")
    assert claim.run(code=2)[1].count("\n") == 1 and not (claim.folder / ".reread").exists()


def test_a_gpu_that_is_not_there_is_not_waited_for(claim, monkeypatch):
    monkeypatch.setattr(jobs, "this_machine", lambda: {"gpus": []})
    claim.write(gpu=True)
    path = claim.folder / "claim.yaml"
    with pytest.raises(InputError, match="arm 'control' needs a GPU, and nvidia-smi shows none"):
        make_jobs(read_arms_file(path), path)


def test_a_folder_that_the_revision_lacks_is_named(claim):
    claim.write(seeds=2, folder="elsewhere")
    assert "its revision has no folder 'elsewhere'" in claim.run(code=2)[1]


def test_judge_names_the_command_for_a_file_with_arms(claim):
    with pytest.raises(InputError, match="give it to `reread claim`"):
        read_claim_file(claim.folder / "claim.yaml", ClaimFile)


def test_placeholders_are_filled_in_and_braces_of_the_shell_are_kept():
    arm = Arm(run="run {seed} {out} {folder} ${HOME} | awk '{{print}}'")
    command = command_of(arm, 3, Path("/a b/out"), Path("/c"))
    assert command == "run 3 '/a b/out' /c ${HOME} | awk '{print}'"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"seeds": 4}, []),
        ({"seeds": 3}, ["3 seeds decide nothing: a difference needs 4 of each arm (1 claim, alpha 0.05)"]),
        ({"seeds": 4, "second_look": 8}, ["4 seeds can show equivalence and no difference: "]),
        ({"seeds": 5, "paired": True}, ["5 seeds can show equivalence and no difference: a difference needs 6"]),
        (
            {"seeds": 5, "claims": [{"name": "A"}, {"name": "B", "treatment": "treatment", "reference": 0.8}]},
            ["5 seeds decide nothing of B: a difference needs 7 of each arm (2 claims, alpha 0.05)"],
        ),
    ],
)
def test_what_so_few_seeds_cannot_decide_is_a_line(claim, values, said):
    claim.write(**values)
    lines = undecidable(read_arms_file(claim.folder / "claim.yaml"))
    assert len(lines) == len(said) and all(line.startswith(words) for line, words in zip(lines, said, strict=True))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"seeds": 1}, "one seed has no spread"),
        ({"seeds": 1, "treatment": "treatment", "reference": 0.8}, "one seed has no spread"),
        ({"seeds": 9, "second_look": 8}, "an arm has 9 seeds and second_look is 8"),
    ],
)
def test_seeds_of_which_nothing_is_judged_are_refused(claim, values, said):
    claim.write(**values)
    with pytest.raises(InputError, match=said):
        undecidable(read_arms_file(claim.folder / "claim.yaml"))


@pytest.mark.parametrize(
    ("text", "seconds"), [(90, 90), ("90 s", 90), ("10 min", 600), ("1.5 h", 5400), ("2 days", 172800)]
)
def test_a_time_limit_is_in_seconds(text, seconds):
    assert seconds_of(text) == seconds


def test_a_password_in_a_url_is_not_recorded():
    assert without_password("https://me:secret@example.org/a.git") == "https://example.org/a.git"
    assert without_password("git@example.org:a.git") == "git@example.org:a.git"
