"""Export a model as a Hugging Face directory, for `from_pretrained`, `generate` and lm-eval."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from statemix.files.writing import writing_directory
from statemix.hf.config import config_from_lm
from statemix.hf.model import StatemixForCausalLM
from statemix.lm.saved import TOKENIZER, SavedModel
from statemix.lm.tokenizer import open_tokenizer

__all__ = ["export_model", "wrap_tokenizer"]


def export_model(saved: SavedModel, out: Path) -> None:
    """Write weights, config and tokenizer, if any, to the new directory `out`."""
    if out.exists():
        raise FileExistsError(
            f"{out} exists and would be overwritten. Choose another directory, or remove it."
        )
    tokenizer = wrap_tokenizer(saved) if (saved.directory / TOKENIZER).is_file() else None
    end = None if tokenizer is None else tokenizer.eos_token_id
    config = config_from_lm(saved.model.config, bos=end, eos=end, pad=end)
    with torch.device("meta"):
        model = StatemixForCausalLM(config)
    model.model = saved.model
    logging.disable_progress_bar()
    try:
        with writing_directory(out) as part:
            model.save_pretrained(part)
            if tokenizer is not None:
                tokenizer.save_pretrained(part)
    except SafetensorError as error:
        raise ValueError(
            f"The weights for {out} could not be written ({error}). "
            "Free some disk space, and try again."
        ) from error
    finally:
        logging.enable_progress_bar()


def wrap_tokenizer(saved: SavedModel) -> PreTrainedTokenizerFast:
    """The model's tokenizer for transformers.

    It pads on the left with the end-of-text token, and adds no special tokens.
    """
    tokenizer, end = open_tokenizer(saved)
    tokenizer.post_processor = None
    name = tokenizer.id_to_token(end)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=name,
        eos_token=name,
        pad_token=name,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
