"""Protocols: what is trained at which lengths, and what is tested.

slice          four formal languages, trained at up to 40 letters, tested at 40 to 256
deltaproduct   products in S3, S4, A5 and S5, trained at 128 elements, tested at up to 512
"""

from dataclasses import dataclass, field

from statemix.config.task import RunConfig
from statemix.ops.check import check_choice
from statemix.tasks import Task, find_task

__all__ = ["PROTOCOLS", "Protocol", "Training", "Trial", "find_protocol", "protocol_of"]


@dataclass(frozen=True)
class Trial:
    """What a run on the open track has for a task: layers, and steps, restarts included."""

    layers: int
    steps: int


@dataclass(frozen=True)
class Training:
    """How a protocol trains on its published track, with new sequences in every step."""

    shortest: int
    batch: int
    lr: float
    weight_decay: float
    warmup: float
    width: int
    layers: int
    steps: int


@dataclass(frozen=True)
class Protocol:
    """A named protocol.

    Args:
        tasks: the tasks, in the order of the columns, and what each has on the open track.
        longest: the longest training sequence.
        tested: the shortest and the longest test sequence.
        answers: the task's option `answers` in training on the open track, or None.
        growing: lengths of the prefixes that the open track trains on first.
        title: one line for the head of the table.
        published: the training of the published track, or None if it is not known in full.
    """

    name: str
    tasks: dict[str, Trial] = field(hash=False)
    longest: int
    tested: tuple[int, int]
    answers: str | None
    growing: tuple[int, ...]
    title: str
    published: Training | None = None

    def test_task(self, name: str) -> Task:
        """The task as it is tested: with one answer per word, or with all products."""
        return find_task(name)


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "slice",
            {
                "cycle_nav": Trial(1, 4000),
                "even_pairs": Trial(1, 4000),
                "mod_arith": Trial(2, 5000),
                "parity": Trial(1, 4000),
            },
            40,
            (40, 256),
            "prefixes",
            (3, 5, 7, 9, 13, 19, 27),
            "Formal languages: trained at up to 40 letters, tested at 40 to 256",
            Training(3, 256, 2e-3, 0.01, 0.1, 128, 2, 100_001),
        ),
        Protocol(
            "deltaproduct",
            {task: Trial(1, 4000) for task in ("s3", "s4", "a5", "s5")},
            128,
            (128, 512),
            None,
            (2, 3, 4, 6, 9, 13, 20, 30, 45, 68, 101),
            "Products of permutations: trained at up to 128 elements, tested at 128 to 512",
        ),
    )
}


def find_protocol(name: str) -> Protocol:
    """The protocol called `name`."""
    check_choice("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def protocol_of(config: RunConfig) -> Protocol:
    """The protocol with the task of `config`."""
    for protocol in PROTOCOLS.values():
        if config.task in protocol.tasks:
            return protocol
    tasks = [task for protocol in PROTOCOLS.values() for task in protocol.tasks]
    raise ValueError(f"No protocol has the task {config.task!r}. Available: {', '.join(tasks)}.")
