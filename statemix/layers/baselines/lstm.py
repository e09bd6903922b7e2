"""torch's LSTM and a projection."""

from typing import Any

import torch
from torch import Tensor, nn

from statemix.layers.baselines.ragged import RaggedMixer
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes

State = tuple[Tensor, Tensor]


@register_mixer("lstm")
class LSTM(RaggedMixer):
    """y = W_o h, with (h, c) of an LSTM of `hidden` units; states are (B, hidden) each."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "hidden": hidden})
        self.d_model, self.hidden = d_model, hidden
        self.cell = nn.LSTM(d_model, hidden, batch_first=True)
        self.W_o = make_linear(hidden, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """h and c."""
        return 2 * self.hidden

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """All rows, each up to its length."""
        if state is None:
            state = (x.new_zeros((x.shape[0], self.hidden)), x.new_zeros((x.shape[0], self.hidden)))
        if x.shape[1] == 0:
            return x, state
        start = tuple(s.unsqueeze(0).contiguous() for s in state)
        if lengths is None:
            h, (h_n, c_n) = self.run_cell(x, start)
            return self.W_o(h), (h_n[0], c_n[0])
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        h, (h_n, c_n) = self.run_cell(packed, start)
        h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True, total_length=x.shape[1])
        moved = (lengths > 0)[:, None]
        return self.W_o(h), (
            torch.where(moved, h_n[0], state[0]),
            torch.where(moved, c_n[0], state[1]),
        )

    def run_cell(self, x: Any, start: tuple[Tensor, ...]) -> tuple[Any, State]:
        """torch's LSTM; on a CPU outside autocast, under which not every CPU has one."""
        device = self.cell.weight_hh_l0.device.type
        if device != "cpu":
            return self.cell(x, start)
        dtype = next(self.cell.parameters()).dtype
        with torch.autocast(device, enabled=False):
            return self.cell(x.to(dtype), tuple(s.to(dtype) for s in start))
