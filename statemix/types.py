"""The axis letters of every signature, and the shapes built from them.

    B   batch
    T   time, always axis 1
    S   sequences: B, or the N that `cu_seqlens` packs into a batch of one
    n   blocks (BD-LRU) or channels (H-LRU)
    m   block size (BD-LRU) or order (H-LRU)
    d   model width
    V   vocabulary

States are column vectors: A[..., i, j] carries h[j] into h[i].
Shapes are checked only under pytest; at run time the aliases cost nothing.
"""

from jaxtyping import Bool, Float, Integer
from torch import Tensor

__all__ = [
    "BlockGates",
    "BlockMatrices",
    "BlockValues",
    "ChannelGates",
    "ChannelValues",
    "Coefficients",
    "Mask",
    "SequenceBounds",
    "States",
]

# BD-LRU: n blocks, each a vector of m states driven by an m × m matrix.
BlockMatrices = Float[Tensor, "B T n m m"]
BlockGates = Float[Tensor, "B T n m m+1"]
BlockValues = Float[Tensor, "B T n m"]

# H-LRU: n channels, each a scalar recurrence over its last m values.
Coefficients = Float[Tensor, "B T n m"]
ChannelGates = Float[Tensor, "B T n m_plus_1"]
ChannelValues = Float[Tensor, "B T n"]

# Both: one n × m state per sequence.
States = Float[Tensor, "S n m"]
Mask = Bool[Tensor, "B T"]
SequenceBounds = Integer[Tensor, " N_plus_1"]
