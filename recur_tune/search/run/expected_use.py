"""What a search will take, before it starts: passes over its corpus, disk space and time; and numbers to ask about."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from functools import cache

from recur_tune.cluster.capacity import trial_resources
from recur_tune.cluster.connection import Cluster
from recur_tune.common.errors import UserError
from recur_tune.common.units import counted, format_count, format_duration, format_size
from recur_tune.config.base_shape import base_settings, base_shape, is_preset, trial_shape
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.flops import plain_reading_flops
from recur_tune.data.corpora.document import Extent, Split
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.run.teacher_task import teachers
from recur_tune.training.pretraining import kept_base, pretraining_of

_BYTES_PER_TOKEN = 4.0  # of English in a BPE, about
_MOST_PASSES = 100  # of a trial over its corpus, before a person is asked
_MOST_TOKENS = 10**12  # of a trial, likewise
_PROBE_TOKENS = 192  # of the step that is measured
_MOST_PARAMETERS = 10**9  # of a base that is measured
_SLOW_PARAMETERS = 2 * 10**7  # of a base of which a step takes a second
_VALIDATING = 1 / 3  # of a training step's time: a forward pass without a backward pass
_FLOAT = 4  # bytes; training keeps weights and Adam's two moments in single precision


def questions(spec: SearchSpec, corpus: Mapping[Split, Extent]) -> list[str]:
    """Numbers that are possible and hardly meant, each as a sentence that names the field."""
    found = []
    tokens, known = spec.budget.tokens, passes(spec, corpus)
    if tokens > _MOST_TOKENS:
        found.append(f"budget.tokens: {tokens:.3g} tokens a trial.")
    elif known is not None and known > _MOST_PASSES:
        found.append(f"budget.tokens: {format_count(tokens)} are about {known:.3g} passes over the corpus a trial.")
    return found


def remarks(spec: SearchSpec, corpus: Mapping[Split, Extent]) -> list[str]:
    """The same for numbers that do no harm."""
    if "validation" not in corpus:
        return []
    extent, wanted = corpus["validation"], max(config.validation_size for config in spec.corners)
    if spec.corners[0].validation_tokens is None or wanted <= (extent.tokens or extent.bytes):  # a token has a byte
        return []
    has = f"{format_count(extent.tokens)} tokens" if extent.tokens else format_size(extent.bytes)
    return [
        f"space.validation_tokens: {format_count(wanted)} are more than the validation split has ({has}); "
        "every validation reads all of it."
    ]


def passes(spec: SearchSpec, corpus: Mapping[Split, Extent]) -> float | None:
    """About how often a trial at full budget reads the training split; None where its size is not known."""
    if "train" not in corpus:
        return None
    return spec.budget.tokens / max(_tokens(corpus["train"], spec.corners[0]), 1)


def expected_use(spec: SearchSpec, corpus: Mapping[Split, Extent]) -> Iterator[str]:
    """Lines about passes, disk and time; what is not known is left out."""
    if (read := passes(spec, corpus)) is not None:
        yield f"a trial at full budget reads its {format_count(spec.budget.tokens)} tokens in about {_times(read)}"
    yield _disk(spec)
    yield from _teachers(spec, corpus)
    yield _time(spec, corpus)


def _times(number: float) -> str:
    return f"{number:.2g} passes over the corpus" if number >= 1.5 else f"{number:.0%} of a pass over the corpus"


def _disk(spec: SearchSpec) -> str:
    weights = _FLOAT * max(_parameters(config) for config in _of_each_base(spec))
    checkpoint, trials = 3 * weights, spec.budget.trials
    kept = {"front": "each on the front", "all": "every trial", "none": "none"}[spec.keep]
    most = f", {format_size(weights * trials)} at most" if trials and spec.keep != "none" else ""
    return (
        f"disk: {format_size(2 * checkpoint)} for the checkpoints of each unfinished trial, {format_size(weights)} for "
        f"a model (kept: {kept}{most})"
    )


def _teachers(spec: SearchSpec, corpus: Mapping[Split, Extent]) -> Iterator[str]:
    """What the predictions of each teacher in the space take; where the text's size is not known, for each token."""
    for config in teachers(spec):
        assert config.teacher is not None
        shape = base_shape(config.base, config.tokenizer)
        windowing, each = config.teacher.windowing(shape), config.teacher.bytes_per_token(shape)
        tokens = _tokens(corpus["train"], config) if "train" in corpus else 1
        size, flops = format_size(round(tokens * each)), tokens * plain_reading_flops(shape, windowing)
        whole = f"of about {format_count(round(tokens))} training tokens" if "train" in corpus else "of each token"
        yield (
            f"teacher: its predictions {whole}, in windows of {windowing.size}, take {size} of the cache and "
            f"{flops:.2g} FLOPs, once for all trials"
        )


def _time(spec: SearchSpec, corpus: Mapping[Split, Extent]) -> str:
    """The time of all trials at full budget, on this machine and by a measured step; early stops make it less. How long
    Ray and each trial take to start is not known before."""
    limit, trials = spec.budget.wall_clock, spec.budget.trials
    budget = f"{format_duration(limit)} at most" if limit is not None else ""
    if trials is None:
        return f"time: {budget}, by budget.wall_clock"
    config = next((one for one in spec.corners if one.mechanism is None), spec.corners[0])
    at_once = _at_once(spec)
    rate = tokens_per_second(config, spec.resources.cpus) if at_once else None
    if rate is None:
        return f"time: {budget or 'not estimated'}"
    validating = _VALIDATING * _validated(config, corpus)
    seconds = trials * (spec.budget.tokens + validating) / rate / at_once
    for base in _of_each_base(spec):
        if is_preset(base.base):
            pretraining = pretraining_of(base.base, base.corpus, base.tokenizer)
            seconds += 0 if kept_base(pretraining) else pretraining.tokens / rate
    words = (
        f"time: roughly {format_duration(seconds)} of training and validating on this machine if every trial runs to "
        f"its end ({counted(at_once, 'trial')} at a time; a plain step measured {format_count(rate)} tokens/s), "
        "besides the starts of Ray and of each trial"
    )
    return f"{words}; {budget} by budget.wall_clock" if budget else words


def _validated(config: TrialConfig, corpus: Mapping[Split, Extent]) -> float:
    """Tokens that the validations of a trial at full budget read, with that before its first step."""
    size = float(config.validation_size)
    if "validation" in corpus:
        size = min(size, _tokens(corpus["validation"], config))
    return size * (1 + math.ceil(config.tokens / config.validation_interval))


def tokens_per_second(config: TrialConfig, cpus: float) -> float | None:
    """The speed of a plain step of the trial's base on this machine, whatever its weights; None for an encoder or a
    base that is too large to try."""
    if config.task.body is not None or _parameters(config) > _MOST_PARAMETERS:
        return None
    if base_shape(config.base, config.tokenizer).bidirectional:
        return None
    import torch

    from recur_tune.models.pretrained import fresh_model, recurrent_config
    from recur_tune.ops.device import autocast, default_device

    device, threads = default_device(), torch.get_num_threads()
    torch.set_num_threads(max(1, int(cpus)))
    try:
        with torch.device("meta"):  # random weights of a large base would take longer to draw than a step
            model = fresh_model(recurrent_config(base_settings(config.base, config.tokenizer), None, config.dropout))
        model.to_empty(device=device)
        for tensor in model.state_dict(keep_vars=True).values():
            tensor.data.fill_(0.01)
        length = min(config.window, _PROBE_TOKENS)
        rows = max(1, min(config.batch, _PROBE_TOKENS // length))
        tokens = torch.zeros(rows, length, dtype=torch.long, device=device)

        def step() -> float:
            """Seconds of a step; the weights do not change."""
            started = time.perf_counter()
            with autocast(device, config.precision):
                loss = model(tokens, labels=tokens).loss
            loss.backward()
            model.zero_grad(set_to_none=True)
            loss.item()  # waits for the device
            return time.perf_counter() - started

        steps = 1 if _parameters(config) > _SLOW_PARAMETERS else 3  # a short step needs one to warm up
        return float(tokens.numel() / min(step() for _ in range(steps)))
    finally:
        torch.set_num_threads(threads)


def _at_once(spec: SearchSpec) -> int:
    """Trials that fit on this machine at a time; 0 where none does."""
    import torch

    machine = Cluster(None, [{"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}])
    try:
        return trial_resources(spec.resources, machine).at_once
    except UserError:
        return 0


def _of_each_base(spec: SearchSpec) -> list[TrialConfig]:
    return list({(config.base, config.tokenizer): config for config in spec.corners}.values())


@cache
def _shape_parameters(base: str, tokenizer: str | None) -> int:
    return base_shape(base, tokenizer).parameters


def _parameters(config: TrialConfig) -> int:
    if config.task.body is not None:
        return trial_shape(config).parameters
    return _shape_parameters(config.base, config.tokenizer)


def _tokens(extent: Extent, config: TrialConfig) -> float:
    """The tokens of a split, where they are not known about as many as its bytes make."""
    if extent.tokens is not None:
        return extent.tokens
    from recur_tune.models.pretrained import base_tokenizer

    return extent.bytes / (1.0 if base_tokenizer(config.base, config.tokenizer) == "bytes" else _BYTES_PER_TOKEN)
