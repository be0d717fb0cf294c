"""TRL's own trainer, an environment of ours, and a tiny model that both of them share."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the extra train")
pytest.importorskip("gguf", reason="needs the extra train")
pytest.importorskip("datasets", reason="needs the extra data")

from nemo_gym.errors import ConfigError
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.training.gguf import load_model, load_tokenizer
from nemo_gym.training.sequences import TokenSequence
from nemo_gym.training.trl_environment import TRLEnvironment, completions, gguf_publisher
from tests.training.gym_config import AGENT, TOKEN, gym_config, short_tasks


@pytest.mark.filterwarnings("ignore")  # of the trainer, about itself
def test_a_trainer_takes_steps_and_its_weights_reach_the_gym(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    config = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        num_generations=4,
        max_steps=3,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
        disable_tqdm=True,
    )
    publish = gguf_publisher(tiny_model, tmp_path / "weights")
    gym = gym_config(tiny_model, weights_token=TOKEN)
    with TRLEnvironment(gym, short_tasks(4), agent=AGENT, publish=publish, token=TOKEN) as environment:
        trainer = GRPOTrainer(
            load_model(tiny_model),
            environment.reward,
            args=config,
            train_dataset=environment.dataset(),
            processing_class=load_tokenizer(tiny_model),
            rollout_func=environment.rollout,
        )
        trainer.train()
        assert environment._policy is not None
        assert environment._policy.version == 2
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    assert len(rewards) == 3
    assert all(0 <= reward <= 1 for reward in rewards)
    assert len(list((tmp_path / "weights").glob("*.gguf"))) == 2


def sequence(reward: float, *, mask: str = "..xx.x") -> TokenSequence:
    sampled = [int(letter == "x") for letter in mask]
    return TokenSequence(list(range(len(mask))), sampled, [-0.5 * one for one in sampled], RolloutKey(0, 0), reward)


def test_a_failed_rollout_gets_the_mean_of_its_siblings_and_nothing_to_learn() -> None:
    found: list[dict[str, Any]] = list(completions([sequence(1.0), sequence(0.0), sequence(0.5)], 4))
    assert [one["gym_reward"] for one in found] == [1.0, 0.0, 0.5, 0.5]
    assert found[0]["prompt_ids"] == [0, 1]
    assert found[0]["completion_ids"] == [2, 3, 4, 5]
    assert found[0]["env_mask"] == [1, 1, 0, 1]
    assert found[-1]["env_mask"] == [0]
    assert [one["gym_reward"] for one in completions([], 2)] == [0.0, 0.0]


def test_weights_without_a_token_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weights_token"):
        TRLEnvironment(
            gym_config(tiny_model), short_tasks(1), agent=AGENT, publish=gguf_publisher(tiny_model, tmp_path)
        )
