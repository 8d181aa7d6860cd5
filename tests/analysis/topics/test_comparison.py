"""Means, their errors, and differences over the same prompts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from recur_tune.analysis.topics.comparison import OTHER, TRUTH, compare, standard_error
from recur_tune.analysis.topics.picture import panels
from recur_tune.analysis.topics.prompts import Prompt, Prompts
from recur_tune.analysis.topics.topic_model import TopicModel, fit
from tests.analysis.topics import TOPICS, text_about


@pytest.fixture(scope="module")
def model() -> TopicModel:
    return fit([text_about(topic, 120, seed) for seed in range(30) for topic in TOPICS], len(TOPICS), "the text")


def prompts_about(*topics: str, documents: list[int] | None = None) -> Prompts:
    places = documents or list(range(len(topics)))
    return Prompts(
        [
            Prompt(place, [], text_about(topic, 60, at), text_about(topic, 60, 50 + at))
            for at, (topic, place) in enumerate(zip(topics, places, strict=True))
        ],
        too_short=0,
    )


def test_who_stays_on_topic_lies_between_the_truth_and_another_document(model: TopicModel) -> None:
    topics = ["sea", "kitchen", "court"] * 4
    half = [f"{text_about(topic, 60, 70 + at)} {text_about('court', 60, at)}" for at, topic in enumerate(topics)]
    lost = [text_about(topics[(at + 1) % 3], 60, at) for at in range(len(topics))]
    found = compare(prompts_about(*topics), {"half": half, "lost": lost}, model)
    by_name = {source.name: source for source in found.sources}
    assert list(by_name) == [TRUTH, "half", "lost", OTHER]
    assert by_name[TRUTH].mean < 0.1 < by_name["half"].mean < 0.6 < by_name["lost"].mean
    assert by_name[OTHER].mean == pytest.approx(by_name["lost"].mean, abs=0.05)
    assert by_name["half"].known_words == 40
    (difference,) = found.differences
    assert (difference.one, difference.other, difference.nearer) == ("half", "lost", 1.0)
    assert difference.mean == pytest.approx(by_name["half"].mean - by_name["lost"].mean) and difference.p_value < 1e-3


def test_a_difference_is_a_paired_t_test_with_one_prompt_a_document(model: TopicModel) -> None:
    topics = ["sea", "kitchen", "court"] * 3
    one = [text_about(topic, 30, 80 + at) for at, topic in enumerate(topics)]
    other = [text_about(topics[0], 30, 90 + at) for at in range(len(topics))]
    found = compare(prompts_about(*topics), {"one": one, "other": other}, model)
    (difference,) = found.differences
    first, second = (source.divergence_N for source in found.sources[1:3])
    assert difference.p_value == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert difference.standard_error == pytest.approx(stats.sem(first - second))
    assert found.independent == "documents"


def test_one_document_has_no_other_and_its_prompts_count_by_themselves(model: TopicModel) -> None:
    prompts = prompts_about("sea", "court", "sea", documents=[4, 4, 4])
    found = compare(prompts, {"same": [prompt.truth for prompt in prompts.chosen]}, model)
    truth, same = found.sources
    assert [panel.key for panel in panels(found)] == ["topics"]  # one run differs from none
    assert found.independent == "prompts" and found.differences == []
    assert np.array_equal(truth.divergence_N, same.divergence_N)
    assert same.standard_error == pytest.approx(stats.sem(same.divergence_N))


def test_another_document_is_never_ones_own(model: TopicModel) -> None:
    """The first document has more than half of the prompts, so some have no partner."""
    prompts = prompts_about("sea", "sea", "sea", "court", documents=[0, 0, 0, 1])
    *_, other = compare(prompts, {}, model).sources
    assert [math.isnan(value) for value in other.divergence_N] == [False, True, True, False]
    assert other.mean > 0.6


def test_runs_that_say_the_same_are_a_tie(model: TopicModel) -> None:
    prompts = prompts_about("sea", "court")
    texts = [prompt.truth for prompt in prompts.chosen]
    (difference,) = compare(prompts, {"one": texts, "other": texts}, model).differences
    assert (difference.mean, difference.standard_error, difference.nearer) == (0, 0, 0.5)
    assert math.isnan(difference.p_value)


def test_a_picture_names_runs_by_their_folders_where_that_tells_them_apart(model: TopicModel) -> None:
    texts = [text_about("sea", 60), text_about("court", 60)]
    found = compare(prompts_about("sea", "court"), dict.fromkeys(("a/plain", "b/plain", "a/pooled"), texts), model)
    levels, less = (panel.figure for panel in panels(found))
    assert levels and levels["layout"]["xaxis"]["ticktext"] == [TRUTH, "a/plain", "b/plain", "pooled", OTHER]
    assert less and [trace["y"] for trace in less["data"]] == [[0.0]] * 3


def test_copies_of_a_prompt_make_no_error_smaller() -> None:
    values, groups = np.array([1.0, 4.0, 2.0, 7.0]), np.arange(4)
    assert standard_error(values, groups) == pytest.approx(stats.sem(values))
    assert standard_error(np.repeat(values, 5), np.repeat(groups, 5)) == pytest.approx(stats.sem(values))
    assert math.isnan(standard_error(values, np.zeros(4)))
