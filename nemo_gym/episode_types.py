"""Front door: the bodies of episodes. See ``nemo_gym.schemas.episodes``."""

from nemo_gym.schemas.episodes import (
    BaseEpisodeRequest,
    BaseEpisodeResponse,
    EpisodeFailure,
    EpisodeId,
    FailureStage,
    MaterializedTask,
    TaskId,
    is_materialized_task_row,
)

__all__ = [
    "BaseEpisodeRequest",
    "BaseEpisodeResponse",
    "EpisodeFailure",
    "EpisodeId",
    "FailureStage",
    "MaterializedTask",
    "TaskId",
    "is_materialized_task_row",
]
