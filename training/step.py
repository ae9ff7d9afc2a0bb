"""One training step: forward pass, loss, backward pass, clipping, update.

On a GPU a small network's step is hundreds of launches that take the CPU longer to issue than the GPU to do. There the
step is captured in a CUDA graph, one for each shape of its inputs (batches/text.py sees to it that there are few),
and replayed; the update, a launch or two, stays outside, so that the learning rate is a plain number. What replays and
what is called give the same bits, so that a run that was killed ends as one that was not.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.layers.embedding import word_embedding
from models.objectives import Objective, scores
from training.adversarial import Places, worst
from training.device import mixed_precision
from training.optimisers import set_learning_rate
from training.processes import ONE, Processes
from training.settings import Settings


class GraphWarning(UserWarning):
    """A network's step cannot be captured in a CUDA graph: it is called instead."""


def draw_outside_of_graphs() -> None:
    """Let the current GPU draw random numbers after a capture that failed: until it is given a state that no graph
    knows, its generator believes to be captured still, and refuses."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


@dataclass(frozen=True)
class Outcome:
    """What a step gave, on the device: reading a value waits for the step.

    loss: mean over the batch, float32 []; correct: share of right answers, float64 []; norm: of all gradients together,
    before clipping, float32 [].
    """

    loss: Tensor
    correct: Tensor
    norm: Tensor


@dataclass(frozen=True)
class Captured:
    """A step's graph with the places that it reads from and writes to."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outcome: Outcome
    gradients: list[Tensor | None]


class Step:
    """Trains ``network`` by one batch a call."""

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimiser: torch.optim.Optimizer,
        settings: Settings,
        device: torch.device,
        processes: Processes = ONE,
    ) -> None:
        self.network = network
        self.objective = objective
        self.optimiser = optimiser
        self.settings = settings
        self.device = device
        self.processes = processes
        self.half = mixed_precision(settings, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half is torch.float16)
        # A scaled step is passed over where its gradient overflows, which the CPU decides.
        self.graphed = device.type == "cuda" and settings.cuda_graphs and not self.scaler.is_enabled()
        self.parameters = list(network.parameters())
        self.words = word_embedding(network, "adversarial_epsilon", 0) if settings.adversarial_epsilon else None
        self._captured: dict[tuple, Captured] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.graphed else None

    def __call__(self, inputs: tuple[Tensor, ...], target: Tensor, rate: float, share: float = 1.0) -> Outcome:
        """Train on one batch (``inputs`` as the network takes them) at learning rate ``rate``.

        share: of the rows of all processes together, those that are here.
        """
        set_learning_rate(self.optimiser, rate)
        outcome = self._replay(inputs, target) if self.graphed else None
        if outcome is None:
            self.optimiser.zero_grad()
            outcome = self._gradients(inputs, target)
        if self.processes.several:
            outcome = self._reduced(outcome, share)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return outcome

    def _gradients(self, inputs: tuple[Tensor, ...], target: Tensor) -> Outcome:
        """The outcome with all gradients; of one of several processes its own, neither reduced nor clipped."""
        backward = self._backward if self.words is None else self._adversarial
        found, loss = backward(inputs, target)
        right = self.objective.correct(found, target).double().mean()
        norm = torch.zeros_like(loss) if self.processes.several else self._clipped()
        return Outcome(loss.detach(), right, norm)

    def _reduced(self, outcome: Outcome, share: float) -> Outcome:
        """The outcome and the gradients of all processes together."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.processes.add_up([*gradients, outcome.loss, outcome.correct], share)
        return Outcome(outcome.loss, outcome.correct, self._clipped())

    def _clipped(self) -> Tensor:
        """Clip the gradients and return their norm before that, float32 []."""
        self.scaler.unscale_(self.optimiser)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.settings.max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.settings.max_grad_norm, norm)
        return norm

    def _backward(self, inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and loss, whose gradient is added to what is there."""
        with torch.autocast(self.device.type, self.half, enabled=self.half is not None, cache_enabled=not self.graphed):
            outputs = self.network(*inputs)
        outputs = tuple(map(Tensor.float, outputs)) if isinstance(outputs, tuple) else outputs.float()
        loss = self.objective.loss(self.network, outputs, target, inputs)
        self.scaler.scale(loss).backward()
        return scores(outputs), loss

    def _adversarial(self, inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and loss at the words as they are; the gradient is of it and of the loss at perturbed words."""
        tokens, word_counts, _ = inputs
        places = Places(self.words, tokens)
        vectors = places.vectors()
        vectors.retain_grad()
        with places.read_as(vectors):
            outcome = self._backward((places.numbers, *inputs[1:]), target)
        perturbation = worst(vectors.grad, tokens, word_counts, self.settings.adversarial_epsilon)
        with places.read_as(places.vectors() + perturbation):
            self._backward((places.numbers, *inputs[1:]), target)
        return outcome

    def _replay(self, inputs: tuple[Tensor, ...], target: Tensor) -> Outcome | None:
        """Replay the graph for inputs of these shapes, captured when they first come; None if none can be captured."""
        given = (*inputs, target)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in given)
        if shapes not in self._captured:
            try:
                self._captured[shapes] = self._capture(given)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.graphed = False
                draw_outside_of_graphs()
                first = str(error).splitlines()[0]
                warnings.warn(f"no CUDA graph holds this network's step ({first})", GraphWarning, stacklevel=3)
                return None
        captured = self._captured[shapes]
        for place, tensor in zip(captured.inputs, given, strict=True):
            place.copy_(tensor)
        captured.graph.replay()
        for parameter, gradient in zip(self.parameters, captured.gradients, strict=True):
            parameter.grad = gradient
        # The next replay writes over them.
        outcome = captured.outcome
        return Outcome(outcome.loss.clone(), outcome.correct.clone(), outcome.norm.clone())

    def _capture(self, given: tuple[Tensor, ...]) -> Captured:
        """Capture the step. Nothing that training goes on from is changed: not the buffers, not the random numbers."""
        given = tuple(tensor.clone() for tensor in given)
        buffers = [buffer.clone() for buffer in self.network.buffers()]
        random = torch.cuda.get_rng_state(self.device)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.optimiser.zero_grad()
                    self._gradients(given[:-1], given[-1])
            torch.cuda.current_stream(self.device).wait_stream(stream)
            # Without a gradient to add to, the backward pass makes one in the graph's own memory.
            self.optimiser.zero_grad()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                outcome = self._gradients(given[:-1], given[-1])
            gradients = [parameter.grad for parameter in self.parameters]
        finally:
            self.optimiser.zero_grad()
            with torch.no_grad():
                for buffer, before in zip(self.network.buffers(), buffers, strict=True):
                    buffer.copy_(before)
            torch.cuda.set_rng_state(random, self.device)
        return Captured(graph, given, outcome, gradients)
