"""A shipped space's first trials under a change of the space."""

from __future__ import annotations

from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import find_space
from recur_tune.search.record.first_trials import FirstTrials, changed_fields, possible_first_trials
from recur_tune.search.record.spec import SearchSpec, with_overrides

_QUICKSTART = read_yaml(find_space("quickstart"), "space")


def test_what_a_change_excludes_is_left_out_and_the_rest_is_kept() -> None:
    first = _QUICKSTART["first"]
    assert [trial["window"] for trial in first] == [12, 24, 48, 24]
    changed = with_overrides(_QUICKSTART, [("space.window", [24, 96])])
    possible = possible_first_trials(changed, _QUICKSTART)
    assert possible == ([first[1], first[3]], 2, "window 12 is not in the space; the nearest is 24.")
    assert len(parse(SearchSpec, changed | {"first": possible.kept}).first) == 2


def test_nothing_is_left_out_where_the_change_is_no_reason() -> None:
    first = _QUICKSTART["first"]
    longer = with_overrides(_QUICKSTART, [("budget.tokens", "48k")])
    assert possible_first_trials(longer, _QUICKSTART) == FirstTrials(first)
    wrong = _QUICKSTART | {"first": [*first, {"window": 7}]}
    seeded = with_overrides(wrong, [("space.seed", 3)])
    assert possible_first_trials(seeded, wrong) == FirstTrials(wrong["first"]), "a wrong one is to be refused"
    broken = with_overrides(_QUICKSTART, [("space.window", [])])
    assert possible_first_trials(broken, _QUICKSTART) == FirstTrials(first), "the space is to be refused"


def test_what_a_change_leaves_behind_is_told() -> None:
    fields, [reference, first] = changed_fields(
        _QUICKSTART, [("space.window", [24, 96]), ("space.corpus", "tales")], "quickstart"
    )
    assert len(fields["first"]) == 2 and len(_QUICKSTART["first"]) == 4
    assert reference.startswith("reference: token_perplexity 1.8 was chosen for quickstart's own corpus")
    assert first.startswith("first: of the 4 trials that quickstart begins with, 2 are left out")
    own = [("space.window", [24, 96]), ("space.corpus", "tales"), ("reference", {}), ("first", [])]
    assert changed_fields(_QUICKSTART, own, "quickstart")[1] == []
