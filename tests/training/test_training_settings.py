"""Settings and job files: what is misspelt or makes no sense is refused in one line."""

import json

import pytest

from storage.errors import InputError
from training.settings import Job, Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rat": 0.1}, "unknown name 'learning_rat' in params: did you mean 'learning_rate'?"),
        ({"learning_rate": 0}, "params: learning_rate is 0: it must lie between 1e-08 and 100"),
        ({"learning_rate": "1e-3"}, "learning_rate is '1e-3': it must be a number (YAML reads 1e-3 as text"),
        ({"optimizer": "adam"}, "'adam': did you mean 'adamw'?"),
        ({"optimizer": {"name": "sgd", "moment": 0.9}}, "unknown name 'moment' in optimizer: did you mean 'momentum'?"),
        ({"optimizer": {"name": "sgd", "momentum": 2}}, "optimizer.momentum is 2"),
        ({"optimizer": {"momentum": 0.9}}, "optimizer is {'momentum': 0.9}: give a name"),
        ({"augmentation": "flip"}, "augmentation is 'flip': it must be a list"),
        ({"augmentation": ["flop"]}, "'flop': did you mean 'flip'?"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5: it must be a whole number"),
        ({"patience": True}, "patience is True: it must be a whole number"),
        ({"deterministic": 1}, "deterministic is 1: it must be true or false"),
        ({"objective": {"name": "classification", "label_smoothing": 1.0}}, "objective.label_smoothing is 1.0"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0: it must lie between 0 and 0.99999"),
        ({"adversarial_epsilon": -0.1}, "adversarial_epsilon is -0.1: it must lie between 0 and 100"),
        ({"strict_kernels": "no"}, "strict_kernels is 'no': it must be true or false"),
        ({"amp": "yes"}, "amp is 'yes': choose from: auto, bfloat16, float16, off"),
    ],
)
def test_nonsense_is_refused_in_one_line(settings, message):
    with pytest.raises(InputError) as error:
        Settings.read(settings, "params")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().batch_size = 3


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": "3"}, "'seed' must be there and be a whole number, it is '3'"),
        ({"network": None}, "'network' must be there and be an object"),
        ({"run_directory": 3}, "'run_directory' must be there and be text"),
        ({"training": {"patience": 0}}, "training: patience is 0"),
    ],
)
def test_a_bad_job_is_refused_with_its_file(write_job, tmp_path, entries, message):
    path = write_job(tmp_path, **entries)
    with pytest.raises(InputError) as error:
        Job.read(path)
    assert str(path) in str(error.value) and message in str(error.value)


def test_a_job_that_is_no_object_or_lacks_an_entry_is_refused(tmp_path, write_job):
    path = tmp_path / "job.json"
    path.write_text("[]")
    with pytest.raises(InputError, match="must hold one JSON object"):
        Job.read(path)
    job = json.loads(write_job(tmp_path).read_text())
    del job["model"]
    path.write_text(json.dumps(job))
    with pytest.raises(InputError, match="'model' must be there and be text, it is None"):
        Job.read(path)
