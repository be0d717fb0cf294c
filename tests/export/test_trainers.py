"""Exports in the hands of real trainers: a tiny model makes steps on them. Needs TRL and torch."""

import json
from copy import deepcopy
from pathlib import Path

import pytest

trl = pytest.importorskip("trl", reason="needs trl and torch (the extra 'train')")
torch = pytest.importorskip("torch", reason="needs trl and torch (the extra 'train')")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, which are not ours to correct

TEMPLATE = (
    "{% for m in messages %}<s> {{ m.role }} {{ m.content }}"
    "{% for c in m.tool_calls or [] %} call {{ c.function.name }} {{ c.function.arguments }}{% endfor %}"
    " </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)
WORDS = "system user assistant tool call add Be brief. Add The sum is let me 3 Let <think>Let add.</think>"


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", *dict.fromkeys([*WORDS.split(), *(f"{n}." for n in range(30))])]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    made.chat_template = TEMPLATE
    return made


@pytest.fixture
def model(tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size, pad_token_id=0))


def arguments(kind, folder: Path, **more):
    few = {"max_steps": 2, "per_device_train_batch_size": 2, "report_to": [], "save_strategy": "no", "use_cpu": True}
    return kind(output_dir=str(folder / "run"), logging_steps=1, disable_tqdm=True, bf16=False, **few, **more)


def losses(trainer) -> list[float]:
    trainer.train()
    found = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(found) == 2
    assert all(loss == loss and loss > 0 for loss in found)
    return found


def dataset(export, folder: Path, **recipe):
    from datasets import load_dataset

    rollouts = [export.make(task, n, float(n)) for task in range(6) for n in range(2)]
    export(rollouts, output=str(folder / "rows.parquet"), **recipe)
    return load_dataset("parquet", data_files=str(folder / "rows.parquet"), cache_dir=str(folder / "c"), split="train")


@pytest.mark.parametrize("shape", ["messages", "prompt_completion"])
def test_sft_trainer_takes_conversations(export, tmp_path, model, tokenizer, shape):
    rows = dataset(export, tmp_path, format="sft", shape=shape)
    config = arguments(trl.SFTConfig, tmp_path, max_length=64)
    losses(trl.SFTTrainer(model, args=config, train_dataset=rows, processing_class=tokenizer))


def test_the_chat_template_renders_every_row(export, tokenizer):
    for row in export([export.make(n) for n in range(5)]):
        text = tokenizer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False)
        assert 'call add {"a": 1}' in text
        assert "The sum is 0." in text


def test_sft_trainer_learns_the_sampled_tokens_alone(export, tmp_path, model, tokenizer):
    rows = dataset(export, tmp_path, format="sft_tokens")
    config = arguments(trl.SFTConfig, tmp_path, max_length=64)
    trainer = trl.SFTTrainer(model, args=config, train_dataset=rows, processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    sampled = batch["labels"][batch["labels"] != -100]
    assert set(sampled.tolist()) <= {10, 11, 20, 21}
    masked = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
    whole = model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
    assert abs(masked.item() - whole.item()) > 1e-4
    losses(trainer)


def test_dpo_trainer_takes_pairs(export, tmp_path, model, tokenizer):
    rows = dataset(export, tmp_path, format="dpo")
    config = arguments(trl.DPOConfig, tmp_path, max_length=64)
    losses(trl.DPOTrainer(model, deepcopy(model), args=config, train_dataset=rows, processing_class=tokenizer))


def test_kto_trainer_takes_thumbs(export, tmp_path, model, tokenizer):
    kto = pytest.importorskip("trl.experimental.kto", reason="this TRL has its KTO trainer elsewhere")
    rows = dataset(export, tmp_path, format="kto")
    config = arguments(kto.KTOConfig, tmp_path, max_length=64)
    losses(kto.KTOTrainer(model, deepcopy(model), args=config, train_dataset=rows, processing_class=tokenizer))


def test_llama_factory_takes_every_conversation(export, tokenizer):
    data = pytest.importorskip("llamafactory.data", reason="needs LLaMA-Factory")
    from llamafactory.data.converter import SharegptDatasetConverter
    from llamafactory.data.parser import DatasetAttr

    attributes = DatasetAttr("file", dataset_name="rollouts.jsonl")
    columns = {"messages": "conversations", "system": "system", "tools": "tools"}
    attributes.join({"formatting": "sharegpt", "columns": columns})
    convert = SharegptDatasetConverter(attributes, None)
    for row in export([export.make(n) for n in range(5)], format="sharegpt"):
        made = convert(row)
        turns = data.TEMPLATES["qwen"].encode_multiturn(
            tokenizer, made["_prompt"] + made["_response"], made["_system"], made["_tools"]
        )
        assert len(turns) == 2


def test_axolotl_takes_every_conversation(export, tokenizer):
    strategies = pytest.importorskip("axolotl.prompt_strategies.chat_template", reason="needs Axolotl")
    from axolotl.utils.dict import DictDefault

    settings = DictDefault({"sequence_len": 512, "chat_template": "tokenizer_default"})
    strategy = strategies.StrategyLoader()(tokenizer, settings, {"field_messages": "messages"})
    for row in export([export.make(n) for n in range(5)]):
        made = strategy.tokenize_prompt(row)
        learnt = tokenizer.decode([token for token in made["labels"] if token != -100])
        assert "add.</think>" in learnt
        assert "The sum is" in learnt
        assert "Add" not in learnt


def test_the_dataset_of_verl_opens_the_table(export, tmp_path, tokenizer):
    datasets = pytest.importorskip("verl.utils.dataset.rl_dataset", reason="needs verl")
    from omegaconf import OmegaConf

    path = tmp_path / "rows.parquet"
    export([export.make(n) for n in range(5)], format="rl", names="verl", output=str(path))
    settings = OmegaConf.create({"cache_dir": str(tmp_path / "cache"), "filter_overlong_prompts": False})
    opened = datasets.RLHFDataset(data_files=[str(path)], tokenizer=tokenizer, config=settings)
    assert len(opened) == 5
    assert [message["role"] for message in opened[0]["raw_prompt"]] == ["system", "user"]
    assert opened[0]["responses"] == [10, 11, 3, 20]


def test_rewards_and_masks_give_a_policy_gradient(export, model):
    rows = export([export.make(0, n, float(n)) for n in range(2)], format="rl")
    ids = torch.tensor([row["input_ids"] for row in rows])
    mask = torch.tensor([row["loss_mask"] for row in rows])[:, 1:]
    scores = torch.log_softmax(model(ids).logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    loss = -(scores * mask * torch.tensor([[row["advantage"]] for row in rows])).sum()
    loss.backward()
    assert json.dumps(rows)
    assert model.lm_head.weight.grad.abs().sum() > 0
