from functools import reduce
from operator import add

import numpy as np
import pytest

from reread.preprocessing.images import pixel_sums
from reread.storage.errors import InputError


@pytest.fixture
def images():
    return np.random.default_rng(4).integers(0, 256, size=(50, 6, 5, 3), dtype=np.uint8)


def test_mean_and_deviation_are_those_of_the_pixels(images):
    sums = pixel_sums(images)
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(sums.mean(), scaled.mean(axis=(0, 1, 2)), rtol=1e-13)
    np.testing.assert_allclose(sums.deviation(), scaled.std(axis=(0, 1, 2)), rtol=1e-13)


def test_sums_of_shards_add_up_exactly(images):
    parts = [pixel_sums(images[start::3]) for start in range(3)]
    assert reduce(add, parts) == pixel_sums(images)


def test_an_exact_case():
    sums = pixel_sums(np.array([0, 255, 255, 0], np.uint8).reshape(1, 2, 2, 1))
    assert (sums.count, sums.sums, sums.squares) == (4, (510,), (2 * 255**2,))
    assert (sums.mean(), sums.deviation()) == ([0.5], [0.5])


def test_a_channel_of_one_value_is_refused():
    images = np.stack([np.arange(4, dtype=np.uint8), np.full(4, 7, np.uint8)], axis=-1).reshape(1, 2, 2, 2)
    with pytest.raises(InputError, match="channel 1 has one value"):
        pixel_sums(images).deviation()
