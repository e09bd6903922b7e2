"""A causal convolution: a mixer without recurrence, which sees only the last `kernel` steps."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.ragged import RaggedMixer, last_inputs
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes

__all__ = ["Conv"]


@register_mixer("conv")
class Conv(RaggedMixer):
    """y[t] = Σ_k W_k x[t-k] + b, over all channels; the state is the last kernel − 1 inputs."""

    def __init__(self, d_model: int, kernel: int = 4) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "kernel": kernel})
        self.d_model = d_model
        self.kernel = kernel
        self.conv = nn.Conv1d(d_model, d_model, kernel)

    @property
    def state_size(self) -> int:
        """Number of scalars in the last kernel − 1 inputs."""
        return (self.kernel - 1) * self.d_model

    def run(
        self,
        x: Float[Tensor, "B T d"],
        state: Float[Tensor, "B k d"] | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], Float[Tensor, "B k d"]]:
        """Run all rows, each up to its length."""
        if state is None:
            state = x.new_zeros((x.shape[0], self.kernel - 1, self.d_model))
        if x.shape[1] == 0:
            return x, state
        history = torch.cat([state, x], 1)
        return self.conv(history.transpose(1, 2)).transpose(1, 2), last_inputs(x, state, lengths)
