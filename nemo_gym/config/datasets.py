"""The datasets that a server lists: the path of their rows, where to download them, and their licence.

The place to download from is given by ``source``, or by one of the older fields ``gitlab_identifier`` and
``huggingface_identifier``. Whichever is given, the other is filled in, so either can be read. If both older fields are
given, ``source`` stays empty, and the choice is made at the download.
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


DatasetSource = Annotated[GitlabDatasetSource | HuggingFaceDatasetSource, Field(discriminator="type")]


_LEGACY_FIELDS: Final = ("gitlab_identifier", "huggingface_identifier")


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
    agent: str | None = Field(default=None, exclude=True)  # who runs a dataset that a resources server declares

    @model_validator(mode="after")
    def _requires_license(self) -> Self:
        # Examples illustrate an environment and are written for it; other data comes from somewhere.
        if self.license is None and self.type != "example":
            raise ValueError(f"a {self.type} dataset needs a 'license'")
        return self

    @model_validator(mode="after")
    def _completes_source(self) -> Self:
        given = {name: identifier for name in _LEGACY_FIELDS if (identifier := getattr(self, name)) is not None}
        if self.source is not None:
            self._fill_identifier(self.source, given)
            return self
        for name in given:
            warnings.warn(f"dataset field '{name}' is deprecated, use 'source'", DeprecationWarning, stacklevel=2)
        # With two identifiers there is no single source; ``data_source`` decides at the download.
        if len(given) == 1:
            self.source = _as_source(*given.values())
        return self

    def _fill_identifier(
        self,
        source: GitlabDatasetSource | HuggingFaceDatasetSource,
        given: dict[str, GitlabIdentifier | HuggingFaceIdentifier],
    ) -> None:
        name, identifier = f"{source.type}_identifier", _as_identifier(source)
        # A dump of this model holds both fields and must be readable again, so equal ones are accepted.
        if given and given != {name: identifier}:
            raise ValueError(f"give either 'source' or '{next(iter(given))}', not both")
        setattr(self, name, identifier)


def _as_source(identifier: GitlabIdentifier | HuggingFaceIdentifier) -> GitlabDatasetSource | HuggingFaceDatasetSource:
    if isinstance(identifier, GitlabIdentifier):
        return GitlabDatasetSource(type="gitlab", **identifier.model_dump())
    return HuggingFaceDatasetSource(type="huggingface", **identifier.model_dump())


def _as_identifier(source: GitlabDatasetSource | HuggingFaceDatasetSource) -> GitlabIdentifier | HuggingFaceIdentifier:
    fields = source.model_dump(exclude={"type"})
    return GitlabIdentifier(**fields) if source.type == "gitlab" else HuggingFaceIdentifier(**fields)


class BenchmarkDatasetConfig(BaseModel):
    """A benchmark: a script writes its rows, and its prompt template, if any, is applied later."""

    model_config = ConfigDict(defer_build=True)

    name: str
    type: Literal["benchmark"]
    jsonl_fpath: str
    prepare_script: str
    prompt_config: str | None
    num_repeats: int = Field(default=1, ge=1)
    agent: str | None = Field(default=None, exclude=True)


DatasetEntry = Annotated[DatasetConfig | BenchmarkDatasetConfig, Field(discriminator="type")]
