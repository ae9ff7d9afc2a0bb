"""The benchmarks of training steps: measured on a GPU, refused in one line without one."""

import os
import subprocess
import sys
import typing

import pytest
import torch

from benchmarks import han, profile
from cuda_ext import pairs
from reread.storage.source import ROOT
from reread.training.device import HALVES
from reread.training.settings import Settings


@pytest.mark.parametrize(
    "words",
    [["benchmarks.han"], ["benchmarks.densenet"], ["benchmarks.capsules"], ["benchmarks.profile", "han"]],
    ids=lambda words: words[0],
)
def test_without_a_gpu_a_benchmark_says_so_in_one_line(words):
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "GPU" in done.stderr and done.stderr.count("\n") == 1


def test_han_s_peer_gives_the_same_logits_however_its_sentences_are_grouped():
    tokens = torch.randint(1, 50, (3, 4, 6))
    tokens *= torch.arange(6) < torch.randint(1, 7, (3, 4, 1))
    network = han.PeerHAN().eval()
    with torch.no_grad():
        whole = network(*han.grouped(tokens, 1))
        groups, places = han.grouped(tokens, 4)
        assert len(groups) == 4 and sorted(places.flatten().tolist()) == list(range(12))
        torch.testing.assert_close(network(groups, places), embedded_padding_apart(network, tokens, whole))


def embedded_padding_apart(network, tokens, whole):
    """The backward direction reads padding first: the logits of each sentence cut at its group's longest."""
    lengths = (tokens.flatten(0, 1) > 0).sum(1)
    parts = lengths.argsort(descending=True, stable=True).tensor_split(4)
    longest = torch.zeros(12, dtype=torch.long)
    for part in parts:
        longest[part] = lengths[part].max()
    vectors = []
    for row, length in zip(tokens.flatten(0, 1), longest.tolist(), strict=True):
        states, _ = network.word_gru(network.embedding(row[None, :length]))
        vectors.append(network.word_attention(states, row[None, :length] > 0))
    states, _ = network.sentence_gru(torch.cat(vectors).unflatten(0, tokens.shape[:2]))
    real = torch.ones(tokens.shape[:2], dtype=torch.bool)
    output = network.classifier(network.sentence_attention(states, real))
    assert output.shape == whole.shape
    return output


def test_the_precisions_of_han_s_step_are_those_of_training():
    assert set(han.AMPS) <= set(typing.get_args(typing.get_type_hints(Settings)["amp"]))
    for amp, half in han.AMPS.items():
        assert HALVES.get(amp) is half


def test_han_s_step_can_be_timed_beside_each_form_of_its_peer(monkeypatch):
    case = pairs.find_case("benchmarks.han", "64 documents, bfloat16", "torch.compile, sorted, 8 groups, fp16")
    assert case.replays and len(case.peers) == 3 * 3 * 2
    names = [pairs.name_of(case) for case in han.bench_cases()]
    assert len(set(names)) == len(names) == 3 * 3
    made = []
    monkeypatch.setattr(han, "our_step", lambda amp, *given: made.append((amp, given)) or (lambda: "stepped"))
    monkeypatch.setattr(han, "peer_steps", lambda amp, *given: made.append((amp, given)) or (None, lambda: "replayed"))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    labels, tokens, counts = torch.zeros(2), torch.ones(2, 6, 4, dtype=torch.int32), torch.ones(2, 6)
    assert [case.function(labels, tokens, counts) for _ in range(3)] == ["stepped"] * 3
    assert made == [("bf16", (tokens, counts, labels))]
    assert [case.peers["torch.compile, sorted, 8 groups, fp16"](labels, tokens, counts) for _ in range(2)] == [
        "replayed"
    ] * 2
    (_, (amp, (groups, places, given, compiled))) = made
    assert (amp, len(groups), places.shape, compiled) == ("fp16", 8, (2, 6), True) and given is labels


def test_a_profile_sums_by_kernel_and_keeps_the_rest_in_one_row():
    spans = [("product", 3.0), ("sum", 1.0), ("product", 5.0), ("copy", 1.0)]
    rows = profile.by_kernel(spans, steps=2)
    assert rows[0] == {"kernel": "product", "calls": 1.0, "microseconds": 4.0}
    assert [row["kernel"] for row in rows] == ["product", "copy", "sum"]
    many = [{"kernel": str(n), "calls": 1.0, "microseconds": 1.0} for n in range(profile.ROWS + 3)]
    measured = {"network": "han", "batch": 64, "amp": "bf16", "peer": False, "step": {"median_ms": 0.05}}
    lines = profile.table({**measured, "kernels": many}).splitlines()
    assert "| 3 others | 3 | 3.0 | 7.0% |" in [line.replace("`", "") for line in lines]
    assert lines[-2] == "| all kernels | 43 | 43.0 | 100.0% |" and "50.0" in lines[-1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
def test_a_step_is_profiled_by_kernel():
    measured = profile.profiled(profile.steps_of("han", 4, "bf16", peer=False), steps=3)
    assert any("gru" in row["kernel"] or "recur" in row["kernel"] for row in measured["kernels"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
def test_han_s_step_is_timed_beside_its_peers():
    result = han.measure(batch=4)
    assert set(result["timed"]) > {
        "reread, off",
        "reread, bf16",
        "reread, fp16",
        "eager, off",
        "CUDA graph, bf16",
        "CUDA graph, sorted, 4 groups, fp16",
    }
    assert all(row["median_ms"] > 0 for row in result["timed"].values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
def test_han_s_step_and_a_peer_s_are_timed_in_turn():
    case = pairs.find_case("benchmarks.han", "64 documents, bfloat16", "sorted, 4 groups, bf16")
    own, peer = pairs.measure(case, "sorted, 4 groups, bf16", process=0, samples=3)
    assert own["graph"] and peer["graph"] and 0 < own["score"] < peer["score"]
