"""The order of the data: a function of (seed, epoch), each row once, rows of like size together."""

import numpy as np

from reread.batches.order import batches

ROWS = np.arange(100, 1103)
SIZES = np.random.default_rng(0).integers(1, 300, len(ROWS))


def order(seed=0, epoch=1, rows=ROWS, sizes=SIZES, batch_size=32):
    return batches(rows, sizes, batch_size, seed, epoch)


def test_the_order_is_a_function_of_seed_and_epoch():
    same = [batch.tolist() for batch in order(3, 5)]
    assert same == [batch.tolist() for batch in order(3, 5)]
    others = [[batch.tolist() for batch in order(*which)] for which in ((3, 6), (4, 5), (5, 3))]
    assert same not in others and others[0] != others[1]


def test_each_row_comes_once_in_batches_as_equal_as_can_be():
    row_batches = order()
    assert sorted(np.concatenate(row_batches)) == ROWS.tolist()
    lengths = {len(batch) for batch in row_batches}
    assert len(row_batches) == 32 and max(lengths) <= 32 and max(lengths) - min(lengths) <= 1


def test_a_batch_holds_documents_of_like_length_and_batches_come_in_any_order():
    row_batches = order()
    of = dict(zip(ROWS.tolist(), SIZES.tolist(), strict=True))
    spread = np.mean([np.ptp([of[row] for row in batch]) for batch in row_batches])
    assert spread < np.ptp(SIZES) / 10
    means = [np.mean([of[row] for row in batch]) for batch in row_batches]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5


def test_rows_of_one_size_are_shuffled_and_few_rows_make_one_batch():
    shuffled = np.concatenate(order(sizes=np.ones(len(ROWS), int)))
    assert abs(np.corrcoef(shuffled, np.arange(len(shuffled)))[0, 1]) < 0.1
    (alone,) = order(rows=ROWS[:3], sizes=SIZES[:3])
    assert sorted(alone) == ROWS[:3].tolist()
