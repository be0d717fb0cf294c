"""A small model gets better at an environment, on two CPU cores: collect, export, train, collect again, compare.

    python examples/train.py --output results/train

Every stage leaves a file in the output folder and is not repeated once that is complete: after a kill at any moment the
same command goes on. A larger model on a GPU: --model big.gguf --device cuda --dtype bfloat16.
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

from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError
from nemo_gym.export.pipeline import export_rollouts
from nemo_gym.export.recipe import Recipe
from nemo_gym.metrics.compare import Run, compare, read_contents
from nemo_gym.metrics.report import comparison_text
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.servers.gym import host_gym
from nemo_gym.training.chart import before_and_after_svg
from nemo_gym.training.gguf import load_model, write_gguf
from nemo_gym.training.learner import (
    Learner,
    Tree,
    imitation_loss,
    pack,
    policy_gradient_loss,
    predictions,
    preference_loss,
)
from nemo_gym.training.sequences import Group, TokenSequence, read_groups
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, ensure_weights

Options = argparse.Namespace
RATES = {"grpo": 1e-3, "dpo": 5e-4, "sft": 2e-3}
EPOCHS = {"grpo": 1, "dpo": 1, "sft": 2}
# Options that leave the rollouts of the base model alone, which all methods of a folder share.
OF_METHOD = {"method", "rounds", "device", "dtype", "lr", "epochs", "batch", "rank", "clip", "beta", "solved"}


class Sampling(NamedTuple):
    """What to roll out, and how."""

    tasks: Path
    repeats: int
    temperature: float


def main(arguments: list[str] | None = None) -> None:
    """Take all stages, one after the other."""
    options = read_options(arguments)
    folder, method = options.output, options.method
    base = options.model or asyncio.run(ensure_weights(SMOLLM2, cache_folder(os.environ)))
    before, after = folder / "before.jsonl", folder / f"after_{method}.jsonl"
    keep_settings(options)
    heldout = Sampling(options.heldout, options.heldout_repeats, options.heldout_temperature)

    stage("held-out tasks, before", lambda: collect(options, base, before, heldout))
    policy = base
    for number in range(1, options.rounds + 1):
        policy = improve(options, policy, number)
    stage("held-out tasks, after", lambda: collect(options, policy, after, heldout))

    found = compare(*(Run(Shards([path], strict=False).table(), read_contents(path)) for path in (before, after)))
    (folder / f"comparison_{method}.json").write_text(json.dumps(found.as_dict(), indent=2))
    picture = folder / f"before_and_after_{method}.svg"
    picture.write_text(before_and_after_svg(found, title=f"Held-out reward before and after {method}"))
    print(f"\n{comparison_text(found)}\n{picture}")


def improve(options: Options, policy: Path, number: int) -> Path:
    """One round: roll out tasks that no round had before, train on what was sampled, and give back the new policy."""
    name = f"{options.method}_{number}"
    folder: Path = options.output
    samples, better = folder / f"{name}.jsonl", folder / f"{name}.gguf"
    # The first round's rollouts are those of the base model, whatever the method.
    rollouts = folder / ("train.jsonl" if number == 1 else f"train_{name}.jsonl")
    training = Sampling(choose_tasks(options, number), options.repeats, options.temperature)
    stage(f"train tasks of round {number}", lambda: collect(options, policy, rollouts, training))
    stage("samples", lambda: export(options, rollouts, samples))
    checkpoint = better.with_suffix(".checkpoint")
    if not better.exists():
        stage(f"training with {options.method}", lambda: train(options, samples, policy, better, checkpoint))
    checkpoint.unlink(missing_ok=True)
    return better


def stage(name: str, work: Callable[[], None]) -> None:
    """Do one part of the work and say what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    print(f"== {name}: {time.perf_counter() - wall:.0f} s, {time.process_time() - cpu:.0f} CPU s", flush=True)


def keep_settings(options: Options) -> None:
    """Refuse to go on in a folder that other settings began."""
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


def choose_tasks(options: Options, number: int) -> Path:
    """Sample the train tasks of a round; every seed and every round gets other ones, until the file has no more."""
    lines = options.train.read_text().splitlines(keepends=True)
    lines = random.Random(options.seed).sample(lines, len(lines))  # noqa: S311
    tasks = min(options.tasks, len(lines))
    path: Path = options.output / f"train_tasks_{number}.jsonl"
    path.write_text("".join(lines[place % len(lines)] for place in range(tasks * (number - 1), tasks * number)))
    return path


def collect(options: Options, model: Path, output: Path, sampling: Sampling) -> None:
    """Roll out tasks with a model in this process; what the output already has is not collected again."""
    server = "++policy_model.responses_api_models.local_model"
    settings = [f"{server}.return_token_id_information=true", f"{server}.model_path={model.resolve()}"]
    settings.append(f"{server}.extra_body={options.truncation}")
    config = parse_config([f"+config_paths=[{options.configs}]", *settings, *options.overrides]).config
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
    """Select what a method learns from, as token sequences."""
    mixed: dict[str, Any] = {"mixed_rewards": True}
    rules = {"grpo": mixed, "dpo": mixed, "sft": {"min_reward": options.solved, "complete": True, "best_per_task": 4}}
    what = {"input": str(rollouts), "output": str(samples), "format": "rl", "metadata": True, "seed": options.seed}
    # The same input gives the same bytes, so what a killed run left is replaced.
    print(export_rollouts(Recipe(**what, **rules[options.method], overwrite=True)).text())


def train(options: Options, samples: Path, base: Path, policy: Path, checkpoint: Path) -> None:
    """Train adapters on the tokens that were sampled, merge them, and write the policy as GGUF."""
    torch.manual_seed(options.seed)
    chosen = [choose(options, group) for group in read_groups(samples)] * options.epochs
    random.Random(options.seed).shuffle(chosen)  # noqa: S311
    steps = [chosen[start : start + options.batch] for start in range(0, len(chosen), options.batch)]
    model = load_model(base, dtype=getattr(torch, options.dtype)).to(options.device)
    learner = Learner(model, rank=options.rank, lr=options.lr, steps=len(steps), checkpoint=checkpoint)
    for step in steps[learner.done :]:
        trees = [pack(sequences, device=options.device) for sequences in step]
        # Every sampled token of a step weighs the same; in DPO, every pair.
        size = sum(len(tree.sizes) // 2 if options.method == "dpo" else sum(tree.sizes) for tree in trees)
        work = zip(step, trees, strict=True)
        report = learner.step(loss(options, learner.model, tree, sequences) / size for sequences, tree in work)
        print(f"step {learner.done}/{len(steps)}: loss {report.loss:.4f}, gradient {report.gradient:.2f}", flush=True)
    write_gguf(learner.merged(), policy, like=base)


def choose(options: Options, group: Group) -> list[TokenSequence]:
    """Name the rollouts of a task that a step sees; for DPO: better, worse, better, worse."""
    if options.method != "dpo":
        return group.sequences
    return [one for pair in group.pairs(2, seed=options.seed) for one in pair]


def loss(options: Options, model: torch.nn.Module, tree: Tree, sequences: list[TokenSequence]) -> torch.Tensor:
    """Compute the loss of one task, summed over its tokens or pairs."""
    logits = predictions(model, tree)
    if options.method == "sft":
        return imitation_loss(tree, logits)
    if options.method == "dpo":
        return preference_loss(tree, logits, beta=options.beta)
    advantages = Group(0, sequences).advantages()
    return policy_gradient_loss(tree, logits, advantages, temperature=options.temperature, clip=options.clip)


def read_options(arguments: list[str] | None) -> Options:
    """Read the command line."""
    data, models = Path("resources_servers/format_following"), "responses_api_models"
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--output", type=Path, default=Path("results/train"), help="folder for everything")
    add("--method", choices=RATES, default="grpo")
    add("--seed", type=int, default=0, help="chooses tasks, their order and the first weights of the adapters")
    add("--model", type=Path, help="GGUF file; without one, the embedded SmolLM2-135M")
    add("--configs", default=f"{data}/configs/format_following.yaml,{models}/local_model/configs/local_model.yaml")
    add("--overrides", nargs="*", default=[], help="more configuration, as ng_collect_rollouts takes it")
    add("--agent", default="format_following_simple_agent")
    add("--train", type=Path, default=data / "data/train.jsonl", help="task file")
    add("--heldout", type=Path, default=data / "data/validation.jsonl", help="task file without any train task")
    add("--rounds", type=int, default=1, help="each collects with the policy of the one before")
    add("--tasks", type=int, default=128, help="train tasks of a round")
    add("--repeats", type=int, default=8, help="rollouts of each train task")
    add("--temperature", type=float, default=0.8, help="for train tasks")
    add("--truncation", default="{}", help="of sampling, for all tasks alike, such as {top_k: 40, min_p: 0.05}")
    add("--heldout-repeats", type=int, default=4)
    add("--heldout-temperature", type=float, default=0.7)
    add("--max-output-tokens", type=int, default=100)
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--lr", type=float, help="learning rate; without it, what suits the method")
    add("--epochs", type=int, help="passes over the samples; without it, what suits the method")
    add("--batch", type=int, default=8, help="tasks in a step")
    add("--rank", type=int, default=16, help="of the adapters")
    add("--clip", type=float, default=math.inf, help="grpo: how far the ratio counts, such as 0.2")
    add("--beta", type=float, default=0.1, help="dpo: weight of the reference")
    add("--solved", type=float, default=1.0, help="sft: reward from which on a rollout is imitated")
    options = parser.parse_args(arguments)
    options.lr = options.lr or RATES[options.method]
    options.epochs = options.epochs or EPOCHS[options.method]
    return options


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(f"error: {error}\n\nhint: {error.hint}") from None
