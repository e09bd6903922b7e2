"""Saved models, text generation, perplexity by position, and the commands."""

import gc
import json
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from texts import little_data, small_files
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from statemix.cli import main
from statemix.data.tokens import open_data
from statemix.lm import load_model, save_model
from statemix.lm.evaluate import Perplexity, measure_perplexity
from statemix.lm.generate import Sampling, choose, generate_tokens
from statemix.lm.measure import flops_per_token
from statemix.lm.text import read_held_out, read_text
from statemix.models import LanguageModel, LMConfig, count_parameters, find_preset
from statemix.models.presets import RECOMMENDED

TEXT = "the cat sat on the mat, the dog ate the cat's hat; and that was that. " * 6
CONFIG = LMConfig(300, 16, 2, "bdlru", {"n_blocks": 4, "block_size": 2})
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
        ),
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def build(config=CONFIG):
    torch.manual_seed(0)
    model = LanguageModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.fixture
def directory(tmp_path, tokenizer_file):
    save_model(
        tmp_path / "final",
        CONFIG,
        build().state_dict(),
        tokenizer=tokenizer_file,
        about={"train_length": 32},
    )
    return tmp_path / "final"


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("tie", [False, True])
def test_a_saved_model_loads_unchanged(tmp_path, tie):
    config = LMConfig(30, 16, 2, "hlru", {"n_channels": 4, "order": 2}, tie=tie)
    model = build(config)
    save_model(tmp_path / "model", config, model.state_dict(), about={"note": 1})
    saved = load_model(tmp_path / "model")
    assert saved.model.config == config
    assert saved.about == {"note": 1}
    assert (saved.model.head.weight is saved.model.embedding.weight) == tie
    assert ("head.weight" in load_file(tmp_path / "model" / "model.safetensors")) != tie
    for (name, a), (_, b) in zip(
        model.state_dict().items(), saved.model.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name


def test_a_model_is_replaced_only_on_request(directory):
    other = LMConfig(300, 8, 1, "lstm", {"hidden": 4})
    before = contents(directory)
    with pytest.raises(FileExistsError, match="exists and would be overwritten"):
        save_model(directory, other, build(other).state_dict())
    assert contents(directory) == before
    save_model(directory, other, build(other).state_dict(), replace=True)
    assert load_model(directory).model.config == other
    assert [path.name for path in directory.parent.iterdir()] == ["final"]


def test_other_files_are_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(
        FileExistsError,
        match=r"holds thesis.tex, which is not a file of a model, and would be lost",
    ):
        save_model(tmp_path, CONFIG, build().state_dict(), replace=True)
    (tmp_path / "config.json").write_text('{"mine": 1}')
    with pytest.raises(FileExistsError, match=r"holds thesis.tex, which"):
        save_model(tmp_path, CONFIG, build().state_dict(), replace=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    (tmp_path / "thesis.tex").unlink()
    with pytest.raises(FileExistsError, match=r"holds config.json, which"):
        save_model(tmp_path, CONFIG, build().state_dict(), replace=True)
    assert (tmp_path / "config.json").read_text() == '{"mine": 1}'


def test_weights_of_another_shape_are_not_saved(tmp_path):
    weights = build().state_dict()
    with pytest.raises(
        ValueError, match=r"`embedding.weight` must have the shape \(300, 16\), got \(2, 16\)"
    ):
        save_model(tmp_path / "a", CONFIG, {**weights, "embedding.weight": torch.zeros(2, 16)})
    weights.pop("norm.weight")
    with pytest.raises(ValueError, match="missing: norm.weight; unknown: nrom.weight"):
        save_model(tmp_path / "a", CONFIG, {**weights, "nrom.weight": torch.zeros(16)})
    assert not list(tmp_path.iterdir())


def break_config(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def narrow(directory):
    header = json.loads((directory / "config.json").read_text())
    break_config(directory, model={**header["model"], "width": 8})


def drop_weight(directory):
    weights = load_file(directory / "model.safetensors")
    weights.pop("norm.weight")
    save_file(weights, directory / "model.safetensors")


def truncate(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


DAMAGES = {
    "no config": (
        lambda d: (d / "config.json").unlink(),
        "is not the directory of a language model: it has no config.json",
    ),
    "damaged config": (lambda d: (d / "config.json").write_text("{"), "config.json is damaged"),
    "another program's": (
        lambda d: (d / "config.json").write_text('{"model_type": "gpt2"}'),
        "does not describe a statemix language model",
    ),
    "newer": (lambda d: break_config(d, version=2), "has the version 2, this statemix reads 1"),
    "unknown field": (
        lambda d: break_config(d, model={"vocab": 3, "depth": 1}),
        "Unknown fields in the config of a language model: depth",
    ),
    "another width": (
        narrow,
        r"is damaged: `embedding.weight` must have the shape \(300, 8\), got \(300, 16\)",
    ),
    "missing weight": (drop_weight, "model.safetensors is damaged: its hash does not match"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "model.safetensors is missing"),
    "truncated weights": (truncate, "model.safetensors is damaged"),
    "no tokenizer": (
        lambda d: (d / "tokenizer.json").unlink(),
        "has no tokenizer.json. Copy the one that it was trained with to this directory",
    ),
    "damaged tokenizer": (lambda d: (d / "tokenizer.json").write_text("{}"), "is not a tokenizer"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_directories_raise(directory, damage):
    act, message = DAMAGES[damage]
    act(directory)
    with pytest.raises(SystemExit, match=f"statemix: .*{message}"):
        main(["lm", "generate", str(directory), "the"])


def test_a_tokenizer_of_another_model_raises(tmp_path, tokenizer_file):
    config = LMConfig(100, 16, 1, "lstm", {"hidden": 4})
    save_model(tmp_path / "m", config, build(config).state_dict(), tokenizer=tokenizer_file)
    with pytest.raises(
        SystemExit,
        match="token ids up to 2.., but the vocabulary of the model has 100 tokens. Replace it "
        "with",
    ):
        main(["lm", "generate", str(tmp_path / "m"), "the"])


@pytest.mark.parametrize("length", [1, 5, 1500])
def test_greedy_tokens_have_the_highest_probability(length):
    model, prompt = build(), torch.randint(300, (length,))
    tokens = list(generate_tokens(model, prompt, 12, GREEDY))
    logits, _ = model(torch.cat([prompt, torch.tensor(tokens)])[None])
    assert logits[0, length - 1 : -1].argmax(-1).tolist() == tokens
    assert len(set(tokens)) > 2
    assert (
        list(generate_tokens(model, prompt, 12, GREEDY, stop=tokens[3]))
        == tokens[: tokens.index(tokens[3])]
    )


def test_sampling():
    logits, generator = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.Generator().manual_seed(0)

    def frequencies(**options):
        return (
            torch.bincount(
                choose(logits.expand(3000, -1), Sampling(**options), generator), minlength=4
            )
            / 3000
        )

    torch.testing.assert_close(
        frequencies(temperature=1.0), logits[0].softmax(0), atol=0.03, rtol=0
    )
    torch.testing.assert_close(
        frequencies(temperature=0.5), (2 * logits[0]).softmax(0), atol=0.03, rtol=0
    )
    two = torch.cat([logits[0, :2].softmax(0), torch.zeros(2)])
    torch.testing.assert_close(frequencies(temperature=1.0, top_k=2), two, atol=0.03, rtol=0)
    torch.testing.assert_close(frequencies(temperature=1.0, top_p=0.7), two, atol=0.03, rtol=0)
    assert frequencies(temperature=1.0, top_p=0.01)[0] == 1
    assert frequencies(temperature=1.0, top_p=1e-320)[0] == 1  # zero in float32
    for coldest in (1e-7, 1e-44, 1e-320):
        assert frequencies(temperature=coldest)[0] == 1
    prompt = torch.tensor([1])
    first, again, other = (
        list(generate_tokens(build(), prompt, 20, Sampling(1.0, seed=seed))) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_memory_does_not_grow_with_tokens():
    """Tensors in memory after 1,000 tokens are as large as after 100."""
    model, alive = build(), {}
    for count, _ in enumerate(generate_tokens(model, torch.tensor([1]), 1001, GREEDY)):
        if count in (100, 1000):
            gc.collect()
            alive[count] = sum(
                x.numel() for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)
            )
    assert alive[100] == alive[1000]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"temperature": t}, "`temperature`") for t in (-1.0, math.inf, math.nan)]
    + [({"top_k": -1}, "`top_k`"), ({"top_p": 0.0}, "`top_p`"), ({"top_p": 1.5}, "`top_p`")],
)
def test_invalid_sampling_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_an_empty_prompt_raises():
    with pytest.raises(ValueError, match="A prompt must have at least one token"):
        next(generate_tokens(build(), torch.tensor([], dtype=torch.long), 3, GREEDY))


@pytest.mark.parametrize(("length", "batch"), [(10, 2), (10, 100), (53, 3), (64, 1)])
def test_perplexity_by_position(length, batch, monkeypatch):
    """The result matches separate evaluations of all sequences, with small chunks along time."""
    monkeypatch.setattr("statemix.lm.evaluate.LOGITS", 300 * 7)
    model, tokens = build(), torch.randint(300, (53,))
    texts = [tokens[:3], tokens[3:3], tokens[3:]]
    result = measure_perplexity(model, texts, 99, start=5, length=length, batch=batch)
    nats = torch.zeros(length, dtype=torch.float64)
    for part in [tokens[:3], *tokens[3:].split(length)]:
        logits, _ = model(torch.cat([torch.tensor([5]), part[:-1]])[None])
        nats[: len(part)] += F.cross_entropy(logits[0], part, reduction="none").double()
    torch.testing.assert_close(result.nats, nats, rtol=1e-5, atol=1e-5)
    assert result.counts.sum() == 53
    assert result.between(0, length) == pytest.approx(math.exp(nats.sum().item() / 53), rel=1e-5)
    assert result.bits_per_byte == pytest.approx(nats.sum().item() / math.log(2) / 99, rel=1e-5)


def test_spans_cover_every_position_once():
    for length in (1, 16, 17, 100, 4096):
        result = Perplexity(torch.zeros(5000), (torch.arange(5000) < length).long(), 1)
        covered = [t for first, last in result.spans() for t in range(first, last)]
        assert covered == list(range(length))


def test_generate_streams_the_text(directory, capsys):
    main(
        [
            "lm",
            "generate",
            str(directory),
            "the cat",
            "--tokens",
            "9",
            "--temperature",
            "0",
            "--no-stop-at-end",
        ]
    )
    printed = capsys.readouterr()
    saved, tokenizer = load_model(directory), Tokenizer.from_file(str(directory / "tokenizer.json"))
    prompt = torch.tensor([0, *tokenizer.encode("the cat").ids])
    tokens = list(generate_tokens(saved.model, prompt, 9, GREEDY))
    expected = "the cat" + tokenizer.decode(tokens, skip_special_tokens=False)
    assert printed.out.rstrip("\n") == expected.rstrip("�\n")
    assert "9 tokens" in printed.err


def word_tokenizer(path):
    """Save a tokenizer whose tokens are words without spaces, and which adds special tokens."""
    words = {
        word: i
        for i, word in enumerate(
            ["[UNK]", "[SEP]", "[CLS]", *sorted(set(TEXT.replace(",", "").split()))]
        )
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    frame = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 1)]
    )
    tokenizer.post_processor = frame
    tokenizer.save(str(path))
    return tokenizer


def test_generated_words_are_separated_from_the_prompt(tmp_path, capsys):
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json")
    save_model(
        tmp_path / "final", CONFIG, build().state_dict(), tokenizer=tmp_path / "tokenizer.json"
    )
    with torch.no_grad():
        tokens = list(
            generate_tokens(
                build(),
                torch.tensor([1, *tokenizer.encode("the cat", add_special_tokens=False).ids]),
                5,
                GREEDY,
            )
        )
    assume = [token for token in tokens if token < tokenizer.get_vocab_size()]
    main(
        [
            "lm",
            "generate",
            str(tmp_path / "final"),
            "the cat",
            "--tokens",
            "5",
            "--temperature",
            "0",
            "--no-stop-at-end",
        ]
    )
    expected = tokenizer.decode(
        [*tokenizer.encode("the cat", add_special_tokens=False).ids, *assume],
        skip_special_tokens=False,
    )
    assert capsys.readouterr().out.rstrip("\n") == expected
    with pytest.raises(SystemExit, match="The prompt must be UTF-8 text: character 3 is not"):
        main(["lm", "generate", str(tmp_path / "final"), "the\udcff", "--tokens", "5"])


def test_an_exported_tokenizer_adds_no_tokens(tmp_path):
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json")
    save_model(
        tmp_path / "final", CONFIG, build().state_dict(), tokenizer=tmp_path / "tokenizer.json"
    )
    main(["lm", "export", str(tmp_path / "final"), str(tmp_path / "exported")])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert (
        theirs("the cat sat")["input_ids"]
        == tokenizer.encode("the cat sat", add_special_tokens=False).ids
    )


def test_eval_reads_lines_of_json(directory, tmp_path, capsys):
    """Each line is a document without its JSON syntax, as in `prepare`."""
    bodies = [TEXT[:200], TEXT[100:400]]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"body": body}) + "\n" for body in bodies))
    for index, body in enumerate(bodies):
        (tmp_path / f"{index}.txt").write_text(body)
    main(
        [
            "lm",
            "eval",
            str(directory),
            str(tmp_path / "d.jsonl"),
            "--field",
            "body",
            "--out",
            str(tmp_path / "a"),
        ]
    )
    main(
        [
            "lm",
            "eval",
            str(directory),
            *(str(tmp_path / f"{index}.txt") for index in range(2)),
            "--out",
            str(tmp_path / "b"),
        ]
    )
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in "ab")
    assert ours["bits_per_byte"] == theirs["bits_per_byte"]
    (tmp_path / "d.csv").write_text("a,b")
    with pytest.raises(SystemExit, match="d.csv is not plain text"):
        main(["lm", "eval", str(directory), str(tmp_path / "d.csv")])
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(SystemExit, match="deep.jsonl, line 1, is not JSON"):
        main(["lm", "eval", str(directory), str(tmp_path / "deep.jsonl")])


def test_eval_reports_positions_beyond_the_training_length(directory, tmp_path, capsys):
    text, out = tmp_path / "text.txt", tmp_path / "out.jsonl"
    text.write_text(TEXT * 5)
    main(["lm", "eval", str(directory), str(text), "--out", str(out)])
    printed = capsys.readouterr().out
    assert "beyond the training length" in printed
    line = json.loads(out.read_text())
    assert (line["length"], line["train_length"]) == (128, 32)
    assert f"{line['bits_per_byte']:.4f} bits per byte of {len(TEXT * 5):,}" in printed
    assert [span["first"] for span in line["spans"]] == [0, 16, 32, 64]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is not UTF-8 text: byte 0xff"),
        (b"a\0b", "holds a zero byte at 1"),
    ],
)
def test_invalid_texts_raise(directory, tmp_path, data, message):
    (tmp_path / "text.txt").write_bytes(data)
    with pytest.raises(SystemExit, match=message):
        main(["lm", "eval", str(directory), str(tmp_path / "text.txt")])


def test_a_byte_order_mark_is_not_text(directory, tmp_path):
    saved, tokenizer = load_model(directory), Tokenizer.from_file(str(directory / "tokenizer.json"))
    (tmp_path / "marked.txt").write_text(TEXT, encoding="utf-8-sig")
    text = read_text(tmp_path / "marked.txt", saved, tokenizer)
    assert text.bytes == len(TEXT)
    assert text.documents[0].tolist() == tokenizer.encode(TEXT).ids


def test_eval_takes_held_out_documents(directory, tmp_path, tokenizer_file, capsys):
    """Held-out documents give the same result as their text."""
    source, data = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    for index in range(40):
        (source / f"{index}.txt").write_text(
            f"{index} cats sat on {index % 7} mats. " * (1 + index % 5)
        )
    main(
        [
            "lm",
            "prepare",
            str(source),
            "--out",
            str(data),
            "--tokenizer",
            str(tokenizer_file),
            "--validation",
            "0.3",
        ]
    )
    split, tokenizer = open_data(data).split("validation"), Tokenizer.from_file(str(tokenizer_file))
    known = {tuple(tokenizer.encode(path.read_text()).ids): path for path in source.iterdir()}
    texts = [
        known[tuple(document.tolist())]
        for document in read_held_out(data, load_model(directory)).documents
    ]
    assert len(texts) == split.meta.documents > 5
    for name, paths in (("a", [data]), ("b", texts)):
        main(["lm", "eval", str(directory), *map(str, paths), "--out", str(tmp_path / name)])
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in "ab")
    assert ours["bits_per_byte"] == pytest.approx(theirs["bits_per_byte"], rel=1e-6)
    (directory / "tokenizer.json").write_text((directory / "tokenizer.json").read_text() + " ")
    with pytest.raises(SystemExit, match="was prepared with another tokenizer"):
        main(["lm", "eval", str(directory), str(data)])


def test_a_full_disk_raises(directory, tmp_path):
    with (
        small_files(4096),
        pytest.raises(
            ValueError,
            match=r"The weights for .*copy could not be written \(.*\). Free some disk space",
        ),
    ):
        save_model(tmp_path / "copy", CONFIG, build().state_dict())
    with (
        small_files(4096),
        pytest.raises(
            SystemExit,
            match=r"statemix: The weights for .*exported could not be written \(.*\). Free "
            r"some disk space",
        ),
    ):
        main(["lm", "export", str(directory), str(tmp_path / "exported")])
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_presets_are_listed_with_their_sizes(capsys):
    main(["lm", "presets"])
    printed = capsys.readouterr().out
    for word in ("212m-bdlru-m4", "211,875,360", "2m-mamba2", "n_blocks=302"):
        assert word in printed


def test_the_recommended_model_trains_with_the_printed_command(capsys, tmp_path, monkeypatch):
    main(["lm", "presets"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    (command,) = (line for line in lines if line.startswith("statemix lm train data/sotu"))
    options = command.split()[4:]
    assert options[options.index("--preset") + 1] == RECOMMENDED
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sotu").symlink_to(little_data(tmp_path / "text").directory)
    monkeypatch.chdir(tmp_path)
    quick = ["--length", "8", "--batch", "1", "--minutes", "0.001", "--out", "run"]
    main(["lm", "train", "data/sotu", *options, *quick])
    trained = load_model(tmp_path / "run" / "final").model.config
    preset = find_preset(RECOMMENDED)
    assert (trained.mixer, trained.options, trained.width) == (
        preset.mixer,
        preset.options,
        preset.width,
    )


def test_info_lists_the_layers_of_a_model(directory, capsys):
    main(["lm", "info", "2m-hybrid", "--length", "1"])
    printed = capsys.readouterr().out
    assert printed.count("bdlru(n_blocks=82, block_size=4)") == 3
    config = find_preset("2m-hybrid")
    flops = flops_per_token(LanguageModel(config), 1)
    for word in (f"{count_parameters(config):,}", f"{flops:,} in training", "attention"):
        assert word in printed
    main(["lm", "info", str(directory)])
    assert f"{count_parameters(load_model(directory).model.config):,}" in capsys.readouterr().out


def test_transformers_loads_an_export(directory, tmp_path, capsys):
    import statemix.hf  # noqa: F401

    transformers.utils.logging.disable_progress_bar()
    main(["lm", "export", str(directory), str(tmp_path / "exported")])
    assert "written to" in capsys.readouterr().out
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    batch = tokenizer(["the cat", "the"], return_tensors="pt", padding=True)
    assert batch["attention_mask"].tolist()[1][0] == 0, "padding is on the left"
    out = model.generate(**batch, max_new_tokens=8, do_sample=False, eos_token_id=None)
    ours = list(generate_tokens(load_model(directory).model, batch["input_ids"][0], 8, GREEDY))
    assert out[0, -8:].tolist() == ours
    with_bos = tokenizer([tokenizer.bos_token + "the cat"], return_tensors="pt")["input_ids"][
        0
    ].tolist()
    assert with_bos == [0, *batch["input_ids"][0].tolist()], "like `statemix lm generate`"
    before = contents(tmp_path / "exported")
    with pytest.raises(SystemExit, match="exists and would be overwritten"):
        main(["lm", "export", str(directory), str(tmp_path / "exported")])
    assert contents(tmp_path / "exported") == before
