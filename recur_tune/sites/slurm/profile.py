"""Profile of a site: the allocation to request, and how a node is prepared."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import find_profile
from recur_tune.common.units import parse_duration
from recur_tune.config.trial import Size

HERE = "here"  # instead of a profile: the current allocation


def _plain(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.,:;@%+=&|*()\[\]/~$-]+", text):
        raise ValueError("has a character that no site's names have (a space, a quote, a new line …)")
    return text


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value  # an account may be called 1234


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a new line or another control character; give one line")
    return text


def _command_line(text: str) -> str:
    if not re.fullmatch(r"--?[A-Za-z][A-Za-z-]*(?:[= ].*)?", text):
        raise ValueError(f"has {text!r}, which is no option of sbatch such as --exclusive or --mail-type=END")
    return _one_line(text)


def _duration(value: Any) -> Any:
    # YAML reads an unquoted 8:00:00 as a number in base sixty, which is the seconds that it means.
    return parse_slurm_time(value) if isinstance(value, str) else parse_duration(value)


Word = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_plain)]
Line = Annotated[str, AfterValidator(_one_line)]
Option = Annotated[str, AfterValidator(_command_line)]
Time = Annotated[PositiveFloat, BeforeValidator(_duration)]


class Profile(BaseModel):
    """Requests to a site's SLURM, and what its nodes need before Ray starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: Word | None = Field(None, description="queue to wait in; default: the site's own default")
    account: Word | None = Field(None, description="account to charge")
    qos: Word | None = Field(None, description="quality of service")
    nodes: PositiveInt = Field(1, description="nodes of an allocation")
    gpus_per_node: NonNegativeInt = Field(0, description="GPUs on each")
    gpu_type: Word | None = Field(None, description="kind of GPU, as the site calls it")
    gpu_request: Literal["gres", "gpus-per-node"] = Field("gres", description="the directive that the site wants")
    cpus_per_node: PositiveInt | None = Field(None, description="cores on each node; default: the site's own default")
    memory_per_node: Size | None = Field(None, description="memory on each; default: the site's own default")
    time: Time | None = Field(None, description="an allocation's length, as 8:00:00 or 8h; default: the site's own")
    constraint: Word | None = Field(None, description="features that the nodes must have")
    reservation: Word | None = Field(None, description="a reservation to use")
    directives: tuple[Option, ...] = Field((), description="further options of sbatch")
    skip: tuple[Word, ...] = Field((), description="directives that the site does not take, as mem or signal")

    setup: tuple[Line, ...] = Field((), description="shell lines that make a node ready: modules, a venv")
    python: Line | None = Field(None, description="how to start Python there; default: this very interpreter")
    environment: dict[str, Line] = Field(
        default_factory=dict, description="variables for every process; $USER and the like are those of the submitter"
    )
    interface: Word | None = Field(None, description="network between the nodes, as ib0; default: SLURM's own")
    fabric: Word | None = Field(
        None, description="InfiniBand adapters for NCCL, as mlx5_0; none: it uses the interface; default: all it finds"
    )
    patience: Time = Field(1800, description="how long the workers of a trial wait for one that hangs")
    storage: Line | None = Field(None, description="a folder that every node sees; searches must lie in it")
    scratch: Line | None = Field(None, description="a folder of each node's own, short; default: $TMPDIR or /tmp")

    warning: Time = Field(300, description="how long before its end an allocation saves everything")
    allocations: PositiveInt = Field(20, description="allocations in a row that a search may take by itself")
    requeue: bool = Field(True, description="whether a job may be requeued; else it submits another")
    join: Time = Field(180, description="time that a node has to join the Ray cluster")
    dashboard: Literal["localhost", "network", "off"] = Field("localhost", description="who reaches Ray's dashboard")
    metrics: bool = Field(False, description="Ray's metrics, which any user of the network can read")
    mlflow: bool = Field(True, description="show the runs in an MLflow server on the first node, to its user")
    login: Word | None = Field(None, description="the login node's name from outside, for the tunnel's command")

    @field_validator("environment")
    @classmethod
    def _names(cls, given: dict[str, str]) -> dict[str, str]:
        for name in given:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"has {name!r}, which is no name of a variable")
        return given

    @property
    def storage_folder(self) -> Path | None:
        """The shared folder, with $USER and the like filled in."""
        return Path(_expand("storage", self.storage)).resolve() if self.storage else None

    @property
    def variables(self) -> dict[str, str]:
        """The environment of every process, with $USER and the like filled in where the job is submitted."""
        return {name: _filled_in(f"environment.{name}", value) for name, value in self.environment.items()}

    @property
    def scratch_folder(self) -> Path:
        """The node's own folder, as this node's environment names it."""
        return Path(_expand("scratch", self.scratch)) if self.scratch else Path(tempfile.gettempdir())


def read_profile(given: str, **changes: Any) -> Profile:
    """A file, or the name of a profile that comes with the package, with the command line's changes."""
    fields = read_yaml(find_profile(given), "slurm")
    return parse(Profile, fields | {name: value for name, value in changes.items() if value is not None})


def parse_slurm_time(text: str) -> float:
    """`8:00:00` -> 28800, `2-12` -> 216000, `30` -> 1800 as SLURM has it, and `8h` as people have it."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return parse_duration(text)
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(numbers) == 1:
        return numbers[0] * 60
    hours, minutes, seconds = numbers if len(numbers) == 3 else (0, *numbers)
    return hours * 3600 + minutes * 60 + seconds


def format_slurm_time(seconds: float) -> str:
    """28800 -> `08:00:00`, 216000 -> `2-12:00:00`."""
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _expand(field: str, text: str) -> str:
    return os.path.expanduser(_filled_in(field, text))


def _filled_in(field: str, text: str) -> str:
    expanded = os.path.expandvars(text)
    if "$" in expanded:
        raise UserError(f"{field}: {text!r} names a variable that is not set here ({expanded}).")
    return expanded
