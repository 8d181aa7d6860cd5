"""A recurrence of another package, as docs/adding-a-recurrence.md of version 0.1.0 has it: what the registry reads."""

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.recurrences import Mechanism, Work


class ToySpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    toy_rank: PositiveInt = Field(4, description="columns of the toy's state")


TOY = Mechanism(
    name="toy",
    spec=ToySpec,
    module="toy_model:Toy",
    summary="keeps a few columns of a window",
    flops=lambda spec, shape, windowing: 2.0 * windowing.size * shape.hidden * spec.toy_rank,
    work=lambda spec, shape, windowing: Work(made=2.0 * windowing.size * shape.hidden * spec.toy_rank, used=0.0),
    state_floats=lambda spec, shape: shape.hidden * spec.toy_rank,
)
