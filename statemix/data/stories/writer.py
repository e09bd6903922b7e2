"""Stories whose last word is a state: how they are written, solved, and arranged for training.

    now Cat has the cup . now Ann has the key . now Bob has the ball .      the start, if it is told
    Ann trades with Bob .    the moon is cold .    now Ann has the ball .   events, chat, reports
    what does Ann have ? the ball .                                         the question

With a fixed start, a story is a word over a group, spelled in sentences: whoever reads it must
compute the product. A report in between gives a part of the state away. Training stories come in an
order that can be read as a curriculum: the number of events grows.
"""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from statemix.config.fields import check_fields
from statemix.data.stories.worlds import CHAT, WORLDS, State, World

__all__ = ["PREFIX", "Story", "StoryConfig", "read_stories", "solve", "training_stories", "write"]

PREFIX = "stories:"
_LESSONS = ((0.2, 0.0), (0.3, 1 / 8), (0.42, 2 / 8), (0.55, 3 / 8), (0.65, 4 / 8), (0.75, 6 / 8))
_REPEATED = 0.7  # share of the stories that may have fewer events than their lesson allows


@dataclass(frozen=True)
class StoryConfig:
    """A kind of stories, and how many are written for training."""

    kind: str
    """A name from `WORLDS`."""
    start: Literal["fixed", "told"] = "fixed"
    """Every story begins in the same state, or its first sentences tell the state."""
    size: int = 3
    """Number of things, places or people (3, 4 or 5)."""
    events: int = 8
    """Largest number of events in a training story."""
    chat: float = 0.2
    """Probability of a sentence that does not matter after an event."""
    reports: float = 0.0
    """Probability of a report after an event in a training story. Reports give the answer away:
    a model that is trained with many learns to look for the last one."""
    stories: int = 100_000
    """Number of training stories."""
    seed: int = 0
    """Seed of the stories."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind not in WORLDS:
            raise ValueError(f"Unknown stories {self.kind!r}. Available: {', '.join(WORLDS)}.")
        if self.size not in (3, 4, 5):
            raise ValueError(f"`size` must be 3, 4 or 5, got {self.size}.")
        if self.events < 1 or self.stories < 2:
            raise ValueError(
                "Stories need at least one event, and there must be at least two: "
                f"got events={self.events}, stories={self.stories}."
            )
        for name in ("chat", "reports"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be a probability, got {getattr(self, name)}.")

    @property
    def world(self) -> World:
        """The world that the stories are about."""
        return WORLDS[self.kind](self.size)


@dataclass(frozen=True)
class Story:
    """A story up to its last word, the last word, and the number of events."""

    prompt: str
    answer: str
    events: int

    @property
    def text(self) -> str:
        """The full story."""
        return f"{self.prompt} {self.answer} ."


def read_stories(name: str) -> StoryConfig:
    """The stories that a name such as `stories:swaps` or `stories:swaps,start=told` describes."""
    kind, *pairs = name.removeprefix(PREFIX).split(",")
    kinds = {f.name: f.type for f in fields(StoryConfig)}
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or key not in kinds or key == "kind":
            known = ", ".join(key for key in kinds if key != "kind")
            raise ValueError(f"Unknown option of stories: {pair!r}. Available: {known}.")
        convert: Any = kinds[key]
        try:
            options[key] = convert(value) if convert in (int, float) else value
        except ValueError:
            raise ValueError(f"`{key}` of stories must be a number, got {value!r}.") from None
    return StoryConfig(kind, **options)


def training_stories(config: StoryConfig) -> Iterator[Story]:
    """Stories in the order of a curriculum: first without events, in the end with up to `events`.

    Each lesson has a share of the stories; seven in ten have a random number of events up to the
    largest that it allows, the others have that number.
    """
    rng = random.Random(f"training {config.seed}")
    for i in range(config.stories):
        most = math.ceil(config.events * _lesson(i / config.stories))
        events = rng.randint(0, most) if rng.random() < _REPEATED else most
        yield write(config, events, config.reports, rng)


def _lesson(share: float) -> float:
    """The largest number of events after this share of the stories, relative to `events`."""
    return next((most for end, most in _LESSONS if share < end), 1.0)


def write(config: StoryConfig, events: int, reports: float, rng: random.Random) -> Story:
    """A story with this many events, and a report after an event with probability `reports`."""
    world = config.world
    state = world.states()[0] if config.start == "fixed" else rng.choice(world.states())
    sentences = [] if config.start == "fixed" else _report(world, state, rng, everything=True)
    effects = world.events()
    for i in range(events):
        template = rng.choice(list(effects))
        slots = world.fill(template, rng)
        state = effects[template](state, slots)
        sentences.append(template.format(**slots))
        if rng.random() < config.chat:
            text = rng.choice(CHAT)
            sentences.append(text.format(**world.fill(text, rng)))
        if i < events - 1 and rng.random() < reports:
            sentences += _report(world, state, rng, everything=False)
    ((_, answer),) = world.facts().items()
    slots = world.fill(world.question(), rng)
    prompt = " ".join([*sentences, world.question().format(**slots)])
    return Story(prompt, answer(state, slots), events)


def _report(world: World, state: State, rng: random.Random, *, everything: bool) -> list[str]:
    """Sentences about the state: one, or one for each slot, in a random order."""
    ((template, answer),) = world.facts().items()
    words = [{"a": word} for word in world.choices().get("a", ())] if "{a}" in template else [{}]
    chosen = rng.sample(words, len(words) if everything else 1)
    return [f"{template.format(**slots)} {answer(state, slots)} ." for slots in chosen]


def solve(config: StoryConfig, prompt: str) -> str:
    """The answer to a story, from its sentences alone."""
    world = config.world
    ((fact, answer),) = world.facts().items()
    states = world.states() if config.start == "told" else world.states()[:1]
    *sentences, question = prompt.split(" . ")
    for sentence in sentences:
        for template, effect in world.events().items():
            if (slots := _slots(template.removesuffix(" ."), sentence)) is not None:
                states = [effect(state, slots) for state in states]
        if (slots := _slots(f"{fact} {{fact}}", sentence)) is not None:
            states = [state for state in states if answer(state, slots) == slots["fact"]]
    slots = _slots(world.question(), question)
    answers = {answer(state, slots or {}) for state in states}
    if slots is None or len(answers) != 1:
        raise ValueError(f"The story does not determine its answer: {prompt[-60:]!r}.")
    return answers.pop()


def _slots(template: str, sentence: str) -> dict[str, str] | None:
    """The words in the slots of a sentence, or None if it is another sentence."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\w+)", re.escape(template))
    found = re.fullmatch(pattern, sentence)
    return None if found is None else found.groupdict()
