"""An interpolated Kneser–Ney model of order n over tokens, as a baseline.

    P_k(w | h) = (c(h w) − D(c(h w))) / c(h) + γ(h) P_{k-1}(w | h'),    P_0 = 1 / V
    γ(h) = Σ_w D(c(h w)) / c(h)

h' is h without its first token. In the highest order, c(h w) counts the occurrences of h w; in
lower orders, it counts the different tokens that occur before h w. D is the modified discount of
Chen and Goodman, with separate values for counts of one, two, and three or more. Each document is
preceded by n − 1 end-of-text tokens, so no context crosses from one document to the next, and its
end is predicted too.

The id of an n-gram is its index among the sorted pairs (id of its first n − 1 tokens, last token).
Counting n-grams is therefore sorting.
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

_UNSEEN = -1
_USUAL = (0.75, 0.75, 0.75)  # discounts for texts that are too short to estimate them
_BYTES = 256  # number of byte tokens; token 256 ends a document


class LossyTokenizer(ValueError):
    """The tokens of a text do not decode to its bytes."""


@dataclass(frozen=True)
class _Order:
    """The n-grams of one order; a context is the id of an n-gram that is one token shorter.

    Args:
        keys: sorted pairs (context, token), each as one number.
        share: the first term of P for each key.
        rest: γ of each context.
    """

    keys: np.ndarray
    share: np.ndarray
    rest: np.ndarray


@dataclass(frozen=True)
class NGram:
    """A trained model with orders 1 .. n."""

    vocab: int
    eot: int
    orders: tuple[_Order, ...]

    def bits(self, documents: list[np.ndarray]) -> float:
        """− log2 of the probability of the documents, including their ends."""
        tokens, predicted = padded(documents, self.eot, len(self.orders))
        return float(-np.log2(self.probabilities(tokens)[predicted]).sum())

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """P(token | the n − 1 before it) at every position."""
        below = np.full(len(tokens), 1 / self.vocab)
        # The id of the k-gram that ends at each position; that of the empty one is 0.
        ids = np.zeros(len(tokens), dtype=np.int64)
        for order in self.orders:
            context = np.concatenate([[_UNSEEN], ids[:-1]]) if order is not self.orders[0] else ids
            ids = _find(order.keys, context, tokens, self.vocab)
            known = context != _UNSEEN
            rest = np.where(known, order.rest[context], 1.0)
            share = np.where(ids != _UNSEEN, order.share[ids], 0.0)
            below = share + rest * below
        return below


def _find(keys: np.ndarray, context: np.ndarray, tokens: np.ndarray, vocab: int) -> np.ndarray:
    """The ids of n-grams, given context and last token; _UNSEEN if they are not in `keys`."""
    wanted = context * vocab + tokens
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where((context != _UNSEEN) & (keys[place] == wanted), place, _UNSEEN)


def documents_of(split: Split) -> list[np.ndarray]:
    """The tokens of each document, without the end-of-text token."""
    documents = []
    for shard in split.shards:
        ends = np.append(shard.starts[1:], len(shard.tokens) - 1)
        documents += [
            shard.tokens[start + 1 : end].astype(np.int64)
            for start, end in zip(shard.starts, ends, strict=True)
        ]
    return documents


def bytes_of(split: Split, tokenizer: Path) -> list[np.ndarray]:
    """Decode each document to bytes; raise `LossyTokenizer` if some are missing."""
    decoder = load_tokenizer(str(tokenizer))
    texts = [
        decoder.decode(document.tolist(), skip_special_tokens=False).encode()
        for document in documents_of(split)
    ]
    if sum(map(len, texts)) != split.meta.bytes:
        raise LossyTokenizer(
            f"The tokenizer {tokenizer} does not decode to every byte of the text, "
            "so n-grams of bytes cannot be counted."
        )
    return [np.frombuffer(text, dtype=np.uint8).astype(np.int64) for text in texts]


def padded(documents: list[np.ndarray], eot: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate documents, each after order − 1 end tokens; and which tokens are predicted."""
    pad = np.full(order - 1, eot, dtype=np.int64)
    end = np.array([eot])
    tokens = np.concatenate([part for document in documents for part in (pad, document, end)])
    predicted = np.ones(len(tokens), dtype=bool)
    starts = np.cumsum([0, *(len(document) + order for document in documents[:-1])])
    for lag in range(order - 1):
        predicted[starts + lag] = False
    return tokens, predicted


def train_ngram(documents: list[np.ndarray], vocab: int, eot: int, order: int = 5) -> NGram:
    """Count the n-grams of all orders and discount the counts."""
    tokens, predicted = padded(documents, eot, order)
    keys = []
    ids = [np.zeros(len(tokens), dtype=np.int64)]
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
            else _different_before(ids, predicted, k)
        )
        contexts = 1 if k == 1 else len(keys[k - 2])
        orders.append(_discounted(keys[k - 1], counts, contexts, vocab))
    return NGram(vocab, eot, tuple(orders))


def _different_before(ids: list[np.ndarray], predicted: np.ndarray, k: int) -> np.ndarray:
    """The number of different tokens before each k-gram: of (k + 1)-grams that end in it."""
    longer = np.full(int(ids[k + 1].max()) + 1, _UNSEEN, dtype=np.int64)
    longer[ids[k + 1][predicted]] = ids[k][predicted]
    return np.bincount(longer[longer != _UNSEEN], minlength=int(ids[k].max()) + 1)


def _discounted(keys: np.ndarray, counts: np.ndarray, contexts: int, vocab: int) -> _Order:
    """Discount the counts of one order."""
    context = keys // vocab
    total = np.bincount(context, weights=counts, minlength=contexts)
    discount = np.minimum(discounts(counts)[counts.clip(max=3)], counts)
    safe = np.maximum(total, 1)
    share = (counts - discount) / safe[context]
    left = np.bincount(context, weights=discount, minlength=contexts) / safe
    return _Order(keys, share, np.where(total > 0, left, 1.0))


def discounts(counts: np.ndarray) -> np.ndarray:
    """D for counts of 0, 1, 2, and 3 or more, from the numbers of n-grams with counts 1 to 4."""
    n1, n2, n3, n4 = (int((counts == c).sum()) for c in (1, 2, 3, 4))
    if 0 in (n1, n2, n3, n4):
        return np.array([0.0, *_USUAL])
    y = n1 / (n1 + 2 * n2)
    estimate = np.array([1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    # A discount of zero would leave no probability for tokens that were never seen.
    return np.array([0.0, *(estimate if estimate.min() > 0 else _USUAL)])


@dataclass(frozen=True)
class NGramResult:
    """The result of an n-gram model on held-out text; its tokens may be bytes."""

    order: int
    of_bytes: bool
    perplexity: float
    bits_per_byte: float


def measure_ngram(data: TokenData, order: int = 5, *, of_bytes: bool = False) -> NGramResult:
    """Train on the tokens or bytes of the training split, and predict the held-out split."""
    train = data.split("train")
    validation = data.split("validation")
    for split in (train, validation):
        check_ids(split, data.meta.vocab)
    data.verify()
    if of_bytes:
        held_out = bytes_of(validation, data.tokenizer)
        model = train_ngram(bytes_of(train, data.tokenizer), _BYTES + 1, _BYTES, order)
    else:
        held_out = documents_of(validation)
        model = train_ngram(documents_of(train), data.meta.vocab, data.meta.eot, order)
    bits = model.bits(held_out)
    predictions = sum(len(document) + 1 for document in held_out)
    return NGramResult(order, of_bytes, 2 ** (bits / predictions), bits / validation.meta.bytes)


def measure_rivals(data: TokenData) -> list[NGramResult]:
    """N-gram models over tokens and bytes; only tokens if the tokenizer loses bytes."""
    rivals = [measure_ngram(data)]
    try:
        rivals.append(measure_ngram(data, of_bytes=True))
    except LossyTokenizer as error:
        print(f"No n-grams of bytes: {error}", file=sys.stderr)
    return rivals
