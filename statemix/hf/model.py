"""The language model behind the interface of Hugging Face: `generate`, `Trainer`, `save_pretrained` and what builds on them."""

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
from statemix.layers.gates import INIT_STD
from statemix.models.lm import LanguageModel, LMBlock, check_tokens
from statemix.models.loss import IGNORED, next_token_loss

__all__ = ["StatemixForCausalLM"]


class StatemixForCausalLM(PreTrainedModel, GenerationMixin):
    """`LanguageModel` as a causal language model of transformers; `model` is it."""

    config_class = StatemixConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LMBlock"]  # noqa: RUF012
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: StatemixConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.to_lm())
        self.gradient_checkpointing = False
        for parameter in self.model.parameters():  # drawn already, unless weights are to be loaded
            parameter._is_hf_initialized = not parameter.is_meta
        self.post_init()

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing: the class is an installed package's, and its source is not to be copied beside each model."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Draw what a checkpoint lacks as a new model would."""
        blank = {
            name: p
            for name, p in self.model.named_parameters()
            if not (p.is_meta or getattr(p, "_is_hf_initialized", False))
        }
        fresh = dict(LanguageModel(self.config.to_lm()).named_parameters()) if blank else {}
        for name, parameter in blank.items():
            parameter.copy_(fresh[name])

    def _init_weights(self, module: nn.Module) -> None:
        """Draw an embedding or a head that takes the place of another."""
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
        """Logits of the tokens that follow, and the loss of `labels`, which are shifted here.

        Args:
            attention_mask: (B, T), or longer by what the cache has seen: 0 where a token is padding, on either side.
            logits_to_keep: compute logits of the last so many steps only, 0 for all; or of the steps that a tensor lists.
            cu_seq_lens_q: bounds of the sequences that a batch of one packs; no state crosses them.
            position_ids: the model has no positions, but where those of a batch of one begin anew, a packed sequence does.
            num_items_in_batch: what to divide the loss by, where a batch is one of several.
            **kwargs: what other models of transformers want, and this one has no use for.
        """
        x = self.embed(input_ids, inputs_embeds)
        if cu_seq_lens_q is None and past_key_values is None and attention_mask is None:
            cu_seq_lens_q = bounds_of(position_ids)
        cache = self.open_cache(past_key_values, use_cache, cu_seq_lens_q)
        mask = read_mask(attention_mask, x)
        wanted = output_hidden_states or (
            output_hidden_states is None and self.config.output_hidden_states
        )
        hidden = [x]
        steps_to_keep = (
            max(ROLLBACK, logits_to_keep) if isinstance(logits_to_keep, int) else ROLLBACK
        )
        for index, block in enumerate(self.model.blocks):
            x = self.run(cast(LMBlock, block), index, x, cache, cu_seq_lens_q, mask, steps_to_keep)
            hidden = [*hidden, x] if wanted else hidden
        x = self.model.norm(x)
        loss, logits = self.score(x, labels, logits_to_keep, cu_seq_lens_q, num_items_in_batch)
        states = (*hidden[:-1], x) if wanted else None
        return CausalLMOutputWithPast(
            loss=cast(Any, loss),
            logits=cast(Any, logits),
            past_key_values=cache,
            hidden_states=cast(Any, states),
        )

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Tokens, or what stands for them."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "The model needs either `input_ids` or `inputs_embeds`, got both or neither."
            )
        if inputs_embeds is not None:
            return inputs_embeds
        check_tokens(
            "input_ids", cast(Tensor, input_ids), "(B, T)", self.model.embedding.num_embeddings
        )
        return self.model.embedding(input_ids)

    def open_cache(
        self, cache: Any, use_cache: bool | None, cu_seqlens: Tensor | None
    ) -> RecurrentCache | None:
        """The cache to go on with, a new one if one is wanted, else None; by default training goes without."""
        if cache is not None and not isinstance(cache, RecurrentCache):
            raise TypeError(
                f"`past_key_values` must be a RecurrentCache, got {type(cache).__name__}. Use RecurrentCache(layers)."
            )
        if cache is not None and cu_seqlens is not None:
            raise ValueError(
                "Packed sequences (`cu_seq_lens_q`) cannot go on from a cache. Pass one or the other."
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
        """One block: on the cache, computed twice if checkpointed, or plainly."""
        if cache is not None:
            return block.leave(
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
        """Loss and logits; without logits if the config wants the loss in chunks."""
        every = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if labels is None:
            kept = (
                slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            )
            return None, self.model.head(x if every else x[:, kept])
        if not every:
            raise ValueError(
                f"A loss needs the logits of all steps: `logits_to_keep` must be 0 with `labels`, got {logits_to_keep}."
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
        """What the cache has not seen of the text: assisted decoding that goes on from a cache would give it everything again."""
        unread = is_first_iteration and next_sequence_length is None and inputs_embeds is None
        if unread and isinstance(past_key_values, RecurrentCache) and past_key_values.guessing:
            came, seen = input_ids.shape[1], past_key_values.get_seq_length()
            if came <= seen:
                raise ValueError(
                    f"To guess ahead from a cache, `input_ids` must be the whole text: the cache has seen {seen} tokens, and {came} came. "
                    "Put those that it has seen in front."
                )
            next_sequence_length = came - seen
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
        """Put a `RecurrentCache` into `model_kwargs`, unless the caller brought one, which records only while guessing, or wants none."""
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise ValueError(
                f"`cache_implementation` must be left out, got {generation_config.cache_implementation!r}: "
                "the states of this model have one size for ever, so there is nothing to make static, to quantise or to offload."
            )
        guessing = (
            generation_mode == GenerationMode.ASSISTED_GENERATION or generation_config.is_assistant
        )
        cache = model_kwargs.get("past_key_values")
        if cache is not None:
            cache._is_user_defined = True
            if isinstance(cache, RecurrentCache):
                cache.guessing = generation_mode == GenerationMode.ASSISTED_GENERATION
                if not guessing:
                    cache.stop_past_recording()
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = RecurrentCache(self.config.num_hidden_layers)
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()


def read_mask(attention_mask: Tensor | None, x: Tensor) -> Tensor | None:
    """True at real steps of x (B, T, d), or None if all are."""
    if attention_mask is None:
        return None
    B, T = x.shape[:2]
    if attention_mask.dim() != 2 or attention_mask.shape[0] != B or attention_mask.shape[1] < T:
        raise ValueError(
            f"`attention_mask` must have one entry a token: expected {(B, T)} or longer, got {tuple(attention_mask.shape)}."
        )
    mask = attention_mask[:, attention_mask.shape[1] - T :].bool()
    return None if mask.all() else mask


def bounds_of(position_ids: Tensor | None) -> Tensor | None:
    """Bounds of packed sequences (`cu_seqlens`), told by positions (1, T) that begin anew; None if there is but one sequence."""
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape[0] != 1:
        return None
    starts = (position_ids[0] == 0).nonzero().flatten()
    if len(starts) < 2 or starts[0] != 0:
        return None
    return torch.cat([starts, starts.new_tensor([position_ids.shape[1]])])


def shift(labels: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """What each step is to predict: the label after it, and nothing after the last of a sequence."""
    targets = torch.full_like(labels, IGNORED)
    targets[:, :-1] = labels[:, 1:]
    if cu_seqlens is not None:
        ends = cu_seqlens[1:].long() - 1
        targets[:, ends[ends >= 0]] = IGNORED
    return targets
