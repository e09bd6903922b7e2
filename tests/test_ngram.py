"""The n-gram model against its definition with explicit counts; probabilities sum to one."""

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from texts import little_data

from statemix.cli import main
from statemix.lm.ngram import discounts, measure_ngram, measure_rivals, padded, train_ngram

VOCAB, EOT = 5, 0


def random_documents(count=12, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice([1, 1, 1, 2, 2, 3, 4], size=rng.integers(0, 30)) for _ in range(count)]


def counts_by_hand(documents, order):
    """Count occurrences for the highest order, and distinct preceding tokens for the others."""
    seen = [set() for _ in range(order + 2)]
    highest = Counter()
    for document in documents:
        tokens = [EOT] * (order - 1) + [int(t) for t in document] + [EOT]
        for end in range(order - 1, len(tokens)):
            highest[tuple(tokens[end - order + 1 : end + 1])] += 1
            for k in range(1, order + 1):
                seen[k].add(tuple(tokens[end - k + 1 : end + 1]))
    counts = {order: highest}
    for k in range(1, order):
        counts[k] = Counter(gram[1:] for gram in seen[k + 1])
    return counts


def probability_by_hand(counts, order, history, token):
    """Compute the recursion of the module's docstring."""
    p = 1 / VOCAB
    for k in range(1, order + 1):
        context = tuple(history[len(history) - k + 1 :]) if k > 1 else ()
        own = {gram[-1]: c for gram, c in counts[k].items() if gram[:-1] == context}
        total = sum(own.values())
        if total == 0:
            continue
        D = discounts(np.array(list(counts[k].values())))
        taken = {w: min(D[min(c, 3)], c) for w, c in own.items()}
        c = own.get(token, 0)
        p = (c - taken.get(token, 0)) / total + sum(taken.values()) / total * p
    return p


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_match_the_definition(order):
    documents = random_documents()
    model, counts = train_ngram(documents, VOCAB, EOT, order), counts_by_hand(documents, order)
    held_out = random_documents(count=3, seed=1)
    tokens, predicted = padded(held_out, EOT, order)
    got = model.probabilities(tokens)
    for end in np.flatnonzero(predicted):
        history = [int(t) for t in tokens[max(0, end - order + 1) : end]]
        assert got[end] == pytest.approx(
            probability_by_hand(counts, order, history, int(tokens[end])), rel=1e-12
        )
    assert model.bits(held_out) == pytest.approx(-np.log2(got[predicted]).sum())


@pytest.mark.parametrize("order", [1, 2, 4])
def test_probabilities_of_all_tokens_sum_to_one(order):
    model = train_ngram(random_documents(), VOCAB, EOT, order)
    rng = np.random.default_rng(2)
    for _ in range(20):
        history = rng.integers(0, VOCAB, size=order - 1)
        each = [model.probabilities(np.array([*history, token]))[-1] for token in range(VOCAB)]
        assert sum(each) == pytest.approx(1.0, rel=1e-12)


def test_documents_are_independent():
    """The first token of a document does not depend on the previous document."""
    model = train_ngram(random_documents(), VOCAB, EOT, 3)
    costs = defaultdict(set)
    for before in ([1, 2, 3], [4, 4], []):
        tokens, predicted = padded([np.array(before, int), np.array([2, 1])], EOT, 3)
        costs["first"].add(model.probabilities(tokens)[np.flatnonzero(predicted)[-3]])
    assert len(costs["first"]) == 1


def test_no_estimate_takes_all_mass_from_unseen_tokens():
    counts = np.repeat([1, 2, 3, 4], [16, 1, 2, 6])  # by the formula 0.889, -3.3 and -7.7
    assert discounts(counts).tolist() == [0, 0.75, 0.75, 0.75]
    documents = [np.array([1, 1, 1, 2])] * 3
    for order in (1, 2, 3):
        model = train_ngram(documents, VOCAB, EOT, order)
        assert np.isfinite(model.bits([np.array([4, 3, 2, 1])]))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_damaged_shards_are_refused(tmp_path, split):
    data = little_data(tmp_path / "data")
    path = data.directory / f"{split}-00000.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ValueError, match=f"{split}-00000.bin is damaged: the hash"):
        measure_ngram(data)


def test_discounts_are_those_of_chen_and_goodman():
    n1, n2, n3, n4 = 8, 4, 3, 2
    y = n1 / (n1 + 2 * n2)
    counts = np.repeat([1, 2, 3, 4], [n1, n2, n3, n4])
    assert discounts(counts) == pytest.approx(
        [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
    )
    few = np.array([1, 1, 2])  # too few counts for an estimate
    assert discounts(few).tolist() == [0, 0.75, 0.75, 0.75]


def test_longer_contexts_help_and_bytes_can_be_counted(tmp_path, capsys):
    pytest.importorskip(
        "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
    )
    data = little_data(tmp_path)
    bits = [measure_ngram(data, order).bits_per_byte for order in (1, 2, 3)]
    assert all(longer < shorter for shorter, longer in pairwise(bits))
    main(["lm", "ngram", str(data.directory), "--order", "4", "--bytes"])
    assert f"{measure_ngram(data, 4, of_bytes=True).bits_per_byte:.4f}" in capsys.readouterr().out
    tokens = np.fromfile(data.directory / "train-00000.bin", "<u2")
    tokens[::7] = 60_000
    tokens.tofile(data.directory / "train-00000.bin")
    with pytest.raises(
        ValueError, match="train-00000.bin has the token id 60000, but its text has 300 tokens"
    ):
        measure_ngram(data)


def test_lossy_tokenizers_only_drop_the_byte_model(tmp_path, capsys):
    tokenizers = pytest.importorskip(
        "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
    )
    data = little_data(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(data.tokenizer))
    tokenizer.decoder = tokenizers.decoders.Strip(" ", 1, 0)
    tokenizer.save(str(data.tokenizer))
    assert [rival.of_bytes for rival in measure_rivals(data)] == [False]
    assert "No n-grams of bytes: The tokenizer" in capsys.readouterr().err
