"""The module ``GRU`` against ``nn.GRU``: layers, dropout, first states, packed, ragged and nested sequences."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

from cuda_ext import library
from cuda_ext.gru.module import GRU

quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
INPUTS, UNITS, STEPS, SEQUENCES = 3, 4, 6, 5


def pair(**settings):
    """An nn.GRU and a GRU of the same parameters."""
    torch.manual_seed(0)
    theirs, ours = (kind(INPUTS, UNITS, dtype=torch.float64, **settings) for kind in (nn.GRU, GRU))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def leaves(result):
    """The tensors of a result: of a PackedSequence its rows."""
    return [part if isinstance(part, torch.Tensor) else part.data for part in result]


def same_results_and_gradients(theirs, ours, *given):
    expected, outputs = leaves(theirs(*given)), leaves(ours(*given))
    for a, b in zip(outputs, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
    above = [torch.randn_like(tensor) for tensor in outputs]
    gradients, exact = (
        torch.autograd.grad(results, list(module.parameters()), above)
        for module, results in ((ours, outputs), (theirs, expected))
    )
    for a, b in zip(gradients, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


SETTINGS = [
    {},
    {"num_layers": 3, "bidirectional": True},
    {"batch_first": True, "bias": False},
    {"num_layers": 2, "dropout": 1.0, "batch_first": True},
]


@quiet
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("one_sequence", [False, True])
def test_it_is_nn_gru_on_a_batch_and_on_one_sequence(settings, one_sequence):
    """Dropout of everything is the one dropout that draws nothing."""
    theirs, ours = pair(**settings)
    x = torch.randn(STEPS, INPUTS) if one_sequence else torch.randn(SEQUENCES, STEPS, INPUTS)
    same_results_and_gradients(theirs, ours, x.double())


@quiet
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_nn_gru_on_a_packed_sequence(layers, enforce_sorted):
    theirs, ours = pair(num_layers=layers, bidirectional=True)
    lengths = [6, 4, 4, 1] if enforce_sorted else [4, 1, 6, 4]
    rows = [torch.randn(length, INPUTS, dtype=torch.float64) for length in lengths]
    packed = pack_sequence(rows, enforce_sorted=enforce_sorted)
    same_results_and_gradients(theirs, ours, packed)
    states = ours(packed)[0]
    assert torch.equal(states.batch_sizes, packed.batch_sizes)
    assert [len(sequence) for sequence in nn.utils.rnn.unpack_sequence(states)] == lengths


@quiet
def test_padded_ragged_and_nested_sequences_give_the_same():
    _, ours = pair(num_layers=2, batch_first=True, bidirectional=True)
    lengths = torch.tensor([6, 2, 5])
    x = torch.randn(3, STEPS, INPUTS, dtype=torch.float64)
    real = torch.arange(STEPS) < lengths.unsqueeze(1)
    padded, last = ours(x, lengths=lengths)
    assert not padded[~real].any()
    ragged, of_ragged = ours(x[real], offsets=nn.functional.pad(lengths.cumsum(0), (1, 0)))
    nested = torch.nested.nested_tensor(
        [sequence[:n] for sequence, n in zip(x, lengths, strict=True)], layout=torch.jagged
    )
    of_nested, last_of_nested = ours(nested)
    assert torch.equal(ragged, padded[real]) and torch.equal(of_nested.values(), padded[real])
    assert torch.equal(of_ragged, last) and torch.equal(last_of_nested, last)


@quiet
def test_a_nested_tensor_with_holes_is_refused_until_it_is_contiguous():
    ours, x = GRU(3, 4, batch_first=True), torch.randn(2, 4, 3)
    begins, lengths = torch.tensor([0, 1]), torch.tensor([2, 3])
    nested = torch.nested.narrow(x, 1, begins, lengths, layout=torch.jagged)
    with pytest.raises(ValueError, match="without holes: call its .contiguous"):
        ours(nested)
    expected = [ours(x[i : i + 1, b : b + n])[0][0] for i, (b, n) in enumerate(zip(begins, lengths, strict=True))]
    torch.testing.assert_close(ours(nested.contiguous())[0].values(), torch.cat(expected))


@quiet
def test_dropout_between_layers_is_of_training_alone():
    theirs, ours = pair(num_layers=2, dropout=0.5, batch_first=True)
    x = torch.randn(SEQUENCES, STEPS, INPUTS, dtype=torch.float64)
    assert not torch.equal(ours(x)[0], ours(x)[0])
    same_results_and_gradients(theirs.eval(), ours.eval(), x)


@quiet
@pytest.mark.parametrize("form", ["padded", "packed", "one sequence"])
def test_first_states_and_their_gradients_are_those_of_nn_gru(form):
    theirs, ours = pair(num_layers=2, bidirectional=True)
    x = torch.randn(STEPS, SEQUENCES, INPUTS, dtype=torch.float64)
    x = pack_padded_sequence(x, [1, 6, 3, 2, 5], enforce_sorted=False) if form == "packed" else x
    first = torch.randn(4, SEQUENCES, UNITS, dtype=torch.float64, requires_grad=True)
    if form == "one sequence":
        x, first = x[:, 0], first.detach()[:, 0].requires_grad_()
    same_results_and_gradients(theirs, ours, x, first)
    gradients = [
        torch.autograd.grad(sum(part.square().sum() for part in leaves(module(x, first))), first)[0]
        for module in (ours, theirs)
    ]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@quiet
def test_an_empty_sequence_ends_in_its_first_state():
    _, ours = pair(batch_first=True)
    first = torch.randn(1, 2, UNITS, dtype=torch.float64)
    x = torch.randn(2, STEPS, INPUTS, dtype=torch.float64)
    states, last = ours(x, first, lengths=torch.tensor([0, 3]))
    assert torch.equal(last[0, 0], first[0, 0]) and not states[0].any()
    ragged = ours(x[1, :3], first, offsets=torch.tensor([0, 0, 3]))
    assert torch.equal(ragged[0], states[1, :3]) and torch.equal(ragged[1], last)


@quiet
def test_more_units_than_the_kernels_have_run_pytorch_s_gru():
    torch.manual_seed(0)
    theirs, ours = (kind(INPUTS, 129, dtype=torch.float64) for kind in (nn.GRU, GRU))
    ours.load_state_dict(theirs.state_dict())
    same_results_and_gradients(theirs, ours, torch.randn(STEPS, SEQUENCES, INPUTS, dtype=torch.float64))
    library.strict(True)
    with pytest.raises(library.KernelError, match="128 units, got 129"):
        ours(torch.randn(STEPS, SEQUENCES, INPUTS, dtype=torch.float64))


@pytest.mark.parametrize(
    ("shape", "given", "name"),
    [
        ((2, 3, INPUTS), {"offsets": torch.tensor([0, 2])}, "offsets"),
        ((6, INPUTS), {"lengths": torch.tensor([6])}, "lengths"),
        ((2, 3, INPUTS), {"hx": torch.zeros(2, 3, UNITS)}, r"hx \[1, N, H\], got \(2, 3, 4\)"),
        ((2, 3, INPUTS), {"hx": torch.zeros(1, 2, UNITS)}, r"first states .* \(1, 3, 4\) .*, got \(1, 2, 4\)"),
    ],
)
def test_forms_that_do_not_go_together_are_refused(shape, given, name):
    with pytest.raises(ValueError, match=name):
        GRU(INPUTS, UNITS)(torch.zeros(shape), **given)


@quiet
def test_export_without_gradients_keeps_no_gates():
    _, ours = pair(num_layers=2, batch_first=True)
    with torch.no_grad():
        exported = torch.export.export(ours, (torch.randn(SEQUENCES, STEPS, INPUTS, dtype=torch.float64),))
    calls = [node for node in exported.graph.nodes if str(node.target) == "reread_kernels.gru.default"]
    assert [len(node.meta["val"][2]) for node in calls] == [0, 0]


@quiet
def test_export_keeps_each_layer_one_operation():
    _, ours = pair(num_layers=2, batch_first=True)
    x, lengths = torch.randn(SEQUENCES, STEPS, INPUTS, dtype=torch.float64), torch.tensor([6, 1, 3, 2, 5])
    exported = torch.export.export(ours, (x,), {"lengths": lengths})
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert names.count("reread_kernels.gru.default") == 2
    with torch.no_grad():
        for a, b in zip(exported.module()(x, lengths=lengths), ours(x, lengths=lengths), strict=True):
            assert torch.equal(a, b)
