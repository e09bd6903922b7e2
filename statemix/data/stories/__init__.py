"""Stories whose answer is a state: text that needs state tracking."""

from statemix.data.stories.worlds import WORLDS
from statemix.data.stories.writer import (
    PREFIX,
    Story,
    StoryConfig,
    read_stories,
    solve,
    training_stories,
    write,
)

__all__ = [
    "PREFIX",
    "WORLDS",
    "Story",
    "StoryConfig",
    "read_stories",
    "solve",
    "training_stories",
    "write",
]
