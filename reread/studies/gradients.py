"""The reach of a gradient into the past, and the errors of the post's algebra.

Measures the norm of dh_T/dh_t against T - t by autograd, in float64, for a recurrent network whose matrix has a given
spectral radius, with linear g and with tanh, and for the gated cells of models/layers/cells.py; and beside it the
recurrence alpha_t = dh_t/dW of the post "Understanding GRUs" (December 2018), in closed form where g is linear. Writes
results.json (what each sentence of the post comes to, with n and intervals), curves.csv and figure.png; takes half a
minute on one core.

With g' the diagonal matrix of the activation's slopes, the post's recurrence

    alpha_t = g' (X_t + U alpha_{t-1})                    gives
    alpha_t = g' (X_t + U g' (X_{t-1} + U alpha_{t-2}))   where the post prints X_{t-1} + alpha_{t-2}: a U is dropped.

Followed as printed, each second step loses its U, and the gradient grows or shrinks at the square root of its rate.
Expanded to the end, alpha_t = sum over k of (g' U)^(t-k) g' X_k + (g' U)^t alpha_0, with the exponent t where the post
has n - 1; and alpha_0 = dh_0/dW is zero, so what vanishes or explodes is not that term but those of the old inputs.

Sources: Bengio, Simard and Frasconi 1994; Pascanu, Mikolov and Bengio 2013, arXiv 1211.5063 (the largest singular
value, not the spectral radius, bounds the gradient from above).

Shape legend: T steps, H units, I inputs, S seeds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor

from models.layers.cells import NAMES, Name, Recurrence
from reread.evaluation.pictures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION, picture
from reread.storage.arrays import Float64Array
from reread.storage.settings import Range
from reread.studies import study_io
from reread.studies.jacobians import (
    DTYPE,
    Network,
    as_printed,
    expanded,
    jacobians,
    linear_network,
    network_of,
    norms,
    of_radius,
    powers,
    tanh_network,
    weight_gradient,
    with_input,
)
from reread.verdicts.rule import INCONCLUSIVE, REFUTED, SUPPORTED
from reread.verdicts.statistics import Interval, mean_interval, paired_interval, sign_flip_p

EXPERIMENT = None
VARIANT = None
ALPHA, CLAIMS = 0.05, 8
RADII = (0.5, 0.9, 1.0, 1.1, 1.5)
# Added to the update gate's bias: z is about 0.88 and 0.98 where the rest of its input is 0.
UPDATE_BIASES = (2.0, 4.0)
# sigmoid of it is exactly 1 in float64.
ALWAYS = 1000.0


@dataclass(frozen=True)
class Settings:
    """distance: the largest T - t; seeds: draws of weights and inputs; drives: deviations of W x_t per unit."""

    units: Annotated[int, Range(2)] = 64
    inputs: Annotated[int, Range(1)] = 16
    distance: Annotated[int, Range(2)] = 100
    seeds: Annotated[int, Range(1)] = 20
    drives: tuple[Annotated[float, Range(0, exclusive=True)], ...] = (0.1, 1.0)


DEBUG = Settings(units=6, inputs=3, distance=12, seeds=3)


@dataclass(frozen=True)
class Draw:
    """The tensors of a seed: inputs x [T, I], W [H, I] of deviation 1 / sqrt(I), and U [H, H] for each radius."""

    x: Tensor
    inward: Tensor
    matrices: dict[float, Tensor]

    @classmethod
    def of(cls, settings: Settings, seed: int) -> "Draw":
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(settings.distance, settings.inputs, generator=generator, dtype=DTYPE)
        inward = torch.randn(settings.units, settings.inputs, generator=generator, dtype=DTYPE) / math.sqrt(
            settings.inputs
        )
        return cls(x, inward, {radius: of_radius(radius, settings.units, generator) for radius in RADII})


def gated(settings: Settings, seed: int, cell: Name, update_bias: float = 0.0) -> Network:
    """A cell as nn.GRU (nn.RNN) initialises it, with ``update_bias`` added to the bias of its update gate."""
    torch.manual_seed(seed)
    layer = Recurrence(settings.inputs, settings.units, cell).to(DTYPE)
    if update_bias:
        with torch.no_grad():
            layer.bias_ih_l0.chunk(3)[1].add_(update_bias)
    return network_of(layer)


def networks(settings: Settings, seed: int, draw: Draw) -> Iterator[tuple[str, str, Network]]:
    """Each network that a seed is measured on: its panel, its name there, and itself."""
    for radius, matrix in draw.matrices.items():
        yield "linear", f"{radius:g}", linear_network(draw.inward, matrix)
        for drive in settings.drives:
            yield f"tanh, input {drive:g}", f"{radius:g}", tanh_network(drive * draw.inward, matrix)
    for cell in NAMES:
        yield "cells", cell, gated(settings, seed, cell)
    yield "update gate", "as initialised", gated(settings, seed, "gru")
    for bias in UPDATE_BIASES:
        yield "update gate", f"bias + {bias:g}", gated(settings, seed, "gru", bias)
    yield "update gate", "z = 1", gated(settings, seed, "gru", ALWAYS)


def measured(settings: Settings) -> pd.DataFrame:
    """One row a network, seed, norm and distance: panel, curve, seed, norm, distance, value.

    The norms are ``spectral`` and ``frobenius`` of dh_T/dh_t, the same of U^(T-t) as ``closed spectral`` and
    ``closed frobenius`` where g is linear, and in panel ``alpha`` the Frobenius norm of dh_T/dW at T = distance: by
    ``autograd``, ``closed form`` and ``as printed``.
    """
    blocks = []

    def add(panel: str, curve: str, seed: int, norm: str, values: Float64Array, first: int = 0) -> None:
        distance = np.arange(first, first + len(values))
        blocks.append(
            pd.DataFrame(
                {"panel": panel, "curve": curve, "seed": seed, "norm": norm, "distance": distance, "value": values}
            )
        )

    for seed in range(settings.seeds):
        draw = Draw.of(settings, seed)
        for panel, curve, network in networks(settings, seed, draw):
            for norm, values in norms(jacobians(network, draw.x, settings.units)).items():
                add(panel, curve, seed, norm, values)
        for radius, matrix in draw.matrices.items():
            for norm, values in norms(powers(matrix, settings.distance)).items():
                add("linear", f"{radius:g}", seed, f"closed {norm}", values)
            for length in alpha_lengths(settings):
                for norm, value in alpha_norms(draw, matrix, length).items():
                    add("alpha", f"{radius:g}", seed, norm, np.array([value]), first=length)
    return pd.concat(blocks, ignore_index=True)


def alpha_lengths(settings: Settings) -> list[int]:
    return [*(length for length in (1, 2, 5, 10, 20, 50) if length < settings.distance), settings.distance]


def alpha_norms(draw: Draw, matrix: Tensor, length: int) -> dict[str, float]:
    """The Frobenius norm of alpha_T of the first ``length`` inputs: by autograd, in closed form, and as printed."""
    x = draw.x[:length]
    alphas = {
        "autograd": weight_gradient(draw.inward, matrix, x),
        "closed form": expanded(matrix, x),
        "as printed": as_printed(matrix, x),
    }
    return {name: float(alpha.norm()) for name, alpha in alphas.items()}


def summarised(table: pd.DataFrame) -> pd.DataFrame:
    """The median and quartiles over seeds, with n: what the figure is drawn from."""
    grouped = table.groupby(["panel", "curve", "norm", "distance"], sort=False)["value"]
    quartiles = (
        grouped.quantile([0.25, 0.5, 0.75]).unstack().set_axis(["low_quartile", "median", "high_quartile"], axis=1)
    )
    return quartiles.assign(n=grouped.size()).reset_index()


class Measured:
    """The measured table, asked by panel and curve."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.table = measured(settings)
        self._indexed = self.table.set_index(["panel", "curve", "norm", "distance"]).sort_index()

    def values(self, panel: str, curve: str, distance: int, norm: str = "spectral") -> Float64Array:
        """Of each seed, in order, float64 [S]."""
        of_seeds: Float64Array = (
            self._indexed.loc[(panel, curve, norm, distance)].sort_values("seed")["value"].to_numpy()
        )
        return of_seeds

    def rate(self, panel: str, curve: str) -> dict[str, Any]:
        """The factor per step by which the spectral norm changes over the further half of the distance: geometric mean
        over seeds with its t interval, corrected for the number of claims."""
        far, near = self.settings.distance, self.settings.distance // 2
        logs = np.log(self.values(panel, curve, far) / self.values(panel, curve, near)) / (far - near)
        span = corrected_interval(logs)
        return {
            **asdict(span),
            **{name: math.exp(getattr(span, name)) for name in ("mean", "low", "high")},
        }

    def curves(self) -> list[tuple[str, str]]:
        pairs = self.table[self.table["panel"] != "alpha"][["panel", "curve"]].drop_duplicates()
        return list(pairs.itertuples(index=False, name=None))


def judged(measures: Measured) -> list[dict[str, Any]]:
    """The post's sentences, each with what was measured of it and its verdict."""
    draws = [Draw.of(measures.settings, seed) for seed in range(measures.settings.seeds)]
    return [*judged_norms(measures, draws), *judged_algebra(measures, draws), *judged_gates(measures)]


def corrected_interval(values: Sequence[float] | Float64Array) -> Interval:
    """Return the mean and its t interval of 1 - ALPHA / CLAIMS, corrected for all claims (Bonferroni)."""
    return mean_interval(values, 1 - ALPHA / CLAIMS)


def judged_norms(measures: Measured, draws: list[Draw]) -> list[dict[str, Any]]:
    """Return the claims about the norm of g' U."""
    rate = {radius: measures.rate("linear", f"{radius:g}") for radius in RADII}
    size = {
        radius: corrected_interval([float(torch.linalg.matrix_norm(draw.matrices[radius], 2)) for draw in draws])
        for radius in RADII
    }
    with_tanh = {drive: measures.rate(f"tanh, input {drive:g}", "1.5") for drive in measures.settings.drives}
    return [
        claim(
            "simple RNN has a vanishing (explosive) gradient problem",
            SUPPORTED
            if all(rate[radius]["high"] < 1 for radius in (0.5, 0.9)) and rate[1.5]["low"] > 1
            else INCONCLUSIVE,
            "With linear g the norm is multiplied by the spectral radius per step. With tanh the slopes press it down: "
            "at spectral radius 1.5 it is multiplied by "
            + " and ".join(f"{span['mean']:.3f} where W x has deviation {drive:g}" for drive, span in with_tanh.items())
            + ".",
            linear={f"{radius:g}": span for radius, span in rate.items()},
            tanh_at_radius_1_5={f"{drive:g}": span for drive, span in with_tanh.items()},
        ),
        claim(
            r"if norm of \partial g U_h is greater than 1 this term will approach infinity",
            REFUTED if size[0.9].above(1) and rate[0.9]["high"] < 1 else INCONCLUSIVE,
            "A norm above 1 is needed for growth and is not enough: with linear g and spectral radius 0.9 the norm of "
            f"U is {size[0.9].mean:.2f}, and the gradient is multiplied by {rate[0.9]['mean']:.3f} per step. In the "
            "long run the spectral radius decides.",
            norm_of_U=asdict(size[0.9]),
            rate=rate[0.9],
        ),
        claim(
            "or if is less than 1 it will approach zero",
            SUPPORTED if size[0.5].below(1) and rate[0.5]["high"] < 1 else INCONCLUSIVE,
            f"At spectral radius 0.5 the norm of U is {size[0.5].mean:.2f}, and the gradient is multiplied by "
            f"{rate[0.5]['mean']:.3f} per step.",
            norm_of_U=asdict(size[0.5]),
            rate=rate[0.5],
        ),
    ]


def judged_algebra(measures: Measured, draws: list[Draw]) -> list[dict[str, Any]]:
    """The recurrence alpha_t and its expansion."""
    errors = {
        name: corrected_interval([relative_error(draw, 0.9, form) for draw in draws])
        for name, form in (("closed form", expanded), ("as printed", as_printed))
    }
    exponents = {
        name: corrected_interval([first_state_error(draw, 0.9, lost) for draw in draws]) for name, lost in LOST
    }
    *_, near, far = alpha_lengths(measures.settings)
    whole = corrected_interval(
        measures.values("alpha", "0.5", far, "autograd") / measures.values("alpha", "0.5", near, "autograd")
    )
    return [
        claim(
            r"\alpha_t = {\partial g} \cdot (X_t + U_h \cdot \partial g \cdot (X_{t-1} + \alpha_{t-2}) )",
            REFUTED if errors["as printed"].above(1e-6) and errors["closed form"].below(1e-9) else INCONCLUSIVE,
            "A slip: the factor U_h before alpha_{t-2} is dropped. With it the closed form is autograd's dh_T/dW to a "
            f"relative {errors['closed form'].mean:.0e}. Without it, at spectral radius 0.9, it is "
            f"{errors['as printed'].mean:.2f} away, because old inputs lose one U in two.",
            relative_error_with_the_factor=asdict(errors["closed form"]),
            relative_error_as_printed=asdict(errors["as printed"]),
        ),
        claim(
            r"\alpha_t = C + (\partial g U_h)^{n-1} \alpha_0",
            REFUTED if exponents["n - 1"].above(1e-6) and exponents["n"].below(1e-9) else INCONCLUSIVE,
            "After n steps the exponent of alpha_0 is n, as a first state that depends on W shows. And where the first "
            "state is given, alpha_0 is zero and so is the term, whatever the norm: what vanishes or explodes are the "
            "terms of old inputs, which the post puts into C.",
            relative_error_with_n=asdict(exponents["n"]),
            relative_error_with_n_minus_1=asdict(exponents["n - 1"]),
        ),
        claim(
            'thus the model will "stop learning" (i.e. weights will not update)',
            REFUTED if whole.above(0.5) else INCONCLUSIVE,
            "What vanishes is the part of the gradient that old inputs have, and the whole of it does not: at spectral "
            f"radius 0.5 the norm of dh_T/dW at T = {far} is {whole.mean:.2f} times that at T = {near}. The weights go "
            "on learning, from the last few steps.",
            ratio=asdict(whole),
        ),
    ]


def judged_gates(measures: Measured) -> list[dict[str, Any]]:
    """Return the claims about the gates before anything is learnt."""
    far, most = measures.settings.distance, f"bias + {UPDATE_BIASES[-1]:g}"
    kept = measures.values("update gate", "z = 1", far)
    drawn, pressed = measures.rate("update gate", "as initialised"), measures.rate("update gate", most)
    gru = measures.values("cells", "gru", far)
    further = np.log10(gru) - np.log10(measures.values("cells", "rnn", far))
    return [
        claim(
            "The update gate allows us to retain all previous information by setting all elements of z_t to 1 [...] In "
            "this case, we do not have the vanishing gradient problem",
            SUPPORTED if (kept == 1).all() else REFUTED,
            f"With z = 1 the norm over {far} steps is {kept.mean():g} in each seed.",
            norm=asdict(corrected_interval(kept)),
        ),
        claim(
            "Gated recurrent unit solves the problem",
            REFUTED if drawn["high"] < 1 else SUPPORTED if drawn["low"] >= 1 else INCONCLUSIVE,
            f"As PyTorch initialises a GRU, its gradient is multiplied by {drawn['mean']:.3f} per step, to "
            f"{np.median(gru):.0e} over {far} steps, {further.mean():.1f} powers of ten above the plain network's. "
            f"With {most.split()[-1]} added to the update gate's bias it is {pressed['mean']:.3f} per step. The gate "
            "can hold a gradient, and must learn to, or be set to: the study of copying shows what training makes of "
            "it.",
            narrowed="The gradient of a GRU does not vanish, before it is trained",
            as_initialised=drawn,
            with_bias=pressed,
            powers_of_ten_further_than_rnn=asdict(paired_interval(further)),
            sign_flip_p=sign_flip_p(further),
        ),
    ]


# Whether the exponent of the first state's term is one too low.
LOST = (("n", 0), ("n - 1", 1))


def relative_error(draw: Draw, radius: float, form: Callable[[Tensor, Tensor], Tensor]) -> float:
    """How far a form of alpha_T is from autograd's, over the norm of that."""
    true = weight_gradient(draw.inward, draw.matrices[radius], draw.x)
    return float((form(draw.matrices[radius], draw.x) - true).norm() / true.norm())


def first_state_error(draw: Draw, radius: float, lost: int) -> float:
    """How far C + U^(n - lost) alpha_0 is from autograd's alpha_n where h_0 = W x_0, over the norm of that.

    h_0 = W x_0 is what one more step from a zero state gives, and makes alpha_0 = X_0. n is 10 here, so that the term
    is still there to be seen.
    """
    x, matrix = draw.x[:11], draw.matrices[radius]
    true = weight_gradient(draw.inward, matrix, x)
    term = torch.einsum("ij,jkl->ikl", powers(matrix, len(x) - 1 - lost)[-1], with_input(x[0], len(matrix)))
    return float((expanded(matrix, x[1:]) + term - true).norm() / true.norm())


def claim(sentence: str, verdict: str, says: str, narrowed: str | None = None, **measured: Any) -> dict[str, Any]:
    """A sentence of the post and what it comes to; ``narrowed`` is what is judged where that is not all of it."""
    return {
        "sentence": sentence,
        "claim": narrowed or sentence,
        "verdict": verdict,
        "says": says,
        "measured": measured,
    }


def study(settings: Settings, source: None, device: torch.device) -> study_io.Findings:
    """Measure and judge, on the CPU in one thread."""
    measures = Measured(settings)
    closest = measures.table.pivot_table(index=["panel", "curve", "seed", "distance"], columns="norm", values="value")
    linear = closest.loc["linear"]
    results = {
        "settings": asdict(settings),
        "confidence": 1 - ALPHA / CLAIMS,
        "claims": judged(measures),
        "rate_per_step": {
            panel: {curve: measures.rate(panel, curve) for its_panel, curve in measures.curves() if its_panel == panel}
            for panel, _ in measures.curves()
        },
        "closed_form_from_autograd": {
            norm: float((linear[f"closed {norm}"] / linear[norm] - 1).abs().max()) for norm in ("spectral", "frobenius")
        },
    }
    return study_io.Findings(results, {"curves": summarised(measures.table)})


# One scale for all panels: what leaves it has vanished or exploded.
SHOWN = (1e-20, 1e16)
SHOWN_TICKS = [10.0**power for power in range(-20, 17, 4)]
COLOURS = (SKY, BLUE, INK, ORANGE, VERMILLION, GREY)
TITLES = {
    "linear": "RNN, linear g",
    "cells": "cells as PyTorch initialises them",
    "update gate": "GRU",
}
COMPARED_RADII = ("0.9", "1.1", "1.5")


def draw_figure(folder: Path, path: Path) -> None:
    """figure.png from curves.csv: the median over seeds, quartiles shaded."""
    table = pd.read_csv(folder / "curves.csv", dtype={"curve": str})
    panels = [name for name in dict.fromkeys(table["panel"]) if name != "alpha"]
    with picture(path, 10, 6.4) as figure:
        grid = figure.subplots(2, 3)
        for axes, name in zip(grid.flat, panels, strict=False):
            decay_panel(axes, table[table["panel"] == name])
            axes.set_title(TITLES.get(name, "RNN, " + name.replace("input", "W x of deviation")))
        for axes in grid[:, 0]:
            axes.set_ylabel("spectral norm of dh$_T$/dh$_t$")
        alpha_panel(grid.flat[-1], table[(table["panel"] == "alpha") & table["curve"].isin(COMPARED_RADII)])


def decay_panel(axes: Axes, table: pd.DataFrame) -> None:
    """Each curve of one panel; the closed form, where there is one, as dots on its line."""
    curves = list(table.groupby("curve", sort=False))
    colours = (
        [study_io.CELL_COLOURS[curve] for curve, _ in curves] if curves[0][0] in study_io.CELL_COLOURS else COLOURS
    )
    for colour, (curve, rows) in zip(colours, curves, strict=False):
        line = rows[rows["norm"] == "spectral"]
        axes.fill_between(
            line["distance"], line["low_quartile"], line["high_quartile"], color=colour, alpha=0.18, linewidth=0
        )
        axes.plot(line["distance"], line["median"], color=colour, linewidth=1.6, label=curve)
        closed = rows[rows["norm"] == "closed spectral"].iloc[::10]
        axes.plot(closed["distance"], closed["median"], "o", color=colour, markersize=3)
    name = table["panel"].iloc[0]
    if name == "linear":
        # Its colours are those of its neighbours, and the growing line needs the room.
        dots = axes.plot([], [], "o", color=GREY, markersize=3, label="closed form")
        axes.legend(handles=dots, loc="lower right", fontsize=7)
    else:
        title = {"cells": None, "update gate": "its update gate"}.get(name, "spectral radius of U")
        axes.legend(ncols=2, loc="upper left", fontsize=7, title_fontsize=7, title=title)
    axes.set(xlabel="T − t", yscale="log", ylim=SHOWN, yticks=SHOWN_TICKS)
    axes.minorticks_off()


def alpha_panel(axes: Axes, table: pd.DataFrame) -> None:
    """The norm of dh_T/dW: by autograd, in closed form, and with the factor dropped as printed."""
    for colour, (curve, rows) in zip((BLUE, ORANGE, VERMILLION), table.groupby("curve", sort=False), strict=True):
        wide = rows.pivot(index="distance", columns="norm", values="median")
        axes.plot(wide.index, wide["autograd"], color=colour, linewidth=1.6, label=curve)
        axes.plot(wide.index, wide["closed form"], "o", color=colour, markersize=3)
        axes.plot(wide.index, wide["as printed"], color=colour, linewidth=1.2, linestyle=(0, (3, 2)))
    axes.plot([], [], "o", color=GREY, markersize=3, label="closed form")
    axes.plot([], [], color=GREY, linewidth=1.2, linestyle=(0, (3, 2)), label="as printed, a U dropped")
    axes.set(xlabel="T", yscale="log", ylabel="Frobenius norm of dh$_T$/dW")
    axes.set_title("RNN, linear g: dh$_T$/dW")
    axes.legend(title="spectral radius of U", title_fontsize=7, fontsize=7)
