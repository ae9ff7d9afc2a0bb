"""How many seeds a comparison needs. Imports no library, so that a command can warn at once."""


def least_seeds(alpha: float, comparisons: int = 1, sides: int = 2) -> int:
    """Return the fewest seeds with which a comparison can pass whatever the others do: comparisons sides 2^-n < alpha.

    A difference is tested on two sides, equivalence on one.
    """
    n = 1
    while comparisons * sides * 2.0**-n >= alpha:
        n += 1
    return n
