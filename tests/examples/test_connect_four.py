"""The example of AlphaZero on Connect Four: its rules, its search, its match, and a small run of its claim."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch

from examples import connect_four as game
from reread.storage.source import ROOT
from tests.examples.claims import refused, run_example, run_small_claim

# The size of the runs in these tests.
SMALL = (
    "--iterations 1 --games 4 --steps 2 --batch-size 16 --channels 4 --blocks 1 --train-simulations 4 "
    "--simulations 8 --openings 10"
)
DRAWN = "732426577375353266222177651134134654164451"
LINES = [
    [(row + far * down, column + far * across) for far in range(4)]
    for row, column in itertools.product(range(6), range(7))
    for down, across in ((0, 1), (1, 0), (1, 1), (-1, 1))
    if 0 <= row + 3 * down < 6 and column + 3 * across < 7
]


def after(columns, count=1):
    """Return the position after moves in columns 1 to 7, ``count`` times."""
    own, mask = np.zeros((2, count), np.int64)
    for column in columns:
        own, mask = game.play(own, mask, np.full(count, int(column) - 1))
    return own, mask


def board_of(cells):
    return np.array([sum(1 << 7 * column + row for row, column in cells)], np.int64)


def cells_of(stones):
    return {(row, column) for row in range(6) for column in range(7) if stones >> 7 * column + row & 1}


def plain(simulations, seed=0):
    rng = np.random.default_rng(seed)
    evaluate = partial(game.random_games, rng=rng)
    return partial(game.choose, evaluate=evaluate, select=game.ucb1, simulations=simulations, rng=rng)


def guided(simulations):
    """Search with a network that has learnt nothing."""
    torch.manual_seed(0)
    evaluate = partial(game.ask, network=game.Network(8, 1).eval(), device="cpu")
    rng = np.random.default_rng(0)
    return partial(game.choose, evaluate=evaluate, select=game.puct, simulations=simulations, rng=rng)


def run(out, *options):
    """Run the example in this process, and return its items."""
    run_example(game, "--out", out, "--device", "cpu", *options)
    return (out / "items.csv").read_text()


def test_four_in_a_row_are_found_on_each_of_the_69_lines():
    assert len(LINES) == 69
    for line in LINES:
        assert game.has_four(board_of(line))[0], line
        assert not any(game.has_four(board_of(three))[0] for three in itertools.combinations(line, 3))


@pytest.mark.parametrize(
    ("moves", "winner"),
    [("1212121", "first"), ("71122334", "second"), ("12233434474", "first"), ("76655454414", "first")],
    ids=["vertical", "horizontal", "rising", "falling"],
)
def test_a_game_is_won_in_each_direction(moves, winner):
    for count in range(len(moves)):
        assert not game.outcome(*after(moves[:count]))[0][0]
    over, result = game.outcome(*after(moves))
    # The value is for the player who would move next, and has lost.
    assert over[0] and result[0] == -1 and (len(moves) % 2 == 1) == (winner == "first")


def test_positions_of_random_games_agree_with_the_rule_cell_by_cell():
    rng = np.random.default_rng(0)
    own, mask = np.zeros((2, 100), np.int64)
    seen = 0
    while len(mask):
        assert (
            game.legal(mask) == [[(5, column) not in cells_of(position) for column in range(7)] for position in mask]
        ).all()
        before, moves = mask, game.random_moves(mask, rng)
        own, mask = game.play(own, mask, moves)
        for position, earlier, stones, move in zip(mask, before, own, moves, strict=True):
            (added,) = cells_of(position) - cells_of(earlier)
            assert added == (sum(column == move for _, column in cells_of(earlier)), move)
            # The new stone is his who has just moved.
            assert added not in cells_of(stones)
        over, result = game.outcome(own, mask)
        for position, stones, value in zip(mask, own, result, strict=True):
            won = any(set(line) <= cells_of(position) - cells_of(stones) for line in LINES)
            assert value == (-1 if won else 0)
        seen += over.sum()
        own, mask = own[~over], mask[~over]
    assert seen == 100


def test_a_full_column_takes_no_stone_and_a_full_board_without_a_line_is_a_draw():
    assert game.legal(after("444444")[1])[0].tolist() == [True, True, True, False, True, True, True]
    assert len(DRAWN) == 42
    over, result = game.outcome(*after(DRAWN[:-1]))
    assert not over[0]
    over, result = game.outcome(*after(DRAWN))
    assert over[0] and result[0] == 0
    assert not game.legal(after(DRAWN)[1]).any()


@pytest.mark.parametrize("player", [plain(200), guided(200)], ids=["plain", "guided"])
@pytest.mark.parametrize(
    ("moves", "best"),
    [("121212", 1), ("112233", 4), ("1223343447", 4), ("12121", 1), ("11223", 4)],
    ids=["win a column", "win a row", "win a diagonal", "block a column", "block a row"],
)
def test_search_wins_in_one_and_blocks_a_loss_in_one(player, moves, best):
    own, mask = after(moves, 8)
    assert not game.outcome(own, mask)[0].any()
    assert (player(own, mask) == best - 1).all()


@pytest.mark.parametrize("select", [game.puct, game.ucb1])
def test_each_simulation_visits_one_legal_move_of_the_root(select):
    rng = np.random.default_rng(0)
    own, mask = (np.concatenate(pair) for pair in zip(after("444444"), after(DRAWN[:-2]), after(""), strict=True))
    visits = game.search(own, mask, partial(game.random_games, rng=rng), select, 40)
    # The first simulation values the root itself.
    assert visits.sum(1).tolist() == [39, 39, 39]
    assert not visits[~game.legal(mask)].any() and (visits[2] > 0).all()


def test_a_random_game_is_valued_for_the_player_to_move():
    # Two cells are left: column 5, then 1, is a draw; after column 1 the other player wins in column 5.
    assert game.outcome(*after(DRAWN[:-2] + "15"))[1][0] == -1
    values = game.random_games(*after(DRAWN[:-2], 100), np.random.default_rng(0))[1]
    assert set(values.tolist()) == {0, -1}
    values = game.random_games(*after(DRAWN[:-2] + "1", 100), np.random.default_rng(0))[1]
    assert (values == 1).all()


def test_noise_changes_the_priors_of_legal_moves_alone():
    priors = np.array([[0.5, 0.5, 0, 0, 0, 0, 0]], np.float32)
    noisy = game.add_noise(priors, np.random.default_rng(0))
    assert noisy.sum() == pytest.approx(1) and (noisy[0, 2:] == 0).all() and noisy[0, 0] != 0.5


def test_a_mirrored_board_is_the_board_of_mirrored_moves():
    boards = game.planes(*after("1123364"))
    assert torch.equal(boards.flip(3), game.planes(*after("7765524")))
    assert boards.shape == (1, 2, 6, 7) and boards.sum((2, 3)).tolist() == [[3, 4]]


def test_self_play_gives_each_position_the_result_of_its_game():
    rng = np.random.default_rng(0)
    _, mask, shares, results = game.self_play(partial(game.random_games, rng=rng), 1, 16, 4, rng)
    assert shares.sum(1) == pytest.approx(1) and not shares[~game.legal(mask)].any()
    assert len(cells_of(mask[0])) == 0 and [len(cells_of(position)) for position in mask] == list(range(len(mask)))
    # The last move decides: it was his who was to move in the last position.
    assert results[-1] in (0, 1) and (results[::-1] == results[-1] * (-1.0) ** np.arange(len(results))).all()


def test_openings_differ_are_unfinished_and_are_the_same_each_time():
    starts = game.openings(200, 4)
    assert starts == game.openings(200, 4) and game.openings(50, 4) == starts[:50]
    positions = {tuple(int(board[0]) for board in after([move + 1 for move in moves])) for moves in starts}
    assert len(positions) == 200
    assert not any(game.outcome(*after([move + 1 for move in moves]))[0][0] for moves in starts)
    with pytest.raises(ValueError, match="found 7 of 8"):
        game.openings(8, 1)


def test_each_opening_is_played_twice_with_the_sides_swapped():
    starts = game.openings(30, 3)
    positions = sorted(int(after([move + 1 for move in moves])[1][0]) for moves in starts)
    asked = {"lowest": [], "highest": []}

    def player(name, order):
        def moves(own, mask):
            asked[name].append(sorted(map(int, mask)))
            return np.where(game.legal(mask), order * np.arange(7), -10).argmax(1)

        return moves

    lowest, highest = player("lowest", -1), player("highest", 1)
    points = game.match(lowest, highest, starts)
    # Both meet each opening once.
    assert asked["lowest"][0] == asked["highest"][0] == positions
    assert np.array_equal(points, 1 - game.match(highest, lowest, starts)[:, ::-1])
    assert 0 < points.mean() < 1
    # A player against itself: one game of a pair is the other one, seen from the other side.
    assert (game.match(lowest, lowest, starts).mean(1) == 0.5).all()


def test_more_simulations_are_stronger():
    assert game.match(plain(60), plain(4, seed=1), game.openings(40, 4)).mean() > 0.7


def test_equal_seeds_give_equal_scores_and_the_loss_falls(tmp_path, capsys):
    options = [*SMALL.split(), "--iterations", "3", "--games", "16", "--steps", "30", "--batch-size", "64"]
    first = run(tmp_path / "a", "--seed", "1", *options)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert run(tmp_path / "b", "--seed", "1", *options) == first
    assert run(tmp_path / "c", "--seed", "2", *options) != first
    assert len(first.splitlines()) == 11 and first.startswith("item,score\n")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--seed", "-1"], "--seed: '-1'"),
        (["--seed", "0", "--simulations", "1"], "--simulations: '1'"),
        (["--seed", "0", "--opening-plies", "1"], "found 7 of 100 openings"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_learnt(tmp_path, capsys, options, fault):
    assert fault in refused(capsys, game, "--out", tmp_path / "out", "--device", "cpu", *options)
    assert not (tmp_path / "out").exists()


def test_a_small_run_of_the_claim_is_judged_over_seeds_and_openings(tmp_path):
    document = run_small_claim(ROOT / "examples/connect_four.yaml", tmp_path, SMALL, "learnt", "searches")
    assert [claim["name"] for claim in document["claims"]] == ["learnt", "searches"]
    for claim in document["claims"]:
        assert claim["items"] == 10 and claim["analyses"] == ["over seeds", "over seeds and items"]
        assert len(claim["scores"]["treatment"]) == len(claim["scores"]["control"]) == 2
    assert sorted(document["arms"]) == ["guided", "network", "plain"]
    assert all(list(arm["runs"]) == ["0", "1"] for arm in document["arms"].values())
