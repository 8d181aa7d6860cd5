"""Resources: what a search asks of a cluster for each trial."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator


class Resources(BaseModel):
    """The resources of one trial."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: PositiveInt = Field(1, description="processes that train one trial together (DDP)")
    cpus: PositiveFloat = Field(1, description="CPU cores for each of them")
    gpus: NonNegativeFloat | Literal["auto"] = Field(
        "auto", description="GPUs for each, fractions allowed; 'auto': as much of one as its predicted memory needs"
    )

    @model_validator(mode="after")
    def _whole_gpus_are_whole(self) -> Resources:
        if isinstance(self.gpus, float | int) and self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"resources: gpus {self.gpus} is not possible; above one it has to be a whole number.")
        return self
