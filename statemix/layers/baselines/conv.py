"""A causal convolution: a mixer without recurrence, which sees the last `kernel` steps and no more."""

import torch
from torch import Tensor, nn

from statemix.layers.baselines.ragged import RaggedMixer, last_inputs
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes


@register_mixer("conv")
class Conv(RaggedMixer):
    """y[t] = Σ_k W_k x[t-k] + b, over all channels; the state is the last kernel − 1 inputs."""

    def __init__(self, d_model: int, kernel: int = 4) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "kernel": kernel})
        self.d_model, self.kernel = d_model, kernel
        self.conv = nn.Conv1d(d_model, d_model, kernel)

    @property
    def state_size(self) -> int:
        """The inputs that the next step still sees."""
        return (self.kernel - 1) * self.d_model

    def run(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """All rows, each up to its length."""
        before = (
            x.new_zeros((x.shape[0], self.kernel - 1, self.d_model)) if state is None else state
        )
        if x.shape[1] == 0:
            return x, before
        history = torch.cat([before, x], 1)
        return self.conv(history.transpose(1, 2)).transpose(1, 2), last_inputs(x, before, lengths)
