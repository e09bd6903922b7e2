"""What `statemix lm generate` prints: text, token by token, then the speed."""

import sys
import time
from pathlib import Path

import torch

from statemix.commands.views.console import say
from statemix.lm.generate import Sampling, generate_tokens
from statemix.lm.saved import load_model
from statemix.lm.tokenizer import open_tokenizer

__all__ = ["print_generated"]


def print_generated(
    directory: Path, prompt: str, tokens: int, sampling: Sampling, *, stop_at_end: bool
) -> None:
    """Stream the text to stdout as it is generated, and report the speed on stderr."""
    from tokenizers.decoders import DecodeStream

    saved = load_model(directory)
    tokenizer, end = open_tokenizer(saved)
    prompt_ids = tokenizer.encode(_checked(prompt), add_special_tokens=False).ids
    # The stream starts with the prompt, because some tokenizers put a space between words only.
    stream = DecodeStream(prompt_ids, skip_special_tokens=False)
    context = torch.tensor([end, *prompt_ids], dtype=torch.long)
    count = 0
    started = time.perf_counter()
    sys.stdout.write(prompt)
    stop = end if stop_at_end else None
    try:
        for token in generate_tokens(saved.model, context, tokens, sampling, stop):
            sys.stdout.write(stream.step(tokenizer, token) or "")
            sys.stdout.flush()
            count += 1
    except KeyboardInterrupt:
        pass
    seconds = time.perf_counter() - started
    sys.stdout.write("\n")
    speed = f"{count} tokens, {count / seconds:,.0f} tokens/s"
    say(f"{speed}, {saved.model.state_size:,} numbers of state", stderr=True, style="dim")


def _checked(prompt: str) -> str:
    """The prompt if it is text: Python reads other bytes of a command line as lone surrogates."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The prompt must be UTF-8 text: character {error.start} is not. Type it again."
        ) from error
    return prompt
