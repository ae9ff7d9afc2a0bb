"""A dense block as one operation: layers of norm, activation, 1x1 convolution, norm, activation and 3x3 convolution,
each of which reads what all layers before it wrote.

Source: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, section 3, DenseNet-BC without dropout.

The block is one channels-last buffer. Each layer writes its new channels next to those it read, without a copy. The
mean and variance of a channel are computed once, when it is written, for all layers that read it. The gradient of the
buffer is summed in place. The kernels of this folder run the layers of half precision that ``products_fit`` and
``convolutions_fit`` name; those of batch_norm_activation, cuBLAS and cuDNN run the others.

Shape legend: N images, C channels, H x W pixels, R = N H W rows, L layers, k growth rate, B channels of a bottleneck.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext import batch_norm_activation as fused
from cuda_ext import library
from cuda_ext.operation import define, in_autocast

# Channels are padded to a multiple of it where a matrix product reads them: it then reads 16 bytes at a time.
PADDED = 8
# Rows of the buffer begin on 64 bytes of half precision, as memory is read.
ROW = 32


@dataclass(frozen=True)
class Halves:
    """Parameters and running statistics of a block's halves, two for each layer: 1x1 and 3x3, each behind its norm.

    - ``weights``, ``biases``, ``running_means``, ``running_variances``: of each norm, [C] before the 1x1 and [B] before
      the 3x3.
    - ``betas``: of each activation, scalars, or None.
    - ``kernels``: [B, C, 1, 1] and [k, B, 3, 3] in turn.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    betas: list[Tensor] | None
    kernels: list[Tensor]
    running_means: list[Tensor]
    running_variances: list[Tensor]


def dense_block(
    x: Tensor,
    halves: Halves,
    *,
    training: bool,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    activation: str = "relu",
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Return x and what each layer adds to it, [N, C + L k, H, W] in x's dtype with channels last in memory.

    - ``x``: [N, C, H, W] of float64, float32, float16 or bfloat16.
    - ``halves``: its kernels may be of another dtype, and are cast to x's.
    - ``training``, ``momentum``, ``epsilon``, ``activation``: as ``batch_norm_activation`` takes them; in training the
      running statistics move, unless N is 0.

    In training the mean and biased variance of each of the result's channels come with it, for the norm that reads it
    next; else None. Under autocast x takes its dtype.
    Raises ValueError, naming what came, for anything else.

    >>> norms = [torch.ones(2), torch.ones(8)]
    >>> zeros = [torch.zeros(2), torch.zeros(8)]
    >>> kernels = [torch.ones(8, 2, 1, 1), torch.ones(4, 8, 3, 3)]
    >>> y, _ = dense_block(torch.ones(1, 2, 1, 1), Halves(norms, zeros, None, kernels, zeros, norms), training=False)
    >>> y.flatten().round()
    tensor([ 1.,  1., 16., 16., 16., 16.])
    """
    rows = x.shape[0] * x.shape[2] * x.shape[3] if x.ndim == 4 else 0
    if training and rows == 1:
        raise ValueError(f"dense_block takes more than one value per channel in training, got x {tuple(x.shape)}")
    # Before torch 2.13 the tracing of torch.compile calls itself an export too: pytorch/pytorch#176347.
    exports = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    y, *batch = torch.ops.reread_kernels.dense_block(
        x, halves.weights, halves.biases, halves.betas, halves.kernels, halves.running_means,
        halves.running_variances, activation, epsilon, training, torch.is_grad_enabled() and not exports,
    )  # fmt: skip
    if not training:
        return y, None
    mean, variance, *inner = batch[: 2 + len(halves.kernels)]
    means, variances = [], []
    for at in range(0, len(halves.kernels), 2):
        channels = halves.kernels[at].shape[1]
        means += [mean[:channels], inner[at]]
        variances += [variance[:channels], inner[at + 1]]
    if rows:
        fused.follow(halves.running_means, halves.running_variances, means, variances, rows, momentum)
    return y, (mean, variance)


@dataclass
class _Half:
    """Norm, activation and convolution of one half of a layer: its input and the statistics that normalise it."""

    weight: Tensor
    bias: Tensor
    beta: Tensor | None
    kernel: Tensor
    mean: Tensor
    variance: Tensor
    activation: int
    epsilon: float

    @property
    def norm(self) -> tuple[Any, ...]:
        """The arguments that the kernels take after x."""
        return self.weight, self.bias, self.mean, self.variance, self.beta, self.activation, self.epsilon


def _run(x: Tensor, *given: Any) -> list[Tensor]:
    """Run the layers over one buffer [R, C + L k]. given: as the operation's schema has it.

    Return the buffer as y; in training the mean and variance of its channels, and of each layer's bottleneck; and, if
    the block ``keeps`` it, what the backward pass reads: the packed weights, and of each layer the bottleneck, and what
    its 3x3 and its 1x1 convolution read, if that was written.
    """
    halves, (activation, epsilon, training, keeps) = Halves(*given[:6]), given[6:]
    _check(x, halves, activation)
    rows, inputs = x.numel() // x.shape[1], x.shape[1]
    growth = halves.kernels[1].shape[0]
    width = inputs + len(halves.kernels) // 2 * growth
    buffer = x.new_empty(rows, _padded(width, ROW))
    # Of no rows nothing is written.
    make = x.new_empty if rows else x.new_zeros
    means, variances = (make(width, dtype=_computed(x)) for _ in range(2))

    def columns(first: int, last: int) -> tuple[Tensor, Tensor, Tensor, bool]:
        return buffer[:, first:last], means[first:last], variances[first:last], training

    # First, because the first layer's kernel loads its weights before it waits for the kernel before it.
    weights = _pack(x, halves.kernels)
    _append(fused.rows_of(x), *columns(0, inputs))
    inner_statistics: list[Tensor] = []
    kept = [weights] if keeps else []
    layers = zip(_layers(x, halves, activation, epsilon), _unpacked(weights, halves.kernels), strict=True)
    for number, ((first, second), (matrix, filters)) in enumerate(layers):
        channels = inputs + number * growth
        if training:
            first.mean, first.variance = means[:channels], variances[:channels]
        inner, statistics, read = _multiply(buffer[:, :channels], matrix, first, training)
        if training:
            second.mean, second.variance = statistics
            inner_statistics += statistics
        activated = _convolve(inner, filters, second, x, *columns(channels, channels + growth))
        if keeps:
            kept += [inner, *activated, *read]
    batch = [means, variances, *inner_statistics] if training else []
    return [fused.image_of(buffer[:, :width], x), *batch, *kept]


def _append(new: Tensor, y: Tensor, mean: Tensor, variance: Tensor, training: bool) -> None:
    """Copy new channels to their columns y; in training also write their mean and variance."""
    if training:
        fused.part("copy_with_statistics", new)(new, y, mean, variance)
    else:
        y.copy_(new)


def _multiply(
    x: Tensor, matrix: Tensor, half: _Half, training: bool
) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
    """Return a 1x1 convolution's result, in training its mean and variance, and what it read, if that was written."""
    if products_fit(x, len(matrix), x.shape[1]):
        inner, *statistics = fused.part("dense_product", x)(x, matrix, *half.norm, training)
        return inner, statistics, ()
    read = fused.part("batch_norm_activation", x)(x, *half.norm, matrix.shape[1])
    inner = read @ matrix.t()
    return inner, fused.part("batch_statistics", x)(inner) if training else (), [read]


def _convolve(inner: Tensor, filters: Tensor, half: _Half, like: Tensor, *own: Any) -> Sequence[Tensor]:
    """Write a 3x3 convolution's new channels as ``_append`` does. Return what it read, if that was written."""
    if convolutions_fit(like, inner.shape[1], half.kernel.shape[0]):
        given = (inner, filters.movedim(1, -1), *half.norm, *like.shape[2:], *own)
        fused.part("dense_convolution", inner)(*given)
        return ()
    activated = fused.part("batch_norm_activation", inner)(inner, *half.norm, inner.shape[1])
    new = functional.conv2d(fused.image_of(activated, like), filters, padding=1)
    _append(fused.rows_of(new)[:, : half.kernel.shape[0]], *own)
    return [activated]


def _shape(x: Tensor, *given: Any) -> list[Tensor]:
    halves, (activation, _, training, keeps) = Halves(*given[:6]), given[6:]
    _check(x, halves, activation)
    kernels = halves.kernels
    images, inputs, *places = x.shape
    growth = kernels[1].shape[0]
    width = inputs + len(kernels) // 2 * growth
    y = x.new_empty(images, *places, _padded(width, ROW))[..., :width].movedim(-1, 1)
    rows = images * places[0] * places[1]
    sizes = [width, width] if training else []
    kept = [x.new_empty(sum(_packed_sizes(kernels)))] if keeps else []
    for number in range(len(kernels) // 2):
        channels, outputs = inputs + number * growth, kernels[2 * number].shape[0]
        if training:
            sizes += [outputs, outputs]
        if keeps:
            kept.append(x.new_empty(rows, outputs))
            if not convolutions_fit(x, outputs, growth):
                kept.append(x.new_empty(rows, outputs))
            if not products_fit(x, outputs, channels):
                kept.append(x.new_empty(rows, _padded(channels)))
    return [y, *(x.new_empty(size, dtype=_computed(x)) for size in sizes), *kept]


def products_fit(x: Tensor, outputs: int, channels: int) -> bool:
    """Whether the ``dense_product`` kernels should run the 1x1 convolution of so many channels like x to ``outputs``.

    They take half precision. Of up to 64 outputs they are faster than the norm, the product and the statistics one by
    one: backward, on an H200, 207 us against 333 (120 channels of 524,288 rows to 48). Of up to 128, where the matrix
    units' time counts, those of warpgroups are; on other GPUs cuBLAS makes up for it, at the price of keeping what the
    product reads.
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    if x.device.type != "cuda" or not half or outputs % 8 or channels > 1024:
        return False
    return outputs <= 64 or (outputs <= 128 and library.has_warpgroups(x.device))


def convolutions_fit(x: Tensor, channels: int, growth: int) -> bool:
    """Whether the ``dense_convolution`` kernels should run 3x3 convolutions of so many channels of images like x.

    They take half precision, and images of lines that fit shared memory. On an H200, bf16, both passes with norm and
    statistics, but for the norm's last pass, which ``dense_product_backward`` makes: 177 us, and one by one with that
    pass 459 (48 channels to 12, 512 images of 32 x 32); 191 and 332 (64 to 16, 128 images of 56 x 56). Of 128 channels
    to 32 (the same images) earlier kernels, which copied no tile ahead, took 188 us forward and 485 backward in three
    launches; norm, cuDNN and statistics take 237 and 308.
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    sizes = channels % 8 == 0 and channels <= 64 and growth <= 16
    height, width = x.shape[2:]
    # A slot of shared memory for each pixel and behind each line, counted with 31 bits.
    slots = x.shape[0] * (height + 1) * (width + 1)
    return x.device.type == "cuda" and half and sizes and width <= 64 and height <= 2**15 and slots < 2**31 - 2**16


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, *parameters, ctx.activation, ctx.epsilon, ctx.training, ctx.keeps = inputs
    y, *others = output
    ctx.mark_non_differentiable(*others)
    # Otherwise the backward pass begins with as many zeros as the block keeps.
    ctx.set_materialize_grads(False)
    if not ctx.keeps:
        return
    batch = 2 + len(parameters[3]) if ctx.training else 0
    if ctx.training:
        # The batch's statistics take their place, and they have moved when the backward pass runs.
        parameters[4:] = None, None
    lists = [others[:batch] or None, others[batch:], *parameters]
    ctx.inputs, ctx.counts = x.shape[1], [None if tensors is None else len(tensors) for tensors in lists]
    ctx.save_for_backward(y, *(tensor for tensors in lists for tensor in tensors or ()))


def _differentiate(ctx: Any, above: list[Tensor | None]) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError("dense_block has no second derivative: leave out create_graph")
    if not ctx.keeps:
        raise RuntimeError("dense_block has a backward pass only if gradients were enabled when it ran")
    if above[0] is None:
        return tuple([None] * len(needed) if isinstance(needed, list) else None for needed in ctx.needs_input_grad)
    y, *saved = ctx.saved_tensors
    lists: list[Any] = []
    for count in ctx.counts:
        lists.append(None if count is None else saved[:count])
        saved = saved[count or 0 :]
    dx, *gradients = torch.ops.reread_kernels.dense_block_backward(
        above[0], y, *lists, ctx.inputs, ctx.activation, ctx.epsilon, ctx.training
    )
    count = len(lists[2])
    to_weights, to_biases, to_kernels = (gradients[at : at + count] for at in range(0, 3 * count, count))
    to_betas = gradients[3 * count :] or None
    running = [None] * count
    return dx, to_weights, to_biases, to_betas, to_kernels, running, running, None, None, None, None


def _run_backward(dy: Tensor, y: Tensor, batch: list[Tensor] | None, kept: list[Tensor], *given: Any) -> list[Tensor]:
    """Return the gradients of x, and of the weights, the biases, the kernels and the betas.

    batch, kept: what ``_run`` returned; given: as the operation's schema has it.
    """
    halves, (inputs, activation, epsilon, training) = Halves(*given[:6]), given[6:]
    buffer = fused.rows_of(y)
    growth, width = halves.kernels[1].shape[0], y.shape[1]
    total = buffer.new_empty(len(buffer), _padded(width, ROW))
    above = fused.rows_of(dy)
    if not _is_added(above, buffer, halves, width - growth):
        _copy(above, total[:, :width])
        above = total
    slope, offset = y.new_zeros(2, width, dtype=_computed(y))
    # By running statistics no gradient goes through the mean: its slope stays zero.
    mean, variance, *inner_statistics = batch or (torch.zeros_like(slope), torch.zeros_like(slope))

    def summed(first: int, last: int, rows: Tensor = total) -> _Gradient:
        own = slice(first, last)
        return _Gradient(rows[:, own], buffer[:, own], mean[own], slope[own], offset[own])

    packed, *kept = kept
    layers = list(zip(_layers(y, halves, activation, epsilon), _unpacked(packed, halves.kernels), strict=True))
    gradients: list[tuple[Tensor, ...]] = []
    for number in reversed(range(len(layers))):
        channels = inputs + number * growth
        (first, second), weights = layers[number]
        if training:
            first.mean, first.variance = mean[:channels], variance[:channels]
            second.mean, second.variance = inner_statistics[2 * number : 2 * number + 2]
        bottleneck = len(first.kernel)
        count = 3 - products_fit(y, bottleneck, channels) - convolutions_fit(y, bottleneck, growth)
        own, new = slice(0, channels), summed(channels, channels + growth, above)
        into = training, total[:, own], slope[own], offset[own], *([] if above is total else [above[:, own]])
        above = total
        # No name here holds what a layer makes, so that the next one takes its memory.
        gradients += _layer_back(new, weights, kept[-count:], buffer[:, own], first, second, y, *into)
        kept = kept[:-count]
    to_weights, to_biases, to_betas, to_kernels = zip(*reversed(gradients), strict=True)
    to_parameters = [*to_weights, *to_biases, *to_kernels, *(to_betas if halves.betas else [])]
    like = [*halves.weights, *halves.biases, *halves.kernels, *(halves.betas or ())]
    whole = [_laid(gradient.reshape(of.shape).to(of.dtype)) for gradient, of in zip(to_parameters, like, strict=True)]
    return [fused.image_of(summed(0, inputs).whole(inputs), dy), *whole]


@dataclass
class _Gradient:
    """Rows that are a gradient: dy, or, where y is given, dy + slope (y - mean) + offset, of the norms behind y."""

    dy: Tensor
    y: Tensor | None = None
    mean: Tensor | None = None
    slope: Tensor | None = None
    offset: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor | None, ...]:
        """The arguments that the kernels take which finish it."""
        return self.dy, self.y, self.mean, self.slope, self.offset

    def whole(self, columns: int) -> Tensor:
        """Return it as it is, with columns of zeros put to it."""
        if self.y is None:
            return self.dy
        return fused.part("centred_gradient", self.dy)(*self.parts, columns)


def _layer_back(
    new: _Gradient,
    weights: tuple[Tensor, Tensor],
    kept: list[Tensor],
    x: Tensor,
    first: _Half,
    second: _Half,
    like: Tensor,
    *into: Any,
) -> list[tuple[Tensor, ...]]:
    """Return the gradients of weight, bias, beta and kernel of a layer's second half, and of its first.

    new: that of the layer's new channels.
    """
    matrix, filters = weights
    inner, *read = kept
    behind, gradients = _convolve_back(new, filters, inner, read, second, like, into[0])
    return [gradients, _multiply_back(behind, matrix, x, read, first, *into)]


def _convolve_back(
    new: _Gradient, filters: Tensor, inner: Tensor, read: list[Tensor], half: _Half, like: Tensor, training: bool
) -> tuple[_Gradient, tuple[Tensor, ...]]:
    """Return the gradients of a 3x3 convolution's bottleneck, and of its half's weight, bias, beta and kernel.

    read: what the convolution read, taken from here if it was written.
    """
    growth = half.kernel.shape[0]
    columns = _padded(growth)
    if not convolutions_fit(like, inner.shape[1], growth):
        to_activated, to_kernel, _ = torch.ops.aten.convolution_backward(
            fused.image_of(new.whole(columns), like), fused.image_of(read.pop(0), like), filters,
            None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
        back = fused.part("batch_norm_activation_backward", inner)
        to_inner, *gradients = back(fused.rows_of(to_activated), inner, *half.norm, training)
        return _Gradient(to_inner), (*gradients, to_kernel[:growth])
    back = fused.part("dense_convolution_backward", inner)
    # The kernels finish the gradient of the new channels themselves, and the reference does not.
    dy, *behind = new.parts if back is not fused.REFERENCES["dense_convolution_backward"] else (new.whole(columns),)
    given = (dy, filters.movedim(1, -1), inner, *half.norm, training, *like.shape[2:], growth, *behind)
    scaled, to_kernel, *gradients, slope, offset = back(*given)
    of_inner = (inner, half.mean, slope, offset) if training else ()
    return _Gradient(scaled, *of_inner), (*gradients, to_kernel.movedim(-1, 1))


def _multiply_back(
    behind: _Gradient, matrix: Tensor, x: Tensor, read: list[Tensor], half: _Half, *into: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of the weight, bias, beta and kernel of a 1x1 convolution's half.

    Add that of x to what ``into`` names, as batch_norm_activation_add_backward takes it; where ``into`` ends with other
    rows, write their sum there.
    """
    if products_fit(x, len(matrix), x.shape[1]):
        back = fused.part("dense_product_backward", x)
        to_kernel, *gradients = back(*behind.parts, matrix, x, *half.norm, *into)
        return *gradients, to_kernel
    to_inner = behind.whole(len(matrix))
    to_kernel = (to_inner.t() @ read[0])[:, : x.shape[1]]
    back = fused.part("batch_norm_activation_add_backward", x)
    return *back(to_inner @ matrix, x, *half.norm, *into), to_kernel


def _is_added(above: Tensor, buffer: Tensor, halves: Halves, channels: int) -> bool:
    """Whether the last layer's kernel reads the block's gradient where it lies: rows that begin on 16 bytes."""
    begins = not any(size % PADDED for size in (above.stride(0), above.storage_offset()))
    fit = above.dtype == buffer.dtype and products_fit(buffer, len(halves.kernels[-2]), channels)
    return begins and fit and library.kernel("dense_product_backward", buffer) is not None


def _copy(rows: Tensor, to: Tensor) -> None:
    """Copy rows to others of another stride, where possible by 8 or 4 bytes: PyTorch does it number by number."""
    sizes = (rows.shape[1], rows.stride(0), to.stride(0), rows.storage_offset())
    for word in (torch.int64, torch.int32):
        if rows.stride(1) == 1 and not any(size * rows.element_size() % word.itemsize for size in sizes):
            rows, to = rows.view(word), to.view(word)
            break
    to.copy_(rows)


def _laid(gradient: Tensor) -> Tensor:
    """Return the gradient in the memory order of its fake: of a 3x3 kernel channels last, as cuDNN has it."""
    spatial = gradient.ndim == 4 and gradient.shape[2] > 1
    return gradient.contiguous(memory_format=torch.channels_last if spatial else torch.contiguous_format)


def _shape_backward(dy: Tensor, y: Tensor, *given: Any) -> list[Tensor]:
    halves, inputs = Halves(*given[2:8]), given[8]
    images, _, *places = y.shape
    dx = y.new_empty(images, *places, inputs).movedim(-1, 1)
    parameters = (*halves.weights, *halves.biases, *halves.kernels, *(halves.betas or ()))
    return [dx, *(_laid(parameter.new_empty(parameter.shape)) for parameter in parameters)]


def _layers(x: Tensor, halves: Halves, activation: str, epsilon: float) -> Iterator[tuple[_Half, _Half]]:
    """Yield both halves of each layer with the running statistics, which the batch's replace in training."""
    computed, number = _computed(x), fused.ACTIVATIONS.index(activation)
    layer_halves = []
    for at, kernel in enumerate(halves.kernels):
        beta = halves.betas[at].to(computed) if halves.betas else None
        vectors = (halves.weights[at].to(computed), halves.biases[at].to(computed), beta)
        running = (
            statistics[at].to(computed) if statistics else x.new_empty(0)
            for statistics in (halves.running_means, halves.running_variances)
        )
        layer_halves.append(_Half(*vectors, kernel, *running, number, epsilon))  # type: ignore[arg-type, call-arg]
    yield from zip(layer_halves[::2], layer_halves[1::2], strict=True)


def _computed(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _padded(channels: int, multiple: int = PADDED) -> int:
    return -(-channels // multiple) * multiple


def _pack(x: Tensor, kernels: list[Tensor]) -> Tensor:
    """Return all weights in x's dtype, one behind the other, with zeros where ``_unpacked`` pads them."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    fit = all(kernel.dtype == torch.float32 for kernel in kernels) and not any(
        len(kernel) % PADDED for kernel in kernels[::2]
    )
    pack = library.kernel("dense_weights", x) if x.is_cuda and half and fit else None
    if pack is not None:
        return pack(x, kernels)
    packed = x.new_zeros(sum(_packed_sizes(kernels)))
    for (matrix, filters), at in zip(_unpacked(packed, kernels), range(0, len(kernels), 2), strict=True):
        matrix[:, : kernels[at].shape[1]] = kernels[at].flatten(1)
        filters[: len(kernels[at + 1])] = kernels[at + 1]
    return packed


def _packed_sizes(kernels: list[Tensor]) -> list[int]:
    """The numbers of each kernel with its zeros."""
    return [
        _padded(len(kernel)) * kernel[0].numel() if at % 2 else len(kernel) * _padded(kernel.shape[1])
        for at, kernel in enumerate(kernels)
    ]


def _unpacked(packed: Tensor, kernels: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each layer's matrix of a 1x1 convolution, [outputs, inputs], and filters of a 3x3 one, channels last.

    Inputs of the matrix and outputs of the filters are padded. cuDNN is faster with padded outputs: on an H200 303 us
    for the three convolutions of 48 channels to 16 (512 images of 32 x 32, bf16), and 381 us for those to 12.
    """
    parts = packed.split(_packed_sizes(kernels))
    for first, second, kernel_of_second in zip(parts[::2], parts[1::2], kernels[1::2], strict=True):
        channels, *sides = kernel_of_second.shape[1:]
        yield first.view(channels, -1), second.view(-1, *sides, channels).movedim(-1, 1)


def _check(x: Tensor, halves: Halves, activation: str) -> None:
    """Refuse what the kernels do not take."""
    if x.dtype not in fused.DTYPES or x.ndim != 4:
        raise ValueError(f"dense_block takes x [N, C, H, W] of floating point, got {tuple(x.shape)} of {x.dtype}")
    if 0 in x.shape[1:]:
        raise ValueError(f"dense_block takes images of at least one channel and one pixel, got x {tuple(x.shape)}")
    if activation not in fused.ACTIVATIONS:
        raise ValueError(f"dense_block takes an activation of {', '.join(fused.ACTIVATIONS)}, got {activation!r}")
    kernels, betas = halves.kernels, halves.betas
    if not kernels or len(kernels) % 2:
        raise ValueError(f"dense_block takes two kernels for each layer, got {len(kernels)}")
    if betas is not None and len(betas) != len(kernels):
        raise ValueError(f"dense_block takes a beta for each of {len(kernels)} activations or None, got {len(betas)}")
    for at, beta in enumerate(betas or []):
        if beta.shape != ():
            raise ValueError(f"dense_block takes scalar betas, got beta {at} of shape {tuple(beta.shape)}")
    growth = kernels[1].shape[0]
    for at, kernel in enumerate(kernels):
        channels = kernels[at - 1].shape[0] if at % 2 else x.shape[1] + at // 2 * growth
        wanted = (growth, channels, 3, 3) if at % 2 else (kernel.shape[0], channels, 1, 1)
        if kernel.shape != wanted or not len(kernel):
            shape = tuple(size or "at least 1" for size in wanted)
            raise ValueError(f"dense_block takes kernel {at} of shape {shape}, got {tuple(kernel.shape)}")
        for name in ("weights", "biases", "running_means", "running_variances"):
            given = getattr(halves, name)
            if len(given) != len(kernels) or given[at].shape != (channels,):
                raise ValueError(
                    f"dense_block takes {name} of {len(kernels)} norms, of norm {at} of shape ({channels},)"
                )


def _cast(device: str, x: Tensor, *given: Any) -> list[Tensor]:
    """Autocast: x takes its dtype; the parameters are cast where they are used."""
    (x,) = in_autocast(device, x)
    return torch.ops.reread_kernels.dense_block(x, *given)


_PARAMETERS = "Tensor[] weights, Tensor[] biases, Tensor[]? betas, Tensor[] kernels"
define(
    f"dense_block_backward(Tensor dy, Tensor y, Tensor[]? batch, Tensor[] kept, {_PARAMETERS}, "
    "Tensor[]? running_means, Tensor[]? running_variances, int inputs, str activation, float epsilon, bool training) "
    "-> Tensor[]",
    _run_backward,
    _shape_backward,
)
define(
    f"dense_block(Tensor x, {_PARAMETERS}, Tensor[] running_means, Tensor[] running_variances, str activation, "
    "float epsilon, bool training, bool keeps) -> Tensor[]",
    _run,
    _shape,
    backward=_differentiate,
    setup_context=_setup_context,
    autocast=_cast,
)
