"""ttt: test-time training in place (In-Place TTT): windows that are read change weights of some MLPs for later ones."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.layers import interval_count
from recur_tune.recurrences.mechanism import Held, Mark, Mechanism, Work


class TestTimeTrainingSpec(BaseModel):
    """The fields of `ttt`."""

    __test__ = False  # pytest would take the name for a test's

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttt_every: PositiveInt = Field(
        6, description="every n-th layer's MLP learns while a text is read; the last layer's where there are fewer"
    )


def _work(spec: TestTimeTrainingSpec, shape: Shape, windowing: Windowing) -> Work:
    """The targets' projection and their products with the units; the units' product with what was learned."""
    sites, weights = interval_count(spec.ttt_every, shape), shape.hidden * shape.inner
    return Work(
        made=sites * windowing.stride * 2 * (shape.hidden**2 + weights), used=sites * windowing.size * 2 * weights
    )


def _state_floats(spec: TestTimeTrainingSpec, shape: Shape) -> int:
    return interval_count(spec.ttt_every, shape) * shape.hidden * shape.inner


def _held(spec: TestTimeTrainingSpec, shape: Shape, windowing: Windowing) -> Held:
    """What was learned, and of the window's positions the stream and the units, to learn from at its end."""
    of_window = windowing.size * (shape.hidden + shape.inner)
    return Held(_state_floats(spec, shape) + interval_count(spec.ttt_every, shape) * of_window, 0)


TTT = Mechanism(
    name="ttt",
    spec=TestTimeTrainingSpec,
    module="recur_tune.recurrences.ttt.module:TestTimeTraining",
    summary="adds to the weights of some MLPs what a window teaches them",
    mark=Mark("test-time training", ">", "triangle-right", "#117733"),
    first={"in-place": {"ttt_every": 6, "recurrence_rate": 10.0}},
    flops=lambda spec, shape, windowing: sum(_work(spec, shape, windowing)),
    work=_work,
    state_floats=_state_floats,
    held=_held,
    kept_as_read=True,
)
