"""The example of spoken digits: features, hidden Markov models, word errors, and a small run of its claim."""

import io
import itertools
import tarfile
from functools import partial

import numpy as np
import pytest
import torch

from examples import spoken_digits as speech
from reread.storage.source import ROOT
from tests.examples.claims import refused, run_example, run_small_claim

run = partial(run_example, speech)


@pytest.fixture
def archive(mirror):
    return mirror / "fsdd/free-spoken-digit-dataset-1.0.10.tar.gz"


def noise(seed, length):
    return np.random.default_rng(seed).normal(0, 1000, length).astype(np.int16)


def joined(recordings=2, seed=0):
    """Strings of noise, ``recordings`` per digit."""
    rng = np.random.default_rng(seed)
    spoken = [[noise(10 * word + at, int(rng.integers(3000, 5000))) for at in range(recordings)] for word in range(10)]
    return speech.join(spoken, rng)


def test_the_filters_are_triangles_equally_wide_in_mel():
    filters = speech.filterbank()
    assert filters.shape == (129, 23) and filters.min() == 0 and filters.max() <= 1
    hertz = np.fft.rfftfreq(256, 1 / 8000)
    # 64 Hz is 98.6 mel and 4,000 Hz is 2146.1 mel, so that the last peak is at 2146.1 - 85.3 mel: 3,657 Hz.
    assert hertz[filters[:, -1].argmax()] == pytest.approx(700 * (10 ** (2060.76 / 2595) - 1), abs=16)
    # Neighbouring triangles share each bin between their peaks.
    between = (hertz > hertz[filters[:, 0].argmax()] + 32) & (hertz < hertz[filters[:, -1].argmax()] - 32)
    assert filters[between].sum(1) == pytest.approx(1)


def test_cepstra_are_the_cosine_transform_of_log_energies_in_mel_bands():
    tone = (8000 * np.sin(2 * np.pi * 1000 * np.arange(840) / 8000)).astype(np.int16)
    cepstra = speech.cepstra(tone)
    # Windows of 200 samples, one per 80, that are inside.
    assert cepstra.shape == (9, 13)
    emphasised = np.append(tone[:1], tone[1:] - 0.97 * tone[:-1].astype(float))
    frame = emphasised[240:440] * np.hamming(200)
    spectrum = [abs(sum(frame * np.exp(-2j * np.pi * k * np.arange(200) / 256))) ** 2 for k in range(129)]
    energies = np.log(np.maximum(spectrum @ speech.filterbank(), 1))
    for row in (0, 1, 12):
        scale = np.sqrt((1 if row == 0 else 2) / 23)
        known = scale * sum(energies[n] * np.cos(np.pi * row * (n + 0.5) / 23) for n in range(23))
        assert cepstra[3, row] == pytest.approx(known)
    # The band around 1,000 Hz has the most energy.
    centre = speech.filterbank()[:, energies.argmax()].argmax() * 8000 / 256
    assert centre == pytest.approx(1000, abs=100)
    assert speech.cepstra(np.zeros(200, np.int16)) == pytest.approx(0)


def test_deltas_are_slopes():
    ramp = np.arange(10.0)[:, None] * [1, -3]
    assert speech.deltas(ramp)[2:-2] == pytest.approx(np.tile([1, -3], (6, 1)))


def test_each_recording_is_in_one_string_and_lengths_are_equally_frequent():
    spoken = [[noise(10 * word + at, 2400) for at in range(5)] for word in range(10)]
    connected = speech.join(spoken, np.random.default_rng(0))
    assert sorted(map(len, connected.words)) == sorted([3, 4, 5, 6, 7] * 2)
    assert (
        np.bincount(list(itertools.chain(*connected.words))).tolist()
        == [5] * 10
        == np.bincount(connected.recordings[:, 0]).tolist()
    )
    # 2,400 samples are 30 frames, of which the string's last window and a half are no centres.
    assert set((connected.recordings[:, 2] - connected.recordings[:, 1]).tolist()) <= {28, 29, 30, 31}
    assert (connected.recordings[1:, 1] == connected.recordings[:-1, 2]).all() and (
        connected.strings[1:, 0] == connected.strings[:-1, 1]
    ).all()
    assert connected.recordings[-1, 2] == connected.strings[-1, 1] == len(connected.frames)
    first = connected.frames[: connected.strings[0, 1]]
    assert first.shape[1] == 39 and first[:, :13].mean(0) == pytest.approx(0)
    both = speech.concatenate([connected, connected])
    assert np.array_equal(both.frames[both.strings[10, 0] : both.strings[10, 1]], first)
    assert both.recordings[50:, 1:].min() == len(connected.frames)


def test_context_makes_a_state_of_each_phone_between_its_neighbours():
    alone, between = speech.lexicon(False), speech.lexicon(True)
    assert [len(chain) for chain in alone] == [len(chain) for chain in between] == [12, 9, 6, 9, 9, 9, 12, 15, 6, 9]
    assert len(set(np.concatenate(alone))) == 19 * 3 and len(set(np.concatenate(between))) == 31 * 3
    # Nine has N twice. The last N of one and of seven has the same neighbours.
    assert (alone[9][:3] == alone[9][6:]).all() and (between[9][:3] != between[9][6:]).all()
    assert (between[1][6:] == between[7][12:]).all()


def brute_force(scores, sizes, stay, move, penalty):
    """The best path through the positions of words, of all paths."""
    lasts = np.cumsum(sizes) - 1
    firsts = lasts - sizes + 1
    best = (-np.inf, ())
    for path in itertools.product(range(sum(sizes)), repeat=len(scores)):
        total = scores[0, path[0]] if path[0] in firsts else -np.inf
        for at, (before, now) in enumerate(itertools.pairwise(path), 1):
            if now == before:
                step = stay[now]
            elif before in lasts and now in firsts:
                step = move[before] + penalty
            elif now == before + 1 and now not in firsts:
                step = move[before]
            else:
                step = -np.inf
            total += step + scores[at, now]
        total += move[path[-1]] if path[-1] in lasts else -np.inf
        best = max(best, (total, path))
    return best


@pytest.mark.parametrize("penalty", [0.0, -1.5, -np.inf])
@pytest.mark.parametrize("seed", range(4))
def test_viterbi_finds_the_best_of_all_paths(seed, penalty):
    rng = np.random.default_rng(seed)
    sizes, lengths = np.array([2, 3]), np.array([6, 5])
    scores, move = rng.normal(0, 2, (2, 6, 5)), np.log(rng.uniform(0.2, 0.8, 5))
    stay = np.log(1 - np.exp(move))
    paths = speech.viterbi(scores, lengths, sizes, stay, move, np.array([0.7, penalty]))
    assert paths.shape == (2, 2, 6)
    for sequence, length in enumerate(lengths):
        best, path = brute_force(scores[sequence, :length], sizes, stay, move, penalty)
        assert np.isfinite(best) and tuple(paths[1, sequence, :length]) == path


def test_strings_are_recognised_from_clear_scores():
    connected = joined()
    chains = speech.lexicon(True)
    states = max(map(max, chains)) + 1
    half = np.log(np.full(states, 0.5))
    model = speech.Model(
        chains, (np.ones((states, 1)), np.zeros((states, 1, 39)), np.ones((states, 1, 39))), half, half
    )
    scores = np.full((len(connected.frames), states), -50.0)
    for word, first, end in connected.recordings:
        chain = chains[word]
        scores[np.arange(first, end), chain[np.arange(end - first) * len(chain) // (end - first)]] = 0
    errors = speech.recognise(scores, connected, model, np.array([0.0, -1e6]))
    assert errors.shape == (2, len(connected.strings), 3)
    assert errors[0].sum() == 0
    # Where a further word costs so much, one is found, and the others are deleted.
    assert errors[1].sum(0)[1] == sum(len(words) - 1 for words in connected.words)


@pytest.mark.parametrize(
    ("spoken", "recognised", "errors"),
    [
        ([1, 2, 3], [1, 2, 3], (0, 0, 0)),
        ([1, 2, 3], [1, 5, 3], (1, 0, 0)),
        ([1, 2, 3], [1, 3], (0, 1, 0)),
        ([1, 2, 3], [1, 2, 2, 3], (0, 0, 1)),
        ([1, 2, 3, 4], [2, 3, 9, 9], (1, 1, 1)),
        ([1, 2], [], (0, 2, 0)),
        ([], [1, 2], (0, 0, 2)),
    ],
)
def test_word_errors_of_known_alignments(spoken, recognised, errors):
    assert speech.word_errors(spoken, recognised) == errors


def test_densities_are_those_of_normal_distributions():
    rng = np.random.default_rng(0)
    frames, weights = rng.normal(size=(5, 3)), np.array([[0.3, 0.7], [0.5, 0.5]])
    means, variances = rng.normal(size=(2, 2, 3)), rng.uniform(0.5, 2, (2, 2, 3))
    known = torch.distributions.Normal(torch.from_numpy(means), torch.from_numpy(np.sqrt(variances)))
    known = known.log_prob(torch.from_numpy(frames)[:, None, None]).sum(-1).numpy() + np.log(weights)
    assert speech.densities(frames, (weights, means, variances)) == pytest.approx(known)
    assert speech.likelihoods(frames, (weights, means, variances)) == pytest.approx(np.log(np.exp(known).sum(-1)))


def test_the_likelihood_never_falls_and_the_mixture_is_found():
    rng = np.random.default_rng(0)
    frames = np.concatenate([rng.normal(-3, 1, (300, 2)), rng.normal(3, 0.5, (700, 2)), rng.normal(9, 0.01, (20, 2))])
    mixture = np.full(3, 1 / 3), rng.normal(size=(3, 2)), np.ones((3, 2))
    totals = []
    for _ in range(60):
        mixture, total = speech.em_step(frames, mixture)
        totals.append(total)
    assert (np.diff(totals) > -1e-6).all() and totals[-1] > totals[0] + 100
    assert mixture[2].min() == speech.VARIANCE_FLOOR and mixture[0].sum() == pytest.approx(1)
    order = mixture[1][:, 0].argsort()
    assert mixture[1][order] == pytest.approx(np.repeat([[-3], [3], [9]], 2, 1), abs=0.2)


def test_viterbi_training_fits_better_with_each_size():
    connected = joined()
    models = speech.train_mixtures(connected, speech.lexicon(True), np.random.default_rng(0))
    assert [model.mixtures[0].shape for model in models] == [(93, 1), (93, 2), (93, 4)]
    fits = []
    for model in models:
        states = speech.forced_alignment(connected, model)
        for word, first, end in connected.recordings:
            chain, seen = model.chains[word], states[first:end]
            assert seen[0] == chain[0] and seen[-1] == chain[-1]
            assert [key for key, _ in itertools.groupby(seen)] == chain.tolist()
        fits.append(np.take_along_axis(speech.likelihoods(connected.frames, model.mixtures), states[:, None], 1).mean())
        assert np.exp(model.stay) + np.exp(model.move) == pytest.approx(1)
    assert fits == sorted(fits)


def test_the_network_sees_the_frames_around_inside_a_string():
    connected = joined()
    seen = speech.windows(connected).reshape(-1, 15, 13)
    last = connected.strings[0, 1] - 1
    assert seen.dtype == np.float32 and seen[:, 7] == pytest.approx(connected.frames[:, :13], rel=1e-6)
    assert seen[20, 0] == pytest.approx(connected.frames[13, :13], rel=1e-6)
    assert (seen[last, 7:] == seen[last, 7]).all() and (seen[last + 1, :8] == seen[last + 1, 7]).all()


def test_the_network_learns_states_and_equal_seeds_give_equal_networks():
    rng = np.random.default_rng(0)
    states = rng.integers(4, size=2000)
    inputs = rng.normal(size=(2000, 195)).astype(np.float32)
    inputs[np.arange(2000), states] += 4
    train, held_out = (inputs[:1500], states[:1500]), (inputs[1500:], states[1500:])
    networks = [speech.train_network(train, held_out, 60, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    scores = [speech.log_posteriors(network, held_out[0]) for network in networks]
    assert np.array_equal(scores[0], scores[1]) and not np.array_equal(scores[0], scores[2])
    assert np.exp(scores[0]).sum(1) == pytest.approx(1) and (scores[0].argmax(1) == held_out[1]).mean() > 0.8


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--out", "out", "--seed", "-1"], "--seed is at least 0"),
        (["--out", "out", "--recordings", "51"], "--recordings from 1 to 50"),
        (["--out", "out", "--steps", "9"], "--steps at least 10"),
        (["--out", "out"], "missing.tar.gz cannot be read"),
        ([], "--out --validation is required"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(tmp_path, monkeypatch, capsys, options, fault):
    monkeypatch.chdir(tmp_path)
    assert fault in refused(capsys, speech, "--archive", "missing.tar.gz", *options) and not list(tmp_path.iterdir())


def test_another_archive_is_refused(tmp_path, capsys):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as packed:
        member = tarfile.TarInfo("recordings/0_george_0.wav")
        member.size = 50
        packed.addfile(member, io.BytesIO(bytes(50)))
    said = refused(capsys, speech, "--archive", tmp_path / "a.tar.gz", "--out", tmp_path / "out")
    assert "does not have the 3,000 recordings" in said
    content = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cannot be read"):
        speech.read_archive(tmp_path / "a.tar.gz")


@pytest.mark.mirror
def test_the_archive_has_50_recordings_of_each_digit_and_speaker(archive):
    spoken = speech.read_archive(archive)
    assert list(spoken) == list(speech.SPEAKERS)
    assert {len(recordings) for words in spoken.values() for recordings in words} == {50}
    assert sum(len(samples) for words in spoken.values() for word in words for samples in word) == 10_498_424


@pytest.mark.mirror
def test_validation_reads_no_test_string(archive, capsys):
    run("--archive", archive, "--validation", "--recordings", 1, "--scores", "gmm")
    printed = capsys.readouterr().out
    assert printed.count("validation on") == 6 and "word error rate" in printed


@pytest.mark.mirror
def test_a_small_run_of_the_claim_is_judged_over_seeds_and_strings(archive, tmp_path):
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / archive.name).symlink_to(archive)
    claim = ROOT / "examples/spoken_digits.yaml"
    document = run_small_claim(claim, tmp_path, "--recordings 1 --steps 10", "dnn")
    (claim,) = document["claims"]
    assert claim["items"] == 600 and claim["analyses"] == ["over seeds", "over seeds and items"]
    # With one recording per digit and speaker the mixtures are still far better than chance, and far from right.
    assert all(0.1 < score < 0.8 for score in claim["scores"]["control"])
    assert len(set(claim["scores"]["treatment"])) == 2
