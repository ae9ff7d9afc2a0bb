"""How many seeds a comparison needs. Imports no other package, so that a command can warn at once."""

import math

from reread.storage.errors import InputError


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


def few_seeds(seeds: int, alpha: float, count: int, one_figure: bool, unit: str, side: str, names: str = "") -> str:
    """Return a line where so few seeds can reach no verdict, or no difference, whatever they measure; "" elsewhere.

    count: of what is judged, which is called ``unit``; names: those of it that the line is about, where not all are.
    """
    needed, for_equivalence = (least_seeds(alpha, count, sides, one_figure) for sides in (2, 1))
    if seeds >= needed:
        return ""
    nothing = f"decide{'s' * (seeds == 1)} nothing"
    decide = nothing if seeds < for_equivalence else "can show equivalence and no difference"
    of_some = f" of {names}" if names else ""
    of_all = f"{count} {unit}{'s' * (count != 1)}, alpha {alpha:g}"
    return f"{seeds} seed{'s' * (seeds != 1)} {decide}{of_some}: a difference needs {needed} of each {side} ({of_all})"


def refuse_further_seeds(what: str, seeds: int, second_look: int | None, grows: str) -> None:
    """Raise InputError where ``what`` has more seeds than a second look declares, to which ``grows`` may grow."""
    if second_look is not None and seeds > second_look:
        raise InputError(
            f"{what} has {seeds} seeds and second_look is {second_look}: {grows} grows to the seeds that it declared, "
            "and no further"
        )
