"""Shows the metrics of rollouts: the key metrics as data, how complete and how sure they are for the eye."""

import json
from collections.abc import Sequence

from nemo_gym.cli import console
from nemo_gym.metrics.json_text import to_json
from nemo_gym.rollouts.aggregate import AgentMetrics


def show_metrics(metrics: Sequence[AgentMetrics]) -> None:
    """Print the key metrics of each agent; beside them coverage, intervals, rewards and difficulty."""
    for each in metrics:
        if each.report is not None:
            console.note(f"\n{each.report.text()}\n")
        console.emit(f"Key metrics for {each.agent}:")
        console.emit(json.dumps(json.loads(to_json(each.key_metrics)), indent=4))
