"""Recurrent cells as for-loops that expose every gate: the GRU by its equations, and ablations of the GRU.

The GRU of Cho et al. 2014, arXiv 1406.1078, in PyTorch's form (``torch.nn.GRU``: the reset gate after the matrix):

    update     z_t  = sigmoid(W_z x_t + U_z h_{t-1} + b_z)
    reset      r_t  = sigmoid(W_r x_t + U_r h_{t-1} + b_r)
    candidate  h~_t = tanh(W_h x_t + r_t * (U_h h_{t-1} + b_h))
    state      h_t  = z_t * h_{t-1} + (1 - z_t) * h~_t

Here z = 1 keeps the state and z = 0 overwrites it (in Chung et al. 2014, arXiv 1412.3555, it is the other way round).
By name:

    gru          all of it: equal to nn.GRU within rounding, with nn.GRU's parameters
    gru-relu     ReLU in place of tanh in the candidate
    no-reset     r = 1: the candidate always sees the whole state
    no-update    z = 0: the state is the candidate, h_t = h~_t, and nothing is carried over unchanged
    minimal      one gate f for both, r = f and z = 1 - f: the minimal gated unit of Zhou et al. 2016, arXiv 1603.09420,
                 who apply the gate before the matrix; here it is applied after it, as in the GRU, so that the number of
                 gates is the only difference
    rnn          r = 1 and z = 0, which leaves h_t = tanh(W_h x_t + U_h h_{t-1} + b_h): equal to nn.RNN

A step costs a dozen small operations, each a launch on a GPU. Each cell is a GRU with fixed or tied gates, or with
another candidate, so that on a GPU the GRU's kernel reads its sequences.

Shape legend: N rows, T steps, I inputs, H units per direction, G gates and candidate together.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.recurrent import BidirectionalGRU
from models.layers.sequences import real_steps, reverse_by_length

Name = Literal["gru", "gru-relu", "no-reset", "no-update", "minimal", "rnn"]
NAMES: tuple[Name, ...] = get_args(Name)
# The rows of nn.GRU, in its order, that a cell has; for one gate in place of both, that gate.
PARTS: dict[Name, tuple[str, ...]] = {
    "gru": ("reset", "update", "candidate"),
    "gru-relu": ("reset", "update", "candidate"),
    "no-reset": ("update", "candidate"),
    "no-update": ("reset", "candidate"),
    "minimal": ("gate", "candidate"),
    "rnn": ("candidate",),
}
HELD = 200.0  # the bias of a gate that is fixed at 1: in each dtype its sigmoid is 1, and that of its negative 0


class Gates(NamedTuple):
    """The gates and states of a layer at each step, each float [N, T, H] and zero at padding.

    A cell without reset gate has reset 1, one without update gate update 0; the minimal unit has reset f, update 1 - f.
    """

    reset: Tensor
    update: Tensor
    candidate: Tensor
    state: Tensor


class Step(NamedTuple):
    """The gates and state of a cell at one step, each float [N, H]; None for a gate that it does not have."""

    reset: Tensor | None
    update: Tensor | None
    candidate: Tensor
    state: Tensor


class Recurrence(nn.Module):
    """One direction of the named cell over padded rows.

    Parameters are named, ordered and drawn as nn.GRU's (nn.RNN's for ``rnn``) with one layer: weight_ih_l0 [G H, I],
    weight_hh_l0 [G H, H], bias_ih_l0 and bias_hh_l0 [G H], uniform in +-1/sqrt(H).
    """

    def __init__(self, inputs: int, units: int, cell: Name = "gru") -> None:
        super().__init__()
        self.cell: Name = cell
        self.units = units
        rows = len(PARTS[cell]) * units
        self.weight_ih_l0 = nn.Parameter(torch.empty(rows, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(rows, units))
        self.bias_ih_l0 = nn.Parameter(torch.empty(rows))
        self.bias_hh_l0 = nn.Parameter(torch.empty(rows))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def forward(self, x: Tensor, lengths: Tensor | None = None, state: Tensor | None = None) -> Tensor:
        """x float [N, T, I], lengths int [N] (None: all T), first state float [N, H] (None: 0) -> states [N, T, H].

        States at padding are zero; those at real steps do not depend on it.
        """
        states = torch.stack([step.state for step in self.steps(x, state)], dim=1)
        return states if lengths is None else states * real_steps(lengths, x.shape[1]).unsqueeze(-1)

    def gates(self, x: Tensor, lengths: Tensor | None = None, state: Tensor | None = None) -> Gates:
        """Return the states of ``forward`` with every gate."""
        steps = [
            Gates(
                torch.ones_like(state) if reset is None else reset,
                torch.zeros_like(state) if update is None else update,
                candidate,
                state,
            )
            for reset, update, candidate, state in self.steps(x, state)
        ]
        gates = Gates(*(torch.stack(parts, dim=1) for parts in zip(*steps, strict=True)))
        if lengths is None:
            return gates
        real = real_steps(lengths, x.shape[1]).unsqueeze(-1)
        return Gates(*(part * real for part in gates))

    def steps(self, x: Tensor, state: Tensor | None = None) -> list[Step]:
        """Every step over x float [N, T, I]; a state is the very tensor that the next step reads.

        Autocast changes nothing here: rounded to half precision after each step, a state would forget.
        """
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.steps(x.to(self.weight_ih_l0.dtype), state)
        state = x.new_zeros(x.shape[0], self.units) if state is None else state
        steps = []
        for from_input in functional.linear(x, self.weight_ih_l0, self.bias_ih_l0).unbind(1):
            steps.append(self.step(from_input, state))
            state = steps[-1].state
        return steps

    def step(self, from_input: Tensor, state: Tensor) -> Step:
        """W x + b of one step, float [N, G H], and the last state, float [N, H] -> what this step computes."""
        parts = PARTS[self.cell]
        from_state = functional.linear(state, self.weight_hh_l0, self.bias_hh_l0)
        new = dict(zip(parts, from_input.chunk(len(parts), dim=-1), strict=True))
        old = dict(zip(parts, from_state.chunk(len(parts), dim=-1), strict=True))
        reset = torch.sigmoid(new["reset"] + old["reset"]) if "reset" in parts else None
        update = torch.sigmoid(new["update"] + old["update"]) if "update" in parts else None
        if "gate" in parts:
            reset = torch.sigmoid(new["gate"] + old["gate"])
            update = 1 - reset
        remembered = old["candidate"] if reset is None else reset * old["candidate"]
        squash = torch.relu if self.cell == "gru-relu" else torch.tanh
        candidate = squash(new["candidate"] + remembered)
        # Linear interpolation is the candidate plus update * (state - candidate).
        return Step(reset, update, candidate, candidate if update is None else candidate.lerp(state, update))

    def as_gru(self) -> list[Tensor]:
        """Return the parameters of the equivalent nn.GRU in its order: [3 H, I], [3 H, H], [3 H] and [3 H].

        A missing gate is fixed at 0 or 1 by its bias; of one gate for both, update is sigmoid of the
        opposite. gru-relu has a GRU's as they are.
        """
        parameters = []
        for name, parameter in self.named_parameters():
            rows = dict(zip(PARTS[self.cell], parameter.chunk(len(PARTS[self.cell])), strict=True))
            if "gate" in rows:
                rows |= {"reset": rows["gate"], "update": -rows["gate"]}
            for gate, bias in (("reset", HELD), ("update", -HELD)):
                value = bias if name == "bias_ih_l0" else 0.0
                rows.setdefault(gate, torch.full_like(rows["candidate"], value))
            parameters.append(torch.cat([rows[part] for part in PARTS["gru"]]))
        return parameters


class BidirectionalRecurrence(BidirectionalGRU):
    """A ``BidirectionalGRU`` of the named cell; its state dict fits ``gru``."""

    forwards: Recurrence
    backwards: Recurrence

    def __init__(self, inputs: int, units: int, cell: Name = "gru") -> None:
        super().__init__(inputs, units, lambda: Recurrence(inputs, units, cell))
        self.rectified = cell == "gru-relu"

    def flat_parameters(self) -> list[Tensor]:
        return [*self.forwards.as_gru(), *self.backwards.as_gru()]

    def gates(self, x: Tensor, lengths: Tensor) -> Gates:
        """Every gate of both directions side by side, float [N, T, 2H] each, zero at padding."""
        there = self.forwards.gates(x, lengths)
        back = self.backwards.gates(reverse_by_length(x, lengths), lengths)
        return Gates(
            *(
                torch.cat([forward, reverse_by_length(backward, lengths)], -1)
                for forward, backward in zip(there, back, strict=True)
            )
        )
