"""Settings and job files: what is misspelt or makes no sense is refused in one line."""

import json

import pytest

from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.training.settings import Settings, TrainingJob


@pytest.mark.parametrize(
    ("settings", "place", "right"),
    [
        ({"learning_rat": 0.1}, "'learning_rat' in training", "'learning_rate'"),
        ({"learning_rate": 0}, "training.learning_rate is 0", "0.00000001"),
        ({"learning_rate": "1e-3"}, "training.learning_rate is '1e-3'", "1.0e-3"),
        ({"optimizer": "adam"}, "training.optimizer", "'adamw'"),
        ({"optimizer": {"name": "sgd", "moment": 0.9}}, "'moment' in training.optimizer", "'momentum'"),
        ({"optimizer": {"name": "sgd", "momentum": 2}}, "training.optimizer.momentum is 2", "0.9999"),
        ({"augmentation": "flip"}, "training.augmentation is 'flip'", ""),
        ({"augmentation": ["flop"]}, "training.augmentation", "'flip'"),
        ({"batch_size": 0}, "training.batch_size is 0", "1"),
        ({"batch_size": 2.5}, "training.batch_size is 2.5", "integer"),
        ({"patience": True}, "training.patience is True", "integer"),
        ({"deterministic": 1}, "training.deterministic is 1", "boolean"),
        ({"objective": {"label_smoothing": 1.0}}, "training.objective.label_smoothing is 1.0", "0.99"),
        ({"ema_decay": 1.0}, "training.ema_decay is 1.0", "0.99999"),
        ({"adversarial_epsilon": -0.1}, "training.adversarial_epsilon is -0.1", "0"),
        ({"amp": "yes"}, "training.amp is 'yes'", "auto, bf16, fp16, fp32, off, tf32"),
        ({"schedule": {"warmup_epochs": 2}, "max_epochs": 2}, "training: ", "warmup_epochs"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(settings, place, right):
    with pytest.raises(InputError) as error:
        read(Settings, settings, "training")
    message = str(error.value)
    assert place in message and right in message and "\n" not in message


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().batch_size = 3


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": "3"}, "'seed' must be a whole number"),
        ({"network": None}, "'network' must be an object"),
        ({"run_directory": 3}, "'run_directory' must be text"),
        ({"training": {"patiense": 0}}, "training: unknown setting 'patiense'"),
    ],
)
def test_a_bad_job_is_refused_with_its_file(write_job, tmp_path, entries, message):
    path = write_job(tmp_path, **entries)
    with pytest.raises(InputError) as error:
        TrainingJob.read(path)
    assert str(path) in str(error.value) and message in str(error.value)


def test_a_job_that_is_no_object_or_lacks_an_entry_is_refused(tmp_path, write_job):
    path = tmp_path / "job.json"
    path.write_text("[]")
    with pytest.raises(InputError, match="must hold one JSON object"):
        TrainingJob.read(path)
    job = json.loads(write_job(tmp_path).read_text())
    del job["model"]
    path.write_text(json.dumps(job))
    with pytest.raises(InputError, match="'model' must be text"):
        TrainingJob.read(path)
