"""An environment of ``verifiers`` in a file: its tasks become rows, its own rewards score what the model says.

Needs ``pip install verifiers`` (Python 3.11 or newer). The taskset below is a small one; put the one that you have in
its place. ``ng eval run examples/from_verifiers.py --model local`` runs it, and so does this file.
"""

# mypy: disable-error-code="misc, untyped-decorator"
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode

import nemo_gym


class Sum(vf.TaskData):
    """Two numbers in a prompt, and what they add up to."""

    expected: int


class SumTask(vf.Task[Sum]):
    """A task of verifiers: rewards are methods."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """Whether the last word is the sum."""
        return float(trace.last_reply.split()[-1:] == [str(self.data.expected)])

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        """The length of the answer."""
        return float(len(trace.last_reply.split()))


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    """A taskset of verifiers."""

    def load(self) -> Iterator[SumTask]:
        """Four sums."""
        for a, b in ((1, 2), (20, 22), (7, 8), (100, 1)):
            yield SumTask(Sum(prompt=f"What is {a} + {b}? End with the number.", expected=a + b))


TASKS = {task.key: task for task in Sums(vf.TasksetConfig())}
environment = nemo_gym.Environment(
    name="sums", tasks=[{"prompt": task.data.prompt_text, "key": key} for key, task in TASKS.items()]
)


@environment.verify
async def score(task: dict[str, Any], response: Any) -> dict[str, Any]:
    """Let the task of verifiers score the answer, as the last message of a trace."""
    own = TASKS[task["key"]]
    answer = MessageNode(message=vf.AssistantMessage(content=response.text), sampled=True)
    about = vf.TraceTask(type=type(own).__name__, data=own.data)
    trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[answer])
    await own.score(trace)
    return {"reward": trace.reward, **trace.metrics}


def adds(request: Any) -> str:
    """A model that can add, but not beyond a hundred."""
    numbers = [int(word.strip("?")) for word in request["input"][-1]["content"].split() if word.strip("?").isdigit()]
    return f"The sum is {min(sum(numbers), 100)}"


if __name__ == "__main__":
    run = nemo_gym.collect(environment, model=adds)
    print(f"mean reward {run.mean_reward}: {[rollout.reward for rollout in run]}")
