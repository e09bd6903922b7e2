"""`LMConfig` as a Hugging Face config."""

import os
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from statemix.config.model import LMConfig

__all__ = ["StatemixConfig", "config_from_lm"]

_CODE = "statemix_hf.py"
_IMPORT = '''"""Imported by `trust_remote_code=True`, so that `import statemix.hf` is not needed."""

from statemix.hf import StatemixConfig, StatemixForCausalLM

__all__ = ["StatemixConfig", "StatemixForCausalLM"]
'''
_AUTO_MAP = {
    "AutoConfig": f"{_CODE[:-3]}.StatemixConfig",
    "AutoModelForCausalLM": f"{_CODE[:-3]}.StatemixForCausalLM",
}


@strict
class StatemixConfig(PreTrainedConfig):
    """Sizes of a language model around a mixer.

    Args:
        mixer: a name from `statemix.MIXERS`, with its `mixer_options`.
        mixers: mixers of consecutive layers, repeated over the depth, as in `LMConfig`.
        intermediate_size: inner width of the MLP (None: 8/3 of hidden_size).
        chunked_loss: compute the loss of `labels` in chunks, without holding the logits of all
            steps; outputs then have no logits.
    """

    model_type: ClassVar[str] = "statemix"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 50_280
    hidden_size: int = 768
    num_hidden_layers: int = 12
    mixer: str = "bdlru"
    mixer_options: dict[str, Any] = field(
        default_factory=lambda: {"n_blocks": 302, "block_size": 4}
    )
    mixers: list[Any] | None = None
    intermediate_size: int | None = None
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    chunked_loss: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Write config.json, and the module that `trust_remote_code=True` imports."""
        self.auto_map = _AUTO_MAP
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        (Path(save_directory) / _CODE).write_text(_IMPORT)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Do nothing: Hugging Face would copy the source of the class to every model directory."""

    def to_lm(self) -> LMConfig:
        """The same model as an `LMConfig`."""
        return LMConfig(
            vocab=self.vocab_size,
            width=self.hidden_size,
            layers=self.num_hidden_layers,
            mixer=self.mixer,
            options=dict(self.mixer_options),
            inner=self.intermediate_size,
            norm_eps=self.rms_norm_eps,
            tie=self.tie_word_embeddings,
            mixers=tuple(self.mixers or ()),
        )


def config_from_lm(
    config: LMConfig, *, bos: int | None = None, eos: int | None = None, pad: int | None = None
) -> StatemixConfig:
    """The Hugging Face config of the same model, with the ids of special tokens."""
    return StatemixConfig(
        vocab_size=config.vocab,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        mixer=config.mixer,
        mixer_options=dict(config.options),
        mixers=config.to_dict().get("mixers"),
        intermediate_size=config.inner,
        rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tie,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
    )
