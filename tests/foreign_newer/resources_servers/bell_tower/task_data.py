from pydantic import BaseModel, ConfigDict, Field


class TaskData(BaseModel):
    model_config = ConfigDict(extra="forbid")

    strikes: int
    broken: bool = Field(default=False, json_schema_extra={"legacy_location": "verifier_metadata"})
