"""The rows of a selection that enter statistics, as the tables of ``nemo_gym.metrics``.

Every number of the viewer about rewards is computed there from such a table, so that it is the metrics' number.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.table import Column, Floats, Ints, Mask, RolloutTable
from nemo_gym.view.index.reader import ColumnValues
from nemo_gym.view.selection import Selection
from nemo_gym.view.source import ROW_BITS


@dataclass(frozen=True)
class Scored:
    """The rows of a selection that count, in the order of a table: task, then rollout."""

    codes: Ints  # rows of the snapshot
    index: Ints  # of the task, as in the records
    task: Ints  # unique across files, unlike the index
    run: Ints
    rollout: Ints
    rewards: Floats  # NaN where there is none
    agents: ColumnValues

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Ints | Mask) -> "Scored":
        places = np.arange(len(self))[rows]
        return Scored(
            self.codes[places],
            self.index[places],
            self.task[places],
            self.run[places],
            self.rollout[places],
            self.rewards[places],
            self.agents.take(places),
        )

    @cached_property
    def table(self) -> RolloutTable:
        """The same rows for ``nemo_gym.metrics``."""
        present = ~np.isnan(self.rewards)
        top = {REWARD: Column(self.rewards, present)} if present.any() else {}
        return RolloutTable(self.task, self.rollout, top, {}, {})


def scored(selection: Selection) -> Scored:
    """The rows of a selection that enter statistics."""
    keys = selection.snapshot.tasks
    places = keys.places(selection.rows)
    counting = np.flatnonzero(keys.counts[places])
    places = places[counting]
    order = np.lexsort((keys.rollout[places], keys.task[places]))
    codes, places = selection.rows[counting[order]], places[order]
    chosen = Selection(selection.snapshot, codes)
    rewards, agents = chosen.values(REWARD).numbers, chosen.values("agent")
    return Scored(codes, keys.index[places], keys.task[places], keys.run[places], keys.rollout[places], rewards, agents)


def is_failure(selection: Selection) -> Mask:
    """Which rows are failed attempts."""
    kinds = [part.source.kind == "failures" for part in selection.snapshot.parts]
    of_sidecar = np.array(kinds, np.bool_)[selection.rows >> ROW_BITS] if kinds else np.zeros(0, np.bool_)
    failed = selection.values("failure").codes
    return of_sidecar if failed is None else of_sidecar | (failed >= 0)
