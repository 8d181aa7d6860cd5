"""Comparison: the divergence of each continuation from its prompt, and how runs differ on the same prompts.

The true continuation is the lower bound, since authors change the topic too; another document's text is the upper one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats
from scipy.special import rel_entr

from recur_tune.analysis.topics.prompts import Prompts
from recur_tune.analysis.topics.topic_model import TopicModel

TRUTH, OTHER = "true continuation", "another document's"
BASE = 2  # of the logarithm: 0 for equal distributions, 1 for disjoint ones


@dataclass(frozen=True)
class Source:
    """Continuations of one source: the truth, a run, or another document."""

    name: str
    divergence_N: np.ndarray  # from the prompt, in bits; NaN where a prompt has none
    topic_N: np.ndarray  # the likeliest
    mean: float
    standard_error: float
    known_words: float  # words of the vocabulary in a continuation; with few, its topics are not known


@dataclass(frozen=True)
class Difference:
    """Difference of two runs' divergences on the same prompts: the first's minus the second's."""

    one: str
    other: str
    mean: float
    standard_error: float
    nearer: float  # share of prompts where the first is nearer; a tie counts half
    p_value: float  # by Student's t


@dataclass(frozen=True)
class Comparison:
    """Results of `recur-tune continue`."""

    sources: list[Source]  # the truth first, the runs, and another document's where there is one
    differences: list[Difference]
    prompt_topic_N: np.ndarray
    independent: str  # what standard errors take to be independent: documents, or prompts


def compare(prompts: Prompts, written: Mapping[str, Sequence[str]], model: TopicModel) -> Comparison:
    """The continuations that each run has written, beside the truth."""
    documents_N = prompts.documents
    several = len(set(documents_N.tolist())) > 1
    # Prompts of one document share its topics and are not independent; with one document there is no other choice.
    group_N = documents_N if several else np.arange(len(documents_N))
    prompt_NK = model.infer(model.counts([prompt.text for prompt in prompts.chosen]))
    truths = [prompt.truth for prompt in prompts.chosen]
    inferred = {name: _infer(model, texts) for name, texts in {TRUTH: truths, **written}.items()}
    sources = [_source(name, prompt_NK, *found, group_N) for name, found in inferred.items()]
    if several:
        sources.append(_other(prompt_NK, *inferred[TRUTH], documents_N))
    differences = [_difference(one, other, group_N) for one, other in combinations(sources[1 : 1 + len(written)], 2)]
    return Comparison(sources, differences, prompt_NK.argmax(1), "documents" if several else "prompts")


def jensen_shannon(one_NK: np.ndarray, other_NK: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence of each row from its counterpart, in bits."""
    twice_NK = one_NK + other_NK  # twice their mean: half of the smallest float would be 0
    nats_N = (rel_entr(2 * one_NK, twice_NK) + rel_entr(2 * other_NK, twice_NK)).sum(-1) / 4
    return np.clip(nats_N / np.log(BASE), 0.0, 1.0)  # rounding may exceed the bounds


def standard_error(value_N: np.ndarray, group_N: np.ndarray) -> float:
    """Cluster-robust standard error of a mean, where only groups are independent."""
    _, place_N = np.unique(group_N, return_inverse=True)
    sum_G = np.bincount(place_N, weights=value_N - value_N.mean())
    groups = len(sum_G)
    return math.nan if groups < 2 else math.sqrt((sum_G**2).sum() * groups / (groups - 1)) / len(value_N)


def _infer(model: TopicModel, texts: Sequence[str]) -> tuple[np.ndarray, float]:
    counts = model.counts(texts)
    return model.infer(counts), float(counts.sum(1).mean())


def _source(name: str, prompt_NK: np.ndarray, topic_NK: np.ndarray, known: float, group_N: np.ndarray) -> Source:
    far_N = jensen_shannon(prompt_NK, topic_NK)
    return Source(name, far_N, topic_NK.argmax(1), float(far_N.mean()), standard_error(far_N, group_N), known)


def _other(prompt_NK: np.ndarray, truth_NK: np.ndarray, known: float, document_N: np.ndarray) -> Source:
    """Each prompt with the true continuation of a prompt from another document."""
    shift = int(np.bincount(document_N).max())
    place_N = np.roll(np.arange(len(document_N)), -shift)
    apart_N = document_N != document_N[place_N]  # fails where one document has more than half of the prompts
    far_N = np.where(apart_N, jensen_shannon(prompt_NK, truth_NK[place_N]), math.nan)
    error = standard_error(far_N[apart_N], document_N[apart_N])
    return Source(OTHER, far_N, truth_NK[place_N].argmax(1), float(far_N[apart_N].mean()), error, known)


def _difference(one: Source, other: Source, group_N: np.ndarray) -> Difference:
    less_N = one.divergence_N - other.divergence_N
    error, groups = standard_error(less_N, group_N), len(np.unique(group_N))
    p_value = math.nan if not error > 0 else float(2 * stats.t.sf(abs(less_N.mean()) / error, groups - 1))
    nearer = float(((less_N < 0) + (less_N == 0) / 2).mean())
    return Difference(one.name, other.name, float(less_N.mean()), error, nearer, p_value)
