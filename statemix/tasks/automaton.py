"""Finite automata with answers, as plain data: what a task asks at every length.

    q[0] = start,    answer[t] = answer[q[t], x[t]],    q[t+1] = step[q[t], x[t]]

The answer belongs to the step that reads the letter, as a model's does. `answer` is `IGNORE` where
nothing is asked, and `step` is −1 where no word continues: after such a letter, nothing follows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_STEP", "Automaton"]

NO_STEP = -1
_IGNORE = -100  # as in statemix.tasks.task


@dataclass(frozen=True, eq=False)
class Automaton:
    """States 0 .. Q − 1 over letters 0 .. V − 1, and what each transition answers, if anything."""

    step: NDArray[np.int64]
    answer: NDArray[np.int64]
    start: int = 0

    def __post_init__(self) -> None:
        if self.step.ndim != 2 or self.step.shape != self.answer.shape:
            raise ValueError(
                "`step` and `answer` of an automaton must have the shape (states, letters), "
                f"got {self.step.shape} and {self.answer.shape}."
            )
        if not 0 <= self.start < len(self.step):
            raise ValueError(
                f"`start` must be a state in 0 .. {len(self.step) - 1}, got {self.start}."
            )
        if self.step.size and not NO_STEP <= self.step.min() <= self.step.max() < len(self.step):
            raise ValueError(
                f"`step` must lead to states in 0 .. {len(self.step) - 1}, or be {NO_STEP}, "
                f"got {self.step.min()} to {self.step.max()}."
            )

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.step)

    @property
    def letters(self) -> int:
        """The number of letters."""
        return self.step.shape[1]

    def solve(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """The answers (count, length) on words of the same shape."""
        targets = np.full_like(words, _IGNORE)
        q = np.full(len(words), self.start)
        for t in range(words.shape[1]):
            alive = q != NO_STEP
            targets[alive, t] = self.answer[q[alive], words[alive, t]]
            q = np.where(alive, self.step[q, words[:, t]], NO_STEP)
        return targets
