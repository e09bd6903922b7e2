"""The language model as a Hugging Face model, with `generate`, `Trainer` and `save_pretrained`."""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from statemix.hf.cache import ROLLBACK, RecurrentCache
from statemix.hf.config import StatemixConfig
from statemix.hf.inputs import bounds_of, read_mask, shift
from statemix.layers.gates import INIT_STD
from statemix.layers.lookup import check_tokens
from statemix.models.lm import LanguageModel, LMBlock
from statemix.models.loss import IGNORED, next_token_loss

__all__ = ["StatemixForCausalLM"]


class StatemixForCausalLM(PreTrainedModel, GenerationMixin):
    """A causal language model of transformers around `model`, a `LanguageModel`."""

    config_class = StatemixConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LMBlock"]  # noqa: RUF012
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: StatemixConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.to_lm())
        self.gradient_checkpointing = False
        for parameter in self.model.parameters():  # initialised above, or about to be loaded
            parameter._is_hf_initialized = not parameter.is_meta
        self.post_init()

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Do nothing: Hugging Face would copy the source of the class to every model directory."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialise the weights that a checkpoint lacks as in a new model."""
        blank = {
            name: p
            for name, p in self.model.named_parameters()
            if not (p.is_meta or getattr(p, "_is_hf_initialized", False))
        }
        fresh = dict(LanguageModel(self.config.to_lm()).named_parameters()) if blank else {}
        for name, parameter in blank.items():
            parameter.copy_(fresh[name])

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a new embedding or head."""
        if isinstance(module, nn.Embedding | nn.Linear):
            nn.init.normal_(module.weight, std=INIT_STD)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embedding = cast(nn.Embedding, value)

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cu_seq_lens_q: Tensor | None = None,
        position_ids: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next tokens, and the loss of `labels`, which this method shifts.

        Args:
            input_ids: (B, T).
            inputs_embeds: (B, T, d), instead of `input_ids`.
            labels: (B, T); -100 is not scored.
            attention_mask: (B, T), or longer by the tokens that the cache has seen; 0 at padding,
                which may be on either side.
            logits_to_keep: compute the logits of the last N steps only (0: all), or of the steps
                that a tensor lists.
            cu_seq_lens_q: bounds of sequences packed into a batch of one; no state crosses them.
            position_ids: used only for a batch of one, where a position of 0 starts a new packed
                sequence; the model has no positional encoding.
            num_items_in_batch: number to divide the loss by, with gradient accumulation.
            **kwargs: arguments of other models of transformers, which this one ignores.
        """
        x = self.embed(input_ids, inputs_embeds)
        if cu_seq_lens_q is None and past_key_values is None and attention_mask is None:
            cu_seq_lens_q = bounds_of(position_ids)
        cache = self.open_cache(past_key_values, use_cache, cu_seq_lens_q)
        mask = read_mask(attention_mask, x)
        default = self.config.output_hidden_states
        wanted = default if output_hidden_states is None else output_hidden_states
        hidden = [x]
        keep = max(ROLLBACK, logits_to_keep) if isinstance(logits_to_keep, int) else ROLLBACK
        for index, block in enumerate(self.model.blocks):
            x = self.run(cast(LMBlock, block), index, x, cache, cu_seq_lens_q, mask, keep)
            hidden = [*hidden, x] if wanted else hidden
        x = self.model.norm(x)
        loss, logits = self.score(x, labels, logits_to_keep, cu_seq_lens_q, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=cast(Any, loss),
            logits=cast(Any, logits),
            past_key_values=cache,
            hidden_states=cast(Any, (*hidden[:-1], x) if wanted else None),
        )

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The embeddings (B, T, d) of `input_ids` (B, T), or `inputs_embeds` as they are."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "The model needs either `input_ids` or `inputs_embeds`, got both or neither."
            )
        if input_ids is None:
            return cast(Tensor, inputs_embeds)
        check_tokens("input_ids", input_ids, "(B, T)", self.model.embedding)
        return self.model.embedding(input_ids)

    def open_cache(
        self, cache: Any, use_cache: bool | None, cu_seqlens: Tensor | None
    ) -> RecurrentCache | None:
        """The given cache, a new one, or None; training uses none unless `use_cache` is True.

        Packed sequences, with bounds `cu_seqlens` (N + 1,), have no cache.
        """
        if cache is not None and not isinstance(cache, RecurrentCache):
            raise TypeError(
                f"`past_key_values` must be a RecurrentCache, got {type(cache).__name__}. "
                "Use RecurrentCache(layers)."
            )
        if cache is not None and cu_seqlens is not None:
            raise ValueError(
                "Packed sequences (`cu_seq_lens_q`) cannot continue from a cache. "
                "Pass one or the other."
            )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if cache is None and use_cache and cu_seqlens is None:
            cache = RecurrentCache(self.config.num_hidden_layers)
        return cache

    def run(
        self,
        block: LMBlock,
        index: int,
        x: Tensor,
        cache: RecurrentCache | None,
        cu_seqlens: Tensor | None,
        mask: Tensor | None,
        keep: int,
    ) -> Tensor:
        """Run a block on x (B, T, d): from the cache, with gradient checkpointing, or as it is."""
        if cache is not None:
            return block.after_mixer(
                x, cache.layers[index].advance(block.mixer, block.mixer_norm(x), mask, keep)
            )
        call = partial(block, cu_seqlens=cu_seqlens, mask=mask)
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(call, x)[0]
        return call(x)[0]

    def score(
        self,
        x: Tensor,
        labels: Tensor | None,
        logits_to_keep: int | Tensor,
        cu_seqlens: Tensor | None,
        items: Tensor | int | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The loss, and logits (B, T, V) of x (B, T, d); no logits if `chunked_loss` is set."""
        if labels is None:
            last = isinstance(logits_to_keep, int)
            return None, self.model.head(x[:, -logits_to_keep:] if last else x[:, logits_to_keep])
        if not isinstance(logits_to_keep, int) or logits_to_keep != 0:
            raise ValueError(
                "A loss needs the logits of all steps: "
                f"`logits_to_keep` must be 0 with `labels`, got {logits_to_keep}."
            )
        targets = shift(labels, cu_seqlens)
        if self.config.chunked_loss:
            total = next_token_loss(x, self.model.head.weight, targets, reduction="sum")
            return total / ((targets != IGNORED).sum() if items is None else items), None
        logits = self.model.head(x)
        loss = self.loss_function(
            logits=logits,
            labels=labels,
            shift_labels=targets,
            vocab_size=self.config.vocab_size,
            num_items_in_batch=items,
        )
        return loss, logits

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Keep only the tokens that the cache has not seen; assisted decoding passes all.

        `input_ids` and `attention_mask` have the shape (B, T).
        """
        unread = is_first_iteration and next_sequence_length is None and inputs_embeds is None
        if unread and isinstance(past_key_values, RecurrentCache) and past_key_values.guessing:
            given = input_ids.shape[1]
            seen = past_key_values.get_seq_length()
            if given <= seen:
                raise ValueError(
                    "To continue from a cache with assisted decoding, `input_ids` must be the full "
                    f"text: the cache has seen {seen} tokens, got {given}. "
                    "Prepend the tokens that it has seen."
                )
            next_sequence_length = given - seen
        return cast(Any, super()).prepare_inputs_for_generation(
            input_ids,
            next_sequence_length,
            past_key_values,
            attention_mask,
            inputs_embeds,
            is_first_iteration,
            **kwargs,
        )

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Add a `RecurrentCache` to `model_kwargs`, unless there is one or `use_cache` is False.

        A given cache records past states only during assisted decoding.
        """
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise ValueError(
                "`cache_implementation` must not be set, "
                f"got {generation_config.cache_implementation!r}: the states of this model have a "
                "constant size, so there is nothing to make static, quantise or offload."
            )
        assisted = generation_mode == GenerationMode.ASSISTED_GENERATION
        cache = model_kwargs.get("past_key_values")
        if cache is not None:
            cache._is_user_defined = True
            if isinstance(cache, RecurrentCache):
                cache.guessing = assisted
                if not (assisted or generation_config.is_assistant):
                    cache.stop_past_recording()
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = RecurrentCache(self.config.num_hidden_layers)
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()
