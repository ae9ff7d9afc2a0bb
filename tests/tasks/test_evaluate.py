"""What of the test split stands in another split too."""

import numpy as np

from tasks.evaluate import repeated_rows


def test_rows_that_stand_in_two_splits():
    texts = {"train": ["one", "two"], "validation": ["three"], "test": ["two", "Two", "three", "four", "four"]}
    assert repeated_rows(texts).tolist() == [True, False, True, False, False]
    images = np.arange(12, dtype=np.uint8).reshape(6, 1, 2, 1)
    images[4] = images[1]
    found = repeated_rows({"train": images[:2], "validation": images[2:3], "test": images[3:]})
    assert found.tolist() == [False, True, False]
