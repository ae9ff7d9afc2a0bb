"""Images: uint8 pixels of one height, width and number of channels."""

from dataclasses import dataclass
from typing import Annotated

from kinds import Baseline, Kind
from storage.settings import Range


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
    write_raw="preprocessing.raw_images:write",
    open_raw="preprocessing.raw_images:ImageDataSet.open",
    settings=Settings,
    prepare="preprocessing.images:prepare",
    collator="batches.image:Collator",
    row_array="images",
    augmented=True,
    reader="preprocessing.reading_images:ImageReader",
    explain=("evaluation.class_activation:explain", "evaluation.reconstructions:explain"),
    baselines=(
        Baseline(
            name="linear",
            title="logistic regression over pixels",
            grid=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            features="evaluation.baselines:pixel_features",
            fit="evaluation.baselines:logistic_regression",
            serve="evaluation.linear_models:serve_pixels",
        ),
    ),
)
