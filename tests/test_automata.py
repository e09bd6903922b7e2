"""Automata of the tasks, against the tasks' own solvers."""

import numpy as np
import pytest

from statemix.tasks import IGNORE, find_task
from statemix.tasks.arithmetic import sums_machine
from statemix.tasks.automaton import NO_STEP, Automaton

REGULAR = {
    "s2": {},
    "s3": {},
    "s4": {},
    "s5": {},
    "a4": {},
    "a5": {},
    "z2": {},
    "z7": {},
    "d3": {},
    "d8": {},
    "flip_flop": {},
    "random_automaton": {},
    "random_automaton 9": {"states": 9, "letters": 2, "seed": 5},
    "permutation_reset": {},
    "permutation_reset 6": {"states": 6, "letters": 5, "seed": 2},
    "parity": {},
    "cycle_nav": {},
    "cycle_nav 3": {"size": 3},
    "mod_arith": {},
    "even_pairs": {},
    "parity prefixes": {"answers": "prefixes"},
    "cycle_nav prefixes": {"answers": "prefixes"},
    "mod_arith prefixes": {"answers": "prefixes"},
    "even_pairs prefixes": {"answers": "prefixes"},
}
EVERY_ANSWER = [name.split()[0] for name in REGULAR if "prefixes" in name]


@pytest.mark.parametrize("case", REGULAR)
def test_automata_answer_as_the_solvers_do(case):
    task = find_task(case.split()[0], REGULAR[case])
    for seed, length in enumerate(each for each in (1, 2, 3, 5, 16, 17, 41) if task.fits(each)):
        for training in (False, True):
            drawn = task.examples(700, length, np.random.default_rng(seed), training=training)
            np.testing.assert_array_equal(task.automaton.solve(drawn.inputs), drawn.targets)
            np.testing.assert_array_equal(task.solve(drawn.inputs), drawn.targets)


def test_invalid_letters_lead_nowhere():
    automaton = find_task("mod_arith").automaton
    words = np.array([[2, 7, 3, 5, 4, 8], [2, 3, 8, 8, 8, 8], [5, 1, 8, 8, 8, 8], [8] * 6])
    found = automaton.solve(words)
    assert found[0].tolist() == [IGNORE] * 5 + [0]
    assert (found[1:] == IGNORE).all()


def test_the_answers_of_prefixes_are_those_of_the_shorter_words():
    for name in EVERY_ANSWER:
        prefixes, end = find_task(name, {"answers": "prefixes"}), find_task(name)
        drawn = prefixes.examples(300, 13, np.random.default_rng(0))
        np.testing.assert_array_equal(end.solve(drawn.inputs)[:, -1], drawn.targets[:, -1])
        for length in filter(end.fits, range(1, 13)):
            word = drawn.inputs.copy()
            word[:, length:] = prefixes.vocab - 1
            np.testing.assert_array_equal(end.solve(word)[:, length], drawn.targets[:, length - 1])
        assert (drawn.targets[:, 1] == IGNORE).all() == (name == "mod_arith")


def test_the_option_answers_changes_no_input():
    for name in EVERY_ANSWER:
        for training in (False, True):
            a, b = (
                find_task(name, options).examples(
                    50, 9, np.random.default_rng(3), training=training
                )
                for options in ({}, {"answers": "prefixes"})
            )
            np.testing.assert_array_equal(a.inputs, b.inputs)
            asked = a.targets != IGNORE
            assert (asked.sum(1) == 1).all()
            np.testing.assert_array_equal(a.targets[asked], b.targets[asked])


def test_flip_flops_keep_the_last_bit():
    inputs = np.array([[2, 2, 1, 2, 0, 2, 2, 1]])
    expected = [[0, 0, 1, 1, 0, 0, 0, 1]]
    np.testing.assert_array_equal(find_task("flip_flop").solve(inputs), expected)


@pytest.mark.parametrize("name", ["random_automaton", "permutation_reset"])
def test_random_automata_follow_their_seed(name):
    tables = set()
    for seed in range(30):
        options = {"states": 7, "letters": 3, "seed": seed}
        task, again = find_task(name, options), find_task(name, options)
        np.testing.assert_array_equal(task.automaton.step, again.automaton.step)
        assert (task.vocab, task.classes) == (3, 7)
        tables.add(task.automaton.step.tobytes())
        drawn = task.examples(100, 40, np.random.default_rng(0))
        q = task.automaton.start
        for letter, target in zip(drawn.inputs[0], drawn.targets[0], strict=True):
            q = task.automaton.step[q, letter]
            assert q == target
        assert set(np.unique(drawn.targets)) | {0} == set(range(7))  # all states are reached
    assert len(tables) == 30


def test_letters_permute_or_reset():
    kinds = set()
    for seed in range(20):
        options = {"states": 5, "letters": 4, "seed": seed}
        step = find_task("permutation_reset", options).automaton.step
        ranks = tuple(len(set(column)) for column in step.T.tolist())
        assert ranks[:2] == (5, 1)
        assert set(ranks) == {1, 5}
        kinds.add(ranks)
    assert len(kinds) == 4


def test_even_pairs_compare_the_ends():
    task = find_task("even_pairs")
    drawn = task.examples(500, 11, np.random.default_rng(0))
    differ = drawn.inputs[:, 0] != drawn.inputs[:, 10]
    np.testing.assert_array_equal(drawn.targets[:, 11], differ)
    for word in drawn.inputs[:50, :11].tolist():
        text = "".join(map(str, word))
        assert (text.count("01") == text.count("10")) == (word[0] == word[-1])


@pytest.mark.parametrize("modulus", [1, 2, 3, 7])
def test_sums_with_any_modulus(modulus):
    machine = sums_machine(modulus)
    rng = np.random.default_rng(modulus)
    for _ in range(200):
        word = rng.integers(0, modulus, 9)
        word[1::2] = rng.integers(modulus, modulus + 3, 4)
        q = machine.start
        for letter in word:
            q = machine.step[q, letter]
        spelled = "".join("+-*"[x - modulus] if x >= modulus else str(x) for x in word)
        assert machine.classes[q] == eval(spelled) % modulus


@pytest.mark.parametrize(
    ("step", "start", "message"),
    [
        ([[0]], 1, "`start` must be a state in 0 .. 0, got 1"),
        ([[1]], 0, "must lead to states in 0 .. 0, or be -1, got 1 to 1"),
        ([[NO_STEP - 1]], 0, "must lead to states in 0 .. 0, or be -1, got -2 to -2"),
    ],
)
def test_automata_are_checked(step, start, message):
    with pytest.raises(ValueError, match=message):
        Automaton(np.array(step), np.array(step), start)
    with pytest.raises(ValueError, match=r"the shape \(states, letters\), got \(1,\) and \(1,\)"):
        Automaton(np.array([0]), np.array([0]))


def test_the_option_answers_is_checked():
    with pytest.raises(ValueError, match="`answers` of the task 'parity' must be one of end, pre"):
        find_task("parity", {"answers": "all"})
