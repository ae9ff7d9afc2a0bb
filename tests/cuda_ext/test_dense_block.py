"""The dense block against its layers one by one, and compiled ahead of time."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from cuda_ext import batch_norm_activation as fused
from cuda_ext.dense_block import Halves, dense_block

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
INPUTS, GROWTH, BOTTLENECK = 5, 3, 8


def parameters(layers=2, dtype=torch.float64, beta=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    channels, kernels = [], []
    for layer in range(layers):
        channels += [INPUTS + layer * GROWTH, BOTTLENECK]
        kernels += [(BOTTLENECK, channels[-2], 1, 1), (GROWTH, BOTTLENECK, 3, 3)]

    def numbers(low, shapes):
        return [(torch.rand(shape, generator=generator, dtype=torch.float64) + low).to(dtype) for shape in shapes]

    return Halves(
        numbers(0.5, channels),
        numbers(-0.5, channels),
        numbers(0.5, [()] * len(channels)) if beta else None,
        [kernel / kernel[0].numel() ** 0.5 for kernel in numbers(-0.5, kernels)],
        numbers(-0.5, channels),
        numbers(0.5, channels),
    )


def flat(halves):
    return [*halves.weights, *halves.biases, *(halves.betas or []), *halves.kernels]


def images(dtype=torch.float64, batch=2, seed=1):
    return torch.randn(batch, INPUTS, 4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def one_by_one(x, halves, *, training, momentum=0.1, epsilon=1e-5, activation="relu"):
    for at in range(0, len(halves.kernels), 2):
        new = x
        for half in (at, at + 1):
            new = functional.batch_norm(
                new, halves.running_means[half], halves.running_variances[half], halves.weights[half],
                halves.biases[half], training, momentum, epsilon,
            )  # fmt: skip
            beta = 1 if halves.betas is None else halves.betas[half]
            new = new.relu() if activation == "relu" else new * torch.sigmoid(beta * new)
            new = functional.conv2d(new, halves.kernels[half], padding=half % 2)
        x = torch.cat([x, new], 1)
    return x


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("activation", "beta"), [("relu", False), ("swish", True)])
def test_it_is_its_layers_one_by_one(training, activation, beta):
    results = []
    for function in (one_by_one, dense_block):
        halves, x = parameters(beta=beta), images().requires_grad_()
        wanted = [x, *(tensor.requires_grad_() for tensor in flat(halves))]
        y = function(x, halves, training=training, activation=activation, momentum=0.3, epsilon=1e-3)
        if function is dense_block:
            y, statistics = y
            assert y.stride(1) == 1
            assert (statistics is not None) == training
            if training:
                torch.testing.assert_close(statistics[::-1], torch.var_mean(y, (0, 2, 3), correction=0))
        above = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype)
        gradients = torch.autograd.grad(y, wanted, above)
        results.append([y, *gradients, *halves.running_means, *halves.running_variances])
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_match_finite_differences(training):
    halves = parameters(1, beta=True)

    def run(x, *given):
        weights, biases, betas, kernels = (list(given[at : at + 2]) for at in range(0, 8, 2))
        running = (
            [statistic.clone() for statistic in many] for many in (halves.running_means, halves.running_variances)
        )
        own = Halves(weights, biases, betas, kernels, *running)
        return dense_block(x, own, training=training, activation="swish")[0]

    inputs = [images(batch=1), *flat(halves)]
    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in inputs], fast_mode=True)


@pytest.mark.parametrize(("training", "keeps"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_operation_keeps_pytorch_s_rules(training, keeps, dtype):
    """Parameters are float32 beside half precision; channels that fill a matrix product's columns, and that do not."""
    halves = parameters(2, torch.float64 if dtype == torch.float64 else torch.float32, beta=training)
    for tensor in flat(halves) if keeps else ():
        tensor.requires_grad_()
    arguments = (
        images(dtype).requires_grad_(keeps), halves.weights, halves.biases, halves.betas, halves.kernels,
        halves.running_means, halves.running_variances, "swish", 1e-5, training, keeps,
    )  # fmt: skip
    # Gradients of half precision differ by how autograd adds them up.
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if dtype == torch.float64:
        checks.append("test_aot_dispatch_static")
    torch.library.opcheck(torch.ops.reread_kernels.dense_block, arguments, test_utils=checks)


def test_the_references_of_its_3x3_convolution_are_autograd_s():
    """Growth of 6 in 8 columns, two images of 5 x 4; and what is written beside the new channels."""
    generator = torch.Generator().manual_seed(3)
    x, filters, dy, vectors = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((40, 8), (8, 3, 3, 8), (40, 8), (2, 8))
    )
    filters[6:], dy[:, 6:] = 0, 0
    beta = torch.tensor(1.2, dtype=torch.float64)
    variance, mean = torch.var_mean(x, 0, correction=0)
    norm = (*vectors, mean, variance, beta, 2, 1e-5)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, filters, *vectors, beta)]
    normal = functional.batch_norm(leaves[0], None, None, leaves[2], leaves[3], True)
    activated = normal * torch.sigmoid(leaves[4] * normal)
    images = activated.unflatten(0, (2, 5, 4)).movedim(-1, 1)
    expected = functional.conv2d(images, leaves[1].movedim(-1, 1), padding=1).movedim(1, -1).flatten(0, -2)
    to_x, to_filters, *to_others = torch.autograd.grad(expected, leaves, dy)

    buffer, (own_mean, own_variance) = torch.full((40, 9), torch.nan, dtype=torch.float64), torch.zeros(2, 6).double()
    part = fused.REFERENCES
    part["dense_convolution"](x, filters, *norm, 5, 4, buffer[:, 2:8], own_mean, own_variance, True)
    torch.testing.assert_close(buffer[:, 2:8], expected[:, :6].detach())
    assert buffer[:, [0, 1, 8]].isnan().all()
    torch.testing.assert_close((own_variance, own_mean), torch.var_mean(buffer[:, 2:8], 0, correction=0))
    given = (dy, filters, x, *norm, True, 5, 4, 6)
    scaled, of_filters, *others, slope, offset = part["dense_convolution_backward"](*given)
    torch.testing.assert_close(scaled + slope * (x - mean) + offset, to_x)
    torch.testing.assert_close(
        [gradient.flatten() for gradient in others], [gradient.flatten() for gradient in to_others]
    )
    torch.testing.assert_close(of_filters, to_filters[:6])


def test_autocast_casts_the_images_and_leaves_the_parameters():
    halves = parameters(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = dense_block(images(torch.float32), halves, training=False)
    assert y.dtype == torch.bfloat16
    expected = one_by_one(images(torch.float32), halves, training=False)
    assert (y.float() - expected).norm() <= 2e-2 * expected.norm()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        halves = parameters(dtype=torch.float32)
        self.trained = nn.ParameterList([*halves.weights, *halves.biases, *halves.kernels])
        self.means, self.variances = halves.running_means, halves.running_variances

    def forward(self, x):
        weights, biases, kernels = (list(self.trained[at : at + 4]) for at in (0, 4, 8))
        halves = Halves(weights, biases, None, kernels, self.means, self.variances)
        return dense_block(x, halves, training=False, activation="swish")[0]


# PyTorch's compiler uses what PyTorch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_package_compiled_ahead_of_time_runs_it_for_any_batch(tmp_path):
    block, x = Block(), images(torch.float32, batch=3)
    # Gradients are enabled, as they are where a user forgets no_grad: nothing is kept for a backward pass.
    exported = torch.export.export(block, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    assert "reread_kernels.dense_block.default" in {str(node.target) for node in exported.graph.nodes}
    package = torch._inductor.aoti_compile_and_package(
        exported,
        package_path=str(tmp_path / "block.pt2"),
        inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False},
    )
    compiled = torch._inductor.aoti_load_package(package)
    with torch.no_grad():
        for batch in (x, images(torch.float32, batch=5)):
            torch.testing.assert_close(compiled(batch), block(batch))


def test_what_it_does_not_take_is_refused_with_what_came():
    def refused(match, x=None, training=False, activation="relu", **changed):
        halves = Halves(**{**parameters().__dict__, **changed})
        with pytest.raises(ValueError, match=match):
            dense_block(images() if x is None else x, halves, training=training, activation=activation)

    whole = parameters()
    refused("x \\[N, C, H, W\\] of floating point, got \\(2, 5, 4\\)", x=images()[..., 0])
    refused("got .* of torch.int64", x=images().long())
    refused("activation of none, relu, swish, gelu, got 'tanh'", activation="tanh")
    refused("two kernels for each layer, got 3", kernels=whole.kernels[:3])
    refused("beta for each of 4 activations or None, got 1", betas=whole.biases[:1])
    refused("scalar betas, got beta 0 of shape \\(5,\\)", betas=whole.biases)
    refused("at least one channel and one pixel, got x \\(2, 5, 0, 3\\)", x=images()[:, :, :0])
    refused("at least one channel and one pixel, got x \\(2, 0, 4, 3\\)", x=images()[:, :0])
    refused("more than one value per channel in training, got x \\(1, 5, 1, 1\\)", images()[:1, :, :1, :1], True)
    refused(
        "kernel 0 of shape \\('at least 1', 5, 1, 1\\), got \\(0, 5, 1, 1\\)",
        kernels=[whole.kernels[0][:0], *whole.kernels[1:]],
    )
    refused(
        "kernel 2 of shape \\(8, 8, 1, 1\\), got \\(8, 5, 1, 1\\)", kernels=[*whole.kernels[:2], *whole.kernels[:2]]
    )
    refused("kernel 1 of shape", kernels=[whole.kernels[0], whole.kernels[1][..., :1], *whole.kernels[2:]])
    for name in ("weights", "biases", "running_means", "running_variances"):
        refused(f"{name} of 4 norms, of norm 0 of shape \\(5,\\)", **{name: whole.weights[::-1]})


def test_no_images_leave_the_running_statistics():
    halves = parameters()
    before = [statistic.clone() for statistic in (*halves.running_means, *halves.running_variances)]
    y, _ = dense_block(images()[:0], halves, training=True)
    assert y.shape == (0, INPUTS + 2 * GROWTH, 4, 3)
    assert all(map(torch.equal, before, (*halves.running_means, *halves.running_variances)))


def test_a_second_derivative_is_refused():
    x = images().requires_grad_()
    (dx,) = torch.autograd.grad(dense_block(x, parameters(), training=True)[0].sum(), x)
    assert dx.shape == x.shape
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(dense_block(x, parameters(), training=True)[0].sum(), x, create_graph=True)


def test_without_gradients_nothing_is_kept():
    halves = parameters()
    arguments = (
        images().requires_grad_(), halves.weights, halves.biases, None, halves.kernels, halves.running_means,
        halves.running_variances, "relu", 1e-5,
    )  # fmt: skip
    assert len(torch.ops.reread_kernels.dense_block(*arguments, False, False)) == 1
    assert len(torch.ops.reread_kernels.dense_block(*arguments, True, False)) == 1 + 2 + 4
    with pytest.raises(RuntimeError, match="only if gradients were enabled"):
        torch.ops.reread_kernels.dense_block(*arguments, False, False)[0].sum().backward()


def test_bfloat16_rounds_a_block_of_sixteen_layers_as_it_rounds_the_layers():
    """Of the gradients of all parameters the largest difference from float64, relative in norm."""

    def gradients(function, dtype):
        halves = parameters(16, torch.float32 if dtype == torch.bfloat16 else dtype)
        leaves = [tensor.requires_grad_() for tensor in flat(halves)]
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            y = function(images(dtype, batch=32), halves, training=True)
        return torch.autograd.grad(y.double().square().sum(), leaves)

    exact = gradients(one_by_one, torch.float64)

    def error(function):
        return max(
            float((gradient.double() - wanted).norm() / wanted.norm())
            for gradient, wanted in zip(gradients(function, torch.bfloat16), exact, strict=True)
        )

    block, layers = error(lambda *given, **options: dense_block(*given, **options)[0]), error(one_by_one)
    assert layers > 0.03
    assert block <= 1.2 * layers
