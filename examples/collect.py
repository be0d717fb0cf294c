"""Five calculator tasks, four times each, with the model that runs inside this process."""

import asyncio

from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.servers.gym import host_gym

FILES = "resources_servers/calculator/configs/calculator.yaml,responses_api_models/local_model/configs/local_model.yaml"
TASKS, ROLLOUTS = "resources_servers/calculator/data/example.jsonl", "results/python/rollouts.jsonl"


async def main() -> None:
    """Host the servers in this process, run every task through the agent, and print the result."""
    config = get_global_config_dict(GlobalConfigDictParserConfig(overrides=[f"+config_paths=[{FILES}]"]))
    what = {"agent_name": "calculator_simple_agent", "input_jsonl_fpath": TASKS, "output_jsonl_fpath": ROLLOUTS}
    how = {"temperature": 0.7, "max_output_tokens": 100}
    collection = RolloutCollectionConfig(**what, num_repeats=4, responses_create_params=how)
    async with host_gym(config) as gym:
        summary = await RolloutCollectionHelper().collect(collection, client=gym.client)
    print(f"mean reward {summary.tally.mean_reward:.3f}, rollouts in {summary.files.rollouts}")


asyncio.run(main())
