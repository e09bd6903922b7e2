"""`statemix certify`: what it prints, writes and verifies, and what it refuses."""

import copy
import hashlib
import json
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from statemix.cli import main
from statemix.models import ModelConfig, Tagger
from statemix.proof import (
    certify,
    draw_automaton,
    load_certificate,
    prove,
    save_certificate,
    verify_certificate,
)
from statemix.proof.picture import summary
from statemix.runs.checkpoint import load_checkpoint, save_checkpoint
from statemix.tasks import find_task
from statemix.train import RunConfig
from statemix.train.state import save as save_run
from statemix.train.state import start_run
from statemix.train.trained import load_trained

TRAIN = (
    "train s2 --block-size 2 --blocks 4 --width 16 --length 8 --examples 4000 --test-examples 64 "
    "--preset sharpened --sharpen 1 --harden --hold 0 --decay 60 --warmup 20 --epochs 20"
)
S2 = find_task("s2").automaton


def run_command(*arguments):
    """The exit code of a command; an error's text counts as 1."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code
    return 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that is trained in two seconds, and left as it is."""
    runs = tmp_path_factory.mktemp("runs")
    main([*TRAIN.split(), "--runs", str(runs)])
    (directory,) = runs.iterdir()
    return directory


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="module")
def certified(trained, tmp_path_factory):
    directory = shutil.copytree(trained, tmp_path_factory.mktemp("certified") / "run")
    main(["certify", str(directory)])
    return directory / "certificate"


@pytest.fixture
def certificate(certified, tmp_path):
    return shutil.copytree(certified, tmp_path / "certificate") / "certificate.json"


def change_weights(run, change):
    """Apply `change` to the selected weights of a run."""
    path = run / "checkpoint.safetensors"
    tensors, state = load_checkpoint(path)
    change({name.removeprefix("best."): x for name, x in tensors.items() if "best." in name})
    save_checkpoint(path, tensors, state)


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def untrained(directory, config):
    """The directory of a run that has taken no step."""
    state = start_run(config)
    state.best = {name: x.clone() for name, x in state.model.state_dict().items()}
    directory.mkdir()
    save_run(state, directory)
    (directory / "config.json").write_text(config.to_json())
    return directory


def test_a_finished_run_says_how_to_prove_it(trained, capsys):
    main([*TRAIN.split(), "--runs", str(trained.parent)])
    assert f"prove it: statemix certify {trained}" in capsys.readouterr().out


def test_a_run_is_proved(run, capsys):
    assert run_command("certify", run) == 0
    printed = capsys.readouterr().out
    pattern = (
        r"s2: proved right on every word of every length\. \d of 4 blocks (is|are) kept; 2 states; "
        r"smallest margin [\d.]+ \([\d.]+ after rounding errors in float32\)\."
    )
    assert re.search(pattern, printed), printed
    assert "The proved model is the trained one without its other blocks." in printed
    written = {path.name for path in (run / "certificate").iterdir()}
    assert written == {"model.safetensors", "certificate.json", "automaton.svg"}
    assert run_command("certify", "--verify", run / "certificate" / "certificate.json") == 0
    assert "verified: " in capsys.readouterr().out
    assert run_command("certify", "--verify", run / "certificate") == 0


def test_the_certificate_names_all_that_is_needed(certificate):
    content = json.loads(certificate.read_text())
    weights = certificate.with_name("model.safetensors").read_bytes()
    assert content["sha256"] == hashlib.sha256(weights).hexdigest()
    assert content["task"] == {"name": "s2", "options": {}}
    sizes = content["model"]
    assert sizes["block_size"] == [2]
    assert (sizes["vocab"], sizes["classes"], sizes["width"]) == (2, 2, 16)
    assert content["certificate"]["holds"] is True
    assert content["certificate"]["blocks"] == sizes["blocks"]


def test_the_saved_model_is_right(certificate):
    model = load_certificate(certificate).model
    words = np.random.default_rng(0).integers(0, 2, (8, 3000))
    with torch.no_grad():
        found = model(torch.from_numpy(words))[0].argmax(-1)
    np.testing.assert_array_equal(found, S2.solve(words))


def test_a_readout_that_is_wrong_is_trained_further(run, capsys):
    change_weights(
        run, lambda weights: weights["head.weight"].copy_(weights["head.weight"].flip(0))
    )
    assert run_command("certify", run) == 0
    printed = capsys.readouterr()
    assert "a readout that was trained further" in printed.out
    assert run_command("certify", "--verify", run / "certificate") == 0


def load_at_every_step(weights):
    """Let every slot load at every token, so that the last letter is all that is known."""
    weights["blocks.0.mixer.W_g.weight"].zero_()
    bias = weights["blocks.0.mixer.W_g.bias"]
    bias.zero_().view(-1, 3)[:, 2] = 5.0


def test_a_wrong_run_is_refused_with_a_word_that_shows_it(run, capsys):
    shutil.copytree(run, run.parent / "proved")
    assert run_command("certify", run) == 0
    change_weights(run, load_at_every_step)
    capsys.readouterr()
    assert run_command("certify", run) == 1
    printed = capsys.readouterr()
    assert "s2: not proved. The model answers a word wrongly." in printed.out
    word = [int(x) for x in re.search(r"shortest such word: ([\d ]+)", printed.out)[1].split()]
    said = re.search(r"the model answers (\d) after it; the right answer is (\d)", printed.out)
    _, _, model = load_trained(run)
    with torch.no_grad():
        assert model(torch.tensor([word]))[0][0, -1].argmax() == int(said[1])
    assert S2.solve(np.array([word]))[0, -1] == int(said[2]) != int(said[1])
    assert "is from an earlier proof" in printed.err


BDLRU = {"n_blocks": 2, "block_size": 2, "gate": "hardmax"}
HARD = ModelConfig("bdlru", BDLRU, width=8, channel_mixer="none")
CONFIG = RunConfig("s2", HARD, train_examples=8, test_examples=8, length=6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(CONFIG, task="recall", length=20), "The task 'recall' has no automaton"),
        (
            replace(CONFIG, model=replace(HARD, options={"n_blocks": 2, "block_size": 2})),
            "gates must be hard .* 'softmax'",
        ),
        (replace(CONFIG, harden=True, decay=9), "gates of this run are still soft"),
        (
            replace(CONFIG, model=ModelConfig("lstm", {"hidden": 4}, width=8)),
            "Only models of BD-LRUs can be certified, got a LSTM",
        ),
        (
            replace(CONFIG, model=replace(HARD, options={**BDLRU, "selectivity": "pointwise"})),
            "gates that see the full input, got selectivity 'pointwise'",
        ),
    ],
)
def test_runs_that_cannot_be_proved_are_named(tmp_path, config, message):
    if config.harden:
        options = {name: x for name, x in BDLRU.items() if name != "gate"}
        config = replace(config, model=replace(HARD, options=options))
    text = run_command("certify", untrained(tmp_path / "run", config))
    assert text.startswith("statemix: ")
    assert re.search(message, text), text


def test_the_command_takes_a_run_or_a_certificate(run, capsys):
    assert "takes either" in run_command("certify")
    assert "takes either" in run_command("certify", run, "--verify", run)
    assert run_command("certify", "--help") == 0
    printed = capsys.readouterr().out
    assert "right on every word of every length" in printed
    assert "--preset tracking" in printed


def flip_a_byte(path):
    weights = path.with_name("model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)


def exchange_weights(path, change):
    """Change the weights, and write their hash into the certificate."""
    weights = path.with_name("model.safetensors")
    tensors = load_file(weights)
    change(tensors)
    data = save(tensors, {"format": "pt"})
    weights.write_bytes(data)
    rewrite(path, lambda content: content.update(sha256=hashlib.sha256(data).hexdigest()))


def set_field(section, **values):
    return lambda path: rewrite(path, lambda content: content[section].update(values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is damaged"),
        (lambda path: path.write_text("[]"), "is not a certificate"),
        (lambda path: path.write_text('{"format": "other"}'), "is not a certificate"),
        (lambda path: rewrite(path, lambda c: c.update(version=2)), "has the version 2"),
        (lambda path: rewrite(path, lambda c: c.pop("sha256")), "it lacks sha256"),
        (lambda path: path.unlink(), "There is no certificate"),
        (lambda path: path.with_name("model.safetensors").unlink(), "is missing"),
        (flip_a_byte, "SHA-256 is not the one"),
        (
            lambda path: exchange_weights(path, lambda x: x["head.weight"].mul_(-1)),
            "does not hold for its weights. The model answers a word wrongly.* The word: ",
        ),
        (
            lambda path: exchange_weights(path, lambda x: x["head.weight"].mul_(1.5)),
            "claims `margin` = .* but for its weights it is",
        ),
        (
            lambda path: exchange_weights(path, lambda x: x["head.weight"].fill_(torch.nan)),
            "proves nothing: Only finite weights",
        ),
        (
            lambda path: exchange_weights(path, lambda x: x["embedding.weight"].mul_(1e30)),
            "proves nothing: Numbers in the model are so large that they may overflow",
        ),
        (
            lambda path: exchange_weights(path, lambda x: x.update({"norm.bias": torch.ones(3)})),
            "is damaged: size mismatch for norm.bias",
        ),
        (
            lambda path: exchange_weights(
                path, lambda x: x.update({"norm.bias": x["norm.bias"].double()})
            ),
            "weights must be float32",
        ),
        (set_field("certificate", pairs=7), "claims `pairs` = 7, but for its weights it is 2"),
        (set_field("certificate", holds=False), "claims `holds` = False"),
        (set_field("certificate", dtype="float8"), "Unknown dtype 'float8'"),
        (set_field("certificate", extra=1), "Unknown fields in the config of a certificate: extra"),
        (set_field("model", width=10**9), "is damaged: size mismatch"),
        (set_field("model", width=-1), "sizes of the model must be at least 1, got -1"),
        (set_field("model", blocks=2), "is damaged: "),
        (set_field("model", blocks=[2, 2]), "must have 1 entries"),
        (set_field("model", mixer="lstm"), "is a 'lstm' with 'hardmax' gates"),
        (set_field("task", name="nonsense"), "Unknown task 'nonsense'.*--files"),
        (set_field("task", name="recall"), "has no automaton to compare with"),
        (set_field("task", name="parity"), "proves nothing: The model reads 2 tokens"),
        (
            set_field("task", name="random_automaton", options={"letters": 2}),
            "proves nothing: The model has 2 classes, but the automaton answers up to 3",
        ),
        (
            set_field("task", name="random_automaton", options={"states": 2, "letters": 2}),
            "does not hold",
        ),
        (set_field("task", name=3), "name of a task must be text"),
        (set_field("task", more=3), "`task` must have a name and options"),
    ],
)
def test_damaged_certificates_are_refused(certificate, damage, message):
    damage(certificate)
    text = run_command("certify", "--verify", certificate)
    assert text.startswith("statemix: ")
    assert "\n" not in text
    assert re.search(message, text), text


def test_the_same_automaton_under_another_name_is_accepted(certificate):
    rewrite(certificate, lambda content: content["task"].update(name="z2"))
    assert verify_certificate(certificate).task == "z2"


def test_only_proofs_can_be_saved(run, tmp_path):
    change_weights(run, load_at_every_step)
    _, task, model = load_trained(run)
    proof = prove(model, task.automaton, steps=2)
    assert proof.way == "trained"
    with pytest.raises(
        ValueError, match="Only proofs can be saved, but this one failed: The model"
    ):
        save_certificate(tmp_path / "new", proof.model, proof.certificate, "s2")
    assert not (tmp_path / "new").exists()


def test_gates_that_nearly_tie_at_bos_are_refused(certificate):
    """Of two gates that nearly tie, another machine may choose the other one."""
    model = copy.deepcopy(load_certificate(certificate).model)
    mixer = model.blocks[0].mixer
    bos = model.blocks[0].mixer_norm(model.embedding.weight)[-1].detach()
    letters = model.blocks[0].mixer_norm(model.embedding.weight)[:-1].detach().double()
    free = bos.double() - torch.linalg.pinv(letters) @ (letters @ bos.double())  # seen at BOS only
    with torch.no_grad():
        gates = mixer.W_g(bos).view(mixer.gate_shape).double()
        first, second = gates[0, 0].topk(2).indices
        nudge = torch.zeros_like(gates)
        nudge[0, 0, second] = gates[0, 0, first] - gates[0, 0, second] - 1e-7
        mixer.W_g.weight += torch.outer(nudge.flatten(), free / (free @ bos.double())).float()
    found = certify(model, S2)
    assert not found.holds
    assert abs(found.gate_slack) < 0.01  # the bound on rounding; gates are about ten apart


def test_a_block_whose_gates_tie_is_removed(run):
    """Its rows copy zeros or load, by a tie. The others suffice, so the model is proved without."""
    _, task, model = load_trained(run)
    n, _ = model.blocks[0].mixer.state_shape
    options = {**BDLRU, "n_blocks": n + 1}
    larger = Tagger(replace(model.config, options=options), vocab=2, classes=2).eval()
    weights = model.state_dict()
    torch.manual_seed(0)
    for name, value in (("W_g.weight", 0), ("W_g.bias", 0), ("W_v.weight", 1), ("W_o.weight", 1)):
        full = f"blocks.0.mixer.{name}"
        axis = int(name == "W_o.weight")
        shape = list(weights[full].shape)
        shape[axis] //= n
        weights[full] = torch.cat([weights[full], value * torch.randn(shape)], axis)
    larger.load_state_dict(weights)
    assert certify(larger, task.automaton).gate_slack <= 0
    proof = prove(larger, task.automaton)
    assert proof.certificate.holds
    assert proof.certificate.blocks == prove(model, task.automaton).certificate.blocks


def test_an_answer_that_needs_no_block(tmp_path):
    """The last letter is the answer: the readout sees it without any state."""
    step = np.zeros((1, 3), dtype=np.int64)
    automaton = replace(S2, step=step, answer=np.array([[0, 1, 2]]))
    model = Tagger(HARD, 3, 3)
    with torch.no_grad():
        model.embedding.weight.normal_()
        model.blocks[0].mixer.W_o.weight.zero_()
    proof = prove(model.eval(), automaton)
    assert proof.certificate.holds
    assert proof.certificate.blocks == (0,)
    assert "No block is kept" in draw_automaton(proof.model, "last letter")
    path = save_certificate(tmp_path, proof.model, proof.certificate, "last")
    assert load_certificate(path).certificate == proof.certificate


def test_the_picture_is_valid_and_described(certificate):
    text = certificate.with_name("automaton.svg").read_text()
    root = ElementTree.fromstring(text)
    names = [child.tag.partition("}")[2] for child in root]
    assert names[:2] == ["title", "desc"]
    assert root[0].text.startswith("s2: ")
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    labels = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"start", "letter 0", "letter 1"} <= set(labels)


def test_the_picture_says_what_it_leaves_out():
    config = replace(HARD, options={**BDLRU, "n_blocks": 10})
    root = ElementTree.fromstring(draw_automaton(Tagger(config, 20, 20), "<many>"))
    labels = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(label.endswith("8 letters are not drawn.") for label in labels) == 8
    assert labels.count("and 2 more blocks") == 1
    assert labels[0] == "<many>: 10 blocks"
    assert sum(label == "letter 0" for label in labels) == 8
    assert sum(label.startswith("letter ") for label in labels) == 8 * 12


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ([[0, 1], [1, 0]], "Every letter permutes its 2 slots."),
        ([[2, 2], [2, 2]], "Every letter loads all of its 2 slots."),
        (
            [[0, 1], [1, 0], [2, 2], [0, 0]],
            "Of 4 letters, 2 permute its 2 slots, 1 loads all of them, 1 copies some of them.",
        ),
    ],
)
def test_what_the_letters_do_in_words(letters, words):
    assert summary(letters) == words
