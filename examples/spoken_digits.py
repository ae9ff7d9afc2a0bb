"""Spoken digits: hidden Markov models whose states are scored by Gaussian mixtures, or by a deep network.

A recogniser of digit strings is trained on some speakers and tested on another one. A phone has three states, from left
to right, and Gaussian mixtures (GMM) score them. Their forced alignment gives each training frame a state. On these a
deep network (DNN) learns the state of a frame. Its posteriors over the priors of the states replace the densities of
the mixtures, and all else stays (Hinton et al. 2012, "Deep neural networks for acoustic modeling in speech
recognition", IEEE Signal Processing Magazine 29). States belong to a phone, or to a phone between its neighbours in the
word (Dahl et al. 2012, "Context-dependent pre-trained deep neural networks for large-vocabulary speech recognition",
IEEE Transactions on Audio, Speech, and Language Processing 20).

python spoken_digits.py --archive FILE --out out                         # network, context-dependent states
python spoken_digits.py --archive FILE --out out --scores gmm            # mixtures in place of the network
python spoken_digits.py --archive FILE --out out --states independent    # a phone's states in all contexts
python spoken_digits.py --archive FILE --validation                      # errors on validation in place of test

FILE is https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.tar.gz: 3,000 recordings by
six speakers. Each speaker is tested in turn. Of the others, one is drawn for validation, which chooses the number of
Gaussians, a penalty per word, and when the network stops. A speaker's recordings are joined to strings of 3 to 7
digits; the test strings are the same in all runs. out/items.csv has the word errors of each, over the mean number of
words: the mean of all is the word error rate, which `reread claim spoken_digits.yaml` judges. Each recogniser and seed
has random numbers of its own. Equal seeds give equal scores on one kind of CPU.

Shapes: F frames (one per 10 ms), D features, S states, K Gaussians, N sequences of at most T frames, Q positions in
words, P penalties. Arrays are float64; scores, densities and penalties are natural logarithms.
"""

import argparse
import copy
import csv
import hashlib
import itertools
import math
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

Array = NDArray[Any]

CONTENT = "6b1a8e30f4df78a933fe25cf1ca0140c8c6f169c0a83649a15b70a5ae7407014"
SPEAKERS, PER_WORD = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler"), 50
# Zero to nine by their phones, as in the CMU Pronouncing Dictionary.
PHONES = "Z IH R OW, W AH N, T UW, TH R IY, F AO R, F AY V, S IH K S, S EH V AH N, EY T, N AY N"
WORDS = [word.split() for word in PHONES.split(",")]
SCORES, STATES = ("dnn", "gmm"), ("dependent", "independent")
RATE, WINDOW, HOP, BINS = 8000, 200, 80, 256  # per second; samples of a frame, between frames, of a Fourier transform
FILTERS, CEPSTRA, AROUND = 23, 13, 7  # AROUND: frames on each side that the network sees
PARTS, GAUSSIANS, VARIANCE_FLOOR = 3, 4, 0.01  # states per phone; per state at most; of features with variance 1
PENALTIES = np.array([0.0, -20, -40, -80, -160])
LAYERS, HIDDEN, DROPOUT, BATCH, LEARNING_RATE = 2, 256, 0.5, 256, 0.002


def read_archive(path: Path) -> dict[str, list[list[Array]]]:
    """Return the recordings by speaker and digit, int16 [samples] each; ValueError where they are not known."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.endswith(".wav") and (file := archive.extractfile(member)):
                    files[Path(member.name).name] = file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}): download it again") from None
    content = b"".join(name.encode() + b"\0" + files[name] for name in sorted(files))
    if hashlib.sha256(content).hexdigest() != CONTENT:
        raise ValueError(f"{path} does not have the 3,000 recordings of version 1.0.10: download it again")
    samples = {name: np.frombuffer(file[44:], "<i2") for name, file in files.items()}  # A header has 44 bytes.
    numbers, words = range(PER_WORD), range(len(WORDS))
    return {name: [[samples[f"{word}_{name}_{at}.wav"] for at in numbers] for word in words] for name in SPEAKERS}


def filterbank() -> Array:
    """Return the triangular filters, [129 bins, 23]: equally wide in mel from 64 to 4,000 Hz, with peaks of 1."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (64, RATE / 2))
    edges = 700 * (10 ** (np.linspace(low, high, FILTERS + 2) / 2595) - 1)
    hertz = np.fft.rfftfreq(BINS, 1 / RATE)[:, None]
    rising, falling = (hertz - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - hertz) / np.diff(edges)[1:]
    return np.maximum(np.minimum(rising, falling), 0)


def cepstra(samples: Array) -> Array:
    """Return mel-frequency cepstral coefficients [F, 13] of int16 [samples] (Davis and Mermelstein 1980)."""
    emphasised = np.append(samples[:1], samples[1:] - 0.97 * samples[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(emphasised, WINDOW)[::HOP] * np.hamming(WINDOW)
    power = np.abs(np.fft.rfft(frames, BINS)) ** 2
    return scipy.fft.dct(np.log(np.maximum(power @ filterbank(), 1)), norm="ortho")[:, :CEPSTRA]


def deltas(features: Array) -> Array:
    """Return the slopes per frame of features [F, D], by regression over five frames; edges repeat the last frame."""
    padded = np.pad(features, ((2, 2), (0, 0)), "edge")
    return (padded[3:-1] - padded[1:-3] + 2 * (padded[4:] - padded[:-4])) / 10


class Speech(NamedTuple):
    """Strings of digits. frames: the cepstra, their deltas and the deltas of these, [F, 39]. strings: first and last
    frame + 1 of each, int [strings, 2]. words: the digits of each. recordings: digit, first and last frame + 1 of each
    recording, int [R, 3].
    """

    frames: Array
    strings: Array
    words: list[list[int]]
    recordings: Array


def join(spoken: list[list[Array]], rng: Generator) -> Speech:
    """Join a speaker's recordings, a list per digit, in random order to strings, and return their features.

    Lengths of 3 to 7 are equally frequent; the last one may differ. The cepstra of a string have mean 0 (Atal 1974).
    """
    order = [(word, samples) for word, recordings in enumerate(spoken) for samples in recordings]
    ends = np.cumsum(rng.permutation(np.resize([3, 4, 5, 6, 7], math.ceil(len(order) / 5))))
    parts = []
    for rows in np.split(rng.permutation(len(order)), ends[:-1]):
        words, pieces = zip(*(order[row] for row in rows), strict=True)
        features = cepstra(np.concatenate(pieces))
        features -= features.mean(0)
        features = np.hstack([features, deltas(features), deltas(deltas(features))])
        # A frame belongs to the recording that has its centre.
        borders = -((WINDOW // 2 - np.cumsum([0, *map(len, pieces)])) // HOP)
        borders[0], borders[-1] = 0, len(features)
        recordings = np.stack([words, borders[:-1], borders[1:]], 1)
        parts.append(Speech(features, borders[None, [0, -1]], [list(words)], recordings))
    return concatenate(parts)


def concatenate(parts: list[Speech]) -> Speech:
    """Return the strings of all parts."""
    starts = np.cumsum([0, *(len(part.frames) for part in parts[:-1])])
    moved = [(part.strings + at, part.recordings + [0, at, at]) for part, at in zip(parts, starts, strict=True)]
    strings, recordings = map(np.concatenate, zip(*moved, strict=True))
    words = [string for part in parts for string in part.words]
    return Speech(np.concatenate([part.frames for part in parts]), strings, words, recordings)


def lexicon(dependent: bool) -> list[Array]:
    """Return the states of each word, int [Q] each: three of each phone, or of each phone between its neighbours."""
    numbers: dict[Any, int] = {}
    chains = []
    for phones in WORDS:
        units = list(zip(["#", *phones], phones, [*phones[1:], "#"], strict=False)) if dependent else phones
        chains.append(
            np.array([numbers.setdefault(key, len(numbers)) for key in itertools.product(units, range(PARTS))])
        )
    return chains


def viterbi(scores: Array, lengths: Array, sizes: Array, stay: Array, move: Array, penalties: Array) -> Array:
    """Return the best path through the positions of words for each penalty, int [P, N, T] (Viterbi 1967).

    Words follow each other in any number, each from its first to its last position; a penalty of -inf leaves one word.
    scores: [N, T, Q], of each frame in the positions of all words in turn. lengths: int [N]; after them the path has no
    meaning. sizes: positions of each word. stay, move: [Q], of a step to the same and to the next position. penalties:
    [P], of each word but the first.
    """
    lasts = np.cumsum(sizes) - 1
    firsts = lasts - sizes + 1
    shape = (scores.shape[1], len(penalties), len(scores))
    came, best = np.zeros((*shape, scores.shape[2]), bool), np.zeros(shape, int)  # best: the last position of a word
    total, end = np.full(came.shape[1:], -np.inf), np.zeros(shape[1:])
    for frame in range(shape[0]):
        entered = np.roll(total + move, 1, 2)
        entered[:, :, firsts] = (end + penalties[:, None] if frame else end)[:, :, None]
        total += stay
        came[frame] = entered > total
        total = np.maximum(entered, total) + scores[:, frame]
        ends = total[:, :, lasts] + move[lasts]
        end, best[frame] = ends.max(2), lasts[ends.argmax(2)]
    path, at = np.zeros(shape, int), best[-1]
    for frame in reversed(range(shape[0])):
        path[frame] = at = np.where(frame == lengths - 1, best[frame], at)
        before = np.where(np.isin(at, firsts), best[frame - 1], at - 1)
        at = np.where(np.take_along_axis(came[frame], at[:, :, None], 2)[:, :, 0], before, at)
    return path.transpose(1, 2, 0)


def padded(bounds: Array) -> tuple[Array, Array]:
    """Return frames int [N, T] from first to last + 1, int [N, 2], and which of them are inside, bool."""
    index = bounds[:, :1] + np.arange((bounds[:, 1] - bounds[:, 0]).max())
    return np.minimum(index, bounds[:, 1:] - 1), index < bounds[:, 1:]


def word_errors(spoken: Sequence[int], found: Sequence[int]) -> tuple[int, int, int]:
    """Return the substitutions, deletions and insertions of a shortest alignment (Levenshtein 1966)."""
    row = [(0, 0, count) for count in range(len(found) + 1)]
    for word in spoken:
        above, row = row, [(0, row[0][1] + 1, 0)]
        for (s, d, i), (s_up, d_up, i_up), other in zip(above, above[1:], found, strict=False):
            steps = [(s + (word != other), d, i), (s_up, d_up + 1, i_up), (row[-1][0], row[-1][1], row[-1][2] + 1)]
            row.append(min(steps, key=sum))
    return row[-1]


Mixtures = tuple[Array, Array, Array]  # weights [..., K], means and variances [..., K, D], of one state or of all


def densities(frames: Array, mixtures: Mixtures) -> Array:
    """Return weight times density of each Gaussian, as logarithms [F, ..., K], at frames [F, D]."""
    weights, means, variances = mixtures
    constant = np.log(weights) - 0.5 * (np.log(2 * np.pi * variances) + means**2 / variances).sum(-1)
    linear, square = ((part / variances).reshape(-1, frames.shape[1]).T for part in (means, -0.5))
    return (frames @ linear + frames**2 @ square).reshape(len(frames), *weights.shape) + constant


def likelihoods(frames: Array, mixtures: Mixtures) -> Array:
    """Return the log densities of mixtures, [F, ...], at frames [F, D]."""
    return np.logaddexp.reduce(densities(frames, mixtures), axis=-1)


def em_step(frames: Array, mixture: Mixtures) -> tuple[Mixtures, float]:
    """Return the mixture of a state after a step of expectation maximisation, and the log likelihood before it, which
    never falls for the same frames [F, D] (Dempster et al. 1977). Variances stay above a floor.
    """
    joint = densities(frames, mixture)
    total = np.logaddexp.reduce(joint, axis=1)
    shares = np.exp(joint - total[:, None])
    count = shares.sum(0) + 1e-9  # A Gaussian may be left without frames.
    means = shares.T @ frames / count[:, None]
    variances = shares.T @ frames**2 / count[:, None] - means**2
    return (count / count.sum(), means, np.maximum(variances, VARIANCE_FLOOR)), float(total.sum())


class Model(NamedTuple):
    """The states of each word, their mixtures, and the log probabilities to stay and to move on, [S] each."""

    chains: list[Array]
    mixtures: Mixtures
    stay: Array
    move: Array


def forced_alignment(speech: Speech, model: Model) -> Array:
    """Return the states int [F] of the best path through each recording, whose word is known."""
    states = np.zeros(len(speech.frames), int)
    for word, chain in enumerate(model.chains):
        index, inside = padded(speech.recordings[speech.recordings[:, 0] == word, 1:])
        weights, means, variances = (part[chain] for part in model.mixtures)
        scores = np.zeros((*inside.shape, len(chain)))
        scores[inside] = likelihoods(speech.frames[index[inside]], (weights, means, variances))
        one_word = np.array([len(chain)]), model.stay[chain], model.move[chain], np.array([-np.inf])
        states[index[inside]] = chain[viterbi(scores, inside.sum(1), *one_word)[0][inside]]
    return states


def train_mixtures(speech: Speech, chains: list[Array], rng: Generator) -> list[Model]:
    """Return models with 1, 2, 4, ... Gaussians per state, by Viterbi training from a flat start.

    Each pass fits mixtures to the frames of their states by expectation maximisation, and then aligns the frames again.
    """
    shape = (max(map(max, chains)) + 1, 1, speech.frames.shape[1])
    mixtures: Mixtures = np.ones(shape[:2]), np.zeros(shape), np.ones(shape)
    models: list[Model] = []
    visits = np.bincount(np.concatenate([chains[word] for word in speech.recordings[:, 0]]))
    # Flat: each recording is divided evenly.
    even = [(chains[word], np.arange(end - first) / (end - first)) for word, first, end in speech.recordings]
    states = np.concatenate([chain[(share * len(chain)).astype(int)] for chain, share in even])
    while mixtures[0].shape[1] <= GAUSSIANS:
        for _ in range(3 if models else 6):
            counts = np.bincount(states)
            frames = np.split(speech.frames[np.argsort(states, kind="stable")], np.cumsum(counts)[:-1])
            fitted = []
            for own, weights, means, variances in zip(frames, *mixtures, strict=True):
                mixture: Mixtures = weights, means, variances
                for _ in range(3):
                    mixture = em_step(own, mixture)[0]
                fitted.append(mixture)
            weights, means, variances = map(np.stack, zip(*fitted, strict=True))
            move = np.clip(visits / counts, 0.01, 0.99)
            model = Model(chains, (weights, means, variances), np.log(1 - move), np.log(move))
            mixtures, states = model.mixtures, forced_alignment(speech, model)
        models.append(model)
        weights, means, variances = (np.repeat(part, 2, axis=1) for part in mixtures)
        # Each Gaussian becomes two, moved by a fifth of its deviation in a random direction and in its opposite.
        step = 0.2 * np.sqrt(model.mixtures[2]) * rng.choice([-1, 1], model.mixtures[2].shape)
        means = means + np.stack([-step, step], 2).reshape(means.shape)
        mixtures = weights / 2, means, variances
    return models


def windows(speech: Speech) -> Array:
    """Return the cepstra of each frame and those around it, float32 [F, 15 * 13]; a string's edges repeat a frame."""
    around, statics = np.arange(-AROUND, AROUND + 1), speech.frames[:, :CEPSTRA].astype(np.float32)
    index = [np.clip(np.arange(first, end)[:, None] + around, first, end - 1) for first, end in speech.strings]
    return statics[np.concatenate(index)].reshape(len(statics), -1)


def log_posteriors(network: nn.Module, inputs: Array) -> Array:
    """Return the logarithms of the network's probabilities of states, [F, S], without dropout."""
    with torch.inference_mode():
        return network.eval()(torch.from_numpy(inputs)).log_softmax(1).double().numpy()


def train_network(train: tuple[Array, Array], held_out: tuple[Array, Array], steps: int, rng: Generator) -> nn.Module:
    """Return a network, of ten stages the best on ``held_out``; both are windows float32 [F, 195], states int [F]."""
    torch.manual_seed(int(rng.integers(2**63)))
    sizes = [train[0].shape[1]] + [HIDDEN] * LAYERS
    layers = [(nn.Linear(*pair), nn.ReLU(), nn.Dropout(DROPOUT)) for pair in itertools.pairwise(sizes)]
    network = nn.Sequential(*itertools.chain(*layers), nn.Linear(HIDDEN, int(train[1].max()) + 1))
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    stages = []
    for step in range(steps):
        rows = rng.integers(len(train[0]), size=BATCH)
        inputs, states = (torch.from_numpy(part[rows]) for part in train)
        loss = functional.cross_entropy(network.train()(inputs), states)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % (steps // 10) == 0:
            found = -np.take_along_axis(log_posteriors(network, held_out[0]), held_out[1][:, None], 1).mean()
            stages.append((found, step, copy.deepcopy(network)))
    return min(stages)[2]


def recognise(scores: Array, speech: Speech, model: Model, penalties: Array) -> Array:
    """Return the substitutions, deletions and insertions in each string, int [P, strings, 3], by scores [F, S]."""
    (index, inside), positions = padded(speech.strings), np.concatenate(model.chains)
    sizes = np.array([len(chain) for chain in model.chains])
    steps, firsts = (model.stay[positions], model.move[positions]), np.cumsum(sizes) - sizes
    paths = viterbi(scores[:, positions][index], inside.sum(1), sizes, *steps, penalties)
    begins = np.isin(paths, firsts) & (np.diff(paths, prepend=-1) != 0) & inside
    words = np.searchsorted(firsts, paths)
    found = [[word[new] for word, new in zip(*of, strict=True)] for of in zip(words, begins, strict=True)]
    return np.array([list(map(word_errors, speech.words, strings)) for strings in found])


def choose(scores: list[Array], speech: Speech, models: list[Model]) -> tuple[Model, Array]:
    """Return the model and the penalty, [1], with the lowest word error rate on this speech, by the scores of each."""
    errors = [recognise(one, speech, model, PENALTIES).sum((1, 2)) for one, model in zip(scores, models, strict=True)]
    at, penalty = np.unravel_index(np.argmin(errors), np.shape(errors))
    size, rate = models[at].mixtures[0].shape[1], np.min(errors) / sum(map(len, speech.words))
    print(f"{size} Gaussians, penalty {PENALTIES[penalty]:g}, validation {rate:.3f}", end="; ")
    return models[at], PENALTIES[[penalty]]


def hold_out(args: argparse.Namespace, train: Speech, validation: Speech, test: Speech, rng: Generator) -> Array:
    """Train, choose settings on validation, and return the errors in each test string, int [strings, 3]."""
    mean, std = train.frames.mean(0), train.frames.std(0)
    train, validation, test = (one._replace(frames=(one.frames - mean) / std) for one in (train, validation, test))
    models = train_mixtures(train, lexicon(args.states == "dependent"), rng)
    model, penalty = choose([likelihoods(validation.frames, one.mixtures) for one in models], validation, models)
    if args.scores == "gmm":
        return recognise(likelihoods(test.frames, model.mixtures), test, model, penalty)[0]
    states, held_out = forced_alignment(train, model), (windows(validation), forced_alignment(validation, model))
    network = train_network((windows(train), states), held_out, args.steps, rng)
    log_prior = np.log(np.bincount(states) / len(states))
    print("network", end=": ")
    penalty = choose([log_posteriors(network, held_out[0]) - log_prior], validation, [model])[1]
    return recognise(log_posteriors(network, windows(test)) - log_prior, test, model, penalty)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--archive", type=Path, required=True, help="free-spoken-digit-dataset-1.0.10.tar.gz")
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--out", type=Path, help="the folder of items.csv")
    goal.add_argument("--validation", action="store_true", help="print the errors of validation in place of test")
    parser.add_argument("--scores", choices=SCORES, default="dnn", help="of states, by a network or mixtures (dnn)")
    parser.add_argument("--states", choices=STATES, default="dependent", help="on the neighbouring phones (dependent)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (0)")
    parser.add_argument("--recordings", type=int, default=PER_WORD, help="of each digit and speaker, to train (50)")
    parser.add_argument("--steps", type=int, default=600, help="of the network's training (600)")
    args = parser.parse_args()
    if args.seed < 0 or not 1 <= args.recordings <= PER_WORD or args.steps < 10:
        parser.error(f"--seed is at least 0, --recordings from 1 to {PER_WORD}, --steps at least 10")
    try:
        spoken = read_archive(args.archive)
    except ValueError as error:
        parser.error(str(error))
    rng = np.random.default_rng([args.seed, SCORES.index(args.scores), STATES.index(args.states), args.recordings])
    drawn = [[[word[at] for at in rng.permutation(PER_WORD)] for word in words] for words in spoken.values()]
    others = [join([word[: args.recordings] for word in words], rng) for words in drawn]
    rows = []
    for number, name in enumerate(SPEAKERS):
        at, *rest = rng.permutation(np.delete(np.arange(len(SPEAKERS)), number))
        print(f"{name}, validation on {SPEAKERS[at]}", end=": ")
        test = others[at] if args.validation else join(spoken[name], np.random.default_rng(number))
        errors = hold_out(args, concatenate([others[other] for other in rest]), others[at], test, rng)
        length = np.mean([len(words) for words in test.words])
        rows += [(f"{name}-{string}", float(wrong / length), name) for string, wrong in enumerate(errors.sum(1))]
        print("{} substitutions, {} deletions, {} insertions".format(*errors.sum(0)), flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        with open(args.out / "items.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("item", "score", "group"), *rows])
    print(f"word error rate {np.mean([score for _, score, _ in rows]):.4f}")


if __name__ == "__main__":
    main()
