"""Tasks: generators against exact solvers, seeds, splits, and errors."""

import numpy as np
import pytest

from statemix.tasks import (
    IGNORE,
    TASKS,
    Examples,
    Task,
    find_task,
    register_task,
    shared_inputs,
    split_examples,
)
from statemix.tasks.chomsky import evaluate_bracketed, evaluate_sums
from statemix.tasks.groups import cayley_table, elements

NAMES = [
    "compress",
    "copy",
    "recall",
    "s2",
    "s3",
    "s4",
    "s5",
    "a4",
    "a5",
    "z7",
    "d3",
    "d12",
    "flip_flop",
    "random_automaton",
    "permutation_reset",
    "parity",
    "even_pairs",
    "cycle_nav",
    "mod_arith",
    "mod_arith_brackets",
]
LENGTHS = {"mod_arith": 15, "copy": 40}
SYMBOLS = {5: "+", 6: "-", 7: "*", 8: "(", 9: ")"}


def draw(name, count=50, seed=0, training=False, length=None):
    task = find_task(name)
    return task, task.examples(
        count, length or LENGTHS.get(name, 16), np.random.default_rng(seed), training=training
    )


@pytest.mark.parametrize("name", NAMES)
def test_generators_agree_with_their_solvers(name):
    task, examples = draw(name, 200)
    np.testing.assert_array_equal(task.solve(examples.inputs), examples.targets)
    assert examples.inputs.shape == examples.targets.shape
    assert 0 <= examples.inputs.min() <= examples.inputs.max() < task.vocab
    scored = examples.targets[examples.targets != IGNORE]
    assert len(scored) >= 200
    assert 0 <= scored.min() <= scored.max() < task.classes


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_gives_the_same_bits(name):
    for training in (False, True):
        (_, a), (_, b), (_, c) = (draw(name, seed=seed, training=training) for seed in (3, 3, 4))
        np.testing.assert_array_equal(a.inputs, b.inputs)
        np.testing.assert_array_equal(a.targets, b.targets)
        assert (a.inputs != c.inputs).any()


@pytest.mark.parametrize("name", NAMES)
def test_splits_have_no_common_inputs(name):
    task = find_task(name)
    split = split_examples(
        task, {"train": 2000, "validation": 300, "test": 300}, LENGTHS.get(name, 16), seed=1
    )
    assert shared_inputs(split) == 0
    assert not {bytes(row) for row in split["validation"].inputs} & {
        bytes(row) for row in split["test"].inputs
    }
    assert [len(split[part]) for part in ("train", "validation", "test")] == [2000, 300, 300]


def test_overlapping_splits_are_reported():
    split = split_examples(find_task("s2"), {"train": 100, "validation": 20, "test": 20}, 3, seed=0)
    assert shared_inputs(split) > 0


def test_groups():
    assert len(elements("s", 5)) == 120
    assert len(elements("a", 4)) == 12
    for family, order in (("s", 4), ("a", 4), ("d", 3), ("d", 8), ("z", 6)):
        table = cayley_table(family, order)
        size = len(table)
        np.testing.assert_array_equal(table[0], np.arange(size))  # the identity comes first
        assert all(sorted(row) == list(range(size)) for row in table.tolist())
        a, b, c = (np.random.default_rng(i).integers(0, size, 50) for i in range(3))
        np.testing.assert_array_equal(table[table[a, b], c], table[a, table[b, c]])
    permutations = np.array(elements("s", 4))
    a, b = 7, 13
    np.testing.assert_array_equal(
        permutations[cayley_table("s", 4)[a, b]], permutations[a][permutations[b]]
    )


@pytest.mark.parametrize("order", [3, 4, 7, 12])
def test_dihedral_groups(order):
    """Each element maps neighbours of the polygon to neighbours."""
    found = elements("d", order)
    assert len(set(found)) == len(found) == 2 * order
    sides = {frozenset((i, (i + 1) % order)) for i in range(order)}
    for a in found:
        assert {frozenset((a[i], a[(i + 1) % order])) for i in range(order)} == sides
    if order == 3:
        np.testing.assert_array_equal(cayley_table("d", 3), cayley_table("s", 3))


def test_running_products_in_s3():
    task = find_task("S3")
    np.testing.assert_array_equal(
        task.solve(np.array([[5, 3, 3, 1, 1, 0, 0, 0]])), [[5, 2, 1, 0, 1, 1, 1, 1]]
    )


def test_arithmetic_agrees_with_python():
    for name, evaluate in (
        ("mod_arith", evaluate_sums),
        ("mod_arith_brackets", evaluate_bracketed),
    ):
        for length in (1, 3, 5, 9, 15):
            _, examples = draw(name, 40, length=length)
            words = examples.inputs[:, :-1]
            spelled = [
                "".join(SYMBOLS.get(token, str(token)) for token in word) for word in words.tolist()
            ]
            np.testing.assert_array_equal(evaluate(words), [eval(word) % 5 for word in spelled])


def test_bracketed_expressions_have_every_length():
    for length in range(1, 20):
        _, examples = draw("mod_arith_brackets", 30, length=length)
        assert examples.inputs.shape == (30, length + 1)


def test_training_sequences_have_all_lengths():
    _, examples = draw("parity", 2000, training=True, length=10)
    ends = (examples.targets != IGNORE).argmax(1)
    assert set(ends) == set(range(1, 11))
    assert ((examples.targets != IGNORE).sum(1) == 1).all()


def test_copy_can_place_blanks_as_mad_does():
    """Each of three blanks chooses one of two gaps; the last data token precedes the copy token."""
    task = find_task("copy", {"tokens": 2, "vocab": 5, "placement": "mad"})
    drawn = task.examples(40_000, 2 + 3 + 1 + 2, np.random.default_rng(0))
    data = drawn.inputs[:, :5] < 3
    assert data[:, 4].all()
    before = data[:, :4].argmax(1)  # blanks before the first data token: binomial (3, 1/2)
    np.testing.assert_allclose(
        np.bincount(before) / 40_000, [1 / 8, 3 / 8, 3 / 8, 1 / 8], atol=0.01
    )


def test_recall_can_ask_distinct_keys_alike():
    """With key 0 three times and key 1 once, positions ask for 0 in 3/4, distinct keys in 1/2."""
    counts = {}
    for last_key in ("position", "distinct"):
        task = find_task("recall", {"vocab": 4, "last_key": last_key})
        keys = task.examples(60_000, 10, np.random.default_rng(0)).inputs[:, ::2]
        chosen = keys[(keys[:, :4].sum(1) == 1)][:, 4]
        counts[last_key] = chosen.mean()
    assert counts["position"] == pytest.approx(0.25, abs=0.02)
    assert counts["distinct"] == pytest.approx(0.5, abs=0.02)


def test_copy_scatters_uniformly():
    task = find_task("copy", {"tokens": 2, "vocab": 5})
    examples = task.examples(6000, 8, np.random.default_rng(0))
    data = examples.inputs[:, :5] < 3
    assert (data.sum(1) == 2).all()
    np.testing.assert_allclose(data.mean(0), 0.4, atol=0.03)


def test_recall_ends_with_a_known_key():
    _, examples = draw("recall", 300)
    assert (examples.targets[:, -1] != IGNORE).all()
    _, training = draw("recall", 300, training=True)
    assert (training.targets != IGNORE).all()


def test_users_register_a_task_with_one_function():
    @register_task("test_mine")
    def mine(vocab: int = 3) -> Task:
        def draw(count, length, rng):
            inputs = rng.integers(0, vocab, (count, length))
            return Examples(inputs, inputs)

        return Task("test_mine", vocab, vocab, draw, 8)

    try:
        assert find_task("test_mine", {"vocab": 7}).vocab == 7
    finally:
        del TASKS["test_mine"]


def test_registered_names_take_precedence_over_patterns():
    """`a1` is not a group, so the name can be registered; `s3` is a group."""
    try:
        register_task("a1")(own_task)
        assert find_task("a1").name == "own"
        assert find_task("a4").name == "a4"
        register_task("a1")(own_task)  # importing a file again registers its task again
    finally:
        TASKS.pop("a1", None)
    with pytest.raises(
        ValueError,
        match="The task name 's3' is taken by a group. Choose another for test_tasks.own_task",
    ):
        register_task("s3")(own_task)


def own_task() -> Task:
    return Task(
        "own",
        3,
        3,
        lambda count, length, rng: Examples(np.zeros((count, length)), np.zeros((count, length))),
        8,
    )


def test_a_taken_name_does_not_replace_a_built_in_task():
    def parity() -> Task:
        return own_task()

    parity.__qualname__ = "parity"
    with pytest.raises(
        ValueError,
        match="'parity' is taken by statemix.tasks.chomsky.parity. Choose another for "
        "test_tasks.parity",
    ):
        register_task("parity")(parity)
    assert find_task("parity").name == "parity"


@pytest.mark.parametrize("name", [*TASKS, "s2", "a6", "z999"])
def test_the_default_length_fits_the_task(name):
    task = find_task(name)
    assert task.fits(task.length)
    assert len(task.examples(2, task.length, np.random.default_rng(0), training=True)) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: find_task("s3", {"order": 4}),
            "The name of the task 's3' already sets `order` to 3, got 4. Omit the option",
        ),
        (
            lambda: find_task("Z7", {"family": "s"}),
            "The name of the task 'Z7' already sets `family` to 'Z', got .*Omit the option",
        ),
        (
            lambda: find_task("compress", {"score_all": "False"}),
            r"must be of type bool \(true or false\), got 'False'",
        ),
        (
            lambda: find_task("copy", {"tokens": True}),
            "`tokens` of task 'copy' must be of type int, got True",
        ),
        (
            lambda: find_task("s5x"),
            "Unknown task .s5x.. Available: .*copy, recall, s2 .. s6, a3 .. a6, d3 .. d12, z2",
        ),
        (lambda: find_task("d13"), "The group D13 is out of range: d3 .. d12 fit"),
        (lambda: find_task("random_automaton", {"states": 1}), "`states` .* at least 2, got 1"),
        (lambda: find_task("permutation_reset", {"letters": 1}), "`letters` .* least 2, got 1"),
        (lambda: find_task("random_automaton", {"seed": -1}), "`seed` .* at least 0, got -1"),
        (lambda: find_task("s9"), "The group S9 is out of range: s2 .. s6 fit"),
        (
            lambda: find_task("copy", {"token": 3}),
            "Unknown option of task 'copy': 'token'. Available: vocab, tokens, placement",
        ),
        (
            lambda: find_task("copy", {"placement": "left"}),
            "The option `placement` of the task 'copy' must be one of uniform, mad, got 'left'",
        ),
        (lambda: draw("copy", length=32), "no examples of length 32. Valid lengths: from 33 on"),
        (
            lambda: draw("mod_arith", length=4),
            "no examples of length 4. Valid lengths: odd ones",
        ),
        (lambda: find_task("recall", {"vocab": 7}), "must be even"),
        (lambda: find_task("compress", {"vocab": 1}), "must be at least 2, got 1"),
        (lambda: register_task(find_task), "takes a name"),
    ],
)
def test_errors_state_the_expected_value(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ([[0, 4]], [[0, 0]], "must draw tokens from 0 to 3, got 0 to 4"),
        ([[0, -1]], [[0, 0]], "must draw tokens from 0 to 3, got -1 to 0"),
        ([[0, 3]], [[2, IGNORE]], "must draw targets from 0 to 1, got 2 to 2"),
        (
            [[0, 3]],
            [[0]],
            r"must draw 1 rows of inputs and targets of the same shape, got \(1, 2\) and \(1, 1\)",
        ),
        (
            [[0, 3]] * 2,
            [[0, 0]] * 2,
            r"must draw 1 rows of inputs and targets of the same shape, got \(2, 2\)",
        ),
    ],
)
def test_drawn_examples_are_checked(inputs, targets, message):
    task = Task(
        "mine",
        vocab=4,
        classes=2,
        draw=lambda *_: Examples(np.array(inputs), np.array(targets)),
        length=2,
    )
    with pytest.raises(ValueError, match=message):
        task.examples(1, 2, np.random.default_rng(0))


def test_words_with_brackets_can_have_all_lengths():
    task = find_task("mod_arith_brackets", {"shortest": 3})
    examples = task.examples(64, 9, np.random.default_rng(0), training=True)
    lengths = (examples.inputs == task.vocab - 1).argmax(1)
    assert set(lengths) == set(range(3, 10))
