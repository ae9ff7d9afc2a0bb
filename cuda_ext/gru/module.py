"""``torch.nn.GRU`` on the kernels: the same arguments, parameters, initial values and results.

Each layer is one call of ``gru`` or ``gru_ragged``. Padded batches with lengths, ragged rows with offsets and nested
tensors (layout ``torch.jagged``) come in beside what ``nn.GRU`` takes. More than 128 units run PyTorch's own GRU
instead, with a warning; strict mode refuses that.

Shape legend: N sequences, T steps, M real steps, I inputs, H units a direction, d directions, L layers.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cuda_ext import library
from cuda_ext.gru import MOST_UNITS, gru, gru_ragged

# x, the parameters and the first states of one layer -> its states and its last ones.
Layer = Callable[[Tensor, list[Tensor], Tensor | None], tuple[Tensor, Tensor]]


class GRU(nn.Module):
    """``nn.GRU`` whose layers run on the kernels; a state dict loads both ways.

    It is no subclass: torch.compile breaks its graph at every ``nn.GRU``.

    - ``input_size``, ``hidden_size``, ``num_layers``, ``bias``, ``batch_first``, ``dropout``, ``bidirectional``,
      ``device``, ``dtype``: as of ``nn.GRU``.

    Dropout between layers draws other numbers than ``nn.GRU`` of the same seed.

    >>> layer = GRU(4, 3, num_layers=2, batch_first=True, bidirectional=True)
    >>> states, last = layer(torch.randn(2, 5, 4), lengths=torch.tensor([5, 2]))
    >>> states.shape, last.shape
    (torch.Size([2, 5, 6]), torch.Size([4, 2, 3]))
    >>> states[1, 2:].abs().max().item()
    0.0
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        for name, parameter in self._plain(device, dtype).named_parameters():
            self.register_parameter(name, parameter)

    def _plain(self, device: torch.device | str | None, dtype: torch.dtype | None = None) -> nn.GRU:
        return nn.GRU(
            self.input_size, self.hidden_size, self.num_layers, self.bias, self.batch_first, self.dropout,
            self.bidirectional, device=device, dtype=dtype,
        )  # fmt: skip

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Return the states of the last layer, in the form of ``input``, and each layer's last states [L d, N, H].

        - ``input``: [T, N, I], or [N, T, I] with batch_first; [T, I] of one sequence; a PackedSequence; a nested tensor
          [N, jagged, I]; or, with offsets, ragged rows [M, I].
        - ``hx``: the first states [L d, N, H] (of one sequence [L d, H]); None for zeros.
        - ``lengths``: int [N] on the device of ``input``, of a padded batch; states at padding are zero.
        - ``offsets``: int [N + 1] of ragged rows: sequence n is rows offsets[n] to offsets[n + 1].

        Raises ValueError where lengths or offsets do not go with the input.
        """
        own_form = lengths is not None or offsets is not None or (isinstance(input, Tensor) and input.is_nested)
        if lengths is not None and (offsets is not None or not isinstance(input, Tensor) or input.ndim != 3):
            raise ValueError("GRU takes lengths with a padded batch of three dimensions, and no offsets beside them")
        if offsets is not None and (not isinstance(input, Tensor) or input.ndim != 2):
            raise ValueError("GRU takes offsets with ragged rows [M, I]")
        if self.hidden_size > MOST_UNITS:
            if own_form:
                raise ValueError(
                    f"GRU of more than {MOST_UNITS} units takes what nn.GRU takes: a padded batch without lengths or a "
                    f"PackedSequence"
                )
            library.run_reference("GRU", f"the kernels take at most {MOST_UNITS} units, got {self.hidden_size}")
            plain = self._plain("meta").train(self.training)
            for name, parameter in self.named_parameters():
                setattr(plain, name, parameter)
            return plain(input, hx)
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        if offsets is not None:
            return self._layers(input, hx, self._ragged(offsets))
        if input.is_nested:
            bounds = input.offsets()  # type: ignore[attr-defined]
            if input.lengths() is not None:  # type: ignore[attr-defined]
                raise ValueError("GRU takes a nested tensor without holes: call its .contiguous()")
            states, last = self._layers(input.values(), hx, self._ragged(bounds))
            return torch.nested.nested_tensor_from_jagged(states, bounds), last
        return self._padded(input, hx, lengths)

    def _ragged(self, offsets: Tensor) -> Layer:
        return lambda x, parameters, hx: gru_ragged(x, offsets, parameters, self.bidirectional, initial=hx)

    def _padded(self, x: Tensor, hx: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if x.ndim == 2:
            axis = 0 if self.batch_first else 1
            states, last = self._padded(x.unsqueeze(axis), None if hx is None else hx.unsqueeze(1), None)
            return states.squeeze(axis), last.squeeze(1)
        x = x if self.batch_first else x.transpose(0, 1)
        states, last = self._layers(
            x, hx, lambda x, parameters, hx: gru(x, lengths, parameters, self.bidirectional, initial=hx)
        )
        return states if self.batch_first else states.transpose(0, 1), last

    def _packed(self, packed: PackedSequence, hx: Tensor | None) -> tuple[PackedSequence, Tensor]:
        """Reorder the steps by sequence, and back; the order is made on the CPU, where ``batch_sizes`` is."""
        data, sizes, in_order, in_old_order = packed
        real = torch.arange(int(sizes[0])) < sizes.unsqueeze(1)
        place = torch.zeros(real.shape, dtype=torch.long)
        place[real] = torch.arange(len(data))
        by_sequence = place.t()[real.t()]
        offsets = torch.zeros(real.shape[1] + 1, dtype=torch.long)
        offsets[1:] = real.sum(0).cumsum(0)
        rows, back, offsets = (
            tensor.to(data.device, non_blocking=True) for tensor in (by_sequence, by_sequence.argsort(), offsets)
        )
        if hx is not None and in_order is not None:
            hx = hx.index_select(1, in_order)
        states, last = self._layers(data[rows], hx, self._ragged(offsets))
        if in_old_order is not None:
            last = last.index_select(1, in_old_order)
        return PackedSequence(states[back], sizes, in_order, in_old_order), last

    def _layers(self, x: Tensor, hx: Tensor | None, run: Layer) -> tuple[Tensor, Tensor]:
        """Raises ValueError where hx is not as many layers' first states."""
        directions, last = 1 + self.bidirectional, []
        if hx is not None and hx.shape[0] != self.num_layers * directions:
            raise ValueError(f"GRU takes hx [{self.num_layers * directions}, N, H], got {tuple(hx.shape)}")
        for number in range(self.num_layers):
            if number and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            first = None if hx is None else hx[number * directions : (number + 1) * directions]
            x, of_layer = run(x, self._parameters_of(number), first)
            last.append(of_layer)
        return x, torch.cat(last)

    def _parameters_of(self, number: int) -> list[Tensor]:
        """The four parameters a direction of a layer; biases of zeros where it has none."""
        parameters = []
        for direction in ("", "_reverse")[: 1 + self.bidirectional]:
            weights = [getattr(self, f"weight_{name}_l{number}{direction}") for name in ("ih", "hh")]
            if self.bias:
                biases = [getattr(self, f"bias_{name}_l{number}{direction}") for name in ("ih", "hh")]
            else:
                biases = [weights[0].new_zeros(3 * self.hidden_size)] * 2
            parameters += weights + biases
        return parameters

    def extra_repr(self) -> str:
        return self._plain("meta").extra_repr()
