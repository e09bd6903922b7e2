"""Causal attention with rotary positions: the mixer whose state grows with the sequence.

    (q, k, v)[t] = W_qkv x[t],    q, k rotated by the angles t θ_i,    θ_i = base^(−2i / head_dim)
    p[t, s] ∝ exp(q[t] · k[s] / √head_dim),    t − window < s <= t
    y[t] = W_o Σ_s p[t, s] v[s]

A key keeps the rotation of its own step, so the angle between a query and a key depends on their
distance alone, and no position is too large. The state of a sequence is its keys and values, in
order of time and aligned at the end of their axis, and the number of steps so far. A state is never
changed in place: to roll back, continue from an earlier one.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from statemix.layers.baselines.ragged import RaggedMixer
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes

__all__ = ["Attention", "State"]

Keys = Float[Tensor, "B S kv_heads head_dim"]
State = tuple[Keys, Keys, Integer[Tensor, " B"]]


@register_mixer("attention")
class Attention(RaggedMixer):
    """Causal attention with rotary positions, grouped heads and an optional sliding window.

    A state is (keys, values, steps): keys and values are (B, S, kv_heads, head_dim), of which the
    last min(steps, S) are real; steps (B,) counts the steps of each sequence.

    Args:
        heads: number of query heads, which share the width d_model.
        kv_heads: number of key and value heads, a divisor of `heads` (None: as many as `heads`).
        window: number of steps that a query sees, its own included (None: all).
        base: base of the rotary frequencies.
    """

    def __init__(
        self,
        d_model: int,
        heads: int = 4,
        kv_heads: int | None = None,
        window: int | None = None,
        base: float = 10_000.0,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        check_sizes({"d_model": d_model, "heads": heads, "kv_heads": kv_heads})
        if window is not None:
            check_sizes({"window": window})
        if d_model % (2 * heads):
            raise ValueError(
                f"`heads` must divide d_model = {d_model} into heads of even width, got {heads}."
            )
        if heads % kv_heads:
            raise ValueError(f"`kv_heads` must divide `heads` = {heads}, got {kv_heads}.")
        if not 1 < base < float("inf"):
            raise ValueError(f"`base` must be finite and above 1, got {base}.")
        self.d_model = d_model
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = d_model // heads
        self.window = window
        self.base = base
        self.W_qkv = make_linear(d_model, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.W_o = make_linear(d_model, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """Number of scalars in the keys and values of a full window, or of one step without one."""
        steps = 1 if self.window is None else self.window - 1
        return 2 * steps * self.kv_heads * self.head_dim

    def run(
        self, x: Float[Tensor, "B T d"], state: State | None, lengths: Integer[Tensor, " B"] | None
    ) -> tuple[Float[Tensor, "B T d"], State]:
        """Run all rows, each up to its length."""
        before = self._before(x, state)
        y, keys, values = self._attend(x, before)
        steps = before[2] + (x.shape[1] if lengths is None else lengths)
        if lengths is not None:
            keys, values = (_align(z, x.shape[1] - lengths, steps) for z in (keys, values))
        return y, (self._newest(keys), self._newest(values), steps)

    def trace(
        self, x: Float[Tensor, "B T d"], state: State | None = None
    ) -> tuple[Float[Tensor, "B T d"], list[State]]:
        """The outputs of `forward`, and the state after every step; the states share memory."""
        before = self._before(self._checked(x), state)
        y, keys, values = self._attend(x, before)
        ends = [before[0].shape[1] + t + 1 for t in range(x.shape[1])]
        states = [
            (self._newest(keys[:, :end]), self._newest(values[:, :end]), before[2] + t + 1)
            for t, end in enumerate(ends)
        ]
        return y, states

    def _before(self, x: Tensor, state: State | None) -> State:
        """The given state, or that of sequences which have not begun."""
        if state is None:
            none = x.new_zeros((x.shape[0], 0, self.kv_heads, self.head_dim))
            return none, none, torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
        if state[0].shape[0] != x.shape[0]:
            raise ValueError(
                f"The state must have one row per sequence: expected {x.shape[0]}, "
                f"got {state[0].shape[0]}."
            )
        return state

    def _attend(self, x: Tensor, before: State) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs, and all keys and values: those before x, and those of x."""
        past_keys, past_values, steps = before
        shape = (self.heads + 2 * self.kv_heads, self.head_dim)
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.W_qkv(x).unflatten(2, shape).split(sizes, 2)
        angles = self._angles(steps, x)
        keys = torch.cat([past_keys.to(k.dtype), _rotate(k, angles)], 1)
        values = torch.cat([past_values.to(v.dtype), v], 1)
        is_fresh = past_keys.shape[1] == 0 and self.window is None
        o = F.scaled_dot_product_attention(
            _rotate(q, angles).transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=None if is_fresh else self._visible(steps, past_keys.shape[1], x.shape[1]),
            is_causal=is_fresh,
            enable_gqa=self.kv_heads < self.heads,
        )
        return self.W_o(o.transpose(1, 2).flatten(2)), keys, values

    def _angles(self, steps: Tensor, x: Tensor) -> Tensor:
        """t θ_i for the steps t of x (B, T, 1, head_dim / 2), in float32 or float64."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.arange(self.head_dim // 2, device=x.device, dtype=dtype)
        theta = self.base ** (-2 * pairs / self.head_dim)
        t = steps[:, None] + torch.arange(x.shape[1], device=x.device)
        return (t[..., None] * theta).unsqueeze(2)

    def _visible(self, steps: Tensor, past: int, T: int) -> Tensor:
        """Which of `past` + T keys each of the T queries sees (B, 1, T, past + T)."""
        key = torch.arange(past + T, device=steps.device)
        query = past + torch.arange(T, device=steps.device)[:, None]
        seen = key <= query
        if self.window is not None:
            seen = seen & (key > query - self.window)
        is_real = key >= past - steps[:, None]
        return (seen & is_real[:, None])[:, None]

    def _newest(self, keys: Tensor) -> Tensor:
        """The keys that later queries may see."""
        if self.window is None:
            return keys
        return keys[:, max(keys.shape[1] - self.window + 1, 0) :]

    def extra_repr(self) -> str:
        sizes = f"d_model={self.d_model}, heads={self.heads}, kv_heads={self.kv_heads}"
        return f"{sizes}, window={self.window}"


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    """x (B, T, heads, head_dim) with each pair (x_i, x_{i + head_dim / 2}) rotated by its angle."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


def _align(keys: Tensor, padding: Tensor, steps: Tensor) -> Tensor:
    """Move the real keys of each row, which `padding` keys follow, to the end of their axis.

    As many keys remain as the longest row has; those before a row's first step are zero.
    """
    count = keys.shape[1]
    slots = torch.arange(count - min(int(steps.max()), count), count, device=keys.device)
    index = slots - padding[:, None]
    is_real = (slots >= count - steps[:, None]) & (index >= 0)
    moved = keys.gather(1, index.clamp(min=0)[..., None, None].expand(-1, -1, *keys.shape[2:]))
    return torch.where(is_real[..., None, None], moved, keys.new_zeros(()))
