import numpy as np
import pandas as pd
import pytest

from reread.preprocessing.lengths import LengthHistogram, plot_lengths, write_lengths
from reread.storage.errors import InputError


def test_quantile_is_the_smallest_length_that_covers_the_share():
    histogram = LengthHistogram([1, 2, 2, 3, 10])
    assert [histogram.quantile(share) for share in (0.01, 0.2, 0.21, 0.6, 0.61, 0.8, 0.81, 1)] == [
        1, 1, 2, 2, 3, 3, 10, 10,
    ]  # fmt: skip
    assert histogram.total() == 5
    assert histogram.longest == 10
    assert histogram.longer_than(2) == 2


def test_quantile_equals_numpys_inverted_distribution_function():
    generator = np.random.default_rng(2)
    for _ in range(200):
        lengths = generator.integers(1, generator.integers(2, 300), size=generator.integers(1, 500))
        share = 1 - generator.random()
        expected = np.quantile(lengths, share, method="inverted_cdf")
        assert LengthHistogram(lengths.tolist()).quantile(share) == expected


def test_quantile_is_taken_as_written_and_not_as_the_binary_number_beside_it():
    histogram = LengthHistogram(range(1, 101))
    assert [histogram.quantile(percent / 100) for percent in range(1, 101)] == list(range(1, 101))


@pytest.mark.parametrize("quantile", [0, -0.5, 1.2, float("nan"), float("inf")])
def test_quantile_outside_its_range_is_refused(quantile):
    with pytest.raises(InputError, match="quantile is .*: it must be above 0 and at most 1"):
        LengthHistogram([1]).quantile(quantile)


def test_an_empty_histogram_has_no_quantile():
    with pytest.raises(ValueError, match="without items"):
        LengthHistogram().quantile(0.5)


def test_histograms_of_shards_add_up_to_that_of_the_whole():
    lengths = np.random.default_rng(3).geometric(0.05, size=2000).tolist()
    parts = [LengthHistogram(lengths[start::5]) for start in range(5)]
    merged, whole = LengthHistogram(), LengthHistogram(lengths)
    for part in parts:
        merged += part
    assert merged == whole != parts[0]
    assert [merged.quantile(share) for share in (0.5, 0.95, 1)] == [whole.quantile(share) for share in (0.5, 0.95, 1)]


def test_tables_hold_both_levels_and_the_same_bytes(tmp_path):
    words, sentences = LengthHistogram([1, 1, 4]), LengthHistogram([2])
    write_lengths(words, sentences, 4, 2, "lengths", tmp_path)
    table = pd.read_csv(tmp_path / "quantiles.csv")
    assert table.loc[table["level"] == "words", "length"].tolist() == [1, 4, 4, 4, 4, 4]
    assert set(table.loc[table["level"] == "sentences", "length"]) == {2}
    assert (tmp_path / "quantiles.csv").read_bytes().startswith(b"level,quantile,length\nwords,0.5,1\nwords,0.75,4\n")
    assert (tmp_path / "lengths.csv").read_bytes() == b"level,length,count\nwords,1,2\nwords,4,1\nsentences,2,1\n"
    assert table["quantile"].tolist()[:6] == [0.5, 0.75, 0.9, 0.95, 0.99, 1]


@pytest.mark.parametrize("lengths", [[1], [3, 3, 3], list(range(1, 60)) * 3, [1] * 990 + [100_000] * 10])
def test_the_plot_has_the_same_bytes_each_time(tmp_path, lengths):
    histogram = LengthHistogram(lengths)
    kept = histogram.quantile(0.95)
    for name in ("one.png", "two.png"):
        plot_lengths(histogram, histogram, kept, kept, "lengths", tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes((tmp_path / "one.png").read_bytes()[16:20]) == 1500
