"""Which rows make which batch: a function of (seed, epoch) and of the rows' sizes, and of nothing else.

Documents of like length stand together, so that a batch has little padding: the shuffled rows are sorted by size
within pools of ``POOL`` batches, cut into batches, and the batches are shuffled.
"""

import numpy as np

POOL = 16


def batches(rows: np.ndarray, sizes: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The rows (int64 [N], ``sizes`` int64 [N] beside them) in batches of at most ``batch_size``, each row once.

    Batches are as equal as they can be, so that none is left with a row or two.
    """
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = generator.permutation(len(rows))
    count = -(-len(rows) // batch_size)
    pools = [np.concatenate(pool) for pool in _chunks(np.array_split(order, count), POOL)]
    ordered = np.concatenate([pool[np.argsort(sizes[pool], kind="stable")] for pool in pools])
    cut = np.array_split(ordered, count)
    return [rows[cut[index]] for index in generator.permutation(count)]


def _chunks(items: list, length: int) -> list[list]:
    return [items[start : start + length] for start in range(0, len(items), length)]
