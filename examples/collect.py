"""Five calculator tasks, four times each, with the model that runs inside this process."""

import nemo_gym

run = nemo_gym.collect(
    "calculator",
    model="local",
    repeats=4,
    temperature=0.7,
    max_output_tokens=100,
    output="results/python/rollouts.jsonl",
)
print(f"mean reward {run.mean_reward}, rollouts in {run.path}")
for rollout in run:
    print(rollout.reward, rollout.task["question"], "->", rollout.text)
