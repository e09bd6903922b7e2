"""Wrong command lines end in one line of text; `make test-faults` tries thousands."""

import pytest

from statemix.cli import main

TINY = ["--length", "4", "--examples", "8", "--test-examples", "8", "--epochs", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "s2", "--width", str(2**63)], "`width` must have at most 63 bits"),
        (["train", "s2", "--width", str(2**62)], "there is not enough memory"),
        (["train", "s2", "--width", str(2**50)], "there is not enough memory"),
        (["train", "s2", "--block-size", str(2**31)], "there is not enough memory (a size exceeds"),
        (["train", "s2", "--solved", "-1"], "`solved` must be finite and not negative"),
        (["train", "s2", "--layers", str(2**31)], "`layers` must be in 1 .. 4,096"),
        (["train", "s2", "--seed", str(2**64)], "`seed` must have at most 63 bits"),
        (["eval", "nowhere", "--examples", str(2**63)], "--examples must be at most"),
        (["lm", "train", "nowhere", "--timeout", "1e20"], "`timeout` must be above zero and at m"),
        (
            ["lm", "prepare", "text.txt", "--vocab", str(2**31)],
            "--vocab must be at most 16,777,216",
        ),
        (["lm", "prepare", "hf:"], "hf:"),
        (["lm", "prepare", "hf:../.."], "hf:../.."),
    ],
)
def test_a_wrong_line_is_refused_in_one_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("One document.\n\nAnother document.\n" * 40)
    with pytest.raises(SystemExit) as error:
        main(words + (TINY if words[0] == "train" else []))
    assert str(error.value).startswith("statemix: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
