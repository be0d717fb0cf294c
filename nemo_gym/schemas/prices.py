"""What a model costs."""

from pydantic import BaseModel, ConfigDict, Field


class Prices(BaseModel):
    """USD for a million tokens; in the configuration of a model server: ``prices: {input: 0.15, output: 0.60}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
