"""Images: uint8 pixels of one height, width and number of channels."""

from dataclasses import dataclass
from typing import Annotated

from reread.kinds import Baseline, Kind
from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The preparation of images.

    rows_per_class  at most this many rows per class in each split; None: all
    size            images are reduced to size x size pixels, each the mean of its area; None: as they are stored
    """

    rows_per_class: Annotated[int, Range(1)] | None = None
    size: Annotated[int, Range(1, 4096)] | None = None


KIND = Kind(
    row="image",
    reads="images as raw pixels (uint8, 0 to 255)",
    write_raw="reread.preprocessing.raw_images:write",
    open_raw="reread.preprocessing.raw_images:ImageDataSet.open",
    settings=Settings,
    prepare="reread.preprocessing.images:prepare",
    collator="reread.batches.image:Collator",
    row_array="images",
    augmented=True,
    reader="reread.preprocessing.reading_images:ImageReader",
    explain=("reread.evaluation.class_activation:explain", "reread.evaluation.reconstructions:explain"),
    baselines=(
        Baseline(
            name="linear",
            title="logistic regression over pixels",
            grid=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            features="reread.evaluation.baselines:pixel_features",
            fit="reread.evaluation.baselines:logistic_regression",
            serve="reread.evaluation.linear_models:serve_pixels",
        ),
        Baseline(
            name="ridge",
            title="ridge regression over pixels",
            grid=(0.00001, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.1, 1.0),
            features="reread.evaluation.baselines:pixel_features",
            fit="reread.evaluation.regressors:ridge",
            serve="reread.evaluation.regressors:serve_pixels",
            tasks=("regression",),
        ),
        Baseline(
            name="boosting",
            title="gradient boosting over pixels",
            grid=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
            features="reread.evaluation.baselines:pixel_features",
            fit="reread.evaluation.regressors:boosting",
            tasks=("regression",),
        ),
    ),
)
