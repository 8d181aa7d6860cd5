"""What a training step and an evaluation step see of the documents."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.common.windowing import BEGIN, END, NOT_SCORED, Windowing
from recur_tune.data.batches import FRESH, WindowBatch
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.tasks.language_modelling.windows import TextStream, evaluation_batches, gather
from tests.data import numbered_split, windowings

splits = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(lambda n: max(n) > 1).map(numbered_split)
modest = settings(max_examples=50, deadline=None)


def all_targets(split: TokenisedSplit) -> Counter[int]:
    """Every token but the first of each document, once."""
    bounds = zip(split.document_starts[:-1], split.document_starts[1:], strict=True)
    return Counter(token for begin, end in bounds for token in split.tokens[begin + 1 : end].tolist())


def scored_targets(batch: WindowBatch) -> list[int]:
    return batch.targets_WBT[batch.targets_WBT != NOT_SCORED].tolist()


def epoch_of(stream: TextStream, epoch: int) -> Iterator[WindowBatch]:
    """One epoch of a stream whose batch is a single row."""
    stream.seek(epoch, 0)
    for batch in stream:
        if stream.epoch != epoch:
            return
        yield batch


def document_of(split: TokenisedSplit, token: int) -> int:
    return int(np.searchsorted(split.document_starts, token - 1, side="right"))


def lanes_of(batch: WindowBatch) -> Iterator[list[tuple[list[int], list[int], bool]]]:
    """For each lane its windows in turn: inputs without padding, targets, and whether the window is fresh."""
    for lane in range(batch.inputs_WBT.shape[1]):
        rows = zip(batch.inputs_WBT[:, lane], batch.targets_WBT[:, lane], batch.fresh_WB[:, lane], strict=True)
        yield [(inputs[inputs > 0].tolist(), targets.tolist(), bool(fresh)) for inputs, targets, fresh in rows]


def check_lane(split: TokenisedSplit, windowing: Windowing, lane: list[tuple[list[int], list[int], bool]]) -> None:
    """Windows stay in their document, predict the next token, and continue the window before unless fresh."""
    before: list[int] = []
    for inputs, targets, fresh in lane:
        assert len(targets) == windowing.size
        if not inputs:
            assert fresh and set(targets) == {NOT_SCORED}
            continue
        assert inputs == list(range(inputs[0], inputs[-1] + 1))
        assert document_of(split, inputs[0]) == document_of(split, inputs[-1] + 1)
        context = 0 if fresh else windowing.overlap
        padding = [NOT_SCORED] * (windowing.size - len(inputs))
        assert targets == [NOT_SCORED] * context + [token + 1 for token in inputs[context:]] + padding
        if not fresh:
            assert inputs[0] == before[0] + windowing.stride
            assert document_of(split, inputs[0]) == document_of(split, before[0])
        before = inputs


def same(left: WindowBatch, right: WindowBatch) -> bool:
    pairs = zip(vars(left).values(), vars(right).values(), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@modest
@given(splits, windowings(), st.integers(1, 4), st.integers(0, 9), st.integers(0, 3))
def test_an_epoch_scores_every_target_of_every_document_exactly_once(
    split: TokenisedSplit, windowing: Windowing, windows: int, seed: int, epoch: int
) -> None:
    stream = TextStream(split, windowing, windows, batch=1, seed=seed)
    seen = Counter(target for batch in epoch_of(stream, epoch) for target in scored_targets(batch))
    assert seen == all_targets(split)


@modest
@given(splits, windowings(), st.integers(1, 4), st.integers(0, 3))
def test_windows_stay_in_their_document_and_continue_the_window_before(
    split: TokenisedSplit, windowing: Windowing, windows: int, epoch: int
) -> None:
    for batch in epoch_of(TextStream(split, windowing, windows, batch=1, seed=0), epoch):
        assert batch.inputs_WBT.shape == (windows, 1, windowing.size)
        assert batch.fresh_WB[0].all(), "nothing is carried from step to step"
        for lane in lanes_of(batch):
            check_lane(split, windowing, lane)


@modest
@given(splits, windowings(), st.integers(1, 4), st.integers(1, 5))
def test_a_batch_counts_what_it_scores_and_says_where_documents_start(
    split: TokenisedSplit, windowing: Windowing, windows: int, size: int
) -> None:
    stream = TextStream(split, windowing, windows, batch=size, seed=0)
    for _, batch in zip(range(4), stream, strict=False):
        names = {0: "none", size: "all"}
        assert batch.starts == tuple(names.get(int(fresh.sum()), "some") for fresh in batch.fresh_WB)
        assert batch.scored == batch.step_scored == len(scored_targets(batch))


@modest
@given(splits, windowings(), st.integers(1, 4), st.integers(1, 3))
def test_a_document_that_fits_into_a_chain_is_read_whole_in_every_epoch(
    split: TokenisedSplit, windowing: Windowing, windows: int, epoch: int
) -> None:
    stream = TextStream(split, windowing, windows, batch=1, seed=0)
    fresh = Counter(
        inputs[0]
        for batch in epoch_of(stream, epoch)
        for lane in lanes_of(batch)
        for inputs, _, is_fresh in lane
        if is_fresh and inputs
    )
    for begin, end in split.document_inputs():
        if end - begin <= windowing.span(windows):
            assert sum(fresh[token] for token in range(begin + 1, end + 1)) == fresh[begin + 1] == 1


def test_window_boundaries_of_a_long_document_move_after_the_first_epoch() -> None:
    stream = TextStream(numbered_split([1000]), Windowing(8, overlap=2), windows=3, batch=1, seed=0)
    begins = [
        sorted(int(token) for batch in epoch_of(stream, epoch) for token in batch.inputs_WBT[:, 0, 0] if token)
        for epoch in range(3)
    ]  # fmt: skip
    assert begins[0] != begins[1] != begins[2] != begins[0]


def test_rows_come_in_an_order_of_the_seed_and_the_epoch() -> None:
    split, windowing = numbered_split([9] * 40), Windowing(8)
    orders = [
        [int(batch.inputs_WBT[0, 0, 0]) for batch in epoch_of(TextStream(split, windowing, 1, 1, seed), epoch)]
        for seed, epoch in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(orders[3]) != orders[0]


def test_short_documents_share_rows_instead_of_leaving_them_empty() -> None:
    stream = TextStream(numbered_split([9] * 40), Windowing(8), windows=4, batch=1, seed=0)
    assert sum(1 for _ in epoch_of(stream, 0)) == 10


@modest
@given(splits, windowings(), st.integers(1, 3), st.integers(1, 5), st.integers(0, 12))
def test_a_stream_sought_to_a_position_continues_as_the_uninterrupted_one(
    split: TokenisedSplit, windowing: Windowing, windows: int, batch: int, steps: int
) -> None:
    uninterrupted = TextStream(split, windowing, windows, batch, seed=3)
    for _ in range(steps):
        next(uninterrupted)
    resumed = TextStream(split, windowing, windows, batch, seed=3)
    resumed.seek(uninterrupted.epoch, uninterrupted.row)
    for _ in range(5):
        assert same(next(resumed), next(uninterrupted))


@modest
@given(splits, windowings(), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4))
def test_the_shares_of_all_workers_make_the_batch_of_a_single_one(
    split: TokenisedSplit, windowing: Windowing, windows: int, batch: int, workers: int
) -> None:
    single = TextStream(split, windowing, windows, batch, seed=0)
    ranks = [TextStream(split, windowing, windows, batch, 0, rank, workers) for rank in range(workers)]
    for _ in range(4):
        whole, shares = next(single), [next(stream) for stream in ranks]
        for field in ("inputs_WBT", "targets_WBT", "fresh_WB"):
            joined = torch.cat([getattr(share, field) for share in shares], dim=1)
            assert torch.equal(joined, getattr(whole, field))
        assert sum(share.scored for share in shares) == whole.scored
        assert {share.step_scored for share in shares} == {whole.scored}


def test_two_workers_share_an_even_batch_equally() -> None:
    split = numbered_split([50, 50])
    shares = [next(TextStream(split, Windowing(4), 2, 6, 0, rank, workers=2)) for rank in range(2)]
    assert [share.inputs_WBT.shape[1] for share in shares] == [3, 3]


@modest
@given(splits, windowings(), st.integers(1, 6), st.booleans())
def test_evaluation_scores_every_target_exactly_once(
    split: TokenisedSplit, windowing: Windowing, lanes: int, carry_state: bool
) -> None:
    seen: Counter[int] = Counter()
    for batch, table in evaluation_batches(split, windowing, lanes, carry_state):
        assert batch.inputs_WBT.shape == (1, len(table), windowing.size) and len(table) <= lanes
        assert batch.scored == len(scored_targets(batch))
        seen.update(scored_targets(batch))
    assert seen == all_targets(split)


@modest
@given(splits, windowings(), st.integers(1, 6), st.booleans())
def test_evaluation_tells_how_deep_in_its_document_each_window_lies(
    split: TokenisedSplit, windowing: Windowing, lanes: int, carry_state: bool
) -> None:
    for batch, table in evaluation_batches(split, windowing, lanes, carry_state):
        for lane, row in enumerate(table):
            inputs, depth = batch.inputs_WBT[0, lane], row[-1]
            inputs = inputs[inputs > 0].tolist()
            assert bool(batch.fresh_WB[0, lane]) == bool(row[FRESH]) == (depth <= 0)
            if depth < 0:
                assert not inputs
                continue
            assert inputs == split.tokens[row[BEGIN] : row[END]].tolist()
            start = split.document_starts[document_of(split, inputs[0]) - 1]
            assert row[BEGIN] == start + depth * windowing.stride


@modest
@given(splits, windowings(), st.integers(1, 6))
def test_evaluation_with_a_state_reads_each_document_through_in_one_lane(
    split: TokenisedSplit, windowing: Windowing, lanes: int
) -> None:
    steps = [batch for batch, _ in evaluation_batches(split, windowing, lanes, carry_state=True)]
    joined = dataclasses.replace(
        steps[0],
        inputs_WBT=torch.cat([batch.inputs_WBT for batch in steps]),
        targets_WBT=torch.cat([batch.targets_WBT for batch in steps]),
        fresh_WB=torch.cat([batch.fresh_WB for batch in steps]),
    )
    for lane in lanes_of(joined):
        check_lane(split, windowing, lane)


@modest
@given(splits, windowings(), st.integers(1, 6))
def test_evaluation_without_a_state_keeps_every_lane_busy(
    split: TokenisedSplit, windowing: Windowing, lanes: int
) -> None:
    windows = sum(windowing.count(end - begin) for begin, end in split.document_inputs())
    steps = sum(1 for _ in evaluation_batches(split, windowing, lanes, carry_state=False))
    assert steps == -(-windows // lanes)


def test_evaluation_of_nothing_yields_nothing() -> None:
    assert list(evaluation_batches(numbered_split([1, 0, 1]), Windowing(4), batch_size=2, carry_state=True)) == []


def test_gather_pads_a_short_window_and_an_empty_slot_without_scoring_them() -> None:
    batch = gather(np.arange(10, 20), np.array([[[2, 5, 3, 0], [0, 0, 0, 1]]]), size=4)
    assert batch.inputs_WBT.tolist() == [[[12, 13, 14, 0], [0, 0, 0, 0]]]
    assert batch.targets_WBT.tolist() == [[[NOT_SCORED, 14, 15, NOT_SCORED], [NOT_SCORED] * 4]]
    assert batch.fresh_WB.tolist() == [[False, True]]
    assert (batch.starts, batch.scored, batch.step_scored) == (("some",), 2, 2)


def test_a_batch_moves_as_a_whole() -> None:
    batch = next(TextStream(numbered_split([30]), Windowing(4), 2, 2, seed=0))
    moved = batch.to("meta")
    assert {moved.inputs_WBT.device.type, moved.targets_WBT.device.type, moved.fresh_WB.device.type} == {"meta"}
    assert same(batch, batch.to("cpu"))
