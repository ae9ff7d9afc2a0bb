"""The embedding's kernels on a GPU, in strict mode: the reference can not stand in for them."""

import pytest
import torch
from torch.nn import functional

from cuda_ext.embedding import HALF, INDICES, embedding
from cuda_ext.embedding.cases import words
from models.layers.embedding import WordEmbedding
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# The table's dtype and the result's.
PAIRS = [
    (torch.float32, torch.float32),
    *((torch.float32, dtype) for dtype in HALF),
    *((dtype, dtype) for dtype in HALF),
]
LARGEST_ERROR = {torch.float64: 0.0, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Rows, numbers a row, tokens: one of each, none, no whole pack, packs of 4 and of 8, more tokens of a row than a chunk,
# tokens that end within one and at its end; numbers of three digits.
SIZES = [
    (1, 1, 1),
    (9, 3, 0),
    (9, 3, 130),
    (50, 20, 4096),
    (50, 200, 4097),
    (3000, 104, 20_000),
    (2, 8, 640),
    (500, 8, 70_000),
    (70_000, 8, 3000),
]

WRONG = """
import sys
import torch
from cuda_ext import library
from cuda_ext.embedding import embedding
library.strict(True)
name, dtype, token = sys.argv[1:]
tokens = torch.tensor([1, 0, int(token), 3], dtype=getattr(torch, dtype), device="cuda")
if name == "embedding":
    result = embedding(torch.zeros(9, 3, device="cuda"), tokens)
else:
    above = torch.zeros(4, 3, device="cuda")
    result = torch.ops.reread_kernels.embedding_gradient(above, tokens, 9, 0, torch.float32)
print("the sum is", result.sum().item())
"""


def both_passes(table, tokens, above, dtype):
    table = table.detach().requires_grad_()
    rows = torch.ops.reread_kernels.embedding(table, tokens, 0, dtype)
    return rows.detach(), *torch.autograd.grad(rows, table, above)


def exactly(table, tokens, above):
    table = table.detach().double().requires_grad_()
    rows = functional.embedding(tokens, table, padding_idx=0)
    return rows.detach(), *torch.autograd.grad(rows, table, above.double())


def inputs_of(size, table_dtype, dtype, index=torch.int64):
    rows, width, count = size
    torch.manual_seed(0)
    tokens = words(count, rows, index)
    table = torch.randn(rows, width, device="cuda").to(table_dtype)
    return table, tokens, torch.randn(count, width, device="cuda").to(dtype)


@pytest.mark.parametrize(("table_dtype", "dtype"), PAIRS)
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("size", SIZES)
def test_the_error_against_float64_is_rounding(size, index, table_dtype, dtype):
    inputs = inputs_of(size, table_dtype, dtype, index)
    results, exact = both_passes(*inputs, dtype), exactly(*inputs)
    assert [result.dtype for result in results] == [dtype, table_dtype]
    for a, b in zip(results, exact, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= LARGEST_ERROR[a.dtype] * b.norm()
    assert torch.equal(results[0], inputs[0][inputs[1]].to(dtype))


@pytest.mark.parametrize("offset", range(4))
def test_a_table_that_begins_anywhere(offset):
    table, tokens, above = inputs_of((50, 16, 4097), torch.float32, torch.float32)
    shifted = torch.empty(table.numel() + offset, device="cuda")[offset:].view_as(table).copy_(table)
    for a, b in zip(both_passes(shifted, tokens, above, above.dtype), exactly(table, tokens, above), strict=True):
        assert rules.relative_error(a, b) <= 1e-6


def test_tokens_of_any_shape_and_a_gradient_of_any_strides():
    table, tokens, _ = inputs_of((50, 16, 60), torch.float32, torch.float32)
    tokens = tokens.view(3, 4, 5).transpose(0, 2)
    table.requires_grad_()
    rows = embedding(table, tokens, padding=0)
    assert torch.equal(rows, table[tokens])
    above = torch.randn(16, 5, 4, 3, device="cuda").movedim(0, -1)
    (gradient,) = torch.autograd.grad(rows, table, above)
    assert rules.relative_error(gradient, exactly(table, tokens, above)[1]) <= 1e-6


def test_float64_takes_the_reference():
    inputs = inputs_of((50, 16, 700), torch.float64, torch.float64)
    for a, b in zip(both_passes(*inputs, torch.float64), exactly(*inputs), strict=True):
        assert torch.equal(a, b)


def test_autocast_gives_rows_in_its_dtype():
    table = torch.randn(50, 16, device="cuda")
    tokens = words(100, 50)
    with torch.autocast("cuda", torch.float16):
        assert torch.equal(embedding(table, tokens), table[tokens].half())


def test_fifty_runs_give_the_same_bits():
    *inputs, dtype = *inputs_of((50, 200, 4097), torch.float32, torch.bfloat16), torch.bfloat16
    rules.fifty_runs_give_the_same_bits(lambda *given: both_passes(*given, dtype), inputs)


def test_a_graph_replays_it_on_new_words():
    table, tokens, above = inputs_of((50, 200, 4097), torch.float32, torch.bfloat16)
    rules.a_graph_replays_it_on_new_values(
        lambda numbers, of, up: both_passes(of, numbers, up, torch.bfloat16), (tokens, table, above), tokens.flip(0)
    )


@pytest.mark.parametrize("index", INDICES)
def test_the_operation_keeps_pytorch_s_rules(index):
    table, tokens, _ = inputs_of((9, 4, 12), torch.float32, torch.float32, index)
    torch.library.opcheck(torch.ops.reread_kernels.embedding, (table.requires_grad_(), tokens, 0, torch.bfloat16))


def test_word_vectors_of_a_network_take_it():
    vectors = WordEmbedding(30, 8).cuda()
    tokens = words(200, 30)
    vectors(tokens).sum().backward()
    expected = torch.bincount(tokens, minlength=30).float()
    assert torch.equal(vectors.weight.grad, expected[:, None].expand(30, 8))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("token", [9, -1])
@pytest.mark.parametrize("name", ["embedding", "embedding_gradient"])
def test_a_token_outside_of_the_table_stops_the_program_with_one_line(name, token, dtype):
    line = f"{name}: token {token} at place 2 is not one of 9 rows"
    rules.it_stops_the_program(WRONG, (name, dtype, str(token)), line)
