"""Minimised automata, and the smallest blocks that carry them, against brute force."""

import itertools
import json

import numpy as np
import pytest

from statemix.analysis.automata import (
    BlockSize,
    from_json,
    minimise,
    smallest_block,
    to_dot,
    to_json,
)
from statemix.analysis.automata.bounds import lower_bound
from statemix.analysis.automata.cliques import clique_bound
from statemix.analysis.automata.subsets import Letters, generate
from statemix.tasks import IGNORE, find_task
from statemix.tasks.answers import add_empty
from statemix.tasks.arithmetic import sums_machine
from statemix.tasks.automaton import NO_STEP, Automaton
from statemix.tasks.groups import cayley_table


def random_automaton(rng, states, letters, missing=0.0):
    """Random transitions, a share of them missing, with answers 0, 1 or none."""
    step = rng.integers(0, states, (states, letters))
    step[rng.random(step.shape) < missing] = NO_STEP
    return Automaton(step, rng.choice([0, 1, IGNORE], step.shape), int(rng.integers(states)))


def alternating(rng, sizes, letters):
    """Letters of two kinds, each of which leads from one kind of state to the other."""
    first, second = np.arange(sizes[0]), sizes[0] + np.arange(sizes[1])
    step = np.full((sum(sizes), 2 * letters), NO_STEP)
    step[first, :letters] = rng.choice(second, (sizes[0], letters))
    step[second, letters:] = rng.choice(first, (sizes[1], letters))
    return Automaton(step, np.where(step == NO_STEP, IGNORE, rng.integers(0, 3, step.shape)))


def agree_on_words(a, b, rng, length=12):
    words = rng.integers(0, a.letters, (500, length))
    return (a.solve(words) == b.solve(words)).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_minimised_automata_answer_alike(missing):
    rng = np.random.default_rng(0)
    for _ in range(100):
        automaton = random_automaton(rng, int(rng.integers(1, 9)), 2, missing)
        minimal = minimise(automaton)
        assert minimal.states <= automaton.states
        assert agree_on_words(automaton, minimal, rng)
        again = minimise(minimal)
        np.testing.assert_array_equal(again.step, minimal.step)
        np.testing.assert_array_equal(again.answer, minimal.answer)


def test_states_of_minimised_automata_differ():
    """Starts in two states differ on a word that is no longer than the number of states."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        minimal = minimise(random_automaton(rng, 5, 2))
        words = np.array(list(itertools.product(range(2), repeat=minimal.states)))
        answers = {
            Automaton(minimal.step, minimal.answer, q).solve(words).tobytes()
            for q in range(minimal.states)
        }
        assert len(answers) == minimal.states


def test_equal_languages_have_equal_tables():
    """Renaming and doubling states changes nothing."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        a = random_automaton(rng, 5, 3, missing=0.2)
        names = rng.permutation(10).reshape(2, 5)  # two copies of each state
        step, answer = np.empty((2, 10, 3), dtype=np.int64)
        for copy in names:
            answer[copy] = a.answer
            chosen = names[rng.integers(0, 2, a.step.shape), a.step]
            step[copy] = np.where(a.step == NO_STEP, NO_STEP, chosen)
        b = minimise(Automaton(step, answer, int(names[0, a.start])))
        a = minimise(a)
        np.testing.assert_array_equal(a.step, b.step)
        np.testing.assert_array_equal(a.answer, b.answer)


def test_questions_and_ends_are_answers_of_their_own():
    ends = Automaton(np.array([[1, NO_STEP], [0, 0]]), np.full((2, 2), IGNORE))
    asks = Automaton(np.array([[1, 0], [0, 0]]), np.array([[IGNORE, 0], [IGNORE, IGNORE]]))
    assert minimise(ends).states == minimise(asks).states == 2
    assert minimise(Automaton(asks.step, np.full((2, 2), IGNORE))).states == 1


@pytest.mark.parametrize("name", ["s3", "mod_arith", "parity"])
def test_json_keeps_automata(name):
    automaton = minimise(find_task(name).automaton)
    again = from_json(json.loads(json.dumps(to_json(automaton))))
    np.testing.assert_array_equal(again.step, automaton.step)
    np.testing.assert_array_equal(again.answer, automaton.answer)
    assert again.start == automaton.start
    with pytest.raises(ValueError, match="must have the fields answer, start, step, got start"):
        from_json({"start": 0})


def test_dot_shows_states_letters_and_answers():
    dot = to_dot(find_task("parity").automaton)
    assert dot.startswith("digraph")
    assert '0 [shape=circle, label="0\\n2 / 0"]' in dot  # the empty token asks, and nothing follows
    assert '0 -> 1 [label="1"]' in dot
    assert "start -> 0" in dot
    flip = to_dot(find_task("flip_flop").automaton, ['"0"', "1", "keep"], ["zero", "one"])
    assert '0 -> 0 [label="\\"0\\" / zero\\nkeep / zero"]' in flip
    assert '0 -> 1 [label="1 / one"]' in flip


def sums(modulus):
    return add_empty(sums_machine(modulus), prefixes=False)


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("flip_flop", {}, 1),
        ("parity", {}, 2),
        ("parity", {"answers": "prefixes"}, 2),
        ("even_pairs", {}, 2),
        ("cycle_nav", {}, 5),
        ("cycle_nav", {"size": 6}, 3),
        ("s3", {}, 3),
        ("s4", {}, 4),
        ("s5", {}, 5),
        ("a4", {}, 4),
        ("a5", {}, 5),
        ("a6", {}, 6),
        ("d4", {}, 4),
        ("d6", {}, 3),
        ("d12", {}, 4),
        ("z12", {}, 4),
        ("z30", {}, 5),
        ("permutation_reset", {}, 2),
    ],
)
def test_smallest_blocks_of_tasks(name, options, size):
    found = smallest_block(find_task(name, options).automaton)
    assert (found.lower, found.upper, found.is_exact) == (size, size, True)
    check_families(minimise(find_task(name, options).automaton), found)


@pytest.mark.parametrize(("modulus", "lower", "upper"), [(2, 4, 4), (3, 9, 9), (5, 25, 25)])
def test_smallest_blocks_of_sums(modulus, lower, upper):
    found = smallest_block(sums(modulus))
    assert (found.lower, found.upper) == (lower, upper)
    check_families(minimise(sums(modulus)), found)


def check_families(minimal, found):
    """Check by the definition that each family is carried, and that they separate all states."""
    q = np.arange(minimal.states)
    told = [np.zeros(len(q), dtype=bool)]
    for family in found.families:
        assert len(family) <= found.upper
        g = np.array([[state in each for state in q] for each in family])
        told.extend(g)
        for column in minimal.step.T:
            domain = column != NO_STEP
            for after in g[:, column[domain]]:
                assert len(set(after)) <= 1 or (g[:, domain] == after).all(1).any()
    assert len(np.unique(np.array(told), axis=1).T) == minimal.states


def by_all_families(automaton):
    """The smallest block, from a list of every family of sets, each checked by the definition."""
    Q = automaton.states
    sets = np.array(list(itertools.product([False, True], repeat=Q)))[1:-1]  # (sets, Q)
    family = np.arange(2 ** len(sets))  # a bit for each set
    closed = np.ones(len(family), dtype=bool)
    for i, u in enumerate(sets):
        for column in automaton.step.T:
            domain = column != NO_STEP
            after = u[column[domain]]
            if len(set(after.tolist())) > 1:
                fit = (sets[:, domain] == after).all(1)
                wanted = (fit.astype(np.int64) << np.arange(len(sets))).sum()
                closed &= ((family >> i) & 1 == 0) | (family & wanted != 0)
    size = np.array([bin(each).count("1") for each in family])
    least = 0
    for q, r in itertools.combinations(range(Q), 2):
        tells = ((sets[:, q] != sets[:, r]).astype(np.int64) << np.arange(len(sets))).sum()
        least = max(least, size[closed & (family & tells != 0)].min())
    return least


def by_closures(automaton):
    """The smallest block for total letters, from the closure of each set."""
    states = frozenset(range(automaton.states))
    letters = [
        {q: {r for r in states if column[r] == q} for q in states} for column in automaton.step.T
    ]
    best = dict.fromkeys(itertools.combinations(states, 2), 2**automaton.states)
    for bits in range(1, 2**automaton.states - 1):
        family = {frozenset(q for q in states if bits >> q & 1)}
        while True:
            before = {
                frozenset().union(*(letter[q] for q in u)) for u in family for letter in letters
            }
            larger = family | before - {frozenset(), states}
            if larger == family:
                break
            family = larger
        u = {q for q in states if bits >> q & 1}
        for q, r in best:
            if (q in u) != (r in u):
                best[q, r] = min(best[q, r], len(family))
    return max(best.values(), default=0)


def test_smallest_blocks_agree_with_a_search_over_all_families():
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(150):
        minimal = minimise(random_automaton(rng, 4, int(rng.integers(1, 4))))
        found = smallest_block(minimal)
        assert found.is_exact
        assert found.lower == by_all_families(minimal)
        check_families(minimal, found)
        sizes.append(found.upper)
    assert len(set(sizes)) > 6


def test_smallest_blocks_of_five_states_agree_with_closures():
    rng = np.random.default_rng(1)
    for _ in range(60):
        minimal = minimise(random_automaton(rng, 5, 2))
        found = smallest_block(minimal)
        assert (found.lower, found.upper) == (by_closures(minimal),) * 2
        check_families(minimal, found)


def test_states_that_share_no_letter_share_slots():
    rng = np.random.default_rng(2)
    sizes = set()
    for _ in range(60):
        minimal = minimise(alternating(rng, (2, 2), 2))
        found = smallest_block(minimal)
        assert (found.lower, found.upper) == (by_all_families(minimal),) * 2
        check_families(minimal, found)
        sizes.add(found.upper)
    assert len(sizes) >= 2


def test_bounds_hold_if_letters_are_missing_here_and_there():
    rng = np.random.default_rng(3)
    exact = 0
    for _ in range(100):
        minimal = minimise(random_automaton(rng, 4, 3, missing=0.15))
        found = smallest_block(minimal)
        assert found.lower <= by_all_families(minimal) <= found.upper
        check_families(minimal, found)
        exact += found.is_exact
    assert exact > 10


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_bounds_from_below(missing):
    rng = np.random.default_rng(4)
    sizes = []
    for _ in range(60):
        minimal = minimise(random_automaton(rng, 4, 2, missing))
        if minimal.states == 1:
            continue
        step, words = generate(minimal.step)
        found = clique_bound(step), lower_bound(Letters(step, np.zeros(minimal.states), words))
        assert max(found) <= by_all_families(minimal)
        sizes.append(found)
    assert max(np.ptp(sizes, axis=0)) > 2
    assert (np.max(sizes, axis=0) > 1).all()


def test_one_state_needs_no_block():
    one = Automaton(np.zeros((1, 2), dtype=np.int64), np.zeros((1, 2), dtype=np.int64))
    assert smallest_block(one) == BlockSize(0, 0, ())


def test_large_closures_are_bounded():
    """Without a word of cycles and without small families, all sets are the upper bound."""
    rng = np.random.default_rng(0)
    step = rng.integers(0, 40, (40, 3))
    minimal = minimise(Automaton(step, step))
    found = smallest_block(minimal)
    assert not found.is_exact
    assert found.upper == 2**minimal.states - 2
    assert found.families == ()


def test_slots_that_are_no_functions_of_the_state_can_be_fewer():
    """The central product of D4 with itself needs 8, but a pair of D4, which covers it, needs 4."""
    table = cayley_table("d", 4)
    pairs = np.array(list(itertools.product(range(8), repeat=2)))
    product = table[pairs[:, None, 0], pairs[None, :, 0]], table[pairs[:, None, 1], pairs[:, 1]]
    numbers = product[0] * 8 + product[1]
    centre = next(z for z in range(1, 8) if (table[z] == table[:, z]).all())
    twin = table[pairs[:, 0], centre] * 8 + table[pairs[:, 1], centre]
    merged = np.unique(np.minimum(np.arange(64), twin), return_inverse=True)[1]
    first = np.array([np.flatnonzero(merged == each)[0] for each in range(32)])
    group = merged[numbers[np.ix_(first, first)]]
    found = smallest_block(Automaton(group, group, int(merged[0])))
    assert (found.lower, found.upper) == (8, 8)
    cover = smallest_block(Automaton(numbers, numbers))
    assert (cover.lower, cover.upper) == (4, 4)
