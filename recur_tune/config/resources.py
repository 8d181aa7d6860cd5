"""Resources: what a search asks of a cluster for each trial."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)


class Resources(BaseModel):
    """The resources of one trial."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: PositiveInt | tuple[PositiveInt, ...] = Field(
        1, description="processes that train one trial together; of several numbers, the fewest in whose memory it fits"
    )
    cpus: PositiveFloat = Field(1, description="CPU cores for each of them")
    gpus: NonNegativeFloat | Literal["auto"] = Field(
        "auto", description="GPUs for each, fractions allowed; 'auto': as much of one as its predicted memory needs"
    )

    shard: Literal["none", "optimizer"] = Field(
        "none", description="'optimizer': each of several workers keeps a share of Adam's moments (ZeRO stage 1)"
    )

    @field_validator("workers")
    @classmethod
    def _in_order(cls, given: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if given == ():
            raise ValueError("has no number; give one, as 4, or several, as [1, 2, 4]")
        return given if isinstance(given, int) else tuple(sorted(set(given)))

    @property
    def worker_counts(self) -> tuple[int, ...]:
        """The numbers of workers that a trial may have, the smallest first."""
        return (self.workers,) if isinstance(self.workers, int) else self.workers

    @model_validator(mode="after")
    def _shards_are_of_several_workers(self) -> Resources:
        if self.shard != "none" and self.worker_counts == (1,):
            raise ValueError(
                f"resources: shard {self.shard} needs several workers; give workers 2 or more, or no shard."
            )
        return self

    @model_validator(mode="after")
    def _whole_gpus_are_whole(self) -> Resources:
        if isinstance(self.gpus, float | int) and self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"resources: gpus {self.gpus} is not possible; above one it has to be a whole number.")
        return self
