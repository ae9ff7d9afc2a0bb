"""AlphaZero on Connect Four: learn by self-play, then play a match against search that has learnt nothing.

A residual network learns a policy and a value from games that it plays against itself, in which it guides a Monte Carlo
tree search (Silver et al. 2017, "Mastering the game of Go without human knowledge", Nature 550; Silver et al. 2018, "A
general reinforcement learning algorithm that masters chess, shogi, and Go through self-play", Science 362). Then a
player meets plain search: UCT, whose leaves are valued by random games (Kocsis and Szepesvári 2006). Both get the same
number of simulations per move. Each opening is played twice with the sides swapped, so that equal players score 0.5.

python connect_four.py --seed 0 --out out                     # learn, then search with the network against plain search
python connect_four.py --seed 0 --out out --player network    # learn, then the network's first choice, without search
python connect_four.py --seed 0 --out out --player plain      # plain search against itself; nothing is learnt

out/items.csv has the points of each opening, the mean of its two games: 1 for a win, 0.5 for a draw. `reread claim
connect_four.yaml` runs the three players with six seeds each and judges them. Each player and seed has random numbers
of its own, so that the networks of two players are independent. Equal seeds give equal scores on one kind of CPU.

A position is two bit boards: ``mine``, the stones of the player to move, and ``mask``, all stones. A cell is bit
7 * column + row, with row 0 at the bottom; row 6 stays empty and ends each column. Arrays of positions are int64 [N].
Games are played in step, so that each simulation calls the network once for all of them.
"""

import argparse
import csv
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

ROWS, COLUMNS = 6, 7
BOTTOM = np.int64(1) << np.arange(COLUMNS, dtype=np.int64) * 7
TOP, COLUMN = BOTTOM << 5, BOTTOM * 0b111111
FULL = COLUMN.sum()
CELLS = np.array([7 * column + row for row in range(ROWS) for column in range(COLUMNS)])

Array = NDArray[Any]
# From positions (mine, mask) to priors float [N, 7] of the moves and values float [N] for the player to move.
Evaluate = Callable[[Array, Array], tuple[Array, Array]]
# From value sums, visits and priors of the moves, float [N, 7] each, to scores [N, 7]: search takes the highest.
Select = Callable[[Array, Array, Array], Array]
# From positions (mine, mask) to a move each, int [N].
Player = Callable[[Array, Array], Array]


# The rules


def legal(mask: Array) -> Array:
    """Return bool [N, 7]: the columns that are not full."""
    return (mask[:, None] & TOP) == 0


def play(mine: Array, mask: Array, moves: Array) -> tuple[Array, Array]:
    """Return the positions after legal moves, int [N], as the other player sees them."""
    return mine ^ mask, mask | (mask + BOTTOM[moves]) & COLUMN[moves]


def has_four(stones: Array) -> Array:
    """Return bool [N]: whether four of these stones are in a row, vertically, horizontally or diagonally."""
    found = np.zeros(len(stones), bool)
    for step in (1, 7, 6, 8):
        pairs = stones & stones >> step
        found |= (pairs & pairs >> 2 * step) != 0
    return found


def outcome(mine: Array, mask: Array) -> tuple[Array, Array]:
    """Return whether each game is over, bool [N], and its value for the player to move: -1, or 0 for a draw or none."""
    lost = has_four(mine ^ mask)
    return lost | (mask == FULL), -lost.astype(np.float32)


def random_moves(mask: Array, rng: Generator) -> Array:
    """Return a legal move of each position, all with the same probability."""
    return np.where(legal(mask), rng.random((len(mask), COLUMNS), np.float32), -1).argmax(1)


# Search


def search(
    mine: Array, mask: Array, evaluate: Evaluate, select: Select, simulations: int, noise: Generator | None = None
) -> Array:
    """Return how often each move of unfinished positions was visited, float [N, 7].

    Each simulation descends to a move that has not been tried, adds its position, values it, and adds the value to all
    moves on the way (Silver et al. 2017, figure 2). The first one values the root; a finished game is valued by its
    result. There are at least 2 simulations. ``noise`` is added to the priors of the roots.
    """
    games, shape = np.arange(len(mine)), (len(mine), simulations)
    own, all_stones = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    own[:, 0], all_stones[:, 0] = mine, mask
    over, result = np.zeros(shape, bool), np.zeros(shape, np.float32)
    child = np.zeros((*shape, COLUMNS), np.int64)  # 0: not tried; the root is the child of no position
    total, visits, prior = (np.zeros((*shape, COLUMNS), np.float32) for _ in range(3))
    for new in range(simulations):
        at, path = np.zeros(len(mine), np.int64), []
        moving = games if new else games[:0]
        while len(moving):
            here = at[moving]
            scores = select(total[moving, here], visits[moving, here], prior[moving, here])
            moves = np.where(legal(all_stones[moving, here]), scores, -np.inf).argmax(1)
            path.append((moving, here, moves))
            below = child[moving, here, moves]
            untried = below == 0
            game, parent, move = moving[untried], here[untried], moves[untried]
            child[game, parent, move] = below[untried] = new
            own[game, new], all_stones[game, new] = play(own[game, parent], all_stones[game, parent], move)
            over[game, new], result[game, new] = outcome(own[game, new], all_stones[game, new])
            at[moving] = below
            moving = moving[~untried & ~over[moving, below]]
        value = result[games, at]
        open_ = games[~over[games, at]]
        if len(open_):
            leaf = at[open_]
            priors, value[open_] = evaluate(own[open_, leaf], all_stones[open_, leaf])
            prior[open_, leaf] = add_noise(priors, noise) if noise is not None and not new else priors
        for moving, here, moves in reversed(path):
            value[moving] *= -1  # A value is for the player to move, and the other one made this move.
            total[moving, here, moves] += value[moving]
            visits[moving, here, moves] += 1
    return visits[:, 0]


def puct(total: Array, visits: Array, prior: Array, c: float = 1.5) -> Array:
    """Return the mean values plus a bonus for probable moves with few visits (Silver et al. 2017, methods)."""
    return total / np.maximum(visits, 1) + c * prior * np.sqrt(visits.sum(1, keepdims=True) + 1) / (1 + visits)


def ucb1(total: Array, visits: Array, prior: Array, c: float = 1.4) -> Array:
    """Return the upper confidence bounds of UCT (Kocsis and Szepesvári 2006); moves without a visit come first.

    The priors are random numbers, which order the moves without a visit. ``c`` is in units of values from -1 to 1.
    """
    bonus = np.sqrt(np.log(np.maximum(visits.sum(1, keepdims=True), 1)) / np.maximum(visits, 1))
    return np.where(visits > 0, total / np.maximum(visits, 1) + c * bonus, 1e3 + prior)


def add_noise(priors: Array, rng: Generator, share: float = 0.25, alpha: float = 10 / COLUMNS) -> Array:
    """Mix Dirichlet noise into the priors of legal moves; alpha falls with their number (Silver et al. 2018)."""
    noise = rng.gamma(alpha, size=priors.shape) * (priors > 0)
    return (1 - share) * priors + share * noise / noise.sum(1, keepdims=True)


def random_games(mine: Array, mask: Array, rng: Generator) -> tuple[Array, Array]:
    """Return random priors, and the result of one random game from each position for its player to move."""
    priors, value = rng.random((len(mine), COLUMNS), np.float32), np.zeros(len(mine), np.float32)
    games, sign = np.arange(len(mine)), -1
    while len(games):
        mine, mask = play(mine, mask, random_moves(mask, rng))
        over, result = outcome(mine, mask)
        value[games] = sign * result
        games, mine, mask, sign = games[~over], mine[~over], mask[~over], -sign
    return priors, value


# The network


class Network(nn.Module):
    """A residual network with two heads (Silver et al. 2017, methods), smaller than the paper's."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()

        def convolution(inputs: int, outputs: int, size: int) -> nn.Sequential:
            layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(outputs))

        self.stem = convolution(2, channels, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(convolution(channels, channels, 3), nn.ReLU(), convolution(channels, channels, 3))
            for _ in range(blocks)
        )
        cells = ROWS * COLUMNS
        self.policy = nn.Sequential(convolution(channels, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * cells, COLUMNS))
        self.value = nn.Sequential(
            convolution(channels, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * cells, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the moves [N, 7] and values from -1 to 1 [N] for planes float [N, 2, 6, 7]."""
        hidden = self.stem(planes).relu()
        for block in self.blocks:
            hidden = (hidden + block(hidden)).relu()
        return self.policy(hidden), self.value(hidden).squeeze(1).tanh()


def planes(mine: Array, mask: Array) -> Tensor:
    """Return float [N, 2, 6, 7]: the stones of the player to move and those of the other one."""
    stones = np.stack([mine, mine ^ mask], 1)[:, :, None] >> CELLS & 1
    return torch.from_numpy(stones.astype(np.float32).reshape(-1, 2, ROWS, COLUMNS))


def ask(mine: Array, mask: Array, network: Network, device: str) -> tuple[Array, Array]:
    """Return the network's priors of legal moves and its values: an ``Evaluate``."""
    with torch.inference_mode():
        logits, value = network(planes(mine, mask).to(device))
    logits = logits.cpu().masked_fill(torch.from_numpy(~legal(mask)), -torch.inf)
    return logits.softmax(1).numpy(), value.cpu().numpy()


# Self-play and learning


def self_play(evaluate: Evaluate, games: int, simulations: int, warm_plies: int, rng: Generator) -> tuple[Array, ...]:
    """Play games in step; return mine, mask, shares of visits float [P, 7] and results float [P] of all positions.

    The first ``warm_plies`` moves are drawn in proportion to the visits (temperature 1), the later ones are the most
    visited. A result is for the player to move: 1, 0 or -1.
    """
    mine, mask = np.zeros((2, games), np.int64)
    playing, results, history, ply = np.arange(games), np.zeros(games, np.float32), [], 0
    while len(playing):
        visits = search(mine, mask, evaluate, puct, simulations, noise=rng)
        shares = visits / visits.sum(1, keepdims=True)
        history.append((mine, mask, shares, playing, ply))
        drawn = (visits.cumsum(1) <= visits.sum(1, keepdims=True) * rng.random((len(visits), 1))).sum(1)
        moves = drawn if ply < warm_plies else most_visited(visits, rng)
        mine, mask = play(mine, mask, moves)
        ply += 1
        over, result = outcome(mine, mask)
        results[playing] = result * (-1) ** ply  # for the first player
        playing, mine, mask = playing[~over], mine[~over], mask[~over]
    columns = zip(*((own, all_, pi, results[who] * (-1) ** turn) for own, all_, pi, who, turn in history), strict=True)
    return tuple(map(np.concatenate, columns))


def most_visited(visits: Array, rng: Generator) -> Array:
    """Return the move with the most visits, int [N]; equal ones are drawn."""
    return (visits + rng.random(visits.shape) / 2).argmax(1)


def learn(args: argparse.Namespace, rng: Generator) -> Network:
    """Return a network that has learnt from self-play, in evaluation mode."""
    torch.manual_seed(int(rng.integers(2**63)))
    network = Network(args.channels, args.blocks).to(args.device)
    optimizer = torch.optim.AdamW(network.parameters(), args.learning_rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.iterations * args.steps)
    window: deque[tuple[Array, ...]] = deque(maxlen=args.window)
    began = time.monotonic()
    for iteration in range(args.iterations):
        network.eval()
        evaluate = partial(ask, network=network, device=args.device)
        window.append(self_play(evaluate, args.games, args.train_simulations, args.warm_plies, rng))
        mine, mask, shares, results = map(np.concatenate, zip(*window, strict=True))
        network.train()
        losses = []
        for _ in range(args.steps):
            rows = rng.integers(len(mine), size=args.batch_size)
            boards, policy = planes(mine[rows], mask[rows]), torch.from_numpy(shares[rows])
            mirrored = torch.from_numpy(rng.random(len(rows)) < 0.5)
            boards = torch.where(mirrored[:, None, None, None], boards.flip(3), boards).to(args.device)
            policy = torch.where(mirrored[:, None], policy.flip(1), policy).to(args.device)
            logits, value = network(boards)
            error = functional.mse_loss(value, torch.from_numpy(results[rows]).to(args.device))
            loss = functional.cross_entropy(logits, policy) + error
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        of_all, moves = f"{iteration + 1} of {args.iterations}", len(window[-1][0]) / args.games
        taken = f"{time.monotonic() - began:.0f} s"
        print(f"iteration {of_all}: {moves:.1f} moves per game, loss {np.mean(losses):.3f}, {taken}", flush=True)
    return network.eval()


# The match


def openings(count: int, plies: int) -> list[list[int]]:
    """Return random openings, each a list of moves, whose positions differ; the same ones in every call.

    ValueError if it does not find so many: there are 1,120 positions after 4 moves.
    """
    rng = np.random.default_rng(0)
    found: dict[tuple[int, int], list[int]] = {}
    for _ in range(100 * count):
        (mine, mask), moves = np.zeros((2, 1), np.int64), []
        for _ in range(plies):
            moves.append(int(random_moves(mask, rng)[0]))
            mine, mask = play(mine, mask, np.array(moves[-1:]))
            if outcome(mine, mask)[0][0]:
                break
        else:
            found.setdefault((int(mine[0]), int(mask[0])), moves)
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"found {len(found)} of {count} openings of {plies} moves: ask for fewer, or for more moves")


def match(player: Player, opponent: Player, starts: list[list[int]]) -> Array:
    """Play each opening twice, with the sides swapped; return the player's points, float [openings, 2].

    In the first game of a pair the player has the first stone. All openings have the same number of moves.
    """
    mine, mask = np.zeros((2, 2 * len(starts)), np.int64)
    is_first = np.tile([True, False], len(starts))
    for moves in np.repeat(np.array(starts, int), 2, axis=0).T:
        mine, mask = play(mine, mask, moves)
    playing, points, ply = np.arange(len(mine)), np.zeros(len(mine)), len(starts[0])
    while len(playing):
        own_turn = is_first[playing] == (ply % 2 == 0)
        moves = np.zeros(len(playing), np.int64)
        for side, turn in ((player, own_turn), (opponent, ~own_turn)):
            if turn.any():
                moves[turn] = side(mine[turn], mask[turn])
        mine, mask = play(mine, mask, moves)
        ply += 1
        over, result = outcome(mine, mask)
        # The result is for who moves next.
        points[playing] = 0.5 - result / 2 * np.where(own_turn, 1, -1)
        playing, mine, mask = playing[~over], mine[~over], mask[~over]
    return points.reshape(-1, 2)


def choose(mine: Array, mask: Array, evaluate: Evaluate, select: Select, simulations: int, rng: Generator) -> Array:
    """Return the moves that search visits most: a ``Player``."""
    return most_visited(search(mine, mask, evaluate, select, simulations), rng)


def first_choice(mine: Array, mask: Array, evaluate: Evaluate) -> Array:
    """Return the most probable moves, without search: a ``Player``."""
    return evaluate(mine, mask)[0].argmax(1)


# The command line

PLAYERS = ("guided", "plain", "network")
# Options with their lowest value, default and meaning.
COUNTS = {
    "simulations": (2, 64, "per move in the match, the same for both players"),
    "openings": (1, 100, "of the match; each is played twice"),
    "opening-plies": (1, 4, "random moves of each opening"),
    "iterations": (1, 12, "of self-play and learning"),
    "games": (1, 160, "of self-play per iteration, in step"),
    "train-simulations": (2, 32, "per move in self-play"),
    "warm-plies": (0, 10, "first moves of self-play, which are drawn in proportion to the visits"),
    "window": (1, 6, "iterations whose games are learnt from"),
    "steps": (1, 60, "of the optimiser per iteration"),
    "batch-size": (1, 256, "positions per step"),
    "channels": (1, 32, "of the network"),
    "blocks": (0, 2, "residual blocks of the network"),
}


def at_least(low: int, text: str) -> int:
    """Return the number of an option; argparse prints the error."""
    if not text.isdecimal() or int(text) < low:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {low} on")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=partial(at_least, 0), required=True)
    parser.add_argument("--out", type=Path, required=True, help="the folder of items.csv")
    parser.add_argument("--player", choices=PLAYERS, default="guided", help="who meets plain search")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="the highest one (0.002)")
    for name, (low, default, text) in COUNTS.items():
        parser.add_argument(f"--{name}", type=partial(at_least, low), default=default, help=f"{text} ({default})")
    args = parser.parse_args()
    try:
        starts = openings(args.openings, args.opening_plies)
    except ValueError as error:
        parser.error(str(error))
    rng = np.random.default_rng([args.seed, PLAYERS.index(args.player)])
    searching = partial(choose, simulations=args.simulations, rng=rng)
    plain = player = partial(searching, evaluate=partial(random_games, rng=rng), select=ucb1)
    if args.player != "plain":
        evaluate = partial(ask, network=learn(args, rng), device=args.device)
        guided, alone = partial(searching, evaluate=evaluate, select=puct), partial(first_choice, evaluate=evaluate)
        player = guided if args.player == "guided" else alone
    began = time.monotonic()
    points = match(player, plain, starts)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "items.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["item", "score"])
        for moves, pair in zip(starts, points, strict=True):
            rows.writerow(["".join(str(move + 1) for move in moves), pair.mean()])
    first, second = points.mean(0)
    sides = f"{first:.3f} with the first stone, {second:.3f} with the second"
    print(f"{points.size} games in {time.monotonic() - began:.0f} s: {points.mean():.3f} points per game ({sides})")


if __name__ == "__main__":
    main()
