"""Accuracy on stories: how often a model's most likely last word is the answer, by events.

The stories are new ones, without reports, with as few or many events as asked for: a model that
was trained on up to 8 events can be tested on 64.
"""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

from statemix.data.stories import Story, StoryConfig, write
from statemix.models.lm import LanguageModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["EVENTS", "StoryAccuracy", "measure_stories"]

EVENTS = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class StoryAccuracy:
    """The number of stories with this many events, and of right answers among them."""

    events: int
    stories: int
    right: int

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.right / self.stories


@torch.inference_mode()
def measure_stories(
    model: LanguageModel,
    tokenizer: "Tokenizer",
    end: int,
    config: StoryConfig,
    *,
    events: tuple[int, ...] = EVENTS,
    stories: int = 500,
    batch: int = 50,
) -> list[StoryAccuracy]:
    """Let the model answer `stories` stories for each number of events."""
    measured = []
    for count in events:
        rng = random.Random(f"test {config.seed} {count}")
        drawn = [write(config, count, 0.0, rng) for _ in range(stories)]
        groups = [drawn[i : i + batch] for i in range(0, stories, batch)]
        right = sum(_count_right(model, tokenizer, end, group) for group in groups)
        measured.append(StoryAccuracy(count, stories, right))
    return measured


def _count_right(
    model: LanguageModel, tokenizer: "Tokenizer", end: int, stories: list[Story]
) -> int:
    """The number of stories whose answer is the most likely next token."""
    prompts = [
        torch.tensor([end, *tokenizer.encode(story.prompt, add_special_tokens=False).ids])
        for story in stories
    ]
    answers = torch.tensor([tokenizer.token_to_id(story.answer) for story in stories])
    last = torch.tensor([len(prompt) - 1 for prompt in prompts])
    x, _ = model.features(pad_sequence(prompts, batch_first=True, padding_value=end))
    logits = model.head(x[torch.arange(len(prompts)), last])
    return int((logits.argmax(-1) == answers).sum())
