r"""The GRU's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches.

The lengths are those of real sentences: the first 20 of each of IMDB's 25,000 training reviews (Maas et al. 2011),
clipped at 30 words. ``SENTENCES`` is what this printed:

    python - <<'END'
    import collections, json, lzma
    from reread.preprocessing import text
    counts = collections.Counter()
    for line in lzma.open("train.jsonl.xz", "rt"):
        review = json.loads(line)["text"].replace("<br />", "\\n")
        counts.update(min(len(words), 30) for words in text.segment(review)[:20])
    print([counts[n] for n in range(31)])
    END
"""

import copy
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cuda_ext.case import Case, begin, compiled
from cuda_ext.gru import gru
from cuda_ext.gru.module import GRU

# How many sentences have 0, 1, ... 29, and 30 or more words: 19.4 on average.
SENTENCES = (
    *(0, 233, 2855, 2953, 3687, 5467, 6339, 6700, 7587, 8062, 8576, 8955, 9080, 9383, 9132, 9355),
    *(9289, 9346, 9210, 9180, 8652, 8420, 7841, 7478, 7224, 6897, 6507, 6054, 5674, 5334, 65585),
)
# A large bf16 product on one H200; fp32 is multiplied in three of them.
PRODUCTS_PER_SECOND = 686e12


@dataclass(frozen=True)
class Shape:
    sequences: int
    steps: int
    inputs: int
    units: int
    bidirectional: bool = True
    full: bool = False
    # Into how many groups of like length a batch is cut for nn.GRU: those that came out best, of 2, 4, 6 and 8.
    groups: tuple[int, ...] = ()

    def __str__(self) -> str:
        directions = "" if self.bidirectional else ", one direction"
        return f"{self.sequences}, {self.steps}, {self.inputs}, {self.units}{directions}{', full' if self.full else ''}"

    def lengths(self) -> Tensor:
        if self.full:
            return torch.full((self.sequences,), self.steps)
        drawn = torch.multinomial(torch.tensor(SENTENCES, dtype=torch.float), self.sequences, replacement=True)
        return drawn.clamp(max=self.steps)


SHAPES = (
    Shape(1280, 30, 200, 50, groups=(2, 4)),
    Shape(1280, 30, 200, 100, groups=(2, 4)),
    Shape(5120, 30, 200, 50, groups=(2, 8)),
    Shape(64, 20, 100, 50, groups=(2,)),
    Shape(5120, 30, 200, 50, full=True),
    Shape(256, 256, 128, 128, bidirectional=False, full=True),
)


# Sequences, steps, inputs, units, bidirectional: for compute-sanitizer. The first has more inputs than half precision
# multiplies past stationary weights; the last more than 132 tiles of 16 sequences and more than 8,192 steps, as only
# the kernels of large batches take.
SMALL = (
    (2, 3, 772, 16, False),
    (19, 5, 7, 13, True),
    (3, 4, 8, 70, False),
    (18, 2, 121, 128, True),
    (1100, 9, 8, 50, True),
)


class _Prepared:
    """Tensors that a user would have at hand for one batch, by its lengths' identity: made once, not timed."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[Any, ...]] = {}

    def __call__(self, lengths: Tensor, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        if id(lengths) not in self._by_identity:
            self._by_identity[id(lengths)] = (*make(), lengths)
        return self._by_identity[id(lengths)][:-1]


def bench_cases() -> Iterator[Case]:
    for shape in SHAPES:
        # float16 takes as long as bfloat16.
        for dtype in (torch.float32, torch.bfloat16):
            yield from _both_passes(shape, dtype)


def _both_passes(shape: Shape, dtype: torch.dtype) -> Iterator[Case]:
    """One case of the forward pass and one of both; in the second the gradient comes last."""
    units = shape.units * (1 + shape.bidirectional)
    # Without a GPU the cases can be listed, and none run.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = GRU(shape.inputs, shape.units, batch_first=True, bidirectional=shape.bidirectional).to(device, dtype)
    theirs = nn.GRU(shape.inputs, shape.units, batch_first=True, bidirectional=shape.bidirectional).to(device, dtype)
    theirs.load_state_dict(ours.state_dict())
    theirs.flatten_parameters()

    def inputs() -> tuple[Tensor, Tensor]:
        x = torch.randn(shape.sequences, shape.steps, shape.inputs, device="cuda", dtype=dtype)
        return x, shape.lengths().cuda()

    def inputs_and_gradient() -> tuple[Tensor, Tensor, Tensor]:
        x, lengths = inputs()
        return x.requires_grad_(), lengths, torch.randn(shape.sequences, shape.steps, units, device="cuda", dtype=dtype)

    def exact(x: Tensor, lengths: Tensor, *gradient: Tensor) -> Tensor | tuple[Tensor, ...]:
        module = copy.deepcopy(theirs).double()
        (states,) = _packed(module, _Prepared())(x, lengths)
        return states if not gradient else torch.autograd.grad(states, [x, *module.parameters()], gradient)

    runs: dict[str, Callable[..., tuple[Tensor, ...]]] = {"padded": lambda x, lengths: (theirs(x)[0],)}
    if not shape.full:
        runs |= {f"sorted, {count} groups": _grouped(theirs, count) for count in shape.groups}
    # nn.GRU's loop is in cuDNN, which torch.compile leaves as it is; of a loop in Python it makes kernels of its own.
    if shape.steps <= 30:
        loops = compiled(_loop(theirs))
        runs |= {f"{name}, loop": _of_padded(loop) for name, loop in loops.items()}
    forward_peers = {name: _without_gradients(run) for name, run in runs.items()}
    # Slower than padding by 1.5 to 30 times wherever it was timed: a sample is enough.
    if dtype == torch.float32:
        forward_peers["packed"] = _without_gradients(_packed(theirs, _Prepared()))
    both_peers = {name: _with_gradients(run, theirs) for name, run in runs.items()}
    wide, load = copy.deepcopy(theirs).float(), functools.cache(_load_torchrl)
    torchrl = {"TorchRL": _torchrl(load, wide, dtype)}
    if shape.bidirectional:
        torchrl["TorchRL, two streams"] = _torchrl(load, wide, dtype, functools.cache(torch.cuda.Stream))
    forward_peers |= {name: _without_gradients(run) for name, run in torchrl.items()}
    both_peers |= {name: _with_gradients(run, wide) for name, run in torchrl.items()}

    steps = shape.sequences * sum(min(n, shape.steps) * count for n, count in enumerate(SENTENCES)) // sum(SENTENCES)
    if shape.full:
        steps = shape.sequences * shape.steps
    read, written = steps * shape.inputs * dtype.itemsize, shape.sequences * shape.steps * units * dtype.itemsize
    flops = 2 * steps * 3 * units * (shape.inputs + shape.units)
    rate = PRODUCTS_PER_SECOND / (3 if dtype == torch.float32 else 1)

    def own(x: Tensor, lengths: Tensor) -> tuple[Tensor]:
        return (ours(x, lengths=lengths)[0],)

    yield Case(
        "gru",
        f"{shape}, forward",
        dtype,
        inputs,
        _without_gradients(own),
        forward_peers,
        exact,
        read + written,
        flops,
        rate,
    )
    yield Case(
        "gru",
        f"{shape}, both",
        dtype,
        inputs_and_gradient,
        _with_gradients(own, ours),
        both_peers,
        exact,
        3 * read + 2 * written,
        3 * flops,
        rate,
    )


def _loop(module: nn.GRU) -> Callable[[Tensor], Tensor]:
    """The padded batch by PyTorch's products, one step after another: what torch.compile can make kernels of."""

    def run(x: Tensor) -> Tensor:
        of_directions = []
        for direction in ("", "_reverse")[: 1 + module.bidirectional]:
            w_ih, w_hh, b_ih, b_hh = (
                getattr(module, f"{name}_l0{direction}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            of_input = nn.functional.linear(x, w_ih, b_ih).unbind(1)
            state, states = x.new_zeros(len(x), module.hidden_size), []
            for sums in reversed(of_input) if direction else of_input:
                r, z, n = sums.chunk(3, -1)
                of_r, of_z, of_n = nn.functional.linear(state, w_hh, b_hh).chunk(3, -1)
                z = torch.sigmoid(z + of_z)
                state = torch.lerp(torch.tanh(n + torch.sigmoid(r + of_r) * of_n), state, z)
                states.append(state)
            of_directions.append(torch.stack(states[::-1] if direction else states, 1))
        return torch.cat(of_directions, -1)

    return run


def _of_padded(loop: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], tuple[Tensor]]:
    return lambda x, lengths: (loop(x),)


def _packed(module: nn.GRU, prepared: _Prepared) -> Callable[[Tensor, Tensor], tuple[Tensor]]:
    def run(x: Tensor, lengths: Tensor) -> tuple[Tensor]:
        (on_host,) = prepared(lengths, lambda: (lengths.cpu(),))
        packed = nn.utils.rnn.pack_padded_sequence(x, on_host, batch_first=True, enforce_sorted=False)
        return (nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True, total_length=x.shape[1])[0],)

    return run


def _grouped(module: nn.GRU, count: int) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """The batch sorted by length, beforehand, and cut into ``count`` groups, each padded to its own longest."""
    prepared = _Prepared()

    def run(x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        def sort() -> tuple[Tensor, list[int], list[int]]:
            falling = lengths.cpu().sort(descending=True)
            rows = x.detach()[falling.indices.cuda()].requires_grad_(x.requires_grad)
            cuts = [len(x) * i // count for i in range(count + 1)]
            return rows, cuts, [max(1, int(falling.values[cut])) for cut in cuts[:-1]]

        rows, cuts, longest = prepared(lengths, sort)
        run.rows = rows  # type: ignore[attr-defined]
        return tuple(
            module(rows[begin:end, :steps])[0] for begin, end, steps in zip(cuts, cuts[1:], longest, strict=False)
        )

    return run


def _load_torchrl() -> Callable[..., tuple[Tensor, Tensor]]:
    """TorchRL's GRU in Triton. TorchRL is no dependency: where it is not installed, the JSON names a peer that fails.

    It tunes its kernels once for each number of steps and units. Here it forgets them, and so tunes for each batch too.
    """
    module = importlib.import_module("torchrl.modules.tensordict_module._rnn_triton")
    for kernel in (module._gru_fwd_kernel, module._gru_bwd_kernel):
        kernel.cache.clear()
    return module.gru_triton


def _torchrl(
    load: Callable[[], Callable[..., tuple[Tensor, Tensor]]],
    module: nn.GRU,
    dtype: torch.dtype,
    second: Callable[[], torch.cuda.Stream] | None = None,
) -> Callable[[Tensor, Tensor], tuple[Tensor]]:
    """TorchRL's GRU, one call per direction, that of the other one on a ``second`` stream if there is one.

    Its state starts anew wherever a sequence begins, so rows of sequences end to end are prepared for it, like sorted
    ones for nn.GRU. It takes and gives float32 alone, multiplies the input in TF32, and the states in ``dtype``, or in
    TF32 for float32, as cuDNN does.
    """
    prepared = _Prepared()

    def run(x: Tensor, lengths: Tensor) -> tuple[Tensor]:
        gru = load()

        def lay_out() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
            steps = x.shape[1]
            places = _end_to_end(lengths.tolist(), steps).to(x.device)
            real, step = places >= 0, places % steps
            rows = x.detach().flatten(0, 1)[places].where(real[..., None], 0).to(module.all_weights[0][0].dtype)
            starts = real & (step == 0), real & (step == lengths[places // steps] - 1)
            initial = rows.new_zeros(*places.shape, module.hidden_size)
            return rows.requires_grad_(x.requires_grad), initial, (starts[0], starts[1].flip(1))

        rows, initial, starts = prepared(lengths, lay_out)
        run.rows = rows  # type: ignore[attr-defined]
        side = second() if second else None
        if side:
            side.wait_stream(torch.cuda.current_stream())
        of_directions = []
        for reverse, parameters in enumerate(module.all_weights):
            with torch.cuda.stream(side if reverse else None):
                given = rows.flip(1) if reverse else rows
                states, _ = gru(
                    given, initial, *parameters, starts[reverse], compute_dtype=dtype, input_precision="fast"
                )
                of_directions.append(states.flip(1) if reverse else states)
        if side:
            torch.cuda.current_stream().wait_stream(side)
        return (torch.cat(of_directions, -1),)

    return run


def _end_to_end(lengths: list[int], steps: int) -> Tensor:
    """Lay the sequences of a padded batch end to end in rows of ``steps``: the step, of all, in each place, or -1.

    The longest come first, each into the row that it fills best. The rows are a multiple of 16, for which Triton
    compiles a kernel of its own.
    """
    rows: list[list[int]] = []
    with_room: list[list[list[int]]] = [[] for _ in range(steps + 1)]
    for sequence in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[sequence]
        room = next((room for room in range(length, steps + 1) if with_room[room]), None)
        if room is None:
            rows.append([])
            room, row = steps, rows[-1]
        else:
            row = with_room[room].pop()
        row.extend(range(sequence * steps, sequence * steps + length))
        with_room[room - length].append(row)
    rows.extend([] for _ in range(-len(rows) % 16))
    return torch.tensor([row + [-1] * (steps - len(row)) for row in rows])


def _without_gradients(run: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    def forward(x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run(x, lengths)

    return forward


def _with_gradients(run: Callable[..., tuple[Tensor, ...]], module: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
    """Both passes: the gradients of x, in the order that ``run`` gave its rows, and of the parameters."""

    def both(x: Tensor, lengths: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        states = run(x, lengths)
        given = getattr(run, "rows", x)
        # As many rows as there are: several sequences may share one.
        parts = gradient[: sum(map(len, states))].split([len(part) for part in states])
        parts = [part[:, : group.shape[1]] for part, group in zip(parts, states, strict=True)]
        return torch.autograd.grad(states, [given, *module.parameters()], parts)

    return both


def exercise() -> None:
    """Run the kernels at sizes that reach every branch, and compare with nn.GRU in float64."""
    torch.manual_seed(0)
    for dtype, limit in ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        for sequences, steps, inputs, units, both in SMALL:
            begin("gru", sequences, steps, inputs, units, both, dtype)
            theirs = nn.GRU(inputs, units, batch_first=True, bidirectional=both, dtype=torch.float64).cuda()
            ours = GRU(inputs, units, batch_first=True, bidirectional=both).to("cuda", dtype)
            ours.load_state_dict(theirs.state_dict())
            theirs.load_state_dict(ours.state_dict())
            lengths = torch.randint(1, steps + 1, (sequences,))
            x = torch.randn(sequences, steps, inputs, device="cuda").to(dtype).requires_grad_()
            wide = x.detach().double().requires_grad_()
            packed = nn.utils.rnn.pack_padded_sequence(wide, lengths, batch_first=True, enforce_sorted=False)
            first = torch.randn(1 + both, sequences, units, device="cuda").to(dtype).requires_grad_()
            wide_first = first.detach().double().requires_grad_()
            exact = theirs(packed, wide_first)[0]
            exact = nn.utils.rnn.pad_packed_sequence(exact, batch_first=True, total_length=steps)[0]
            states = ours(x, first, lengths=lengths.cuda())[0]
            gradient = torch.randn_like(states)
            results = [states, *torch.autograd.grad(states, [x, first, *ours.parameters()], gradient)]
            expected = [exact, *torch.autograd.grad(exact, [wide, wide_first, *theirs.parameters()], gradient.double())]
            real = torch.cat([torch.arange(steps) < n for n in lengths]).cuda()
            # Three rows of no sequence before the first one.
            offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).cuda() + 3
            rows = torch.cat([x.new_full((3, inputs), torch.nan), x.flatten(0, 1)[real]])
            ragged = ours(rows, first, offsets=offsets)[0][3:]
            torch.autograd.grad(ragged.sum(), [*ours.parameters()], retain_graph=True)
            # A rectifier's gradient jumps where a sum is rounded to the other side of 0: its states are compared alone.
            rectified = gru(x, lengths.cuda(), [*ours.parameters()], both, rectified=True)[0]
            torch.autograd.grad(rectified, [x, *ours.parameters()], gradient)
            results.append(rectified)
            expected.append(gru(wide, lengths.cuda(), [*theirs.parameters()], both, rectified=True)[0])
            error = max(
                float((a.double() - b).detach().norm() / b.detach().norm())
                for a, b in zip(results, expected, strict=True)
            )
            if error > limit or not torch.equal(ragged, states.flatten(0, 1)[real]):
                raise AssertionError(
                    f"gru differs from nn.GRU by {error} at {sequences, steps, inputs, units} of {dtype}"
                )
