"""A run's key changes with what decides its weights, and with nothing else."""

import ast
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import models
from reread.planning import keys
from reread.planning.resolve import make_plan
from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.storage.files import content_key, read_json, write_json
from reread.storage.job import Job
from reread.storage.settings import to_json
from reread.storage.source import ROOT
from reread.training.machine import machine as this_machine
from reread.training.settings import Settings
from tests.golden.defaults import settings_classes
from tests.reread.planning.test_experiment import EXPERIMENT, write
from tests.rooms import copy_rooms

GPU = {
    "torch": "2.11.0+cu130", "numpy": "2.3.0", "cuda": "13.0", "cudnn": "91500", "device": "NVIDIA H200",
    "kernels": "extension; compiled for sm_90",
}  # fmt: skip
CPU = {"torch": "2.13.0", "numpy": "2.4.6", "cuda": None, "cudnn": None, "device": "AVX2", "kernels": None}
DESCRIPTION = {
    "schema": 2, "name": "digits", "kind": "image", "task": "single-label", "classes": ["a", "b"], "data_version": "1",
    "settings": {}, "splits": {"train": [0, 2]}, "mean": [0.5], "deviation": [0.5],
    "arrays": {"images": {"file": "images.npy", "shape": [3, 8, 8, 1], "dtype": "uint8", "sha256": "aa"}},
}  # fmt: skip


def plan_with_arrays(root: Path, experiment=None, description=None, **selection):
    """The plan of an experiment, and prepared.json of its arrays where jobs look for them."""
    plan = make_plan("trial", root=write(root, experiment), **selection)
    plan = replace(plan, environment=plan.environment.model_copy(update={"prepared": root / "prepared"}))
    for about in plan.preparations().values():
        write_json(Path(about["directory"]) / "prepared.json", description or DESCRIPTION)
    return plan


def run_keys(*arguments, **selection) -> dict[str, str]:
    return {job.variant: job.run_key for job in plan_with_arrays(*arguments, **selection).jobs()}


def test_a_job_is_complete_and_names_the_parts_of_its_key(tmp_path):
    plan = plan_with_arrays(tmp_path)
    jobs = plan.jobs()
    assert [(job.variant, job.seed) for job in jobs] == [("relu", 0), ("swish", 0), ("relu", 1), ("swish", 1)]
    job = jobs[1]
    assert set(job.key_parts) == {"model", "network", "training", "seed", "data", "machine", "source"}
    assert job.run_key == content_key(job.key_parts) and job.run_directory == Path("runs") / job.run_key
    # All settings are in the job, and those that differ from their defaults in the key.
    assert job.network == to_json(models.settings_class("densenet")(activation=job.network["activation"]))
    assert job.key_parts["network"] == {"activation": job.network["activation"]}
    assert {"threads", "world_size", *this_machine()} == set(job.machine)
    assert job.source["digest"] == job.key_parts["source"]
    assert {"reread.training.loop", "models.densenet"} <= set(job.source["modules"])
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    shutil.rmtree(tmp_path / "prepared")
    with pytest.raises(InputError, match=r"prepared\.json is missing"):
        plan.jobs()


def test_what_changes_no_weight_changes_no_key(tmp_path):
    usual = run_keys(tmp_path, seeds=[0])
    swish = EXPERIMENT["variants"]["swish"]
    renamed = {**EXPERIMENT, "title": "Else", "comparisons": [], "variants": {"another": swish}}
    assert run_keys(tmp_path, renamed, seeds=[0]) == {"another": usual["swish"]}
    # A default that is written out, and how the arrays are called or came to be.
    written = {"relu": EXPERIMENT["variants"]["relu"], "swish": {**swish, "training": {"threads": 1, "amp": "auto"}}}
    assert run_keys(tmp_path, {**EXPERIMENT, "variants": written}, seeds=[0]) == usual
    about = {**DESCRIPTION, "name": "other", "schema": 3, "settings": {"rows_per_class": None}}
    assert run_keys(tmp_path, None, about, seeds=[0]) == usual
    # Arrays that no network reads.
    groups = {**DESCRIPTION["arrays"], "groups": {"file": "groups.npy", "sha256": "cc"}}
    assert run_keys(tmp_path, None, {**DESCRIPTION, "arrays": groups}, seeds=[0]) == usual


def test_what_changes_weights_changes_the_key(tmp_path, monkeypatch):
    usual = run_keys(tmp_path, seeds=[0])["relu"]
    assert run_keys(tmp_path, seeds=[1])["relu"] != usual
    for override in ("training.learning_rate=0.5", "network.depth=22", "training.threads=2"):
        assert run_keys(tmp_path, seeds=[0], overrides=[override])["relu"] != usual
    for change in ({"mean": [0.4]}, {"splits": {"train": [0, 1]}}, {"arrays": {"images": {"sha256": "bb"}}}):
        assert run_keys(tmp_path, None, {**DESCRIPTION, **change}, seeds=[0])["relu"] != usual
    for change in (
        {"torch": "1"},
        {"numpy": "1"},
        {"device": "AVX"},
        {"cuda": "1"},
        {"cudnn": "1"},
        {"kernels": "none"},
    ):
        with monkeypatch.context() as context:
            context.setattr(keys, "this_machine", lambda change=change: {**this_machine(), **change})
            assert run_keys(tmp_path, seeds=[0])["relu"] != usual
    with monkeypatch.context() as context:
        context.setenv("REREAD_PROCESSES_PER_RUN", "2")
        assert run_keys(tmp_path, seeds=[0])["relu"] != usual


@pytest.fixture
def sources(tmp_path):
    """A copy of the sources that a test may edit, and a function that gives their digest."""
    rooms = ("batches", "goals", "kinds", "runtime", "storage", "training")
    copy_rooms(tmp_path, "cuda_ext", "models", *(f"reread/{room}" for room in rooms))

    def source(model: str = "densenet", kind: str = "image", settings: dict | None = None) -> dict:
        network = read(models.settings_class(model), {}, "network")
        training = read(Settings, settings or {}, "training")
        return keys.source(model, kind, network, training, root=tmp_path)

    def digest(*arguments, **keywords) -> str:
        return source(*arguments, **keywords)["digest"]

    def edit(name: str, old: str, new: str) -> None:
        path = tmp_path / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new, 1))

    digest.source = source
    return tmp_path, digest, edit


def test_words_types_and_places_of_the_source_are_not_in_the_key(sources):
    root, digest, edit = sources
    usual = digest()
    path = root / "models/densenet.py"
    tree = ast.parse(path.read_text())
    # A docstring, all comments and positions, a message, a type hint, a new field, a warning.
    tree.body[0].value.value = "Another docstring."
    text = ast.unparse(tree)
    text = text.replace("BLOCKS = 3", "BLOCKS: int = 3  # three")
    text = text.replace("class Settings:", "class Settings:\n    new: int = 7", 1)
    text = text.replace("too small for densenet", "much too small for densenet")
    assert "'bc-{depth}-{growth}'" in text
    text = text.replace("'bc-{depth}-{growth}'", "'bottlenecks-{depth}-{growth}'")
    path.write_text(text)
    assert "new: int = 7" in text and digest() == usual
    # A network that this one does not use, and a file that nothing imports.
    edit("models/han.py", "LENGTH_GROUPS = 2", "LENGTH_GROUPS = 3")
    (root / "models/layers/unused.py").write_text("X = 1\n")
    (root / "reread/training/optimisers").mkdir(exist_ok=True)
    (root / "reread/training/optimisers/mine.py").write_text("def build(groups, learning_rate, settings): ...\n")
    assert digest() == usual
    # What reports, what describes a run, a size for tests, and a function that training does not call.
    edit("reread/training/progress.py", "INTERVAL = 0.5", "INTERVAL = 0.7")
    edit("reread/training/device.py", '"python": platform.python_version()', '"python": platform.python_build()')
    edit("models/__init__.py", 'if "size" in network', 'if "size" not in network')
    edit("models/densenet.py", "DEBUG = Settings(", "DEBUG = Settings(dropout=0.5, ")
    edit(
        "reread/storage/prepared.py",
        'SPLITS = ("train", "validation", "test")',
        'SPLITS = ("train", "validation", "exam")',
    )
    edit("reread/storage/files.py", "indent=2", "indent=4")
    assert digest() == usual


def test_a_moved_file_is_not_in_the_key(sources):
    root, digest, _ = sources
    usual = digest()
    (root / "models/layers/dense.py").rename(root / "models/layers/denser.py")
    for path in (root / "models").rglob("*.py"):
        path.write_text(path.read_text().replace("models.layers.dense import", "models.layers.denser import"))
    assert digest() == usual


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("models/densenet.py", "BLOCKS = 3", "BLOCKS = 4"),
        ("models/densenet.py", "2 * settings.growth_rate", "3 * settings.growth_rate"),
        ("reread/training/step.py", "\nimport torch\n", "\nimport torch\n\ntorch.set_flush_denormal(True)\n"),
        ("reread/batches/order.py", "start + length", "start + length - 1"),
        ("reread/batches/image.py", ".float() / 255", ".float() / 256"),
        ("reread/storage/prepared.py", "np.arange(start, stop)", "np.arange(start, stop, 2)"),
        ("reread/storage/prepared.py", "allow_pickle=False)", "allow_pickle=False)[::2]"),
        ("models/__init__.py", "_build(model, network, description)\n", "_build(model, network, description).half()\n"),
        ("reread/training/device.py", "torch.set_num_threads(settings.threads)", "torch.set_num_threads(2)"),
        ("reread/training/checkpoint.py", "best = state.best_epoch == state.epoch", "best = True"),
        (
            "reread/training/checkpoint.py",
            "newest, path = checkpoints(run_directory)[-1]",
            "newest, path = checkpoints(run_directory)[0]",
        ),
        ("reread/storage/settings.py", "return tuple(value) if", "return tuple(value[1:]) if"),
        ("reread/kinds/image.py", 'row_array="images"', 'row_array="boxes"'),
        ("cuda_ext/library.py", "return dtype != torch.float64", "return dtype != torch.float32"),
    ],
)
def test_a_changed_constant_or_operation_is_in_the_key(sources, name, old, new):
    _, digest, edit = sources
    usual = digest()
    edit(name, old, new)
    assert digest() != usual


def test_another_import_of_the_same_name_is_in_the_key(sources):
    root, digest, edit = sources
    (root / "models/layers/one.py").write_text("def f(x):\n    return x\n")
    (root / "models/layers/two.py").write_text("def f(x):\n    return 2 * x\n")
    with open(root / "models/densenet.py", "a") as file:
        file.write("\nfrom models.layers.one import f\nfrom models.layers.two import f as g\n\nBOTH = (f, g)\n")
    usual = digest()
    edit("models/densenet.py", "layers.one import f", "layers.two import f")
    edit("models/densenet.py", "layers.two import f as g", "layers.one import f as g")
    assert digest() != usual


def test_a_relative_import_is_in_the_key(sources):
    root, digest, edit = sources
    for path in (root / "models").glob("*.py"):
        path.write_text(path.read_text().replace("from models.layers.pooling import", "from .layers.pooling import"))
    usual = digest("gru_flat", "text")
    edit("models/layers/pooling.py", "sums / length", "sums * length")
    assert digest("gru_flat", "text") != usual


def test_a_package_outside_of_the_project_is_in_the_key(sources, tmp_path_factory, monkeypatch):
    root, digest, _ = sources
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    package = elsewhere / "reread_test_networks"
    package.mkdir()
    (package / "__init__.py").write_text("from reread_test_networks.net import Net\n")
    (package / "net.py").write_text("WIDTH = 3\n\n\nclass Net: ...\n")
    densenet = (root / "models/densenet.py").read_text()
    (root / "models/densenet.py").write_text(f"{densenet}\nfrom reread_test_networks import Net\n\nNETS = [Net]\n")
    with pytest.raises(InputError, match="reread_test_networks"):
        digest()
    monkeypatch.syspath_prepend(elsewhere)
    usual = digest()
    (package / "net.py").write_text("WIDTH = 4\n\n\nclass Net: ...\n")
    assert digest() != usual


CUDA = {"kernels": "extension; compiled for sm_90"}
OTHERS = {"kernels": "reference"}


def test_the_kernels_that_a_network_calls_are_in_its_key_where_they_run(sources):
    root, digest, edit = sources

    def parts(model, kind, machine):
        return {**keys.key_parts(model, network, training, 0, "", machine, digest.source(model, kind)), "source": ""}

    training = Settings()
    texts = {}
    for name in ("gru/gru.cuh", "common/copies.cuh", "conv2d/fft.cuh"):
        texts[name] = (root / "cuda_ext" / name).read_text()
    for model, kind, own in (("han", "text", {"gru/gru.cuh"}), ("densenet", "image", set())):
        network = read(models.settings_class(model), {}, "network")
        usual, reference = parts(model, kind, CUDA), parts(model, kind, OTHERS)
        for name, text in texts.items():
            path = root / "cuda_ext" / name
            path.write_text(f"// A comment.\n\n{text}")
            assert parts(model, kind, CUDA) == usual
            path.write_text(f"{text}\nconstexpr int kAnother = 1;\n")
            changed = parts(model, kind, CUDA) != usual
            assert changed == (name in own or includes(root, usual["kernels"], name)), (model, name)
            assert parts(model, kind, OTHERS) == reference
            path.write_text(text)
        edit("cuda_ext/build.py", '"-O3"', '"-O2"')
        assert parts(model, kind, CUDA) != usual
        edit("cuda_ext/build.py", '"-O2"', '"-O3"')


def includes(root: Path, folders, name: str) -> bool:
    """Whether a file of these folders names another file, by itself or through others, in an #include."""
    waiting = [path for folder in folders for path in (root / "cuda_ext" / folder).glob("*.cu*")]
    seen = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            lines = [line for line in path.read_text().splitlines() if line.startswith('#include "')]
            waiting += [(path.parent / line.split('"')[1]).resolve() for line in lines]
    return root / "cuda_ext" / name in {path.resolve() for path in seen}


def test_the_members_that_the_settings_name_are_in_the_key(sources):
    _, digest, edit = sources
    flip = {"augmentation": ["flip"]}
    usual, flipped = digest(), digest(settings=flip)
    edit("reread/batches/augmentations/flip.py", "< settings.probability", "<= settings.probability")
    assert digest() == usual and digest(settings=flip) != flipped


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_digest_is_the_same_on_other_versions_of_python(version):
    modules = ["reread.training.loop", "models.han", "models.densenet", "reread.batches.text", "reread.batches.image"]
    code = f"from reread.storage.numeric import numeric_digest; print(numeric_digest({modules!r}))"
    here = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for python in filter(None, candidates):
        done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            assert done.stdout == here.stdout
            return
    pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("machine", [GPU, CPU])
def test_the_machine_of_a_file_stands_for_this_one(tmp_path, monkeypatch, machine):
    path = tmp_path / "machine.json"
    write_json(path, machine)
    assert keys.read_machine(path) == machine
    monkeypatch.setenv("REREAD_MACHINE", str(path))
    plan = plan_with_arrays(tmp_path)
    assert plan.targets_remote_machine and plan.machine == machine
    assert plan.jobs()[0].machine == {**machine, "threads": 1, "world_size": 1}
    write_json(path, this_machine())
    assert not make_plan("trial", root=tmp_path).targets_remote_machine


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([], "no mapping"),
        ({"torch": "2.11.0"}, "'numpy'"),
        ({**GPU, "devise": "x"}, "'device'"),
        ({**GPU, "kernels": None}, "'kernels' is None"),
        ({**GPU, "kernels": "extension 0123456789abcdef; compiled for sm_90"}, "'kernels' is 'extension 0123"),
        ({**GPU, "cuda": None}, "'cudnn' is '91500'"),
        ({**CPU, "kernels": "x"}, "'kernels' is 'x'"),
    ],
)
def test_a_file_that_no_machine_wrote_is_refused(tmp_path, given, fault):
    write_json(tmp_path / "machine.json", given)
    with pytest.raises(InputError, match=r"REREAD_MACHINE=.*machine\.json") as refused:
        keys.read_machine(tmp_path / "machine.json")
    assert fault in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InputError, match="is missing"):
        keys.read_machine(tmp_path / "none.json")


def test_no_default_changes():
    """A changed default gives runs of other settings the key of old ones. New settings are added to the file."""
    recorded = read_json(ROOT / "tests/golden/defaults.json")
    today = {name: to_json(cls()) for name, cls in settings_classes().items()}
    for name, defaults in recorded.items():
        assert name in today, f"{name} is gone: move its defaults in tests/golden/defaults.json to where it is now"
        for setting, value in defaults.items():
            assert today[name].get(setting, value) == value, (
                f"{name}.{setting} had the default {value!r}: keep it, and set another value in params.yaml"
            )
    new = {name: sorted(set(today[name]) - set(recorded.get(name, ()))) for name in today}
    assert not any(new.values()), f"add to tests/golden/defaults.json: {new}"
