"""PyTorch's LSTM with an output projection."""

from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.ragged import RaggedMixer
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes

__all__ = ["LSTM"]

State = tuple[Float[Tensor, "B hidden"], Float[Tensor, "B hidden"]]


@register_mixer("lstm")
class LSTM(RaggedMixer):
    """y = W_o h for the state (h, c) of an LSTM with `hidden` units; h and c are (B, hidden)."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "hidden": hidden})
        self.d_model = d_model
        self.hidden = hidden
        self.cell = nn.LSTM(d_model, hidden, batch_first=True)
        self.W_o = make_linear(hidden, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """Number of scalars in h and c."""
        return 2 * self.hidden

    def run(
        self,
        x: Float[Tensor, "B T d"],
        state: State | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], State]:
        """Run all rows, each up to its length."""
        if state is None:
            zeros = x.new_zeros((x.shape[0], self.hidden))
            state = (zeros, zeros)
        if x.shape[1] == 0:
            return x, state
        start = tuple(s.unsqueeze(0).contiguous() for s in state)
        if lengths is None:
            h, (h_n, c_n) = self._run_cell(x, start)
            return self.W_o(h), (h_n[0], c_n[0])
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        h, (h_n, c_n) = self._run_cell(packed, start)
        h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True, total_length=x.shape[1])
        moved = (lengths > 0)[:, None]
        return self.W_o(h), (
            torch.where(moved, h_n[0], state[0]),
            torch.where(moved, c_n[0], state[1]),
        )

    def _run_cell(self, x: Any, start: tuple[Tensor, ...]) -> tuple[Any, State]:
        """Run PyTorch's LSTM; on a CPU, disable autocast, which not all CPUs support for LSTMs."""
        device = self.cell.weight_hh_l0.device.type
        if device != "cpu":
            return self.cell(x, start)
        dtype = next(self.cell.parameters()).dtype
        with torch.autocast(device, enabled=False):
            return self.cell(x.to(dtype), tuple(s.to(dtype) for s in start))
