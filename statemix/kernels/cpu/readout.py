"""The outputs y = W_o h of a chunk of steps: of all steps, or from one step of every row on.

Rows of `length` steps are concatenated on one axis, h (N, states), and so are their outputs, y.
States are float32; W_o, outputs and gradients of states have the dtype of the products.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.kernels.cpu import products

__all__ = ["Readout"]


@dataclass(frozen=True)
class Readout:
    """Reads the steps `start` .. `length` − 1 of every row."""

    W_o: Tensor
    length: int
    start: int

    def forward(self, a: int, b: int, h: Tensor, y: Tensor) -> None:
        """Write the outputs of the steps a .. b − 1, whose states are h."""
        products.into(y[self._outputs(a, b)], self._low(h[self._local(a, b)]), self.W_o.t())

    def backward(self, a: int, b: int, dy: Tensor, dh: Tensor) -> None:
        """Write the gradients of those states; they are zero at steps that are not read."""
        if not self.start:
            products.into(dh, dy[a:b], self.W_o)
            return
        dh.zero_()
        read = dh.new_empty((self.count(b) - self.count(a), dh.shape[1]))
        products.into(read, dy[self._outputs(a, b)], self.W_o)
        dh[self._local(a, b)] = read

    def add_gradient(self, a: int, b: int, dy: Tensor, h: Tensor, dW_o: Tensor) -> None:
        """Add what those steps contribute to the gradient of W_o."""
        products.add_product(dW_o, dy[self._outputs(a, b)].t(), self._low(h[self._local(a, b)]))

    def gradient(self, dy: Tensor, h: Tensor) -> Tensor:
        """The gradient of W_o, from the states of all steps."""
        if self.start:
            h = h.view(-1, self.length, h.shape[1])[:, self.start :].flatten(0, 1)
        dW_o = torch.empty(self.W_o.shape)
        products.into(dW_o, dy.t(), self._low(h))
        return dW_o

    def _low(self, h: Tensor) -> Tensor:
        """States in the dtype of the products."""
        return h.to(self.W_o.dtype)

    def count(self, step: int) -> int:
        """The number of outputs before `step`."""
        row, t = divmod(step, max(self.length, 1))
        return row * (self.length - self.start) + max(0, t - self.start)

    def _outputs(self, a: int, b: int) -> slice:
        return slice(self.count(a), self.count(b))

    def _local(self, a: int, b: int) -> slice | Tensor:
        """Where the steps that are read lie in a chunk."""
        if not self.start:
            return slice(0, b - a)
        return (torch.arange(a, b) % self.length >= self.start).nonzero().squeeze(1)
