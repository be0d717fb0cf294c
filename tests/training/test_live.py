"""Groups for trainers that call us, and new weights between them; a real Gym around a tiny model."""

from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="needs the extra train")

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.gates import Freshness
from nemo_gym.rollouts.store.outcome import Completed, Failed
from nemo_gym.rollouts.stream import stream_groups
from nemo_gym.servers.gym import host_gym
from nemo_gym.training.live import PolicyControl, token_groups
from tests.training.gym_config import AGENT, TOKEN, gym_config, short_tasks
from tests.training.tiny import tiny_gguf


async def test_groups_come_as_sequences_with_their_rewards_and_versions(tiny_model: Path) -> None:
    async with host_gym(gym_config(tiny_model, weights_token=TOKEN)) as gym:
        found = [live async for live in token_groups(short_tasks(3), gym.client, agent=AGENT, repeats=4)]
    assert sorted(live.group.task for live in found) == [0, 1, 2]
    for live in found:
        assert not live.failures
        for sequence in live.group.sequences:
            assert len(sequence.ids) == len(sequence.mask) == len(sequence.log_probs)
            assert sequence.versions == [0]
            assert sequence.reward in {0.0, 1.0}
            assert all(score < 0 for score, sampled in zip(sequence.log_probs, sequence.mask, strict=True) if sampled)


async def test_new_weights_reach_a_running_gym(tiny_model: Path, tmp_path: Path) -> None:
    other = tiny_gguf(tmp_path / "other.gguf", seed=1)
    async with host_gym(gym_config(tiny_model, weights_token=TOKEN)) as gym:
        policy = PolicyControl(gym.client, "policy_model", TOKEN)
        versions = []
        async for live in token_groups(short_tasks(3), gym.client, agent=AGENT, repeats=2, limit=2):
            versions += [sequence.versions for sequence in live.group.sequences]
            await policy.pause()
            await policy.update({"model_path": str(other)})
            await policy.resume()
        assert await policy.refresh() == policy.version == 3
    assert versions[:2] == [[0], [0]]
    assert versions[-1][0] >= 1


async def test_stale_rollouts_are_run_again_with_newer_weights(tiny_model: Path, tmp_path: Path) -> None:
    async with host_gym(gym_config(tiny_model, weights_token=TOKEN)) as gym:
        policy = PolicyControl(gym.client, "policy_model", TOKEN)
        claimed = iter([5])  # the trainer is far ahead when the first one ends, and the server catches up

        def current() -> int:
            return next(claimed, 0)

        freshness = Freshness(current, max_staleness=1)
        groups = stream_groups(short_tasks(1), gym.client, agent=AGENT, repeats=1, freshness=freshness)
        [[outcome]] = [group async for group in groups]
        assert isinstance(outcome, Completed)
        assert outcome.planned.attempt == 2
        await policy.refresh()


async def test_a_group_that_is_too_old_has_failures_and_no_rewards(tiny_model: Path) -> None:
    async with host_gym(gym_config(tiny_model, weights_token=TOKEN)) as gym:
        freshness = Freshness(lambda: 2, max_staleness=1)
        groups = token_groups(short_tasks(1), gym.client, agent=AGENT, repeats=2, freshness=freshness, max_attempts=1)
        [live] = [live async for live in groups]
    assert not live.group.sequences
    assert [failed.failure.kind for failed in live.failures] == ["stale", "stale"]
    assert "version 0 of the weights, which are at 2 now" in live.failures[0].failure.message


async def test_rollouts_that_became_old_while_they_waited_are_failures(tiny_model: Path) -> None:
    """Each is fresh when it ends; when the group is complete, the trainer has moved on."""
    async with host_gym(gym_config(tiny_model, weights_token=TOKEN)) as gym:
        versions = iter([0, 0])
        freshness = Freshness(lambda: next(versions, 9), max_staleness=1)
        groups = stream_groups(short_tasks(1), gym.client, agent=AGENT, repeats=2, freshness=freshness)
        [group] = [group async for group in groups]
    assert [type(outcome) for outcome in group] == [Failed, Failed]
    assert not any(outcome.will_retry for outcome in group if isinstance(outcome, Failed))


async def test_without_token_ids_the_mistake_is_named(tiny_model: Path) -> None:
    async with host_gym(gym_config(tiny_model, return_token_id_information="false")) as gym:
        with pytest.raises(ConfigError, match="no token ids") as raised:
            _ = [live async for live in token_groups(short_tasks(1), gym.client, agent=AGENT)]
    assert "return_token_id_information" in str(raised.value.hint)


async def test_a_wrong_token_is_refused(tiny_model: Path) -> None:
    async with host_gym(gym_config(tiny_model, weights_token=TOKEN)) as gym:
        policy = PolicyControl(gym.client, "policy_model", "wrong")
        with pytest.raises(ConfigError, match="status 401"):
            await policy.update({"model_path": str(tiny_model)})
