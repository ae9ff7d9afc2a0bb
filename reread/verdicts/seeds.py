"""How many seeds a comparison needs. Imports no library, so that a command can warn at once."""

import math


def least_seeds(alpha: float, comparisons: int = 1, sides: int = 2, one_figure: bool = False) -> int:
    """Return the fewest seeds with which a comparison can pass whatever the others do.

    A difference is tested on two sides, equivalence on one. The smallest one-sided p of n seeds of each of two networks
    is 1 / C(2n, n); of n seeds against one figure, and of n pairs, it is 2^-n.
    """
    n = 1
    while comparisons * sides * smallest_p(n, one_figure) >= alpha:
        n += 1
    return n


def smallest_p(n: int, one_figure: bool = False) -> float:
    """Return the smallest one-sided p that n seeds can give."""
    return 2.0**-n if one_figure else 1 / math.comb(2 * n, n)
