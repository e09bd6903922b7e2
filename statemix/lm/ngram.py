"""An interpolated Kneser–Ney model of order n over tokens: what a language model has to beat.

    P_k(w | h) = (c(h w) − D(c(h w))) / c(h) + γ(h) P_{k-1}(w | h'),    γ(h) = Σ_w D(c(h w)) / c(h),    P_0 = 1 / V

h' is h without its first token.  In the highest order c counts occurrences; below it c(h w) is the number of different tokens seen
before h w.  D is the modified discount of Chen and Goodman, one each for counts of one, two, and three or more.  Documents are
apart: each begins after n − 1 tokens that end a document, and its own end is predicted too.

An n-gram is a number: its rank among the pairs (number of its first n − 1 tokens, last token).  So counting is sorting.
"""

import math
from dataclasses import dataclass

import numpy as np

from statemix.data import Split

UNSEEN = -1


@dataclass(frozen=True)
class Order:
    """N-grams of one order: `keys`, sorted pairs (context, token); of each its discounted share; of each context what is left for less.

    `contexts` is the number of n-grams one shorter, which are the contexts of these.
    """

    keys: np.ndarray
    share: np.ndarray
    rest: np.ndarray


@dataclass(frozen=True)
class NGram:
    """A trained model: orders 1 .. n, over a vocabulary."""

    vocab: int
    eot: int
    orders: tuple[Order, ...]

    def bits(self, split: Split) -> float:
        """Bits that the tokens of `split` cost, ends of documents included."""
        tokens, predicted = padded(split, self.eot, len(self.orders))
        return float(-np.log2(self.probabilities(tokens)[predicted]).sum())

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """P(token | the n − 1 before it) at every position."""
        below = np.full(len(tokens), 1 / self.vocab)
        ids = np.zeros(len(tokens), dtype=np.int64)  # of the k-gram that ends at each position; the empty one is number zero
        for order in self.orders:
            context = np.concatenate([[UNSEEN], ids[:-1]]) if order is not self.orders[0] else ids
            ids = find(order.keys, context, tokens, self.vocab)
            known = context != UNSEEN
            rest = np.where(known, order.rest[context], 1.0)
            share = np.where(ids != UNSEEN, order.share[ids], 0.0)
            below = share + rest * below
        return below


def find(keys: np.ndarray, context: np.ndarray, tokens: np.ndarray, vocab: int) -> np.ndarray:
    """The numbers of n-grams given as context and last token, UNSEEN where there is none."""
    wanted = context * vocab + tokens
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where((context != UNSEEN) & (keys[place] == wanted), place, UNSEEN)


def padded(split: Split, eot: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of all documents, each after order − 1 ends, and its own end; and which of them are predicted."""
    pad = np.full(max(order - 1, 1), eot, dtype=np.int64)
    parts, predicted = [], []
    for shard in split.shards:
        ends = np.append(shard.starts[1:], len(shard.tokens) - 1)
        for start, end in zip(shard.starts, ends, strict=True):
            own = shard.tokens[start + 1 : end + 1].astype(np.int64)
            parts += [pad, own]
            predicted += [np.zeros(len(pad), dtype=bool), np.ones(len(own), dtype=bool)]
    return np.concatenate(parts), np.concatenate(predicted)


def train_ngram(split: Split, vocab: int, eot: int, order: int = 5) -> NGram:
    """Count `split`, and discount."""
    tokens, predicted = padded(split, eot, order)
    keys, ids = [], [np.zeros(len(tokens), dtype=np.int64)]
    for k in range(order):
        context = ids[-1] if k == 0 else np.concatenate([[0], ids[-1][:-1]])
        unique, number = np.unique(context * vocab + tokens, return_inverse=True)
        keys.append(unique)
        ids.append(number)
    orders = []
    for k in range(1, order + 1):
        counts = np.bincount(ids[k][predicted], minlength=len(keys[k - 1])) if k == order else different_before(ids, predicted, k)
        contexts = 1 if k == 1 else len(keys[k - 2])
        orders.append(discounted(keys[k - 1], counts, contexts, vocab))
    return NGram(vocab, eot, tuple(orders))


def different_before(ids: list[np.ndarray], predicted: np.ndarray, k: int) -> np.ndarray:
    """For each k-gram, how many different tokens were seen before it: how many (k + 1)-grams end in it."""
    longer = np.full(int(ids[k + 1].max()) + 1, UNSEEN, dtype=np.int64)
    longer[ids[k + 1][predicted]] = ids[k][predicted]
    return np.bincount(longer[longer != UNSEEN], minlength=int(ids[k].max()) + 1)


def discounted(keys: np.ndarray, counts: np.ndarray, contexts: int, vocab: int) -> Order:
    """Shares and rests from counts."""
    context = keys // vocab
    total = np.bincount(context, weights=counts, minlength=contexts)
    discount = np.minimum(discounts(counts)[counts.clip(max=3)], counts)
    safe = np.maximum(total, 1)
    share = (counts - discount) / safe[context]
    left = np.bincount(context, weights=discount, minlength=contexts) / safe
    return Order(keys, share, np.where(total > 0, left, 1.0))


def discounts(counts: np.ndarray) -> np.ndarray:
    """D for counts of 0, 1, 2, and 3 or more, from how many n-grams were seen once to four times."""
    n1, n2, n3, n4 = (int((counts == c).sum()) for c in (1, 2, 3, 4))
    if 0 in (n1, n2, n3, n4):  # too little text to estimate from: one usual value for all
        return np.array([0.0, 0.75, 0.75, 0.75])
    y = n1 / (n1 + 2 * n2)
    return np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]).clip(min=0.0)


def bits_per_byte(model: NGram, split: Split) -> float:
    """What the text of `split` costs, by the byte."""
    return model.bits(split) / split.meta.bytes


def perplexity(model: NGram, split: Split) -> float:
    """By the token."""
    return math.exp(model.bits(split) * math.log(2) / split.meta.predictions)
