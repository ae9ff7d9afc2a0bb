"""Translation in parallel: all words of a sentence at once, from source words that are copied by their fertility.

A teacher translates word by word: a transformer whose decoder reads the words before. A student writes all words at
once. Its decoder reads the source words, each as often as its fertility says: a fertility of 2 copies a word twice, one
of 0 leaves it out (Gu et al. 2018, "Non-autoregressive neural machine translation", arXiv 1711.02281). Fertilities are
those of a word alignment, and the student predicts them. It learns the teacher's translations in place of the
references: sequence-level distillation (Kim and Rush 2016).

python parallel_translation.py --data FOLDER --out out                       # student: fertility, distillation
python parallel_translation.py --data FOLDER --out out --copies uniform      # copies spread evenly over the length
python parallel_translation.py --data FOLDER --out out --targets references  # without distillation
python parallel_translation.py --data FOLDER --out out --samples 10          # noisy parallel decoding
python parallel_translation.py --data FOLDER --out out --teacher             # the teacher

FOLDER has Multi30k, English to German: {train,val,test_2016_flickr}.lc.norm.tok.{en,de} of data/task1/tok/ in
https://github.com/multi30k/dataset. Sentences of at most --words words are read. out/items.csv has the translation, the
reference and the seconds of each test sentence, translated alone on one thread; `reread claim` judges BLEU and seconds.
Equal seeds give equal words on one kind of CPU. Large: --words 100 --width 256 --layers 5 --epochs 30 --device cuda.

Shapes: N sentences, S words of the longest source, T of the longest target, D width, V words. Numbers are int64.
"""

import argparse
import csv
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

PAD, BEGIN, END, UNKNOWN = range(4)
TRAIN, VALIDATION, TEST = "train", "val", "test_2016_flickr"
RARE, PASSES = (
    3,
    3,
)  # A word that is rarer in training is unknown. Of so many passes the fastest counts: load delays some.
HEADS, DROPOUT, BATCH, LEARNING_RATE, WARMUP = 4, 0.1, 64, 0.002, 0.1
LONGER, MOST_COPIES, SMOOTHING = 4, 5, 0.1  # words of a translation beyond its source; the largest fertility; of labels
ROUNDS, DIAGONAL = 8, 4.0  # of EM; how strongly an alignment prefers equal places (Dyer et al. 2013, fast_align)

Words = list[list[str]]
Numbers = NDArray[np.int64]
Encoded = tuple[Tensor, Tensor]  # The encoder's output [N, S, D], and the mask of its words [N, 1, 1, S].
Read = tuple[Tensor, ...]  # Keys and values of the words before and, of a decoder, of the source.


def read(folder: Path, split: str, most: int) -> tuple[Words, Words]:
    """Return the English and the German sentences of a split, those with at most ``most`` words each."""
    sides = []
    for language in ("en", "de"):
        path = folder / f"{split}.lc.norm.tok.{language}"
        try:
            sides.append([line.split() for line in path.read_text(encoding="utf-8").splitlines()])
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read ({error}): download it again") from None
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{folder}: {split} has {len(sides[0])} English and {len(sides[1])} German lines")
    pairs = [pair for pair in zip(*sides, strict=True) if all(0 < len(words) <= most for words in pair)]
    if not pairs:
        raise ValueError(f"{folder}: {split} has no sentence of at most {most} words: raise --words")
    return [source for source, _ in pairs], [target for _, target in pairs]


class Vocabulary:
    """The words of training sentences that occur at least RARE times, and their numbers."""

    def __init__(self, sentences: Words) -> None:
        counts = Counter(word for words in sentences for word in words)
        self.words = ["<pad>", "<s>", "</s>", "<unk>", *sorted(word for word in counts if counts[word] >= RARE)]
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def encode(self, sentences: Words) -> Numbers:
        """Return the numbers of the words, [N, longest], padded."""
        rows = [[self.numbers.get(word, UNKNOWN) for word in words] for words in sentences]
        longest = max(map(len, rows))
        return np.array([row + [PAD] * (longest - len(row)) for row in rows], np.int64)

    def decode(self, row: Sequence[int]) -> str:
        return " ".join(self.words[number] for number in row if number != PAD)


def align(source: Numbers, target: Numbers) -> Numbers:
    """Return the place of the source word that each target word is aligned to, [N, T]; -1 at padding.

    IBM model 1 with a fixed preference for equal relative places, by EM. There is no empty source word, so that the
    fertilities of a sentence add up to the length of its translation.
    """
    lengths, widths = (source > 0).sum(1), (target > 0).sum(1)
    pair, place, at = np.nonzero((source > 0)[:, :, None] & (target > 0)[:, None, :])
    words = source[pair, place] * (target.max() + 1) + target[pair, at]
    links, word = np.unique(words, return_inverse=True)
    first = links // (target.max() + 1)
    prior = np.exp(-DIAGONAL * np.abs((place + 0.5) / lengths[pair] - (at + 0.5) / widths[pair]))
    column = pair * target.shape[1] + at  # Its links share one target word.
    translation = np.ones(len(links))
    for _ in range(ROUNDS):
        likelihood = translation[word] * prior
        posterior = likelihood / np.bincount(column, likelihood)[column]
        counts = np.bincount(word, posterior)
        translation = counts / np.bincount(first, counts)[first]
    scores = np.full((*source.shape, target.shape[1]), -np.inf)
    scores[pair, place, at] = translation[word] * prior
    aligned: Numbers = np.where(target > 0, scores.argmax(1), -1)
    return aligned


def fertilities(alignment: Numbers, places: int) -> Numbers:
    """Return how many target words are aligned to each source place, [N, places]."""
    counts: Numbers = (alignment[:, None, :] == np.arange(places)[:, None]).sum(2)
    return counts


def copies(fertility: Tensor) -> tuple[Tensor, Tensor]:
    """Return the source place of each decoder input by fertility [N, S], and whether there is one: both [N, T]."""
    ends = fertility.cumsum(1)
    place = torch.arange(max(1, int(ends.max())), device=fertility.device).expand(len(ends), -1).contiguous()
    return torch.searchsorted(ends, place, right=True).clamp(max=fertility.shape[1] - 1), place < ends[:, -1:]


def spread(length: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return as ``copies`` does the places of sources of ``length``, spread evenly over ``target`` inputs; both [N]."""
    place = torch.arange(max(1, int(target.max())), device=length.device)
    even = (place * length[:, None] + length[:, None] // 2) // target[:, None]
    return even.minimum(length[:, None] - 1), place < target[:, None]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.keys, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def read(self, context: Tensor) -> Tensor:
        """Return the keys and values of a context [N, S, D]: [N, heads, S, 2 * D / heads]."""
        return cast(Tensor, self.keys(context).unflatten(2, (HEADS, -1)).transpose(1, 2))

    def forward(self, x: Tensor, read: Tensor, mask: Tensor | None) -> Tensor:
        """x [N, T, D]; read: of a context; mask: what may be read, broadcast to [N, heads, T, S]; None: all."""
        query, (key, value) = self.query(x).unflatten(2, (HEADS, -1)).transpose(1, 2), read.chunk(2, dim=3)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return cast(Tensor, self.out(attended.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    """Attention to the sentence and, of a decoder, to the source; then two linear layers. Each normalises its input."""

    def __init__(self, width: int, decodes: bool) -> None:
        super().__init__()
        self.own, self.across = Attention(width), Attention(width) if decodes else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.linear = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor | None, *source: Tensor, before: Read = ()) -> tuple[Tensor, Read]:
        """before: what the layer has read of the words before x, and of the source. Return its output, and the same."""
        own = self.norms[0](x)
        kept = [torch.cat([*before[:1], self.own.read(own)], 2), *before[1:]]
        x = x + self.dropout(self.own(own, kept[0], mask))
        if self.across is not None:
            kept = kept if before else [*kept, self.across.read(source[0])]
            x = x + self.dropout(self.across(self.norms[1](x), kept[1], source[1]))
        return x + self.dropout(self.linear(self.norms[2](x))), tuple(kept)


class Translator(nn.Module):
    """An encoder of the source and a decoder, of the teacher or of the student."""

    def __init__(self, sources: int, targets: int, longest: int, width: int, layers: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(sources, width, PAD), nn.Embedding(targets, width, PAD)
        self.places = nn.Embedding(longest, width)
        for embedding in (self.source, self.target, self.places):
            nn.init.normal_(embedding.weight, std=width**-0.5)
        self.encoder = nn.ModuleList(Layer(width, decodes=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, decodes=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.fertility, self.length = nn.Linear(width, MOST_COPIES + 1), nn.Linear(width, longest)
        self.longest, self.scale, self.dropout = longest - 1, width**0.5, nn.Dropout(DROPOUT)

    def embed(self, words: Tensor, embedding: nn.Embedding, first: int = 0) -> Tensor:
        places = self.places.weight[first : first + words.shape[1]]
        return cast(Tensor, self.dropout((embedding(words) + places) * self.scale))

    def encode(self, source: Tensor) -> Encoded:
        x, seen = self.embed(source, self.source), (source > PAD)[:, None, None]
        for layer in self.encoder:
            x, _ = layer(x, seen)
        return self.norms[0](x), seen

    def words(self, x: Tensor) -> Tensor:
        """Return the scores of words, [N, T, V]."""
        return functional.linear(self.norms[1](x), self.target.weight)

    def teach(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores of each word and of the end, [N, T + 1, V], from the words before it; target [N, T]."""
        encoded, x = self.encode(source), self.embed(functional.pad(target, (1, 0), value=BEGIN), self.target)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        for layer in self.decoder:
            x, _ = layer(x, mask, *encoded)
        return self.words(x)

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(self.teach(source, target), ended(target))

    def at_once(self, source: Tensor, place: Tensor, there: Tensor, encoded: Encoded) -> Tensor:
        """Return the scores of all words, [N, T, V], from copies of the source words at ``place`` [N, T]."""
        x = self.embed(source.gather(1, place), self.source)
        for layer in self.decoder:
            x, _ = layer(x, there[:, None, None], *encoded)
        return self.words(x)

    def by_word(self, source: Tensor) -> Tensor:
        """Translate word by word, the most likely first: numbers [N, T] with END and padding after it."""
        encoded, word = self.encode(source), torch.full((len(source), 1), BEGIN, device=source.device)
        done = torch.zeros_like(word, dtype=torch.bool)
        before: list[Read] = [()] * len(self.decoder)
        written = []
        for place in range(min(source.shape[1] + LONGER, self.places.num_embeddings)):
            x = self.embed(word, self.target, place)
            for number, layer in enumerate(self.decoder):
                x, before[number] = layer(x, None, *encoded, before=before[number])
            word = self.words(x).argmax(2).masked_fill(done, PAD)
            written.append(word)
            done = done | (word == END)
            if bool(done.all()):
                break
        return torch.cat(written, 1)


def train(network: nn.Module, loss: Callable[..., Tensor], data: Sequence[Tensor], epochs: int, rng: Generator) -> None:
    """Train a network by its ``loss`` of the rows of ``data``, with Adam, a warm-up and a linear decay."""
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, (0.9, 0.98))
    batches = [batch for _ in range(epochs) for batch in torch.from_numpy(rng.permutation(len(data[0]))).split(BATCH)]
    network.train()
    for step, batch in enumerate(batches):
        done = (step + 1) / len(batches)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(done / WARMUP, (1 - done) / (1 - WARMUP))
        optimizer.zero_grad()
        loss(*(part[batch] for part in data)).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    network.eval()


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean smoothed cross entropy of the words that are there; scores [N, T, V], target [N, T]."""
    flat = scores.flatten(0, 1), target.flatten()
    return functional.cross_entropy(*flat, ignore_index=PAD, label_smoothing=SMOOTHING)


def finished(words: Tensor) -> Tensor:
    """Return translations without END and what follows it, padded."""
    return words.masked_fill((words == END).cumsum(1) > 0, PAD)


class Student:
    """A network that writes all words at once, and how it places the copies of the source words."""

    def __init__(self, network: Translator, uniform: bool) -> None:
        self.network, self.uniform = network, uniform

    def loss(self, source: Tensor, target: Tensor, fertility: Tensor) -> Tensor:
        """Return the loss of the words and of the fertilities, or of the length where copies are spread evenly."""
        encoded, length = self.network.encode(source), (target > PAD).sum(1)
        if self.uniform:
            place, there = spread((source > PAD).sum(1), length)
            extra = functional.cross_entropy(self.lengths(*encoded), length)
        else:
            place, there = copies(fertility)
            wanted = fertility.clamp(max=MOST_COPIES).masked_fill(source == PAD, -1)
            scores = self.network.fertility(encoded[0]).transpose(1, 2)
            extra = functional.cross_entropy(scores, wanted, ignore_index=-1)
        scores = self.network.at_once(source, place, there, encoded)
        return cross_entropy(scores, target[:, : scores.shape[1]]) + extra

    def lengths(self, memory: Tensor, seen: Tensor) -> Tensor:
        """Return the scores of the lengths of translations, [N, longest], from the mean of the encoder's output."""
        there = seen[:, 0, 0, :, None]
        return cast(Tensor, self.network.length((memory * there).sum(1) / there.sum(1)))

    def translate(self, source: Tensor, drawn: bool = False) -> Tensor:
        """Translate by the most likely fertilities or length or, ``drawn``, by random fertilities: [N, T], padded."""
        encoded = self.network.encode(source)
        if self.uniform:
            place, there = spread((source > PAD).sum(1), self.lengths(*encoded)[:, 1:].argmax(1) + 1)
        else:
            scores = self.network.fertility(encoded[0])
            fertility = torch.distributions.Categorical(logits=scores).sample() if drawn else scores.argmax(2)
            fertility = fertility.masked_fill(source == PAD, 0)
            fertility[:, 0] += fertility.sum(1) == 0  # A translation has a word.
            place, there = (part[:, : self.network.longest] for part in copies(fertility))
        scores = self.network.at_once(source, place, there, encoded)
        return scores[:, :, UNKNOWN:].argmax(2).add(UNKNOWN).masked_fill(~there, PAD)


def ended(words: Tensor) -> Tensor:
    """Return translations [N, T] with END after their words, [N, T + 1]."""
    return functional.pad(words, (0, 1)).scatter(1, (words > PAD).sum(1, keepdim=True), END)


@torch.no_grad()
def distilled(teacher: Translator, source: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sources that the teacher translates to at least one word, and these translations."""
    rows = [row for part in source.split(512) for row in finished(teacher.by_word(part))]
    target = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    written = (target > PAD).any(1)
    return source[written], target[written]


def likelihood(teacher: Translator, source: Tensor, words: Tensor) -> Tensor:
    """Return the logarithm of the teacher's likelihood of translations [N, T], padded: [N]."""
    wanted = ended(words)
    each = teacher.teach(source, words).log_softmax(2).gather(2, wanted[..., None])[..., 0]
    return (each * (wanted > PAD)).sum(1)


def best_of(student: Student, teacher: Translator, source: Tensor, samples: int) -> Tensor:
    """Translate by noisy parallel decoding: the teacher chooses among translations by drawn fertilities."""
    many = source.repeat_interleave(samples, 0)
    words = student.translate(many, drawn=True)
    best = likelihood(teacher, many, words).view(len(source), samples).argmax(1)
    return words.view(len(source), samples, -1)[torch.arange(len(source)), best]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of Multi30k's tokenised files")
    parser.add_argument("--out", type=Path, required=True, help="the folder of items.csv")
    parser.add_argument("--validation", action="store_true", help="translate validation in place of test")
    parser.add_argument("--teacher", action="store_true", help="translate word by word")
    parser.add_argument("--copies", choices=("fertility", "uniform"), default="fertility", help="of source words")
    parser.add_argument("--targets", choices=("distilled", "references"), default="distilled", help="of the student")
    parser.add_argument("--samples", type=int, default=0, help="of fertilities, of which the teacher chooses (0)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (0)")
    parser.add_argument("--words", type=int, default=10, help="of a sentence at most (10)")
    parser.add_argument("--width", type=int, default=128, help="of the networks, a multiple of 4 (128)")
    parser.add_argument("--layers", type=int, default=2, help="of encoder and decoder (2)")
    parser.add_argument("--epochs", type=int, default=6, help="of each training (6)")
    parser.add_argument("--device", default="cpu", help="of torch (cpu)")
    args = parser.parse_args()
    if args.seed < 0 or args.samples < 0 or min(args.words, args.layers, args.epochs) < 1 or args.width % HEADS:
        parser.error("--seed and --samples are at least 0, --words, --layers and --epochs 1; --width divides by 4")
    if args.samples and (args.teacher or args.copies == "uniform"):
        parser.error("--samples is of fertilities: leave out --teacher and --copies uniform")
    try:
        torch.empty(0, device=args.device)
        texts = [read(args.data, split, args.words) for split in (TRAIN, VALIDATION if args.validation else TEST)]
    except (ValueError, RuntimeError, AssertionError) as error:  # torch's, of the device, are the last two
        parser.error(str(error).partition("\n")[0])
    arm = args.teacher, args.copies == "uniform", args.targets == "references", args.samples
    rng = np.random.default_rng([args.seed, *arm])
    torch.manual_seed(int(rng.integers(2**63)))
    english, german = map(Vocabulary, texts[0])
    pair = english.encode(texts[0][0]), german.encode(texts[0][1])
    source, target = (torch.from_numpy(numbers).to(args.device) for numbers in pair)

    def network() -> Translator:
        sizes = len(english.words), len(german.words), args.words + LONGER + 1, args.width, args.layers
        return Translator(*sizes).to(args.device)

    teacher = None
    if args.teacher or args.samples or args.targets == "distilled":
        teacher = network()
        train(teacher, teacher.loss, (source, target), args.epochs, rng)
    student = Student(network(), args.copies == "uniform")
    if not args.teacher:
        learnt = distilled(teacher, source) if teacher is not None and args.targets == "distilled" else (source, target)
        fertility = torch.from_numpy(fertilities(align(*(side.cpu().numpy() for side in learnt)), source.shape[1]))
        train(student.network, student.loss, (*learnt, fertility.to(args.device)), args.epochs, rng)

    def translate(words: Tensor) -> Tensor:
        if teacher is None or not (args.teacher or args.samples):
            return student.translate(words)
        return finished(teacher.by_word(words)) if args.teacher else best_of(student, teacher, words, args.samples)

    torch.set_num_threads(1)
    rows, (sentences, references) = [], texts[1]
    with torch.inference_mode():
        for item, sentence in enumerate(sentences):
            words, seconds = torch.from_numpy(english.encode([sentence])).to(args.device), []
            for _ in range(PASSES):
                begun = time.perf_counter()
                numbers = translate(words)[0].tolist()
                seconds.append(time.perf_counter() - begun)
            rows.append((item, german.decode(numbers), " ".join(references[item]), min(seconds)))
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "items.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("item", "prediction", "reference", "seconds"), *rows])
    print(f"{len(sentences)} sentences, {1000 * np.mean([row[3] for row in rows]):.1f} ms each")


if __name__ == "__main__":
    main()
