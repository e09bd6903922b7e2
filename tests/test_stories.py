"""Stories: their answers, their order, and a model's accuracy on them."""

import json
import random
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lm_runs import losses, tiny_model
from texts import little_data

from statemix.cli import main
from statemix.config.lm import LMRunConfig
from statemix.data import open_data
from statemix.data.batches import windows_of_step
from statemix.data.stories import (
    WORLDS,
    StoryConfig,
    read_stories,
    solve,
    training_stories,
    write,
)
from statemix.data.tokenizer import word_tokenizer
from statemix.layers.unit import LinearRecurrentUnit
from statemix.lm import load_model
from statemix.lm.ngram import documents_of
from statemix.lm.ranks import Scored
from statemix.lm.stories import measure_stories
from statemix.models import LanguageModel, LMConfig

pytest.importorskip(
    "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
)
KINDS = pytest.mark.parametrize("kind", WORLDS)
STARTS = pytest.mark.parametrize("start", ["fixed", "told"])


def answer_of_swaps(prompt):
    """The answer to a story about swaps, read with a few lines of its own."""
    has = {"Ann": "key", "Bob": "cup", "Cat": "ball", "Dan": "hat", "Eve": "pen"}
    for a, word, b in re.findall(
        r"(\w+) (and|trades with|has the) (\w+)(?= swap| change| \.)", prompt
    ):
        if word == "has the":
            has[a] = b
        else:
            has[a], has[b] = has[b], has[a]
    return has[re.search(r"does (\w+) have", prompt)[1]]


def answer_of_round(prompt, size):
    """The answer to a story about a walk on a circle."""
    places = ["red", "blue", "green", "white", "black"][:size]
    at = 0
    for place, steps, way in re.findall(
        r"now she stands on (\w+)|(?:walks|goes) (\w+) (on|further|back)", prompt
    ):
        number = {"": 0, "one": 1, "two": 2, "three": 3, "four": 4}[steps]
        at = places.index(place) if place else (at + (-number if way == "back" else number)) % size
    return places[at]


@pytest.mark.parametrize("size", [3, 4, 5])
@STARTS
@KINDS
def test_the_solver_and_the_writer_agree(kind, start, size):
    config = StoryConfig(kind, start, size)
    words = set(config.world.words())
    rng = random.Random(0)
    for events in (0, 1, 2, 9, 40):
        for reports in (0.0, 0.5):
            story = write(config, events, reports, rng)
            assert solve(config, story.prompt) == story.answer
            assert set(story.text.split()) <= words
            if kind == "swaps":
                assert answer_of_swaps(story.prompt) == story.answer
            if kind == "round":
                assert answer_of_round(story.prompt, size) == story.answer


def test_the_answers_of_cups_and_light():
    cups, light = StoryConfig("cups", chat=0.0), StoryConfig("light", chat=0.0)
    assert solve(cups, "the cup on red trades with green . where is the ball ? on") == "green"
    told = StoryConfig("cups", "told")
    text = "now the ball is on blue . swap the cups on green and blue . where is the ball ? on"
    assert solve(told, text) == "green"
    pressed = "Ann presses the switch . Bob looks at the switch . is it on or off ? it is"
    assert solve(light, pressed) == "on"
    assert solve(light, f"the switch is pressed by Cat . {pressed}") == "off"
    with pytest.raises(ValueError, match="does not determine its answer"):
        solve(told, "swap the cups on green and blue . where is the ball ? on")
    with pytest.raises(ValueError, match="does not determine its answer"):
        solve(light, "Ann presses the switch . where is the ball ? on")


@KINDS
def test_every_answer_occurs_and_all_are_about_equally_likely(kind):
    config = StoryConfig(kind)
    rng = random.Random(0)
    answers = [write(config, 7, 0.0, rng).answer for _ in range(600)]
    counts = [answers.count(word) for word in config.world.answers()]
    assert sum(counts) == 600
    assert min(counts) > 0.6 * 600 / len(counts)


def test_training_stories_form_a_curriculum():
    stories = list(training_stories(StoryConfig("swaps", stories=1000, chat=0.0)))
    assert stories == list(training_stories(StoryConfig("swaps", stories=1000, chat=0.0)))
    assert all(story.events == 0 for story in stories[:50])
    most = [max(s.events for s in stories[i : i + 100]) for i in range(0, 1000, 100)]
    assert most == sorted(most)
    assert most[-1] == 8
    assert not any("now" in story.prompt for story in stories)
    reported = list(training_stories(StoryConfig("swaps", stories=100, reports=1.0)))[-20:]
    assert all(story.prompt.split().count("now") == max(story.events - 1, 0) for story in reported)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stories:trains", "Unknown stories 'trains'. Available: swaps, cups, round, light"),
        ("stories:swaps,people=3", "Unknown option of stories: 'people=3'. Available: start, size"),
        ("stories:swaps,size=2", "`size` must be 3, 4 or 5, got 2"),
        ("stories:swaps,size=x", "`size` of stories must be a number, got 'x'"),
        ("stories:swaps,start=random", "Unknown start 'random'. Available: fixed, told"),
        ("stories:swaps,chat=1.5", "`chat` must be a probability, got 1.5"),
        ("stories:swaps,events=0", "at least one event.* got events=0, stories=100000"),
    ],
)
def test_errors_name_the_option(name, message):
    with pytest.raises(ValueError, match=message):
        read_stories(name)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    out = tmp_path_factory.mktemp("stories") / "swaps"
    main(["lm", "prepare", "stories:swaps,start=told,stories=400", "--out", str(out)])
    return out


def test_prepared_stories_keep_their_order_and_their_words(prepared):
    data = open_data(prepared)
    config = read_stories("stories:swaps,start=told,stories=400")
    assert data.meta.vocab == 2 + len(config.world.words())
    tokenizer = word_tokenizer(config.world.words())
    texts = [tokenizer.decode(ids.tolist()) for ids in documents_of(data.split("train"))]
    expected = [story.text for story in training_stories(config)]
    held_out = {tokenizer.decode(x.tolist()) for x in documents_of(data.split("validation"))}
    assert texts == [text for text in expected if text not in held_out]


def test_windows_in_the_order_of_the_text():
    assert windows_of_step(2, 4, 10, seed=3, shuffle=False).tolist() == [8, 9, 0, 1]
    shuffled = [windows_of_step(s, 4, 8, seed=3) for s in range(2)]
    assert sorted(np.concatenate(shuffled).tolist()) == list(range(8))


def test_training_and_evaluation_from_the_command_line(prepared, tmp_path, capsys):
    options = [*tiny_model(batch=2), "--steps", "3", "--order", "text", "--validation-tokens", "64"]
    main(["lm", "train", str(prepared), *options, "--out", str(tmp_path / "run")])
    final = str(tmp_path / "run" / "final")
    found = tmp_path / "found.jsonl"
    main(["lm", "eval", final, "stories:swaps", "--events", "0", "3", "--out", str(found)])
    assert "stories:swaps" in capsys.readouterr().out
    accuracy = json.loads(found.read_text())["accuracy"]
    assert set(accuracy) == {"0", "3"}
    with pytest.raises(SystemExit, match="lacks the word 'back' of stories:round"):
        main(["lm", "eval", final, "stories:round"])
    with pytest.raises(SystemExit, match="--events must not be negative, got -1"):
        main(["lm", "eval", final, "stories:swaps", "--events", "-1"])


class Solver:
    """A model that is wrong about every third story of a batch."""

    def __init__(self, config, tokenizer, written):
        self.config, self.tokenizer, self.written = config, tokenizer, written

    def features(self, tokens):
        return tokens, None

    def head(self, rows):
        batch = [self.written.pop(0) for _ in rows]
        logits = torch.zeros(len(rows), self.tokenizer.get_vocab_size())
        for row, story in enumerate(batch):
            word = solve(self.config, story.prompt) if row % 3 else "."
            logits[row, self.tokenizer.token_to_id(word)] = 1.0
        return logits


@KINDS
def test_accuracy_counts_right_answers(kind, monkeypatch):
    config = StoryConfig(kind)
    tokenizer = word_tokenizer(config.world.words())
    written = []

    def remember(*arguments):
        written.append(write(*arguments))
        return written[-1]

    monkeypatch.setattr("statemix.lm.stories.write", remember)
    model = Solver(config, tokenizer, written)
    measured = measure_stories(model, tokenizer, 0, config, events=(0, 5), stories=12, batch=6)
    counts = [(each.events, each.stories, each.right) for each in measured]
    assert counts == [(0, 12, 8), (5, 12, 8)]


def test_answers_have_a_weight_in_training_only():
    torch.manual_seed(0)
    model = LanguageModel(LMConfig(9, 8, 1, "bdlru", {"n_blocks": 2, "block_size": 2})).double()
    tokens, targets = torch.randint(1, 9, (2, 1, 12))
    targets[0, [4, 9]] = 0  # the ends of two documents: their answers are the targets 2 and 7
    plain, weighted = Scored(model), Scored(model, end=0, answers=3.0)
    losses = F.cross_entropy(model(tokens)[0][0], targets[0], reduction="none")
    torch.testing.assert_close(plain(tokens, targets), losses.sum())
    expected = losses.sum() + 2.0 * (losses[2] + losses[7])
    torch.testing.assert_close(weighted(tokens, targets), expected)
    torch.testing.assert_close(weighted.eval()(tokens, targets), losses.sum())
    with pytest.raises(ValueError, match="`answers` must be above zero and finite, got 0"):
        LMRunConfig(LMConfig(10), "x", answers=0.0)


def test_gates_are_sharpened_in_the_cooldown(tmp_path_factory, tmp_path):
    data = little_data(tmp_path_factory.mktemp("little"))
    runs = {}
    for factor in ("1", "1.5"):
        options = [*tiny_model(batch=2), "--steps", "4", "--cooldown", "0.5", "--sharpen", factor]
        out = tmp_path / factor
        main(["lm", "train", str(data.directory), *options, "--out", str(out)])
        runs[factor] = losses(out), load_model(out / "final").model
    assert runs["1"][0][:3] == runs["1.5"][0][:3]
    assert runs["1"][0][3] != runs["1.5"][0][3]
    blunt, sharp = (
        next(m for m in model.modules() if isinstance(m, LinearRecurrentUnit))
        for _, model in runs.values()
    )
    ratio = sharp.W_g.weight.norm() / blunt.W_g.weight.norm()
    assert ratio.item() == pytest.approx(1.5**2, rel=0.1)


def test_sharpening_needs_a_cooldown():
    with pytest.raises(ValueError, match="takes effect in the cool-down, but `cooldown` is 0"):
        LMRunConfig(LMConfig(10), "x", sharpen=1.01)
    with pytest.raises(ValueError, match="`sharpen` must be at least 1 and below 2, got 2.5"):
        LMRunConfig(LMConfig(10), "x", sharpen=2.5, cooldown=0.3)
