"""The embedding on the CPU: the reference behind the operation, its gradients, and what it refuses."""

import pytest
import torch
from torch.nn import functional

from cuda_ext.embedding import DTYPES, INDICES, embedding

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
TOKENS = torch.tensor([[3, 0, 3], [1, 3, 0]])


def table(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 4, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", INDICES)
def test_rows_and_gradient_are_pytorch_s(dtype, index):
    ours, theirs = table(dtype), table(dtype)
    rows, expected = embedding(ours, TOKENS.to(index), padding=3), functional.embedding(TOKENS, theirs, 3)
    assert torch.equal(rows, expected)
    above = torch.randn_like(expected)
    rows.backward(above)
    expected.backward(above)
    assert torch.equal(ours.grad, theirs.grad)
    assert not ours.grad[3].any()


def test_a_padding_of_minus_one_is_no_row():
    """Of nn.Embedding it is the last row."""
    ours, last = table(), torch.full_like(TOKENS, 4)
    embedding(ours, last, padding=-1).sum().backward()
    assert ours.grad[4].eq(last.numel()).all()


def test_gradients_match_finite_differences():
    assert torch.autograd.gradcheck(lambda of: embedding(of, TOKENS), table())
    assert torch.autograd.gradgradcheck(lambda of: embedding(of, TOKENS), table())


@pytest.mark.parametrize("padding", [-1, 0])
def test_the_gradient_s_own_gradient_leaves_out_the_padding(padding):
    above = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    gradient = torch.ops.reread_kernels.embedding_gradient
    for index in INDICES:
        tokens = TOKENS.to(index)
        assert torch.autograd.gradcheck(
            lambda of, tokens=tokens: gradient(of, tokens, 5, padding, torch.float64), above
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_of_a_half_precision_table_is_summed_in_float32(dtype):
    ours = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    embedding(ours, torch.zeros(4096, dtype=torch.int64)).backward(torch.ones(4096, 4, dtype=dtype))
    assert ours.grad[0].eq(4096).all()


def test_autocast_rounds_rows_and_keeps_the_table_s_gradient_wide():
    ours = table(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = embedding(ours, TOKENS)
        assert embedding(table(torch.float64), TOKENS).dtype == torch.float64
    assert torch.equal(rows, ours[TOKENS].to(torch.bfloat16))
    rows.sum().backward()
    assert ours.grad.dtype == torch.float32


@pytest.mark.parametrize("index", INDICES)
def test_the_operation_keeps_pytorch_s_rules(index):
    torch.library.opcheck(torch.ops.reread_kernels.embedding, (table(), TOKENS.to(index), 0, torch.float64))


@pytest.mark.parametrize(
    ("message", "given"),
    [
        (r"table \[V, E\] .* got \(5,\)", (torch.zeros(5), TOKENS)),
        ("got .* of torch.int64", (TOKENS, TOKENS)),
        ("int32 or int64, got torch.float32", (torch.zeros(5, 4), torch.zeros(2))),
        ("one device, got cpu and meta", (torch.zeros(5, 4), TOKENS.to("meta"))),
        ("5 or None, got 5", (torch.zeros(5, 4), TOKENS, 5)),
        ("5 or None, got -2", (torch.zeros(5, 4), TOKENS, -2)),
    ],
)
def test_what_it_does_not_take_is_refused_with_what_came(message, given):
    with pytest.raises(ValueError, match=message):
        embedding(*given)
