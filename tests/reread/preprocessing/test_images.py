import numpy as np
import pytest

from reread.preprocessing.images import count_pixels, mean_and_deviation
from reread.storage.errors import InputError


@pytest.fixture
def images():
    return np.random.default_rng(4).integers(0, 256, size=(50, 6, 5, 3), dtype=np.uint8)


def test_mean_and_deviation_are_those_of_the_pixels(images):
    mean, deviation = mean_and_deviation(count_pixels(images))
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-13)
    np.testing.assert_allclose(deviation, scaled.std(axis=(0, 1, 2)), rtol=1e-13)


def test_counts_of_shards_add_up_exactly(images):
    assert np.array_equal(sum(count_pixels(images[start::3]) for start in range(3)), count_pixels(images))


def test_an_exact_case():
    counts = count_pixels(np.array([0, 255, 255, 0], np.uint8).reshape(1, 2, 2, 1))
    assert counts.shape == (1, 256) and {pixel: counts[0, pixel] for pixel in np.flatnonzero(counts)} == {0: 2, 255: 2}
    assert mean_and_deviation(counts) == ([0.5], [0.5])


def test_a_channel_of_one_value_is_refused():
    images = np.stack([np.arange(4, dtype=np.uint8), np.full(4, 7, np.uint8)], axis=-1).reshape(1, 2, 2, 2)
    with pytest.raises(InputError, match="channel 1 has one value"):
        mean_and_deviation(count_pixels(images))
