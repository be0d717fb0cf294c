"""Makes a small model better at an environment, on two CPU cores: collect, export, train, collect again, compare.

    python examples/train.py --output results/train
    python examples/train.py --output results/letters --environment letters.py

Read it from ``main`` downwards, copy it, and change what you need. Every stage leaves a file in the output folder and
is not repeated once that is complete, so after a kill the same command continues. A larger model on a GPU needs only
other options: --model large.gguf --device cuda --dtype bfloat16.
"""

import argparse
import asyncio
import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nemo_gym.api.choices import choose_agent, choose_environment, task_file
from nemo_gym.config.keys import CONFIG_PATHS
from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.metrics.compare import ComparedRun, compare_runs, read_contents
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.servers.gym import host_gym
from nemo_gym.training import learner
from nemo_gym.training.chart import before_and_after_svg
from nemo_gym.training.gguf import load_model, write_gguf
from nemo_gym.training.sequences import Group, TokenSequence, read_groups
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, ensure_weights

Options = argparse.Namespace
LOCAL_MODEL = "responses_api_models/local_model/configs/local_model.yaml"


class Method(NamedTuple):
    """How a method trains, unless the options say otherwise, and the rules by which ng_export selects its rollouts."""

    lr: float
    epochs: int
    rules: dict[str, Any]


METHODS = {
    "grpo": Method(lr=1e-3, epochs=1, rules={"mixed_rewards": True}),
    "dpo": Method(lr=5e-4, epochs=1, rules={"mixed_rewards": True}),
    "sft": Method(lr=2e-3, epochs=2, rules={"complete": True, "best_per_task": 4}),  # and what --solved says
}


class Sampling(NamedTuple):
    """Which tasks to collect, and how."""

    tasks: Path
    repeats: int
    temperature: float


def main(arguments: list[str] | None = None) -> None:
    """Run all stages, one after the other."""
    options = read_options(arguments)
    keep_settings(options)
    base = options.model or asyncio.run(ensure_weights(SMOLLM2, cache_folder(os.environ)))
    before, after = options.output / "before.jsonl", options.output / f"after_{options.method}.jsonl"
    heldout = Sampling(options.heldout, options.heldout_repeats, options.heldout_temperature)

    stage("held-out tasks, before", lambda: collect(options, base, before, heldout))
    policy = base
    for number in range(1, options.rounds + 1):
        policy = improve(options, policy, number)
    stage("held-out tasks, after", lambda: collect(options, policy, after, heldout))
    report(options, before, after)


def improve(options: Options, policy: Path, number: int) -> Path:
    """One round: collect tasks that no earlier round had, train on what was sampled, and return the new policy."""
    name = f"{options.method}_{number}"
    folder: Path = options.output
    samples, better = folder / f"{name}.jsonl", folder / f"{name}.gguf"
    # All methods share the rollouts of the first round, which are those of the base model.
    rollouts = folder / ("train.jsonl" if number == 1 else f"train_{name}.jsonl")
    training = Sampling(choose_tasks(options, number), options.repeats, options.temperature)
    stage(f"training tasks of round {number}", lambda: collect(options, policy, rollouts, training))
    stage("samples", lambda: export(options, rollouts, samples))
    checkpoint = better.with_suffix(".checkpoint")
    if not better.exists():
        stage(f"training with {options.method}", lambda: train(options, samples, policy, better, checkpoint))
    checkpoint.unlink(missing_ok=True)
    return better


def choose_tasks(options: Options, number: int) -> Path:
    """Draw the training tasks of a round: different ones for every seed and round, as long as the file has enough."""
    lines = options.train.read_text().splitlines(keepends=True)
    lines = random.Random(options.seed).sample(lines, len(lines))  # noqa: S311
    count = min(options.tasks, len(lines))
    path: Path = options.output / f"train_tasks_{number}.jsonl"
    path.write_text("".join(lines[place % len(lines)] for place in range(count * (number - 1), count * number)))
    return path


def collect(options: Options, model: Path, output: Path, sampling: Sampling) -> None:
    """Roll out tasks with a model that runs in this process; rollouts that the output already has are kept."""
    server = "++policy_model.responses_api_models.local_model"
    settings = [
        f"{server}.model_path={model.resolve()}",
        f"{server}.return_token_id_information=true",
        f"{server}.extra_body={options.truncation}",
    ]
    files = f"+config_paths=[{options.configs}]"
    config = parse_config([files, *settings, *options.overrides], pairs=options.environment_values).config
    collection = RolloutCollectionConfig(
        agent_name=options.agent,
        input_jsonl_fpath=str(sampling.tasks),
        output_jsonl_fpath=str(output),
        num_repeats=sampling.repeats,
        num_samples_in_parallel=64,
        resume_from_cache=True,
        responses_create_params={"temperature": sampling.temperature, "max_output_tokens": options.max_output_tokens},
    )

    async def run() -> None:
        async with host_gym(config) as gym:
            summary = await RolloutCollectionHelper().collect(collection, client=gym.client)
        print(summary.text())
        if not summary.completed:
            raise ConfigError(f"no rollout of {sampling.tasks} completed", hint=f"see {summary.files.failures}")

    asyncio.run(run())


def export(options: Options, rollouts: Path, samples: Path) -> None:
    """Select the rollouts that the method learns from, and write them as token sequences."""
    rules = METHODS[options.method].rules | ({"min_reward": options.solved} if options.method == "sft" else {})
    # The same input gives the same bytes, so it does no harm to replace what an earlier run left.
    files = {"input": str(rollouts), "output": str(samples), "overwrite": True}
    recipe = Recipe(**files, format="rl", metadata=True, seed=options.seed, **rules)
    print(export_rollouts(recipe).text())


def train(options: Options, samples: Path, base: Path, policy: Path, checkpoint: Path) -> None:
    """Train adapters on the tokens that were sampled, merge them into the model, and write it as GGUF."""
    torch.manual_seed(options.seed)
    tasks = [rollouts_of(options, group) for group in read_groups(samples)] * options.epochs
    random.Random(options.seed).shuffle(tasks)  # noqa: S311
    steps = [tasks[start : start + options.batch] for start in range(0, len(tasks), options.batch)]
    model = load_model(base, dtype=getattr(torch, options.dtype)).to(options.device)
    student = learner.Learner(model, rank=options.rank, lr=options.lr, steps=len(steps), checkpoint=checkpoint)
    for step in steps[student.done :]:
        # One tree holds all rollouts of a task, with their prompt only once.
        trees = [learner.pack(rollouts, device=options.device) for rollouts in step]
        # Every sampled token of a step has the same weight; in DPO, every pair.
        size = sum(len(tree.sizes) // 2 if options.method == "dpo" else sum(tree.sizes) for tree in trees)
        work = zip(step, trees, strict=True)
        done = student.step(loss(options, student.model, tree, rollouts) / size for rollouts, tree in work)
        print(f"step {student.done}/{len(steps)}: loss {done.loss:.4f}, gradient {done.gradient:.2f}", flush=True)
    write_gguf(student.merged(), policy, like=base)


def rollouts_of(options: Options, group: Group) -> list[TokenSequence]:
    """The rollouts of a task that a step sees; for DPO, two pairs: better, worse, better, worse."""
    if options.method != "dpo":
        return group.sequences
    return [rollout for pair in group.pairs(2, seed=options.seed) for rollout in pair]


def loss(options: Options, model: Any, tree: learner.Tree, rollouts: list[TokenSequence]) -> torch.Tensor:
    """The loss of one task, summed over its tokens or pairs."""
    logits = learner.predictions(model, tree)
    if options.method == "sft":
        return learner.imitation_loss(tree, logits)
    if options.method == "dpo":
        return learner.preference_loss(tree, logits, beta=options.beta)
    advantages, sampled = Group(0, rollouts).advantages(), {"temperature": options.temperature, "clip": options.clip}
    return learner.policy_gradient_loss(tree, logits, advantages, **sampled)


def report(options: Options, before: Path, after: Path) -> None:
    """Compare the two collections of held-out tasks, and draw them."""
    found = compare_runs(
        *(ComparedRun(Shards([path], strict=False).table(), read_contents(path)) for path in (before, after))
    )
    (options.output / f"comparison_{options.method}.json").write_text(json.dumps(found.as_dict(), indent=2))
    chart = options.output / f"before_and_after_{options.method}.svg"
    chart.write_text(before_and_after_svg(found, title=f"Held-out reward before and after {options.method}"))
    print(f"\n{found.text()}\n{chart}")


def stage(name: str, work: Callable[[], None]) -> None:
    """Do one part of the work, and print how long it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    print(f"== {name}: {time.perf_counter() - wall:.0f} s, {time.process_time() - cpu:.0f} CPU s", flush=True)


# Options that do not change the rollouts of the base model, which all methods in a folder share.
OF_METHOD = {"method", "rounds", "device", "dtype", "lr", "epochs", "batch", "rank", "clip", "beta", "solved"}


def keep_settings(options: Options) -> None:
    """Refuse to continue in a folder that was begun with other settings."""
    options.output.mkdir(parents=True, exist_ok=True)
    given = json.loads(json.dumps(vars(options), default=str))
    shared = {name: value for name, value in given.items() if name not in OF_METHOD}
    for file, settings in (("settings.json", shared), (f"settings_{options.method}.json", given)):
        path = options.output / file
        before = json.loads(path.read_text()) if path.exists() else settings
        if changed := [f"{name} was {before.get(name)}" for name in settings if before.get(name) != settings[name]]:
            raise ConfigError(
                f"{path}: the folder has other settings: {', '.join(changed)}", hint="choose another --output"
            )
        path.with_suffix(".part").write_text(json.dumps(settings, indent=2))
        path.with_suffix(".part").replace(path)


def read_options(arguments: list[str] | None) -> Options:
    """Read the command line."""
    data = Path("resources_servers/format_following")
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--output", type=Path, default=Path("results/train"), help="folder for everything")
    add("--method", choices=METHODS, default="grpo")
    add("--seed", type=int, default=0, help="determines tasks, their order and the initial weights of the adapters")
    add("--model", type=Path, help="GGUF file; without one, the embedded SmolLM2-135M")
    add("--environment", help="name, folder, .yaml or .py file; without it, what the next options name")
    add("--configs", default=f"{data}/configs/format_following.yaml,{LOCAL_MODEL}")
    add("--overrides", nargs="*", default=[], help="more configuration, as ng_collect_rollouts takes it")
    add("--agent", default="format_following_simple_agent")
    add("--train", type=Path, default=data / "data/train.jsonl", help="task file")
    add("--heldout", type=Path, default=data / "data/validation.jsonl", help="task file without any training task")
    add("--rounds", type=int, default=1, help="each collects with the policy of the one before")
    add("--tasks", type=int, default=128, help="training tasks of a round")
    add("--repeats", type=int, default=8, help="rollouts of each training task")
    add("--temperature", type=float, default=0.8, help="for training tasks")
    add("--truncation", default="{}", help="of sampling, for all tasks alike, such as {top_k: 40, min_p: 0.05}")
    add("--heldout-repeats", type=int, default=4, help="rollouts of each held-out task")
    add("--heldout-temperature", type=float, default=0.7, help="for held-out tasks")
    add("--max-output-tokens", type=int, default=100, help="in each turn")
    add("--device", default="cpu", help="where to train")
    add("--dtype", default="float32", help="of the weights while training")
    add("--lr", type=float, help="learning rate; without it, what suits the method")
    add("--epochs", type=int, help="passes over the samples; without it, what suits the method")
    add("--batch", type=int, default=8, help="tasks in a step")
    add("--rank", type=int, default=16, help="of the adapters")
    add("--clip", type=float, default=math.inf, help="grpo: how far the ratio counts, such as 0.2")
    add("--beta", type=float, default=0.1, help="dpo: weight of the reference")
    add("--solved", type=float, default=1.0, help="sft: lowest reward of a rollout that is imitated")
    parser.set_defaults(environment_values={})
    options = parser.parse_args(arguments)
    if options.environment:
        parser.set_defaults(**defaults_of(options.environment, options.output))
        options = parser.parse_args(arguments)
    options.lr = options.lr or METHODS[options.method].lr
    options.epochs = options.epochs or METHODS[options.method].epochs
    return options


def defaults_of(environment: str, folder: Path) -> dict[str, Any]:
    """The options that an environment stands for: its configuration, its agent, and two files of tasks.

    Of the tasks in a Python file, every fourth is held out.
    """
    choice = choose_environment(environment)
    configs = [*choice.config_paths, LOCAL_MODEL]
    config = parse_config(pairs={**choice.values, CONFIG_PATHS: configs}).config
    agent = choose_agent(None, config)
    parts: dict[str, Any] = {"train": "train", "heldout": "validation"}
    if choice.environment is not None:
        rows = list(choice.environment.rows())
        parts = {"train": [row for number, row in enumerate(rows) if number % 4], "heldout": rows[::4]}
    given: dict[str, Any] = {"environment": None, "config": config, "agent": agent, "folder": folder}
    tasks = {name: task_file(part, **given) for name, part in parts.items()}
    return {"environment_values": choice.values, "configs": ",".join(configs), "agent": agent, **tasks}


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(f"error: {error}\n\nhint: {error.hint}") from None
