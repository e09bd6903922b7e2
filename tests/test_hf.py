"""The model in Hugging Face: files, generation, the cache and its rollback, and training."""

import copy
import json
import logging
import os
import subprocess
import sys

import pytest
import torch
import transformers
from cases import bounds
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from statemix.hf import RecurrentCache, StatemixConfig, StatemixForCausalLM, config_from_lm
from statemix.models import PRESETS, LanguageModel, find_preset

V = 40
OPTIONS = {
    "bdlru": {"n_blocks": 4, "block_size": 3},
    "hlru": {"n_channels": 6, "order": 3},
    "lstm": {"hidden": 9},
    "mamba2": {"d_state": 4, "head_dim": 8},
    "deltanet": {"heads": 2, "head_dim": 4},
}
HYBRID = {
    "mixer": "bdlru",
    "mixer_options": OPTIONS["bdlru"],
    "mixers": ["bdlru", "bdlru", {"mixer": "attention", "heads": 2, "kv_heads": 1}],
    "num_hidden_layers": 3,
}
EACH = pytest.mark.parametrize("mixer", [*OPTIONS, "hybrid"])
RECURRENT = pytest.mark.parametrize("mixer", OPTIONS)
GREEDY = {"max_new_tokens": 25, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def quiet():
    """Silence progress bars and warnings."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.CRITICAL)


def build(mixer="bdlru", seed=0, **changes):
    """Build a float64 model with weights large enough to generate varied text."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": V,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        **(HYBRID if mixer == "hybrid" else {"mixer": mixer, "mixer_options": OPTIONS[mixer]}),
    }
    model = StatemixForCausalLM(StatemixConfig(**{**sizes, **changes}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def prompt(*shape):
    return torch.randint(1, V, shape)


def count_calls(model, function):
    calls = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    result = function()
    hook.remove()
    return result, len(calls)


def test_import_registers_the_model():
    config = AutoConfig.for_model(
        "statemix",
        mixer="lstm",
        mixer_options={"hidden": 8},
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
    )
    assert isinstance(config, StatemixConfig)
    assert isinstance(AutoModelForCausalLM.from_config(config), StatemixForCausalLM)


@EACH
def test_a_saved_model_loads(mixer, tmp_path):
    model, ids = build(mixer), prompt(2, 7)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.to_lm() == model.config.to_lm()
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True)
    )
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize("name", PRESETS)
def test_configs_convert_both_ways(name):
    assert config_from_lm(find_preset(name)).to_lm() == find_preset(name)


def test_tied_weights_stay_tied(tmp_path):
    model = build(tie_word_embeddings=True)
    assert model.model.head.weight is model.model.embedding.weight
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.model.head.weight is loaded.model.embedding.weight
    assert torch.equal(loaded.model.head.weight, model.model.head.weight)


def test_initial_weights_equal_those_of_the_language_model():
    """transformers does not reinitialise them."""
    config = StatemixConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=2,
        mixer="mamba2",
        mixer_options=OPTIONS["mamba2"],
    )
    torch.manual_seed(3)
    ours = LanguageModel(config.to_lm())
    torch.manual_seed(3)
    theirs = StatemixForCausalLM(config).model
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def test_weights_missing_in_a_checkpoint_are_initialised(tmp_path):
    model = build("mamba2")
    weights = {name: x for name, x in model.state_dict().items() if "W_out" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    drawn = AutoModelForCausalLM.from_pretrained(tmp_path).model
    std = drawn.blocks[0].mixer.W_out.weight.std().item()
    assert std == pytest.approx(0.02 / 4**0.5, rel=0.2), "residual outputs start smaller"
    assert torch.equal(drawn.blocks[0].mixer.W_in.weight, model.model.blocks[0].mixer.W_in.weight)


def test_a_checkpoint_of_another_shape_raises(tmp_path):
    build().save_pretrained(tmp_path)
    config = StatemixConfig.from_pretrained(tmp_path, hidden_size=24)
    with pytest.raises(RuntimeError, match="size"):
        AutoModelForCausalLM.from_pretrained(tmp_path, config=config)


@EACH
def test_greedy_search_matches_the_model(mixer):
    model, ids = build(mixer), prompt(2, 7)
    out = model.generate(ids, **GREEDY)
    assert torch.equal(out, model.generate(ids, use_cache=False, **GREEDY))
    logits, _ = model.model(out[:, :-1])
    assert torch.equal(logits.argmax(-1)[:, 6:], out[:, 7:])
    assert len(out[0, 7:].unique()) > 3, "a model that repeats itself tests nothing"


@EACH
def test_left_padding_changes_nothing(mixer):
    model, ids = build(mixer), prompt(1, 7)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], 1)
    both = torch.cat([padded, prompt(1, 12)])
    mask = torch.ones_like(both)
    mask[0, :5] = 0
    out = model.generate(both, attention_mask=mask, **GREEDY)
    assert torch.equal(out[0, 5:], model.generate(ids, **GREEDY)[0])
    assert torch.equal(out[1], model.generate(both[1:], **GREEDY)[0])


@EACH
def test_chunked_prefill(mixer):
    model, ids = build(mixer), prompt(2, 23)
    assert torch.equal(
        model.generate(ids, prefill_chunk_size=5, **GREEDY), model.generate(ids, **GREEDY)
    )


@EACH
def test_beam_search(mixer):
    model, ids = build(mixer), prompt(2, 7)
    beams = {**GREEDY, "num_beams": 3, "num_return_sequences": 2}
    out = model.generate(ids, **beams)
    assert torch.equal(out, model.generate(ids, use_cache=False, **beams))
    assert not torch.equal(out[0], out[1])


def test_sampling_depends_only_on_its_seed():
    model, ids = build(), prompt(2, 7)
    sample = {
        "max_new_tokens": 25,
        "do_sample": True,
        "top_k": 10,
        "temperature": 0.7,
        "pad_token_id": 0,
    }

    def draw(seed, **options):
        torch.manual_seed(seed)
        return model.generate(ids, **sample, **options)

    assert torch.equal(draw(1), draw(1, use_cache=False))
    assert not torch.equal(draw(1), draw(2))


@EACH
def test_continuing_from_a_cache(mixer):
    model, ids = build(mixer), prompt(2, 7)
    first = model.generate(ids, **{**GREEDY, "max_new_tokens": 10}, return_dict_in_generate=True)
    assert first.past_key_values.get_seq_length() == 16
    out = model.generate(
        first.sequences, past_key_values=first.past_key_values, **{**GREEDY, "max_new_tokens": 15}
    )
    assert torch.equal(out, model.generate(ids, **GREEDY))


@EACH
def test_assisted_decoding_is_greedy(mixer):
    """A good assistant, a bad one, and the model itself all give the same tokens."""
    model, ids = build(mixer), prompt(1, 7)
    out = model.generate(ids, **GREEDY)
    near = build(mixer)
    with torch.no_grad():
        near.model.head.weight += 0.3 * torch.randn_like(near.model.head.weight)
    for assistant in (near, build("bdlru", seed=5), build(mixer)):
        assert torch.equal(model.generate(ids, assistant_model=assistant, **GREEDY), out)


@EACH
@pytest.mark.parametrize("length", [7, 150])
def test_prompt_lookup_is_greedy(mixer, length):
    """Prompts shorter and longer than the recorded states of one call.

    Their repetitions produce candidates that are accepted and candidates that are rejected.
    """
    model, ids = build(mixer), prompt(1, 5).repeat(1, 30)[:, :length]
    out = model.generate(ids, **GREEDY)
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=6, **GREEDY), out)


def test_fifty_prompts_of_a_hybrid_decode_alike():
    """Greedy, assisted, by prompt lookup, and left-padded next to a longer prompt."""
    model, assistant = build("hybrid"), build("hybrid", seed=5)
    for seed in range(50):
        torch.manual_seed(seed)
        ids = prompt(1, int(torch.randint(1, 20, ())))
        greedy = model.generate(ids, **GREEDY)
        assert torch.equal(model.generate(ids, assistant_model=assistant, **GREEDY), greedy)
        assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=3, **GREEDY), greedy)
        rows = torch.zeros(2, 23, dtype=torch.long)
        rows[0, 23 - ids.shape[1] :] = ids[0]
        rows[1] = prompt(23)
        mask = torch.ones_like(rows)
        mask[0, : 23 - ids.shape[1]] = 0
        padded = model.generate(rows, attention_mask=mask, **GREEDY)
        assert torch.equal(padded[:1, 23:], greedy[:, ids.shape[1] :])


@EACH
def test_recording_changes_no_output(mixer):
    """Padding occurs at positions with and without recorded states."""
    model, ids, mask = build(mixer), prompt(2, 90), torch.rand(2, 90) > 0.3
    cache = RecurrentCache(model.config.num_hidden_layers)
    cache.activate_past_recording()
    ours = model(ids, attention_mask=mask.long(), past_key_values=cache).logits
    truth = model(ids, attention_mask=mask.long(), use_cache=False).logits
    torch.testing.assert_close(ours[mask], truth[mask], rtol=1e-9, atol=1e-9)
    assert len(cache.layers[0].states) == 65


def test_more_candidates_than_recorded_states():
    model, ids = build(), prompt(1, 5).repeat(1, 60)
    out = model.generate(ids, **{**GREEDY, "max_new_tokens": 120})
    assert torch.equal(
        model.generate(ids, prompt_lookup_num_tokens=100, **{**GREEDY, "max_new_tokens": 120}), out
    )


@pytest.fixture(scope="module")
def counting():
    """Train a model to count in a circle, so that its text repeats."""
    torch.manual_seed(0)
    model = StatemixForCausalLM(
        StatemixConfig(
            vocab_size=12, hidden_size=16, num_hidden_layers=1, mixer_options=OPTIONS["bdlru"]
        )
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        ids = (torch.randint(12, (8, 1)) + torch.arange(24)) % 12
        loss = model(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def test_prompt_lookup_halves_the_calls_on_repetitive_text(counting):
    ids, options = (
        (torch.arange(30) % 12)[None],
        {"max_new_tokens": 60, "do_sample": False, "pad_token_id": 0},
    )
    greedy, calls = count_calls(counting, lambda: counting.generate(ids, **options))
    looked, fewer = count_calls(
        counting, lambda: counting.generate(ids, prompt_lookup_num_tokens=10, **options)
    )
    assert torch.equal(greedy, (torch.arange(90) % 12)[None])
    assert torch.equal(looked, greedy)
    assert calls == 60
    assert 2 * fewer <= calls, (fewer, calls)


@RECURRENT
def test_memory_is_constant(mixer):
    """The cache holds only the model's states, after 5 tokens and after 105."""
    model, sizes = build(mixer), set()
    for tokens in (5, 105):
        out = model.generate(
            prompt(2, 7), **{**GREEDY, "max_new_tokens": tokens}, return_dict_in_generate=True
        )
        assert out.past_key_values.get_seq_length() == 7 + tokens - 1
        sizes.add(out.past_key_values.nbytes)
    assert sizes == {2 * model.model.state_size * 8}


def test_memory_is_constant_during_speculation(counting):
    ids, sizes = (torch.arange(30) % 12)[None], []

    def measure(module, arguments, keywords):
        sizes.append(keywords["past_key_values"].nbytes)

    hook = counting.register_forward_pre_hook(measure, with_kwargs=True)
    counting.generate(
        ids, max_new_tokens=300, do_sample=False, prompt_lookup_num_tokens=5, pad_token_id=0
    )
    hook.remove()
    assert set(sizes) == {0, counting.model.state_size * 4}


@pytest.mark.parametrize("way", ["lookup", "assisted"])
def test_memory_is_constant_after_speculation(way):
    """After speculation the cache stops recording states; speculation can start again."""
    model, ids = build(), prompt(1, 7)
    guess = (
        {"prompt_lookup_num_tokens": 5} if way == "lookup" else {"assistant_model": build(seed=5)}
    )
    first = model.generate(
        ids, **guess, **{**GREEDY, "max_new_tokens": 10}, return_dict_in_generate=True
    )
    cache, text, sizes = first.past_key_values, first.sequences, set()
    for _ in range(3):
        text = model.generate(text, past_key_values=cache, **{**GREEDY, "max_new_tokens": 15})
        sizes.add(cache.nbytes)
    assert sizes == {model.model.state_size * 8}
    text = model.generate(text, past_key_values=cache, **guess, **{**GREEDY, "max_new_tokens": 15})
    assert torch.equal(text, model.generate(ids, **{**GREEDY, "max_new_tokens": 70}))


def test_a_saved_model_loads_with_trust_remote_code(tmp_path):
    """A saved model contains the short file for `trust_remote_code`, and no other source."""
    first, second = tmp_path / "first", tmp_path / "second"
    build().save_pretrained(first)
    AutoModelForCausalLM.from_pretrained(first, trust_remote_code=True).save_pretrained(second)
    for directory in (first, second):
        assert sorted(path.name for path in directory.glob("*.py")) == ["statemix_hf.py"]
        assert (
            json.loads((directory / "config.json").read_text())["auto_map"]["AutoConfig"]
            == "statemix_hf.StatemixConfig"
        )
    code = f"""
import sys, transformers
model = transformers.AutoModelForCausalLM.from_pretrained({str(second)!r}, trust_remote_code=True)
assert type(model).__name__ == "StatemixForCausalLM"
"""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)


def test_logits_of_chosen_steps():
    model, ids = build(), prompt(2, 9)
    steps = torch.tensor([1, 4, 8])
    torch.testing.assert_close(model(ids, logits_to_keep=steps).logits, model(ids).logits[:, steps])
    with pytest.raises(ValueError, match="A loss needs the logits of all steps"):
        model(ids, labels=ids, logits_to_keep=steps)


def test_positions_that_restart_start_a_new_sequence():
    """`DataCollatorWithFlattening` packs sequences this way."""
    model, lengths = build(), (4, 1, 6)
    parts = [prompt(1, length) for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = model(torch.cat(parts, 1), position_ids=positions)
    torch.testing.assert_close(
        packed.logits, torch.cat([model(part).logits for part in parts], 1), rtol=1e-9, atol=1e-9
    )
    full_text = torch.cat(parts, 1)
    torch.testing.assert_close(
        model(full_text, position_ids=torch.arange(11)[None]).logits, model(full_text).logits
    )


@EACH
@pytest.mark.parametrize("way", ["lookup", "assisted"])
def test_speculation_continues_from_a_cache(mixer, way):
    """Tokens match greedy search, and states match a single pass over the text."""
    model, ids = build(mixer), prompt(1, 15)
    greedy = model.generate(ids, **{**GREEDY, "max_new_tokens": 40})
    guess = (
        {"prompt_lookup_num_tokens": 3} if way == "lookup" else {"assistant_model": build(seed=5)}
    )
    for mask in (None, torch.ones(1, 30, dtype=torch.long)):
        cache = model.generate(
            ids, **{**GREEDY, "max_new_tokens": 15}, return_dict_in_generate=True
        ).past_key_values
        more = {} if mask is None else {"attention_mask": mask}
        out = model.generate(
            greedy[:, :30],
            past_key_values=cache,
            **guess,
            **more,
            **{**GREEDY, "max_new_tokens": 10},
        )
        assert torch.equal(out, greedy[:, :40])
        seen = cache.get_seq_length()
        assert seen in (39, 40)
        fresh = RecurrentCache(model.config.num_hidden_layers)
        model(out[:, :seen], past_key_values=fresh)
        for ours, theirs in zip(
            cache.layers[1].tensors()[-2:], fresh.layers[1].tensors()[-2:], strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        assert torch.equal(
            model.generate(out, past_key_values=cache, **{**GREEDY, "max_new_tokens": 15}), greedy
        )


def test_speculation_from_a_cache_needs_the_full_text():
    model, ids = build(), prompt(1, 15)
    cache = model.generate(ids, **GREEDY, return_dict_in_generate=True).past_key_values
    with pytest.raises(
        ValueError, match="must be the full text: the cache has seen 39 tokens, got 3"
    ):
        model.generate(prompt(1, 3), past_key_values=cache, prompt_lookup_num_tokens=3, **GREEDY)


@EACH
def test_a_cache_rolls_back(mixer):
    model, ids = build(mixer), prompt(2, 30)
    cache = RecurrentCache(model.config.num_hidden_layers)
    model(ids[:, :10], past_key_values=cache)
    cache.activate_past_recording()
    model(ids[:, 10:20], past_key_values=cache)
    model(prompt(2, 1), past_key_values=cache)
    cache.crop(-4)
    assert cache.get_seq_length() == 17
    ours = model(ids[:, 17:], past_key_values=cache).logits
    torch.testing.assert_close(ours, model(ids).logits[:, 17:], rtol=1e-9, atol=1e-9)
    cache.reset()
    torch.testing.assert_close(
        model(ids, past_key_values=cache).logits, model(ids).logits, rtol=1e-9, atol=1e-9
    )


def test_a_copied_cache_is_independent():
    """One prefix can have several continuations."""
    model, ids = build(), prompt(1, 9)
    cache = model.generate(
        ids, **{**GREEDY, "max_new_tokens": 1}, return_dict_in_generate=True
    ).past_key_values
    for tail in (prompt(1, 4), prompt(1, 6)):
        full_text = torch.cat([ids, tail], 1)
        assert torch.equal(
            model.generate(full_text, past_key_values=copy.deepcopy(cache), **GREEDY),
            model.generate(full_text, **GREEDY),
        )
    assert cache.get_seq_length() == 9


@EACH
def test_rows_of_a_cache(mixer):
    model, ids = build(mixer), prompt(3, 9)
    cache = RecurrentCache(model.config.num_hidden_layers)
    assert cache.batch_size == -1
    model(ids[:, :8], past_key_values=cache)
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    rows = ids[[2, 2, 0, 0]]
    ours = model(rows[:, 8:], past_key_values=cache).logits
    torch.testing.assert_close(ours, model(rows).logits[:, 8:], rtol=1e-9, atol=1e-9)


def test_packed_sequences_are_independent():
    model, lengths = build(), [4, 1, 6]
    ids = prompt(1, 11)
    packed = model(ids, cu_seq_lens_q=bounds(lengths), labels=ids)
    parts = [
        model(part, labels=part if part.shape[1] > 1 else None) for part in ids.split(lengths, 1)
    ]
    torch.testing.assert_close(packed.logits, torch.cat([part.logits for part in parts], 1))
    torch.testing.assert_close(packed.loss, (3 * parts[0].loss + 5 * parts[2].loss) / 8)


def test_hidden_states_and_last_logits():
    model, ids = build(), prompt(2, 9)
    out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    torch.testing.assert_close(model.model.head(out.hidden_states[-1]), out.logits)
    torch.testing.assert_close(out.hidden_states[0], model.model.embedding(ids))
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, out.logits[:, -2:])
    torch.testing.assert_close(model(inputs_embeds=model.model.embedding(ids)).logits, out.logits)


def test_the_loss_in_chunks_and_with_checkpoints():
    model, ids = build().train(), prompt(2, 9)
    ids[0, :2] = -100
    inputs = {"input_ids": ids.clamp(min=0), "labels": ids, "attention_mask": (ids >= 0).long()}

    def gradients(**options):
        model.zero_grad()
        out = model(**inputs, **options)
        out.loss.backward()
        return out, [p.grad.clone() for p in model.parameters()]

    plain, truth = gradients()
    assert plain.past_key_values is None
    summed, _ = gradients(num_items_in_batch=7)
    torch.testing.assert_close(summed.loss, plain.loss * 15 / 7)
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(gradients()[1], truth)
    model.gradient_checkpointing_disable()
    model.config.chunked_loss = True
    chunked, again = gradients()
    assert chunked.logits is None
    torch.testing.assert_close(
        chunked.loss.float(), plain.loss
    )  # transformers always computes its loss in float32
    torch.testing.assert_close([g.float() for g in again], [g.float() for g in truth])


def test_trainer(tmp_path):
    torch.manual_seed(0)
    model = StatemixForCausalLM(
        StatemixConfig(
            vocab_size=12, hidden_size=16, num_hidden_layers=2, mixer_options=OPTIONS["bdlru"]
        )
    )
    rows = [
        {"input_ids": ids, "labels": ids}
        for ids in (torch.arange(k, k + 16) % 12 for k in range(64))
    ]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=40,
        per_device_train_batch_size=8,
        learning_rate=0.02,
        gradient_checkpointing=True,
        gradient_accumulation_steps=2,
        logging_steps=10,
        report_to=[],
        use_cpu=True,
        save_steps=40,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:8])
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-40")
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True)
    )


def test_a_larger_vocabulary():
    model = build()
    model.resize_token_embeddings(V + 3)
    out = model(torch.tensor([[V + 2]]))
    assert out.logits.shape == (1, 1, V + 3)
    assert model.config.vocab_size == V + 3
    assert model.model.embedding.weight[-1].abs().max() < 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.tensor([[V]])), f"A token id must be in 0 .. {V - 1}"),
        (lambda m: m(), "either `input_ids` or `inputs_embeds`"),
        (
            lambda m: m(prompt(1, 3), attention_mask=torch.ones(1, 2)),
            "`attention_mask` must have one entry per token",
        ),
        (
            lambda m: m(prompt(1, 3), labels=prompt(1, 3), logits_to_keep=1),
            "`logits_to_keep` must be 0 with `labels`",
        ),
        (
            lambda m: m(prompt(1, 3), cu_seq_lens_q=bounds([3]), past_key_values=RecurrentCache(2)),
            "cannot continue from a cache",
        ),
        (
            lambda m: m.generate(prompt(1, 3), cache_implementation="static", **GREEDY),
            "nothing to make static",
        ),
        (
            lambda m: RecurrentCache(2).crop(-1),
            "can roll back by at most 0 tokens, got 1. Call `activate_past_recording`",
        ),
        (lambda m: RecurrentCache(2).crop(3), "takes minus the number of tokens to remove, got 3"),
    ],
)
def test_errors_name_the_problem(call, message):
    with pytest.raises(ValueError, match=message):
        call(build())


def test_a_cache_of_another_kind_raises():
    with pytest.raises(TypeError, match="must be a RecurrentCache, got DynamicCache"):
        build()(prompt(1, 3), past_key_values=transformers.DynamicCache())
