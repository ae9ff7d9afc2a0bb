"""The golden runs: which network trains on which data, with which settings.

This table is the only place that names settings: a renamed setting is renamed here and nowhere else. A case is recorded
under its name, so a renamed setting keeps its recorded values.
"""

from dataclasses import dataclass, field
from typing import Any

BATCH_SIZE = 8
EPOCHS = 2
SEED = 3

TRAINING = {
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "learning_rate": 0.01,
    "schedule": {"name": "cosine", "warmup_epochs": 0.5},
    "batch_size": BATCH_SIZE,
    "max_epochs": EPOCHS,
    "patience": EPOCHS,
    "max_grad_norm": 1.0,
    "objective": {"name": "classification", "label_smoothing": 0.1},
}
SGD = {
    "optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0005},
    "learning_rate": 0.1,
    "objective": {"name": "classification", "label_smoothing": 0.0},
}
SMOOTH = {"objective": {"name": "classification", "label_smoothing": 0.1}}
NO_MOMENTUM = {
    "optimizer": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0005},
    "schedule": {"name": "cosine", "warmup_epochs": 0.0},
}
RECALL = {"objective": {"name": "positions"}, "learning_rate": 0.03}
READER = {"embedding_dim": 8, "hidden_size": 4, "dropout": 0.5}
AVERAGE = {"embedding_dim": 8, "dropout": 0.5}
SMALL_IMAGES = {"depth": 10, "growth_rate": 4}
# At a rate of 0.1 these few photographs amplify a difference in the last bit a millionfold within 13 steps.
SLOW = SGD | {"learning_rate": 0.01}
BOTTLENECKS = {"depth": 11, "block": "bottleneck", "width": 4}
PHOTOGRAPHS = {"depth": "13", "growth_rate": 4}
CAPSULES = {"channels": 6, "primary_types": 2, "primary_dim": 4, "capsule_dim": 5, "decoder_units": [8]}
MARGIN = {"objective": {"name": "margin"}}
DARKEST = {"augmentation": [{"name": "shift", "padding": "darkest"}]}


@dataclass(frozen=True)
class Case:
    """data: a name of data.WRITERS; network and training replace entries of the network's and of TRAINING."""

    model: str
    data: str = "text"
    network: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


CASES = {
    "han": Case("han", network=READER),
    "han-mean": Case("han", network=READER | {"pooling": "mean"}),
    "han-max": Case("han", network=READER | {"pooling": "max"}),
    "han-gru-relu": Case("han", network=READER | {"cell": "gru-relu"}),
    "han-no-reset": Case("han", network=READER | {"cell": "no-reset"}),
    "han-no-update": Case("han", network=READER | {"cell": "no-update"}),
    "han-minimal": Case("han", network=READER | {"cell": "minimal"}),
    "han-rnn": Case("han", network=READER | {"cell": "rnn"}),
    "han-no-dropout": Case("han", network=READER | {"dropout": 0.0}),
    "han-word-dropout": Case("han", network=READER | {"word_dropout": 0.2}),
    "han-word2vec": Case("han", network=READER | {"word_vectors": "word2vec"}),
    "han-average": Case("han", network=READER, training={"ema_decay": 0.9}),
    "han-adversarial": Case("han", network=READER | {"word_dropout": 0.2}, training={"adversarial_epsilon": 1.0}),
    "han-word-vector-rate": Case("han", network=READER | {"embedding_lr_scale": 0.05}),
    "han-no-clipping": Case("han", network=READER, training={"max_grad_norm": 0}),
    "han-sgd": Case("han", network=READER, training=SGD | {"max_grad_norm": 0.25}),
    "han-several-labels": Case("han", "several-labels", READER),
    "gru_flat-last": Case("gru_flat", network=READER | {"pooling": "last"}),
    "gru_flat-mean": Case("gru_flat", network=READER | {"pooling": "mean"}),
    "gru_flat-attention": Case("gru_flat", network=READER | {"pooling": "attention"}),
    "gru_flat-all": Case(
        "gru_flat",
        "several-labels",
        READER | {"pooling": "mean", "word_dropout": 0.1, "word_vectors": "word2vec", "embedding_lr_scale": 0.1},
        {"ema_decay": 0.99, "adversarial_epsilon": 0.5, "schedule": {"name": "cosine", "warmup_epochs": 1.0}},
    ),
    "word_average": Case("word_average", network=AVERAGE),
    "word_average-word-dropout": Case("word_average", network=AVERAGE | {"word_dropout": 0.3}),
    "word_average-several-labels": Case("word_average", "several-labels", AVERAGE),
    "word_average-sgd": Case("word_average", network=AVERAGE, training=SGD | NO_MOMENTUM),
    "symbol_recall": Case("symbol_recall", "symbols", {"hidden_size": 8}, RECALL),
    "symbol_recall-minimal": Case("symbol_recall", "symbols", {"hidden_size": 8, "cell": "minimal"}, RECALL),
    "densenet-relu": Case("densenet", "images", SMALL_IMAGES | {"activation": {"name": "relu"}}, SGD),
    "densenet-swish": Case("densenet", "images", SMALL_IMAGES | {"activation": {"name": "swish"}}, SGD),
    "densenet-swish-beta": Case("densenet", "images", SMALL_IMAGES | {"activation": {"name": "swish_beta"}}, SGD),
    "densenet-dropout": Case("densenet", "images", SMALL_IMAGES | {"dropout": 0.2}, SGD | SMOOTH),
    "densenet-adamw": Case("densenet", "images", SMALL_IMAGES, {"ema_decay": 0.9}),
    "densenet-no-bottleneck": Case("densenet", "images", SMALL_IMAGES | {"bottleneck": False}, SLOW),
    "resnet": Case("resnet", "images", {"depth": 8, "width": 4}, SLOW),
    "resnet-plain": Case("resnet", "images", {"depth": 8, "width": 4, "shortcut": "none"}, SLOW),
    "preresnet": Case("preresnet", "images", BOTTLENECKS | {"activation": {"name": "swish"}}, SLOW),
    "stochastic_depth": Case("stochastic_depth", "images", {"depth": 14, "width": 4}, SLOW),
    "highway": Case("highway", "images", {"depth": 7, "width": 4}, SLOW),
    "wide_resnet": Case("wide_resnet", "images", {"depth": 10, "dropout": 0.2}, SLOW),
    "resnext": Case("resnext", "images", {"depth": 11, "cardinality": 2, "base_width": 2, "width": 4}, SLOW),
    "resnet18": Case("resnet18", "images", {"width": 4}, SLOW),
    "fastnet": Case(
        "fastnet",
        "photographs",
        {"widths": [4, 8, 8], "convolutions": 3, "views": "mirrored_shifted"},
        SLOW | {"lookahead_decay": 0.5, "augmentation": [{"name": "alternating_flip"}, {"name": "shift", "pixels": 2}]},
    ),
    "densenet_imagenet-relu": Case(
        "densenet_imagenet", "photographs", PHOTOGRAPHS | {"activation": {"name": "relu"}}, SLOW
    ),
    "densenet_imagenet-swish-beta": Case(
        "densenet_imagenet", "photographs", PHOTOGRAPHS | {"activation": {"name": "swish_beta"}}, SLOW
    ),
    "capsnet": Case("capsnet", "photographs", CAPSULES, MARGIN),
    "capsnet-all": Case("capsnet", "photographs", CAPSULES | {"routing_gradient": "all"}, MARGIN | DARKEST),
    "capsnet_baseline": Case("capsnet_baseline", "photographs", {"channels": [4, 4, 4], "units": [8, 8]}, SLOW),
}


def job(case: Case, prepared: str, run_directory: str) -> dict[str, Any]:
    """The job file of a case, as ``python -m reread.training`` reads it."""
    return {
        "run_key": "golden",
        "variant": case.model,
        "model": case.model,
        "data": case.data,
        "seed": SEED,
        "network": case.network,
        "training": TRAINING | case.training,
        "prepared": prepared,
        "run_directory": run_directory,
    }
