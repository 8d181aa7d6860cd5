"""TrialConfig: one flat, typed set of fields.

The same names are the command line's flags, the keys of a YAML file, a search's parameters and the columns of
its tables. What can be refused without a disk or a network is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    create_model,
    model_validator,
)

from recur_tune.common.deprecated import Renamed, renamed
from recur_tune.common.errors import UserError
from recur_tune.common.from_scratch import is_from_scratch, refused_shape
from recur_tune.common.lora import LoraSpec, Targets
from recur_tune.common.precision import Precision
from recur_tune.common.shape import FAMILIES, Family, Shape
from recur_tune.common.units import parse_count, parse_size
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences import registry as recurrences
from recur_tune.recurrences.registry import Mechanism
from recur_tune.recurrences.second_parts import unchosen_fields
from recur_tune.tasks import registry as tasks
from recur_tune.tasks.registry import Task, Teacher

if TYPE_CHECKING:
    _RecurrenceName = str
else:
    _RecurrenceName = Literal[recurrences.NONE, *recurrences.MECHANISMS]

Policy = Literal["all", "none", "auto"]
LORA_FIELDS = frozenset({"lora_rank", "lora_alpha", "lora_targets", "lora_dropout", "lora_rate", "adapter"})
FROZEN_FIELDS = frozenset({"base_bits"})  # of trials that do not train the base whole
_OF_BASES = frozenset({"base", "tokenizer", "trainable", "adapter"})
Switch = bool | Literal["auto"]

# A flag gives text.
BaseBits = Annotated[Literal[16, 8, 4], BeforeValidator(lambda bits: int(bits) if str(bits).isdecimal() else bits)]
Count = Annotated[PositiveInt, BeforeValidator(parse_count)]
Size = Annotated[PositiveInt, BeforeValidator(parse_size)]


def meaningless_beside(trainable: str) -> frozenset[str]:
    """The fields that have no meaning where this learns."""
    beside = {"lora": frozenset[str](), "recurrence": LORA_FIELDS}
    return beside.get(trainable, LORA_FIELDS | FROZEN_FIELDS)


def _execution_of(speed: Any) -> dict[str, Any]:
    """The old field `speed` in the new fields."""
    graph = {"auto": "auto", "replayed": True, "recorded": True, "plain": False, "compiled": False}
    fused = {"auto": "auto", "compiled": True, "recorded": True, "plain": False, "replayed": False}
    if speed not in graph:
        raise UserError(f"speed: {speed!r} is not {', '.join(graph)}; use cuda_graph and fused_kernels instead.")
    return {"cuda_graph": graph[speed], "fused_kernels": fused[speed]}


RENAMED = {
    "windows": renamed("bptt_windows", "0.4.0", "The size of a window is window."),
    "tune": renamed("trainable", "0.4.0"),
    "speed": Renamed("cuda_graph and fused_kernels", "0.4.0", _execution_of),
}


@lru_cache(maxsize=4096, typed=True)
def _spec(kind: type[BaseModel], *values: Any) -> BaseModel:
    """A recurrence's or a task's fields, in the order of their declaration. A space has thousands of trials with the
    same."""
    return kind(**dict(zip(kind.model_fields, values, strict=True)))


def _recurrences_in_words() -> str:
    ways = (f"{name!r} {mechanism.summary}" for name, mechanism in recurrences.MECHANISMS.items())
    return "; ".join(["how a state passes from window to window: 'none' is the plain model, without a state", *ways])


class _Subject(BaseModel):
    """Base, corpus, tokenizer and recurrence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: str = Field(
        "gpt2",
        description="model to start from (gpt2, llama, mistral, qwen2 or qwen3; for questions roberta, bert or mpnet): "
        "a folder, a GGUF file, a name on the Hub, or a preset (tiny, mini); 'none:SHAPE' is none of them but random "
        "weights: its layers, width and heads, as none:14x512x8, or the shape of a base by its name",
    )
    corpus: str = Field(
        "stdlib", description="text, questions or a series to train on; `recur-tune data list` names them"
    )
    tokenizer: str | None = Field(None, description="'bytes', a folder or a name on the Hub; default: the base's own")

    recurrence: Annotated[_RecurrenceName, BeforeValidator(recurrences.canonical)] = Field(
        recurrences.DEFAULT, description=_recurrences_in_words()
    )


if TYPE_CHECKING:
    _Recurrent = _Subject
else:  # the fields of all mechanisms and tasks stand behind `recurrence`; code reads them from the specs below
    _Recurrent = create_model(
        "_Recurrent",
        __base__=_Subject,
        **{name: (field.annotation, copy(field)) for name, field in (recurrences.FIELDS | tasks.FIELDS).items()},
    )


class TrialConfig(_Recurrent):
    """Every setting of a training run."""

    renamed: ClassVar[Mapping[str, Renamed]] = RENAMED

    window: PositiveInt = Field(300, description="tokens that the model reads at a time")
    overlap: NonNegativeInt = Field(0, description="tokens of a window that are read again in the next")
    bptt_windows: PositiveInt = Field(20, description="consecutive windows through which a gradient passes: a chain")
    batch: PositiveInt = Field(8, description="chains of windows in a training step, over all workers together")

    trainable: Literal["all", "recurrence", "lora"] = Field(
        "all",
        description="what learns: everything; the recurrence alone, with the base frozen; or 'lora', low-rank changes "
        "of a frozen base, and the recurrence where there is one",
    )
    lora_rank: PositiveInt = Field(16, description="LoRA: rank of the changes")
    lora_alpha: PositiveFloat | None = Field(
        None, description="LoRA: this over the rank is a factor of the changes; default: twice the rank"
    )
    lora_targets: Targets = Field("all", description="LoRA: the matrices that it changes in every block")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="LoRA: dropout rate on what it reads")
    lora_rate: PositiveFloat = Field(1.0, description="LoRA: learning rate of its matrices over learning_rate")
    adapter: str | None = Field(
        None,
        description="LoRA: a folder with an adapter to go on from, written by peft or `recur-tune export --adapter`",
    )
    base_bits: BaseBits = Field(
        16,
        description="bits of a frozen base's weights: 8 (int8) or 4 (NF4) quantise the matrices of its blocks, and "
        "16 leaves them in the dtype of products",
    )
    learning_rate: PositiveFloat = Field(3e-4, description="Adam's, after the warm-up")
    recurrence_rate: PositiveFloat = Field(
        1.0,
        description="the recurrence's learning rate as a multiple of the base's; its weights are new",
    )
    warmup_steps: NonNegativeInt | None = Field(
        None,
        description="steps over which the learning rate rises from 0; default: a twentieth of the run's, at most 100",
    )
    decay: Literal["none", "cosine"] = Field("none", description="how the learning rate falls over the budget")
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled weight decay; 0 is plain Adam")
    clip_norm: PositiveFloat = Field(1.0, description="largest norm of a step's gradient")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout rate; default: the base's own")

    tokens: Count = Field(20_000_000, description="budget: tokens scored in training, as 500k or 20M")
    validate_every: Count | None = Field(
        None,
        description="tokens between validations; default: a tenth of the budget, or ten times what a validation reads "
        "if that is more, and at most half of the budget",
    )
    validation_tokens: Count | None = Field(
        None,
        description="tokens that a validation reads; default: a fortieth of the budget, at least 10k and at most 200k",
    )
    patience: NonNegativeInt = Field(0, description="stop after so many validations without a better one; 0: never")

    checkpointing: Policy = Field(
        "all",
        description="recompute 'all' windows, 'none', or 'auto' within memory_budget; a plain decoder never needs to",
    )
    memory_budget: Size | None = Field(None, description="bytes that 'auto' may use, as 16GiB")
    precision: Precision = Field("auto", description="'auto' is bfloat16 on a GPU")
    cuda_graph: Switch = Field("auto", description="capture a step as one CUDA graph and replay it; 'auto': on a GPU")
    fused_kernels: Switch = Field(
        "auto",
        description="run fused Triton kernels for the operations between matrix products; compiling them takes some "
        "seconds before the first step; 'auto': on a GPU, from 1e14 weights times tokens on",
    )
    seed: NonNegativeInt = Field(0, le=2**31 - 1, description="decides initial weights, data order and dropout")

    @model_validator(mode="after")
    def _fits_together(self) -> TrialConfig:
        if refused := refused_shape(self.base):
            raise ValueError(refused)
        if is_from_scratch(self.base) and self.trainable != "all":
            raise ValueError(
                f"trainable: {self.trainable!r} freezes the base, and {self.base} has random weights; choose 'all'."
            )
        if self.overlap >= self.window:
            raise ValueError(
                f"overlap: {self.overlap} is not smaller than the window of {self.window}; "
                f"choose one from 0 to {self.window - 1}."
            )
        if self.overlap >= (room := self.window - self.reserved):
            raise ValueError(
                f"window: {self.window} tokens, {self.reserved} of them for the question, leave {max(room, 0)} for the "
                f"text, and {self.overlap} of these are read again; choose a longer window or less of either."
            )
        if self.mechanism and self.bptt_windows < 2:
            raise ValueError(
                f"bptt_windows: 1 leaves no second window to pass a state to; choose 2 or more for {self.recurrence!r}."
            )
        if self.trainable == "recurrence" and not self.mechanism:
            raise ValueError(
                "trainable: 'recurrence' has nothing to learn where the recurrence is 'none'; choose 'all'."
            )
        if self.adapter is not None and self.trainable != "lora":
            raise ValueError(f"adapter: {self.adapter} goes with trainable 'lora', and this is {self.trainable!r}.")
        if self.base_bits != 16 and self.trainable == "all":
            raise ValueError(
                f"base_bits: {self.base_bits} holds a frozen base, and trainable 'all' changes it; choose 'lora' or "
                "'recurrence', or 16."
            )
        if self.checkpointing == "auto" and self.memory_budget is None:
            raise ValueError("memory_budget: 'auto' checkpointing needs one, as 16GiB.")
        if self.task.body is not None:
            self._needs_no_base(self.task)
        return self

    def _needs_no_base(self, task: Task) -> None:
        """Refuse fields that are about a base, where the task makes the body from nothing."""
        for field in _OF_BASES:
            if (value := getattr(self, field)) != type(self).model_fields[field].default:
                raise ValueError(
                    f"{field}: {value!r} is about a base or its texts, and {task.name}, which {self.corpus} is for, "
                    "makes its body from nothing; leave it out."
                )

    @property
    def windowing(self) -> Windowing:
        """Window size, overlap and reserved positions as one value."""
        return Windowing(self.window, self.overlap, self.reserved)

    @property
    def step_tokens(self) -> int:
        """Tokens that a full step scores; a step in which a document ends scores fewer."""
        return self.batch * self.windowing.span(self.bptt_windows)

    @property
    def steps(self) -> int:
        """Steps in the budget; the last may exceed it."""
        return self.steps_of(self.tokens)

    def steps_of(self, tokens: int) -> int:
        """Full steps after which so many tokens have been scored."""
        return -(-tokens // self.step_tokens)

    @property
    def warmup(self) -> int:
        """Warm-up steps; by default a share of the run, so that a short run has steps at the full rate."""
        return min(self.steps // 20, 100) if self.warmup_steps is None else self.warmup_steps

    @property
    def mechanism(self) -> Mechanism | None:
        """The recurrence, with its second parts where it has some; None for the plain model."""
        spec = self.recurrence_spec
        return None if spec is None else recurrences.composed(recurrences.MECHANISMS[self.recurrence], spec)

    @property
    def has_separate_windows(self) -> bool:
        """Whether no gradient goes from window to window, so that a training step differentiates each when it reads it.
        An answer's loss is over all windows of its question."""
        if self.mechanism is None or self._family.within is not None:
            return not self.task.bidirectional
        return self.mechanism.stops_gradients

    @property
    def recurrence_spec(self) -> BaseModel | None:
        """The recurrence's own fields with this trial's values, None for the plain model."""
        if self.recurrence not in recurrences.MECHANISMS:
            return None
        spec = recurrences.MECHANISMS[self.recurrence].spec
        return _spec(spec, *(getattr(self, field) for field in spec.model_fields))

    @property
    def lora_spec(self) -> LoraSpec | None:
        """LoRA's fields with this trial's values, None where it does not train by LoRA."""
        if self.trainable != "lora":
            return None
        return LoraSpec(self.lora_rank, self.lora_alpha or 2.0 * self.lora_rank, self.lora_targets, self.lora_dropout)

    @property
    def task(self) -> Task:
        """The task, which the corpus decides."""
        return tasks.task_of(self.corpus)

    @property
    def task_spec(self) -> BaseModel:
        """The task's own fields with this trial's values."""
        spec = self.task.spec
        return _spec(spec, *(getattr(self, field) for field in spec.model_fields))

    @property
    def reserved(self) -> int:
        """Positions of every window that hold no text of the corpus."""
        return self.task.reserved(self.task_spec)

    @property
    def teacher(self) -> Teacher | None:
        """The teacher whose predictions its loss needs; None for most."""
        return self.task.teacher(self.task_spec)

    @property
    def made_body(self) -> dict[str, Any] | None:
        """The configuration of the body, where the task makes one from nothing."""
        return None if self.task.body is None else self.task.body(self.task_spec, self.corpus, self.windowing)

    @property
    def _family(self) -> Family:
        """The family of a body that is made from nothing; else one that carries states."""
        made = self.made_body
        return FAMILIES["gpt2" if made is None else made["model_type"]]

    @property
    def body_name(self) -> str:
        """What messages call the body: a base, or the family of one that is made from nothing."""
        made = self.made_body
        return self.base if made is None else made["model_type"]

    def plain_values(self) -> dict[str, Any]:
        """Its fields as plain values, without those of other mechanisms: a reader may not have them installed."""
        return self.model_dump(mode="json", exclude=self.foreign_fields)

    @property
    def foreign_fields(self) -> set[str]:
        """Fields of other recurrences and tasks, of second parts that this one has not, and those of another choice of
        what learns."""
        own = recurrences.fields_of(self.recurrence) - unchosen_fields(self.recurrence_spec)
        own |= tasks.fields_of(self.corpus)
        others = (recurrences.FIELDS.keys() | tasks.FIELDS.keys()) - own
        others |= set() if self.task.body is None else _OF_BASES
        return others | meaningless_beside(self.trainable)

    @property
    def validation_interval(self) -> int:
        """Tokens between validations. By default they read at most a tenth of what is trained on, but there are two.

        A search sets it by its rungs, so that its trials validate alike.
        """
        return self.validate_every or max(1, min(max(self.tokens // 10, 10 * self.validation_size), self.tokens // 2))

    @property
    def validation_size(self) -> int:
        """Tokens that a validation reads; the default is small enough not to slow training down."""
        return self.validation_tokens or min(max(self.tokens // 40, 10_000), 200_000)

    def check_base(self, shape: Shape) -> None:
        """Refuse a base whose shape does not fit the trial."""
        if problem := self.task.refusal(shape, self.base, self.corpus):
            raise UserError(problem)
        if self.teacher and (problem := self.teacher.refusal(shape, self.base)):
            raise UserError(problem)
        if shape.bidirectional and self.mechanism and not self.mechanism.bidirectional:
            able = ", ".join(name for name, one in recurrences.MECHANISMS.items() if one.bidirectional)
            raise UserError(
                f"recurrence: {self.recurrence!r} needs a decoder, and {self.base} reads in both directions; choose "
                f"{able} or none."
            )
        if self.lora_spec and (problem := self.lora_spec.refusal(shape, self.base)):
            raise UserError(problem)
        within = self._family.within
        if self.mechanism and within is not None and self.recurrence not in within:
            raise UserError(
                f"recurrence: {self.recurrence!r} needs a state from window to window, which {shape.family} has not; "
                f"choose {' or '.join([*within, recurrences.NONE])}."
            )
        base, size = self.body_name, self.windowing.in_patches(shape.patch).size
        if size > shape.context:
            raise UserError(f"window: {size} is more than the {shape.context} positions of {base}.")
        rows = self.mechanism.positions(self.recurrence_spec, shape) if self.mechanism else 0
        if size + rows > shape.context:
            tokens = "patches" if shape.patch > 1 else "tokens"
            raise UserError(
                f"window: {size} {tokens} and the {rows} rows of {self.recurrence!r} beside them need "
                f"{size + rows} positions, but {base} has {shape.context}; choose fewer of either."
            )
        if self.mechanism and (problem := self.mechanism.check(self.recurrence_spec, shape, base)):
            raise UserError(problem)


# Every trial's; told by where they are declared, since a package may wrongly bring one of the same name.
COMMON = frozenset({*_Subject.model_fields, *TrialConfig.__annotations__} & TrialConfig.model_fields.keys())
