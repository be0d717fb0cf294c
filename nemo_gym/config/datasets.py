"""The datasets that a server lists: where the rows are, where they come from, and under which licence.

Two generations of the same fact are accepted: ``source``, and the older pair ``gitlab_identifier`` /
``huggingface_identifier``. Whichever is given, the other is filled in, so readers may use either. When both old ones
are given, ``source`` stays empty and the reader chooses.
"""

import warnings
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

License = Literal[
    "Apache 2.0",
    "MIT",
    "Creative Commons Attribution 4.0 International",
    "Creative Commons Attribution-ShareAlike 4.0 International",
    "CC BY-SA 4.0",
    "CC BY-NC 3.0",
    "NVIDIA Internal Use Only, Do Not Distribute",
    "NVIDIA Evaluation Dataset License Agreement",
    "TBD",
    "GNU General Public License v3.0",
]


class GitlabIdentifier(BaseModel):
    """A file in a GitLab model registry."""

    model_config = ConfigDict(defer_build=True)

    dataset_name: str
    version: str
    artifact_fpath: str


class HuggingFaceIdentifier(BaseModel):
    """A dataset on Hugging Face, or one file of it."""

    model_config = ConfigDict(defer_build=True)

    repo_id: str
    artifact_fpath: str | None = None


class GitlabDatasetSource(GitlabIdentifier):
    """A file in a GitLab model registry."""

    type: Literal["gitlab"]


class HuggingFaceDatasetSource(HuggingFaceIdentifier):
    """A dataset on Hugging Face, or one file of it."""

    type: Literal["huggingface"]


_IDENTIFIERS: Final[dict[str, type[BaseModel]]] = {"gitlab": GitlabIdentifier, "huggingface": HuggingFaceIdentifier}

DatasetSource = Annotated[GitlabDatasetSource | HuggingFaceDatasetSource, Field(discriminator="type")]


class DatasetConfig(BaseModel):
    """A JSONL file of tasks for training, validation or illustration."""

    model_config = ConfigDict(defer_build=True)

    name: str
    type: Literal["train", "validation", "example"]
    jsonl_fpath: str
    num_repeats: int = Field(default=1, ge=1)
    source: DatasetSource | None = None
    gitlab_identifier: GitlabIdentifier | None = None
    huggingface_identifier: HuggingFaceIdentifier | None = None
    license: License | None = None

    @model_validator(mode="after")
    def _check_license(self) -> Self:
        if self.type != "example" and self.license is None:
            raise ValueError(f"a {self.type} dataset needs a 'license'")
        return self

    @model_validator(mode="after")
    def _mirror_source(self) -> Self:
        legacy = [name for name in ("gitlab_identifier", "huggingface_identifier") if getattr(self, name) is not None]
        if self.source is None:
            self._adopt(legacy)
            return self
        name = f"{self.source.type}_identifier"
        mirrored = _IDENTIFIERS[self.source.type].model_validate(self.source.model_dump())
        # A dump of this very model holds both and must be readable again.
        if legacy and (legacy != [name] or getattr(self, name) != mirrored):
            raise ValueError(f"give either 'source' or '{legacy[0]}', not both")
        setattr(self, name, mirrored)
        return self

    def _adopt(self, legacy: list[str]) -> None:
        for name in legacy:
            warnings.warn(f"dataset field '{name}' is deprecated, use 'source'", DeprecationWarning, stacklevel=2)
        if len(legacy) > 1:
            return
        if self.gitlab_identifier is not None:
            self.source = GitlabDatasetSource(type="gitlab", **self.gitlab_identifier.model_dump())
        if self.huggingface_identifier is not None:
            self.source = HuggingFaceDatasetSource(type="huggingface", **self.huggingface_identifier.model_dump())


class BenchmarkDatasetConfig(BaseModel):
    """A benchmark: its rows are written by a script, its prompt (if any) is applied later."""

    model_config = ConfigDict(defer_build=True)

    name: str
    type: Literal["benchmark"]
    jsonl_fpath: str
    prepare_script: str
    prompt_config: str | None
    num_repeats: int = Field(default=1, ge=1)


DatasetEntry = Annotated[DatasetConfig | BenchmarkDatasetConfig, Field(discriminator="type")]
