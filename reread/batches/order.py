"""Which rows make which batch: a function of (seed, epoch) and of the rows' sizes, and of nothing else.

Documents of similar length share a batch, so that a batch has little padding: the shuffled rows are sorted by size
within pools of ``POOL`` batches, split into batches, and the batches are shuffled.
"""

import numpy as np

from reread.storage.arrays import Int64Array

POOL = 16


def batches(rows: Int64Array, sizes: Int64Array, batch_size: int, seed: int, epoch: int) -> list[Int64Array]:
    """Split rows int64 [N] of ``sizes`` int64 [N] into batches of at most ``batch_size``, each row once.

    Batch sizes differ by at most one, so that no batch is left with a row or two.
    """
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = generator.permutation(len(rows))
    count = -(-len(rows) // batch_size)
    pools = [np.concatenate(pool) for pool in _chunks(np.array_split(order, count), POOL)]
    ordered = np.concatenate([pool[np.argsort(sizes[pool], kind="stable")] for pool in pools])
    split = np.array_split(ordered, count)
    return [rows[split[index]] for index in generator.permutation(count)]


def _chunks(items: list[Int64Array], length: int) -> list[list[Int64Array]]:
    return [items[start : start + length] for start in range(0, len(items), length)]
