"""An interpolated Kneser–Ney model of order n over tokens: what a language model has to beat.

    P_k(w | h) = (c(h w) − D(c(h w))) / c(h) + γ(h) P_{k-1}(w | h'),    γ(h) = Σ_w D(c(h w)) / c(h),    P_0 = 1 / V

h' is h without its first token.  In the highest order c counts occurrences; below it c(h w) is the number of different tokens seen
before h w.  D is the modified discount of Chen and Goodman, one each for counts of one, two, and three or more.  Documents are
apart: each begins after n − 1 tokens that end a document, and its own end is predicted too.

An n-gram is a number: its rank among the pairs (number of its first n − 1 tokens, last token).  So counting is sorting.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statemix.data import Split, TokenData
from statemix.data.tokenizer import load_tokenizer
from statemix.data.tokens import check_ids

__all__ = [
    "LossyTokenizer",
    "NGram",
    "NGramResult",
    "bytes_of",
    "discounts",
    "documents_of",
    "measure_ngram",
    "padded",
    "train_ngram",
]

UNSEEN = -1
BYTES = 256  # how many there are; the end of a document is one more


class LossyTokenizer(ValueError):
    """The bytes of a text cannot be had from its tokens."""


@dataclass(frozen=True)
class Order:
    """N-grams of one order: `keys`, sorted pairs (context, token); of each its discounted share; of each context what is left for less.

    A context is the number of an n-gram one shorter.
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

    def bits(self, documents: list[np.ndarray]) -> float:
        """Bits that documents cost, their ends included."""
        tokens, predicted = padded(documents, self.eot, len(self.orders))
        return float(-np.log2(self.probabilities(tokens)[predicted]).sum())

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """P(token | the n − 1 before it) at every position."""
        below = np.full(len(tokens), 1 / self.vocab)
        ids = np.zeros(
            len(tokens), dtype=np.int64
        )  # of the k-gram that ends at each position; the empty one is number zero
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


def documents_of(split: Split) -> list[np.ndarray]:
    """The tokens of each document, without its end."""
    documents = []
    for shard in split.shards:
        ends = np.append(shard.starts[1:], len(shard.tokens) - 1)
        documents += [
            shard.tokens[start + 1 : end].astype(np.int64)
            for start, end in zip(shard.starts, ends, strict=True)
        ]
    return documents


def bytes_of(split: Split, tokenizer: Path) -> list[np.ndarray]:
    """The bytes of each document, from its tokens; an error if the tokenizer does not keep all of them."""
    decoder = load_tokenizer(str(tokenizer))
    texts = [
        decoder.decode(document.tolist(), skip_special_tokens=False).encode()
        for document in documents_of(split)
    ]
    if sum(map(len, texts)) != split.meta.bytes:
        raise LossyTokenizer(
            f"The tokenizer {tokenizer} does not give back every byte of the text, so bytes cannot be counted."
        )
    return [np.frombuffer(text, dtype=np.uint8).astype(np.int64) for text in texts]


def padded(documents: list[np.ndarray], eot: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """All documents in a row, each after order − 1 ends and before its own; and which of these tokens are predicted."""
    pad, end = np.full(order - 1, eot, dtype=np.int64), np.array([eot])
    tokens = np.concatenate([part for document in documents for part in (pad, document, end)])
    predicted = np.ones(len(tokens), dtype=bool)
    starts = np.cumsum([0, *(len(document) + order for document in documents[:-1])])
    for lag in range(order - 1):
        predicted[starts + lag] = False
    return tokens, predicted


def train_ngram(documents: list[np.ndarray], vocab: int, eot: int, order: int = 5) -> NGram:
    """Count, and discount."""
    tokens, predicted = padded(documents, eot, order)
    keys, ids = [], [np.zeros(len(tokens), dtype=np.int64)]
    for k in range(order):
        context = ids[-1] if k == 0 else np.concatenate([[0], ids[-1][:-1]])
        unique, number = np.unique(context * vocab + tokens, return_inverse=True)
        keys.append(unique)
        ids.append(number)
    orders = []
    for k in range(1, order + 1):
        counts = (
            np.bincount(ids[k][predicted], minlength=len(keys[k - 1]))
            if k == order
            else different_before(ids, predicted, k)
        )
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
    return np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]).clip(
        min=0.0
    )


@dataclass(frozen=True)
class NGramResult:
    """What an n-gram model reaches on held-out text; tokens may be bytes."""

    order: int
    of_bytes: bool
    perplexity: float
    bits_per_byte: float


def measure_ngram(data: TokenData, order: int = 5, *, of_bytes: bool = False) -> NGramResult:
    """Train on the training split, over its tokens or its bytes, and predict the held-out one."""
    train, validation = data.split("train"), data.split("validation")
    for split in (train, validation):
        check_ids(split, data.meta.vocab)
    if of_bytes:
        documents, held_out = bytes_of(train, data.tokenizer), bytes_of(validation, data.tokenizer)
        model = train_ngram(documents, BYTES + 1, BYTES, order)
    else:
        documents, held_out = documents_of(train), documents_of(validation)
        model = train_ngram(documents, data.meta.vocab, data.meta.eot, order)
    bits, predictions = model.bits(held_out), sum(len(document) + 1 for document in held_out)
    return NGramResult(order, of_bytes, 2 ** (bits / predictions), bits / validation.meta.bytes)


def measure_rivals(data: TokenData) -> list[NGramResult]:
    """N-gram models of tokens and of bytes; tokens alone if the tokenizer loses bytes."""
    rivals = [measure_ngram(data)]
    try:
        rivals.append(measure_ngram(data, of_bytes=True))
    except LossyTokenizer as error:
        print(f"No n-grams of bytes: {error}", file=sys.stderr)
    return rivals
