"""Training that can be killed at any step, and the tree that makes it cheap."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="needs the extra train")
pytest.importorskip("gguf", reason="needs the extra train")

import torch

from nemo_gym.errors import ConfigError
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.training.gguf import load_model
from nemo_gym.training.learner import Learner, pack, predictions, sampled_log_probs
from nemo_gym.training.sequences import TokenSequence

PROMPT = [1, 84, 101, 115, 116]


def sequence(number: int, *parts: tuple[list[int], bool]) -> TokenSequence:
    ids = [*PROMPT, *(token for tokens, _ in parts for token in tokens)]
    mask = [False] * len(PROMPT) + [sampled for tokens, sampled in parts for _ in tokens]
    scores = [-1.0 if one else 0.0 for one in mask]
    return TokenSequence(ids, list(map(int, mask)), scores, RolloutKey(0, number), float(number))


ONE_TURN = sequence(0, ([70, 71, 72], True))
TWO_TURNS = sequence(1, ([70, 99], True), ([30, 31, 32], False), ([44, 2], True))
SHORT = sequence(2, ([2], True))
TOOL_FIRST = sequence(3, ([50, 51], False), ([60, 61], True))


@pytest.fixture
def model(tiny_model: Path) -> Any:
    return load_model(tiny_model)


def test_a_tree_gives_the_same_as_its_branches(model: Any) -> None:
    together = [ONE_TURN, TWO_TURNS, SHORT, TOOL_FIRST]
    with torch.no_grad():
        tree = pack(together)
        whole = sampled_log_probs(tree, predictions(model, tree))
        alone = [sampled_log_probs(branch, predictions(model, branch)) for branch in (pack([one]) for one in together)]
    assert tree.sizes == [3, 4, 1, 2]
    assert len(tree) == len(PROMPT) + 3 + 7 + 1 + 4
    assert torch.allclose(whole, torch.cat(alone), atol=1e-5)


def test_log_probs_are_those_of_a_plain_forward_pass(model: Any) -> None:
    with torch.no_grad():
        logits = model(torch.tensor([TWO_TURNS.ids])).logits[0]
        plain = torch.log_softmax(logits[:-1] / 0.7, -1)[range(len(TWO_TURNS.ids) - 1), TWO_TURNS.ids[1:]]
        tree = pack([TWO_TURNS])
        ours = sampled_log_probs(tree, predictions(model, tree), temperature=0.7)
    assert torch.allclose(ours, plain[torch.tensor(TWO_TURNS.mask[1:], dtype=torch.bool)], atol=1e-5)


def steps(model: Any, checkpoint: Path, *, until: int) -> Learner:
    torch.manual_seed(0)
    learner = Learner(model, rank=4, lr=1e-2, steps=6, checkpoint=checkpoint)
    trees = [pack([ONE_TURN, TWO_TURNS]), pack([SHORT]), pack([TOOL_FIRST])]
    while learner.done < until:
        tree = trees[learner.done % len(trees)]
        learner.step([-sampled_log_probs(tree, predictions(learner.model, tree)).mean()])
    return learner


def test_training_that_is_interrupted_ends_with_the_same_weights(tiny_model: Path, tmp_path: Path) -> None:
    unbroken = steps(load_model(tiny_model), tmp_path / "a", until=6).merged().state_dict()
    for until in (1, 4, 6):
        broken = steps(load_model(tiny_model), tmp_path / "b", until=until)
    assert broken.done == 6
    for name, values in broken.merged().state_dict().items():
        assert torch.equal(values, unbroken[name]), name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_training_makes_what_it_is_shown_more_likely(tiny_model: Path, tmp_path: Path) -> None:
    tree = pack([ONE_TURN, TWO_TURNS])
    before = load_model(tiny_model)
    after = steps(load_model(tiny_model), tmp_path / "x", until=6).merged()
    with torch.no_grad():
        gain = sampled_log_probs(tree, predictions(after, tree)) - sampled_log_probs(tree, predictions(before, tree))
    assert gain.mean() > 0.1


def test_a_checkpoint_of_another_training_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    steps(load_model(tiny_model), tmp_path / "x", until=1)
    with pytest.raises(ConfigError, match="belongs to another training"):
        Learner(load_model(tiny_model), rank=4, lr=1e-3, steps=6, checkpoint=tmp_path / "x")
