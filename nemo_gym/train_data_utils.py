"""Front door: prepares the datasets of the configured agents for collection and training."""

from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.data.agent_datasets import Mode, Render, datasets_in_scope
from nemo_gym.data.prepare import Preparation, PreparationOptions, prepare_datasets
from nemo_gym.prompt import apply_prompt_to_row, load_prompt_config

__all__ = ["TrainDataProcessor", "TrainDataProcessorConfig"]


class TrainDataProcessorConfig(BaseNeMoGymCLIConfig):
    """Collate the datasets of the configured agents into one task file per type, with their metrics."""

    output_dirpath: str = Field(description="Folder for the collated files; it is created if necessary")
    mode: Literal["train_preparation", "example_validation"] = Field(
        description="train_preparation: train, validation and benchmark datasets; example_validation: example datasets"
    )
    should_download: bool = Field(default=False, description="Download missing datasets")
    data_source: Literal["gitlab", "huggingface"] = Field(
        default="huggingface", description="Where to download from if a dataset names both sources"
    )
    overwrite_metrics_conflicts: bool = Field(
        default=False, description="Replace metrics of an earlier preparation that no longer match the data"
    )
    skip_invalid: bool = Field(default=False, description="Leave out invalid samples instead of refusing the data")
    task_data_validation: Literal["off", "warn", "error", "auto"] = Field(
        default="auto",
        description="Rows that do not fit their server's task_data.py; auto: refuse examples, warn about other data",
    )


class TrainDataProcessor:
    """Runs a preparation from the merged configuration."""

    def run(self, global_config_dict: DictConfig | dict[str, Any]) -> Preparation:
        """Prepare what the configuration asks for. Messages are logged; the result lists the files."""
        config = (
            global_config_dict if isinstance(global_config_dict, DictConfig) else OmegaConf.create(global_config_dict)
        )
        values = OmegaConf.to_container(
            OmegaConf.masked_copy(config, [key for key in _KEYS if key in config]), resolve=True
        )
        parameters = TrainDataProcessorConfig.model_validate(values)
        token = config.get("hf_token")
        options = PreparationOptions(
            output=Path(parameters.output_dirpath),
            template=_template,
            may_download=parameters.should_download,
            preferred=parameters.data_source,
            token=str(token) if token else None,
            overwrite_conflicts=parameters.overwrite_metrics_conflicts,
            skip_invalid=parameters.skip_invalid,
            task_data=_task_data(parameters),
        )
        return prepare_datasets(datasets_in_scope(config, Mode(parameters.mode)), options)


def _task_data(parameters: TrainDataProcessorConfig) -> Literal["off", "warn", "error"]:
    if parameters.task_data_validation != "auto":
        return parameters.task_data_validation
    return "error" if parameters.mode == "example_validation" else "warn"


_KEYS = tuple(TrainDataProcessorConfig.model_fields)


def _template(path: str) -> Render:
    prompt = load_prompt_config(path)
    return lambda row: apply_prompt_to_row(row, prompt)
