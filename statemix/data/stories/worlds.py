"""Small worlds that stories are about: a state, events that change it, and questions about it.

    swaps   people who swap things: a permutation of k things
    cups    a ball under one of k cups that are moved: a permutation of k places
    round   someone who walks round a circle of k places: a sum modulo k
    light   a light that is switched on and off: parity

A world is a table of sentences with slots. Each sentence that is an event has an effect on the
state, which both the writer of a story and its solver apply.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations

from statemix.data.stories.words import ADJECTIVES, NAMES, NOUNS, PLACES, STEPS, THINGS, VERBS

__all__ = ["CHAT", "WORLDS", "State", "World"]

State = tuple[int, ...]
Slots = Mapping[str, str]
CHAT = (
    "the {noun} is {adjective} .",
    "{name} {verb} {other} .",
    "{name} {verb} the {noun} .",
    "it is a {adjective} day .",
)


@dataclass(frozen=True)
class World(ABC):
    """A kind of story with `size` things, places or people."""

    size: int

    @property
    def names(self) -> tuple[str, ...]:
        """The people in the story."""
        return NAMES[:3]

    @abstractmethod
    def states(self) -> list[State]:
        """All states; the first is that of a story with a fixed start."""

    @abstractmethod
    def facts(self) -> dict[str, Callable[[State, Slots], str]]:
        """Sentences about the state, up to their last word, and the function that gives the word.

        The sentences of all slots together determine the state.
        """

    @abstractmethod
    def question(self) -> str:
        """The question that a story ends with; its slots and its answer are those of the fact."""

    @abstractmethod
    def events(self) -> dict[str, Callable[[State, Slots], State]]:
        """Sentences that change the state, and their effects."""

    def choices(self) -> dict[str, tuple[str, ...]]:
        """The words that each slot can have."""
        return {
            "name": self.names,
            "noun": NOUNS,
            "adjective": ADJECTIVES,
            "verb": VERBS,
        }

    def fill(self, template: str, rng: random.Random) -> dict[str, str]:
        """Random words for the slots of a sentence; `other` differs from `name`, `b` from `a`."""
        choices = self.choices()
        slots = {
            key: rng.choice(words) for key, words in choices.items() if f"{{{key}}}" in template
        }
        for key, first in (("other", "name"), ("b", "a")):
            if f"{{{key}}}" in template:
                words = choices[first]
                slots[key] = rng.choice([word for word in words if word != slots[first]])
        return slots

    def words(self) -> list[str]:
        """All words of stories about this world, in the order of the alphabet."""
        templates = [*CHAT, *self.events(), *self.facts(), self.question()]
        fixed = {word for text in templates for word in text.split() if "{" not in word}
        free = {word for words in self.choices().values() for word in words}
        return sorted(fixed | free | {"."} | set(self.answers()))

    @abstractmethod
    def answers(self) -> tuple[str, ...]:
        """The words that can be the answer."""


class _Swaps(World):
    """state[i] is what person i has."""

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES[: self.size]

    def states(self) -> list[State]:
        return list(permutations(range(self.size)))

    def choices(self) -> dict[str, tuple[str, ...]]:
        return {**super().choices(), "a": self.names}

    def answers(self) -> tuple[str, ...]:
        return THINGS[: self.size]

    def facts(self) -> dict[str, Callable[[State, Slots], str]]:
        return {"now {a} has the": lambda state, slots: THINGS[state[NAMES.index(slots["a"])]]}

    def question(self) -> str:
        return "what does {a} have ? the"

    def events(self) -> dict[str, Callable[[State, Slots], State]]:
        def swap(state: State, slots: Slots) -> State:
            return _exchanged(state, NAMES.index(slots["a"]), NAMES.index(slots["b"]))

        texts = ("{a} and {b} swap .", "{a} trades with {b} .", "{a} and {b} change things .")
        return dict.fromkeys(texts, swap)


class _Cups(World):
    """state[0] is the place of the cup with the ball."""

    def states(self) -> list[State]:
        return [(place,) for place in range(self.size)]

    def choices(self) -> dict[str, tuple[str, ...]]:
        return {**super().choices(), "a": PLACES[: self.size]}

    def answers(self) -> tuple[str, ...]:
        return PLACES[: self.size]

    def facts(self) -> dict[str, Callable[[State, Slots], str]]:
        return {"now the ball is on": lambda state, slots: PLACES[state[0]]}

    def question(self) -> str:
        return "where is the ball ? on"

    def events(self) -> dict[str, Callable[[State, Slots], State]]:
        def move(state: State, slots: Slots) -> State:
            a, b = PLACES.index(slots["a"]), PLACES.index(slots["b"])
            return ({a: b, b: a}.get(state[0], state[0]),)

        texts = (
            "the cups on {a} and {b} change places .",
            "swap the cups on {a} and {b} .",
            "the cup on {a} trades with {b} .",
        )
        return dict.fromkeys(texts, move)


class _Round(World):
    """state[0] is the place of the walker on a circle."""

    def states(self) -> list[State]:
        return [(place,) for place in range(self.size)]

    def choices(self) -> dict[str, tuple[str, ...]]:
        return {**super().choices(), "steps": STEPS[: self.size - 1]}

    def answers(self) -> tuple[str, ...]:
        return PLACES[: self.size]

    def facts(self) -> dict[str, Callable[[State, Slots], str]]:
        return {"now she stands on": lambda state, slots: PLACES[state[0]]}

    def question(self) -> str:
        return "where does she stand ? on"

    def events(self) -> dict[str, Callable[[State, Slots], State]]:
        def walk(sign: int) -> Callable[[State, Slots], State]:
            def effect(state: State, slots: Slots) -> State:
                return ((state[0] + sign * (1 + STEPS.index(slots["steps"]))) % self.size,)

            return effect

        return {
            "she walks {steps} on .": walk(1),
            "then she goes {steps} further .": walk(1),
            "she walks {steps} back .": walk(-1),
        }


class _Light(World):
    """state[0] is 1 if the light is on."""

    def states(self) -> list[State]:
        return [(0,), (1,)]

    def answers(self) -> tuple[str, ...]:
        return ("off", "on")

    def facts(self) -> dict[str, Callable[[State, Slots], str]]:
        return {"now the light is": lambda state, slots: self.answers()[state[0]]}

    def question(self) -> str:
        return "is it on or off ? it is"

    def events(self) -> dict[str, Callable[[State, Slots], State]]:
        def toggle(state: State, slots: Slots) -> State:
            return (1 - state[0],)

        def keep(state: State, slots: Slots) -> State:
            return state

        texts = ("{name} presses the switch .", "the switch is pressed by {name} .")
        return {**dict.fromkeys(texts, toggle), "{name} looks at the switch .": keep}


def _exchanged(state: State, i: int, j: int) -> State:
    """The state with the entries i and j exchanged."""
    order = list(range(len(state)))
    order[i], order[j] = j, i
    return tuple(state[index] for index in order)


WORLDS: dict[str, type[World]] = {
    "swaps": _Swaps,
    "cups": _Cups,
    "round": _Round,
    "light": _Light,
}
