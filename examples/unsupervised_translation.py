"""Unsupervised translation: from two monolingual corpora, without a pair of sentences and without a dictionary.

Word vectors of both languages are aligned, each word is translated by the nearest vector of the other language, and a
network learns to translate from these translations. One encoder and one decoder serve both languages. They learn to
restore a sentence from itself with noise (denoising), and from its translation by the model of the iteration before
(back-translation). Each iteration translates anew (Lample et al. 2018, "Unsupervised machine translation using
monolingual corpora only", arXiv 1711.00043).

python unsupervised_translation.py --data FOLDER --out out                  # two iterations
python unsupervised_translation.py --data FOLDER --out out --iterations 0   # word by word
python unsupervised_translation.py --data FOLDER --out out --no-denoising   # back-translation alone
python unsupervised_translation.py --data FOLDER --out out --supervised     # the network, trained on pairs
python unsupervised_translation.py --data FOLDER --out out --validation     # validation in place of test

FOLDER has Multi30k, German and English: {train,val,test_2016_flickr}.lc.norm.tok.{de,en} of data/task1/tok/ in
https://github.com/multi30k/dataset. The German is that of a random half of the training pairs, the English that of the
other half, so that no sentence has its translation. Spelling is not looked at. Networks read sentences of at most
--words words. out/items.csv has the English translation and the reference of each test sentence; `reread claim
unsupervised_translation.yaml` judges BLEU. Equal seeds give equal words on one kind of CPU.

The large version: --words 50 --width 512 --epochs 10 --iterations 3 --device cuda.

Shapes: N sentences, S words of the longest source, T of the longest target, D width, V words of a vocabulary, C context
words, R relations. Numbers of words are int64; 0 is padding. Languages are 0, German, and 1, English.
"""

import argparse
import csv
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

LANGUAGES, SOURCE, TARGET = ("de", "en"), 0, 1
TRAIN, VALIDATION, TEST = "train", "val", "test_2016_flickr"
PAD, BEGIN, END, UNKNOWN = SPECIAL = range(4)
RARE, CONTEXTS, FREQUENCY = 5, 500, 0.7  # A rarer word is unknown; context words; deviation of their log frequencies.
NEIGHBOURS, ROUNDS = 10, 30  # of CSLS; of the matching at most
LENGTH, SLOPE = 2.0, 0.5  # At first: of a word's vector; how much less attention asks per place of distance.
SHUFFLE, DROP = 3, 0.1  # Noise: the places that a word moves at most, the share of words that is left out.
BATCH, LEARNING_RATE, DROPOUT, LONGER = 32, 0.003, 0.1, 4  # LONGER: words of a translation beyond its source

Array = NDArray[Any]
Words = list[list[str]]
Pair = tuple[Tensor, Tensor]


def read(folder: Path, split: str) -> list[Words]:
    """Return the German and the English sentences of a split, line by line translations of each other."""
    sides = []
    for language in LANGUAGES:
        path = folder / f"{split}.lc.norm.tok.{language}"
        try:
            sides.append([line.split() for line in path.read_text(encoding="utf-8").splitlines()])
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read ({error}): download it again") from None
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{folder}: {split} has {len(sides[0])} German and {len(sides[1])} English lines")
    return sides


class Vocabulary:
    """The words that occur at least RARE times in some sentences, the most frequent first, and their numbers."""

    def __init__(self, sentences: Words) -> None:
        counts = Counter(itertools.chain(*sentences))
        known = sorted((word for word in counts if counts[word] >= RARE), key=lambda word: (-counts[word], word))
        self.words = ["<pad>", "<s>", "</s>", "<unk>", *known]
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def encode(self, sentences: Words) -> Array:
        """Return the numbers of the words, [N, longest], padded."""
        rows = [[self.numbers.get(word, UNKNOWN) for word in words] for words in sentences]
        longest = max(map(len, rows), default=0)
        return np.array([row + [PAD] * (longest - len(row)) for row in rows], np.int64).reshape(len(rows), longest)

    def decode(self, row: Iterable[int]) -> str:
        return " ".join(self.words[number] for number in row if number != PAD)


def relations(numbers: Array, size: int, contexts: int) -> Array:
    """Return how strongly words are related to the most frequent ones, float64 [R = 5, V, C], specials left out.

    The relations are: in the same sentence; next after, next before; two or three words after, as many before.
    numbers: [N, S]. size: of the vocabulary. A strength is the count's deviation from that of independent words, in
    standard deviations of a Poisson variable, as a signed logarithm.
    """
    first, numbers = len(SPECIAL), np.pad(numbers, ((0, 0), (0, 3)))  # Short sentences have no word three places on.

    def count(words: Array, others: Array) -> Array:
        kept = (others >= first) & (others < first + contexts)
        cells = np.bincount(words[kept] * contexts + others[kept] - first, minlength=size * contexts)
        return cells.reshape(size, contexts)[first:]

    pairs = []
    for offset in range(1, numbers.shape[1]):
        there = numbers[:, offset:] != PAD
        pairs.append(np.stack([numbers[:, :-offset][there], numbers[:, offset:][there]]))
    every, after, later = np.concatenate(pairs, 1), pairs[0], np.concatenate(pairs[1:3], 1)
    same = count(*every) + count(*every[::-1])
    np.fill_diagonal(same, 0)
    counts = np.stack([same, count(*after), count(*after[::-1]), count(*later), count(*later[::-1])]).astype(float)
    total = counts.sum((1, 2), keepdims=True)
    expected = counts.sum(1, keepdims=True) * counts.sum(2, keepdims=True) / np.maximum(total, 1)
    deviation = (counts - expected) / np.sqrt(expected + 1)
    return np.sign(deviation) * np.log1p(np.abs(deviation))


def match(ours: Array, theirs: Array, start: Array) -> Array:
    """Return for each of our words one of theirs, int [C], so that words are related as their partners are.

    ours, theirs: [R, C, C]. start: a guess, positive [C, C]. The sum of products of relations is raised over all
    doubly stochastic matrices by the method of Frank and Wolfe: fast approximate quadratic assignment (Vogelstein et
    al. 2015, PLOS ONE 10).
    """
    shares, every = start, np.arange(len(start))
    for _ in range(200):  # Sinkhorn and Knopp 1967: rows and columns sum to 1.
        shares = shares / shares.sum(1, keepdims=True)
        shares = shares / shares.sum(0, keepdims=True)
    for _ in range(ROUNDS):
        gradient = sum(a @ shares @ b.T + a.T @ shares @ b for a, b in zip(ours, theirs, strict=True))
        corner = np.zeros_like(shares)
        corner[every, linear_sum_assignment(gradient, maximize=True)[1]] = 1
        step = corner - shares
        slope = (gradient * step).sum()
        curvature = sum(((a @ step @ b.T) * step).sum() for a, b in zip(ours, theirs, strict=True))
        if slope <= 1e-9 * abs((gradient * shares).sum()):
            break
        shares = shares + step * (min(1, -slope / (2 * curvature)) if curvature < 0 else 1)
    return linear_sum_assignment(shares, maximize=True)[1]


def csls(similarity: Array) -> Array:
    """Return similarities less those to the nearest neighbours, cross-domain similarity local scaling (Conneau et al.
    2018, "Word translation without parallel data", arXiv 1710.04087); both [V, V'].
    """
    near = [np.sort(part, axis=1)[:, -NEIGHBOURS:].mean(1) for part in (similarity, similarity.T)]
    return 2 * similarity - near[0][:, None] - near[1]


def aligned_vectors(corpora: list[Array], sizes: list[int], width: int) -> tuple[list[Array], list[Array]]:
    """Return word vectors of two languages in one space, [V, D] each, and the nearest word of the other language, [V].

    corpora: numbers [N, S] of sentences that are not translations of each other. A vector has a word's relations to the
    context words. To match these between languages is to permute the coordinates of one language, which aligns them.
    The guess to start from is that partners are equally frequent.
    """
    contexts = min(CONTEXTS, *(size - len(SPECIAL) for size in sizes))
    ours, theirs = (relations(corpus, size, contexts) for corpus, size in zip(corpora, sizes, strict=True))
    counts = [np.bincount(corpus.ravel(), minlength=size) for corpus, size in zip(corpora, sizes, strict=True)]
    logs = [np.log(count[len(SPECIAL) :][:contexts]) for count in counts]  # How long a corpus is cancels in ``match``.
    start = np.exp(-0.5 * ((logs[0][:, None] - logs[1]) / FREQUENCY) ** 2) + 1e-12
    squares = [side[[0, 1, 3], :contexts] for side in (ours, theirs)]
    squares = [side / np.linalg.norm(side, axis=(1, 2), keepdims=True) for side in squares]
    partners = match(squares[0], squares[1], start)
    rows = [side.transpose(1, 0, 2).reshape(side.shape[1], -1) for side in (ours, theirs[:, :, partners])]
    rows = [side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-9) for side in rows]
    scores = csls(rows[0] @ rows[1].T)
    nearest = [np.concatenate([SPECIAL, best + len(SPECIAL)]) for best in (scores.argmax(1), scores.argmax(0))]
    both = np.concatenate(rows)
    axes = np.linalg.eigh(both.T @ both)[1][:, : -width - 1 : -1]
    both = both @ axes
    both /= np.maximum(np.linalg.norm(both, axis=1, keepdims=True), 1e-9)
    return [np.pad(side, ((len(SPECIAL), 0), (0, 0))) for side in np.split(both, [len(rows[0])])], nearest


def noisy(words: Array, rng: Generator) -> Array:
    """Return sentences [N, S] without some words and with others moved, at most SHUFFLE places; each keeps a word."""
    there = words != PAD
    kept = there & (rng.random(words.shape) >= DROP)
    kept |= there & ~kept.any(1, keepdims=True)
    place = np.arange(words.shape[1]) + rng.uniform(0, SHUFFLE + 1, words.shape)
    order = np.argsort(np.where(kept, place, np.inf), axis=1, kind="stable")
    moved: Array = np.take_along_axis(np.where(kept, words, PAD), order, 1)
    return moved


class Translator(nn.Module):
    """An encoder and a decoder with attention for both languages, which have words of their own.

    The decoder's first layer reads the words before, and its state is the query of attention to the encoder's outputs.
    The second layer reads the context vector too. The vectors of words are those of the output layer as well.
    """

    def __init__(self, vectors: list[Tensor]) -> None:
        super().__init__()
        width = vectors[0].shape[1]
        self.vectors = nn.ParameterList(vectors)
        self.biases = nn.ParameterList(torch.zeros(len(part)) for part in vectors)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.before = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.decoder = nn.GRU(2 * width, width, batch_first=True)
        self.out = nn.Linear(2 * width, width)
        self.slope = nn.Parameter(torch.tensor(SLOPE))
        self.dropout = nn.Dropout(DROPOUT)

    @property
    def device(self) -> torch.device:
        return self.query.weight.device

    def encode(self, source: Tensor, language: int) -> Pair:
        """Return the outputs [N, S, D] for sentences [N, S], and which places have a word, [N, 1, S]."""
        x, there = self.dropout(functional.embedding(source, self.vectors[language])), source != PAD
        packed = pack_padded_sequence(x, there.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        outputs = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=source.shape[1])[0]
        return x + outputs, there[:, None]

    def decode(
        self, words: Tensor, language: int, encoded: Pair, states: list[Tensor] | None = None, at: int = 0
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the scores [N, T, V] of each next word after words [N, T], and the states to go on from.

        at: the first word's place. Attention prefers near places, and the context vector is added to the output: with
        little learnt, a network translates word by word.
        """
        memory, there = encoded
        if states is None:
            states = [memory.new_zeros(1, *memory[:, 0].shape)] * 2
        x, first = self.before(self.dropout(functional.embedding(words, self.vectors[language])), states[0])
        places = [torch.arange(at, at + words.shape[1]), torch.arange(memory.shape[1])]
        distance = (places[0][:, None] - places[1]).abs().to(self.device)
        scores = self.query(x) @ memory.transpose(1, 2) / memory.shape[2] ** 0.5 - self.slope * distance
        context_vector = scores.masked_fill(~there, -torch.inf).softmax(2) @ memory
        x, second = self.decoder(torch.cat([x, context_vector], 2), states[1])
        x = self.dropout(context_vector + self.out(torch.cat([x, context_vector], 2)))
        return functional.linear(x, self.vectors[language], self.biases[language]), [first, second]

    def loss(self, source: Tensor, target: Tensor, languages: tuple[int, int]) -> Tensor:
        """Return the mean cross entropy of the words of targets [N, T] after sources [N, S], in nats."""
        target = functional.pad(target, (0, 1)).scatter(1, (target != PAD).sum(1, keepdim=True), END)
        begun = functional.pad(target[:, :-1], (1, 0), value=BEGIN)
        scores, _ = self.decode(begun, languages[1], self.encode(source, languages[0]))
        return functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PAD)

    @torch.no_grad()
    def translate(self, source: Tensor, language: int) -> Tensor:
        """Translate sentences [N, S] of a language into the other one, the likeliest word each time: [N, T], padded."""
        self.eval()
        encoded, states, other = self.encode(source, language), None, 1 - language
        word = torch.full((len(source), 1), BEGIN, device=source.device)
        done, written = torch.zeros_like(word, dtype=torch.bool), []
        for place in range(source.shape[1] + LONGER):
            scores, states = self.decode(word, other, encoded, states, place)
            scores[:, :, [PAD, BEGIN, UNKNOWN] + [END] * (place == 0)] = -torch.inf  # A translation has a word.
            word = scores.argmax(2)
            done |= word == END
            written.append(word.masked_fill(done, PAD))
            if bool(done.all()):
                break
        self.train()
        return torch.cat(written, 1)


def translate_all(network: Translator, corpus: Array, language: int) -> Array:
    """Translate sentences [N, S] in batches of similar length; [N, T], padded."""
    order = np.argsort((corpus != PAD).sum(1), kind="stable")
    translations = np.zeros((len(corpus), corpus.shape[1] + LONGER), np.int64)
    for rows in np.array_split(order, len(order) // 256 + 1):
        part = torch.from_numpy(trimmed(corpus[rows])).to(network.device)
        words = network.translate(part, language).cpu().numpy()
        translations[rows, : words.shape[1]] = words
    return translations


def trimmed(words: Array) -> Array:
    """Return sentences [N, S] without places that are padding in all of them."""
    return words[:, : max(1, int((words != PAD).any(0).sum()))]


def batches(lengths: Array, rng: Generator) -> list[Array]:
    """Return rows in batches of similar length, in random order."""
    order = np.argsort(lengths + rng.random(len(lengths)))
    parts = np.array_split(order, -(-len(order) // BATCH))
    return [parts[at] for at in rng.permutation(len(parts))]


class Task(NamedTuple):
    """Targets [N, T] to be learnt from sources [N, S], with noise in these or without; languages: of both."""

    source: Array
    target: Array
    languages: tuple[int, int]
    is_noisy: bool

    def loss(self, network: Translator, rows: Array, rng: Generator) -> Tensor:
        source = noisy(self.source[rows], rng) if self.is_noisy else self.source[rows]
        pair = [torch.from_numpy(trimmed(part)).to(network.device) for part in (source, self.target[rows])]
        return network.loss(pair[0], pair[1], self.languages)


def train(network: Translator, tasks: list[Task], epochs: int, rng: Generator) -> None:
    """Train a network on all tasks, a batch of each in turn, with Adam and a linear decay."""
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, (0.9, 0.98))
    plan = [[batches((task.target != PAD).sum(1), rng) for task in tasks] for _ in range(epochs)]
    steps = [step for epoch in plan for step in itertools.zip_longest(*epoch)]
    for number, step in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - number / len(steps))
        optimizer.zero_grad()
        for task, rows in zip(tasks, step, strict=True):
            if rows is not None:
                task.loss(network, rows, rng).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


def learn_alone(
    network: Translator, corpora: list[Array], nearest: list[Array], options: argparse.Namespace, rng: Generator
) -> None:
    """Train a network by iterations. The first one learns from translations word by word, by ``nearest`` words."""
    restored = [Task(corpus, corpus, (side, side), True) for side, corpus in enumerate(corpora)]
    translations = [nearest[side][corpus] for side, corpus in enumerate(corpora)]
    for iteration in range(options.iterations):
        if iteration:
            translations = [translate_all(network, corpus, side) for side, corpus in enumerate(corpora)]
        back = [Task(translations[side], corpus, (1 - side, side), True) for side, corpus in enumerate(corpora)]
        train(network, back if options.no_denoising else restored + back, options.epochs, rng)


def short(pairs: list[Words], most: int) -> list[Words]:
    """Return the pairs whose sentences have at most ``most`` words."""
    kept = [pair for pair in zip(*pairs, strict=True) if all(0 < len(words) <= most for words in pair)]
    return [[pair[side] for pair in kept] for side in (0, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of Multi30k's tokenised files")
    parser.add_argument("--out", type=Path, required=True, help="the folder of items.csv")
    parser.add_argument("--validation", action="store_true", help="translate validation in place of test")
    parser.add_argument("--iterations", type=int, default=2, help="of back-translation; 0: word by word (2)")
    parser.add_argument("--no-denoising", action="store_true", help="learn from back-translation alone")
    parser.add_argument("--supervised", action="store_true", help="learn from as many pairs as there is English")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (0)")
    parser.add_argument("--sentences", type=int, default=29_000, help="pairs at most, whose halves are read (29000)")
    parser.add_argument("--words", type=int, default=12, help="of a sentence at most (12)")
    parser.add_argument("--width", type=int, default=128, help="of vectors and network, even (128)")
    parser.add_argument("--epochs", type=int, default=1, help="of each iteration (1)")
    parser.add_argument("--device", default="cpu", help="of torch (cpu)")
    args = parser.parse_args()
    if min(args.seed, args.iterations, args.sentences) < 0 or min(args.words, args.width, args.epochs) < 1:
        parser.error("--seed, --iterations and --sentences are at least 0, --words, --width and --epochs 1")
    if args.width % 2 or (args.supervised and (args.no_denoising or not args.iterations)):
        parser.error("--width is even; --supervised has no denoising, and --iterations of at least 1")
    try:
        torch.empty(0, device=args.device)
        pairs, held_out = (read(args.data, split) for split in (TRAIN, VALIDATION if args.validation else TEST))
        rng = np.random.default_rng([args.seed, args.iterations, args.no_denoising, args.supervised])
        torch.manual_seed(int(rng.integers(2**63)))
        halves = np.array_split(rng.permutation(len(pairs[0]))[: args.sentences], 2)
        texts = [[pairs[side][row] for row in half] for side, half in enumerate(halves)]
        vocabularies = [Vocabulary(text) for text in texts]
        sizes = [len(vocabulary.words) for vocabulary in vocabularies]
        sources, references = short(held_out, args.words)
        if min(sizes) < len(SPECIAL) + max(NEIGHBOURS, args.width):
            raise ValueError(f"{min(sizes) - len(SPECIAL)} words are known: raise --sentences or lower --width")
        known = short([side[: args.sentences] for side in pairs], args.words)
        if not sources or not all(any(0 < len(words) <= args.words for words in text) for text in [*texts, known[0]]):
            raise ValueError(f"{args.data}: a text has no sentence of at most {args.words} words: raise --words")
    except (ValueError, RuntimeError, AssertionError) as error:  # torch's, of the device, are the last two
        parser.error(str(error).partition("\n")[0])
    corpora = [vocabulary.encode(text) for vocabulary, text in zip(vocabularies, texts, strict=True)]
    aligned, nearest = aligned_vectors(corpora, sizes, args.width)
    test = vocabularies[SOURCE].encode(sources)
    if args.iterations:
        network = Translator([torch.from_numpy(LENGTH * part).float() for part in aligned]).to(args.device)
        counts = [(corpus != PAD).sum(1) for corpus in corpora]
        kept = [(count > 0) & (count <= args.words) for count in counts]
        corpora = [corpus[rows, : args.words] for corpus, rows in zip(corpora, kept, strict=True)]
        if args.supervised:
            drawn = rng.permutation(len(known[0]))[: len(corpora[TARGET])]
            numbers = [vocabularies[side].encode(known[side])[drawn] for side in (SOURCE, TARGET)]
            tasks = [Task(numbers[side], numbers[1 - side], (side, 1 - side), False) for side in (SOURCE, TARGET)]
            train(network, tasks, args.iterations * args.epochs, rng)
        else:
            learn_alone(network, corpora, nearest, args, rng)
        translations = translate_all(network, test, SOURCE)
    else:
        translations = nearest[SOURCE][test]
    predictions = map(vocabularies[TARGET].decode, translations)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "items.csv", "w", newline="", encoding="utf-8") as file:
        rows = zip(itertools.count(), predictions, map(" ".join, references))
        csv.writer(file).writerows([("item", "prediction", "reference"), *rows])
    print(f"{len(references)} sentences")


if __name__ == "__main__":
    main()
