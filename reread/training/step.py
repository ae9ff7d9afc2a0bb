"""One training step: forward pass, loss, backward pass, clipping, update.

On a GPU forward pass, backward pass and clipping replay from a CUDA graph, one for each shape of the batch
(cuda_ext/graphs.py; reread/batches/text.py keeps the number of shapes small). The update, one or two launches, stays
outside, so that the learning rate is a plain number; so does the clipping of a scaled loss's gradients. A call and a
replay give the same bits, so that a resumed run ends with the same weights as an uninterrupted one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cuda_ext.branch import branch_of_step
from cuda_ext.foreach_copy import foreach_copy
from cuda_ext.gradient_norm import gradient_norm
from cuda_ext.graphs import Graphs
from models.layers.embedding import word_embedding
from models.objectives import Objective, scores
from reread.training.adversarial import PerturbedEmbedding, worst_perturbation
from reread.training.device import mixed_precision
from reread.training.optimisers import set_learning_rate
from reread.training.processes import SINGLE_PROCESS, Processes
from reread.training.settings import Settings


@dataclass(frozen=True)
class StepOutput:
    """The results of a step, on the device: reading a value waits for the step.

    loss: mean over the batch, float32 []; correct: share of right answers, float64 []; norm: of all gradients together,
    before clipping, float32 [].
    """

    loss: Tensor
    correct: Tensor
    norm: Tensor

    def clone(self) -> "StepOutput":
        """Clone all values by one launch."""
        values = self.loss, self.correct, self.norm
        clones = [torch.empty_like(value) for value in values]
        foreach_copy(clones, values)
        return StepOutput(*clones)


class Step:
    """Trains ``network`` on one batch per call."""

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimiser: torch.optim.Optimizer,
        settings: Settings,
        device: torch.device,
        processes: Processes = SINGLE_PROCESS,
    ) -> None:
        self.network = network
        self.objective = objective
        self.optimiser = optimiser
        self.settings = settings
        self.device = device
        self.processes = processes
        self.half = mixed_precision(settings, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half is torch.float16)
        self.graphed = device.type == "cuda" and settings.cuda_graphs
        # Gradients that are summed over processes, or scaled, are finished after the graph: the scaler records on the
        # host which gradients it has checked. A fused optimiser skips an overflow without a read from the device.
        self.clips_outside_graph = processes.is_distributed or self.scaler.is_enabled()
        # Clipping on its own reads and writes every gradient once more.
        self.optimiser_clips = (
            device.type == "cuda" and settings.max_grad_norm > 0 and getattr(optimiser, "clips", False)
        )
        self.parameters = list(network.parameters())
        # What the backward pass begins with: left to autograd, each step would fill one.
        self._one = torch.ones((), device=device)
        self.words = word_embedding(network, "adversarial_epsilon", 0) if settings.adversarial_epsilon else None
        self._graphs = Graphs(self._with_gradients, "this network's step", device) if self.graphed else None

    def __call__(self, inputs: tuple[Tensor, ...], target: Tensor, rate: float, share: float = 1.0) -> StepOutput:
        """Train on one batch (``inputs`` as the network takes them) at learning rate ``rate``.

        share: this process's rows as a share of those of all processes.
        """
        set_learning_rate(self.optimiser, rate)
        outcome = self._from_graph(inputs, target) if self._graphs else self._with_gradients(*inputs, target)[0]
        if self.processes.is_distributed:
            self._sum_over_processes(outcome, share)
        if self.clips_outside_graph:
            outcome = replace(outcome, norm=self._clipped())
        clipping = {"norm": outcome.norm, "largest_norm": self.settings.max_grad_norm} if self.optimiser_clips else {}
        self.scaler.step(self.optimiser, **clipping)
        self.scaler.update()
        return outcome

    def _from_graph(self, inputs: tuple[Tensor, ...], target: Tensor) -> StepOutput:
        outcome, gradients = self._graphs(*inputs, target)  # type: ignore[misc]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        # The next replay overwrites it.
        return outcome.clone()

    def _with_gradients(self, *batch: Tensor) -> tuple[StepOutput, list[Tensor | None]]:
        """Return the outcome for inputs and target, and the gradient of each parameter."""
        # Without an existing gradient the backward pass allocates one; during a capture, in the graph's own memory.
        self.optimiser.zero_grad()
        outcome = self._gradients(batch[:-1], batch[-1])
        return outcome, [parameter.grad for parameter in self.parameters]

    def _gradients(self, inputs: tuple[Tensor, ...], target: Tensor) -> StepOutput:
        """Return the outcome and compute all gradients: not yet summed or clipped if finished later."""
        backward = self._backward if self.words is None else self._adversarial
        right, loss = backward(inputs, target)
        norm = torch.zeros_like(loss) if self.clips_outside_graph else self._clipped()
        return StepOutput(loss.detach(), right, norm)

    def _sum_over_processes(self, outcome: StepOutput, share: float) -> None:
        """Sum the outcome and the gradients over all processes."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.processes.weighted_all_reduce([*gradients, outcome.loss, outcome.correct], share)

    def _clipped(self) -> Tensor:
        """Clip the gradients, unless the optimiser does, and return their norm before that, float32 []."""
        self.scaler.unscale_(self.optimiser)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        total_norm = gradient_norm if self.device.type == "cuda" else torch.nn.utils.get_total_norm
        norm = total_norm(gradients)
        if self.settings.max_grad_norm and not self.optimiser_clips:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.settings.max_grad_norm, norm)
        return norm

    def _backward(self, inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the share of right answers and the loss; add the loss's gradient to the existing gradients."""
        with branch_of_step(self.device) as beside:
            output, loss = self._forward(inputs, target)
            beside.begin_backward()
            right = beside(lambda: self.objective.correct(output, target).double().mean())
            self.scaler.scale(loss).backward(self._one)
        return right, loss

    def _forward(self, inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and loss."""
        autocast = torch.autocast(
            self.device.type, self.half, enabled=self.half is not None, cache_enabled=not self.graphed
        )
        with autocast:
            outputs = self.network(*inputs)
        outputs = tuple(map(Tensor.float, outputs)) if isinstance(outputs, tuple) else outputs.float()
        loss = self.objective.loss(self.network, outputs, target, inputs)
        return scores(outputs), loss

    def _adversarial(self, inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and loss at the unperturbed words; the gradient is that of the losses at both."""
        tokens, word_counts, _ = inputs
        perturbed = PerturbedEmbedding(self.words, tokens)  # type: ignore[arg-type]
        vectors = perturbed.vectors()
        vectors.retain_grad()
        with perturbed.override_embedding(vectors):
            outcome = self._backward((perturbed.numbers, *inputs[1:]), target)
        perturbation = worst_perturbation(vectors.grad, tokens, word_counts, self.settings.adversarial_epsilon)  # type: ignore[arg-type]
        with perturbed.override_embedding(perturbed.vectors() + perturbation):
            self._backward((perturbed.numbers, *inputs[1:]), target)
        return outcome
