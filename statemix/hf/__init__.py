"""Language models for Hugging Face. The import registers them with the auto classes.

import statemix.hf
model = AutoModelForCausalLM.from_pretrained("exported/")
"""

from statemix.extras import install_command

try:
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    raise ImportError(
        f"statemix.hf needs transformers. Install it with: {install_command('hf')}"
    ) from error

from statemix.hf.cache import RecurrentCache
from statemix.hf.config import StatemixConfig, config_from_lm
from statemix.hf.model import StatemixForCausalLM

__all__ = ["RecurrentCache", "StatemixConfig", "StatemixForCausalLM", "config_from_lm"]

AutoConfig.register(StatemixConfig.model_type, StatemixConfig, exist_ok=True)
AutoModelForCausalLM.register(StatemixConfig, StatemixForCausalLM, exist_ok=True)
