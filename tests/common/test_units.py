"""Numbers as people write them and read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.common.units import format_count, format_duration, format_size, parse_count, parse_duration, parse_size

modest = settings(max_examples=80, deadline=None)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500k", 500_000), ("2.5M", 2_500_000), ("1e6", 10**6), ("3b", 3 * 10**9), ("3G", 3 * 10**9), ("0", 0),
        ("1_000", 1000), (" 7 k ", 7000), ("2.01M", 2_010_000), ("1.001k", 1001), ("5.", 5), ("1e-2M", 10_000),
        (12, 12), (1e6, 10**6), (2.0, 2),
    ],
)  # fmt: skip
def test_counts_are_read(text: str | float, number: int) -> None:
    assert parse_count(text) == number
    assert isinstance(parse_count(text), int)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16GiB", 2**34), ("2GB", 2 * 10**9), ("800MB", 8 * 10**8), ("1 kib", 1024), ("1kb", 1000), ("3TiB", 3 * 2**40),
        ("1TB", 10**12), ("0.5MiB", 2**19), ("12B", 12), (12, 12), (1e3, 1000),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str | float, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "k", "1x", "1 2", "-5", "+5", "nan", "inf", "1.2.3", "1,000", "0x10", ".5", "1kk", "five", True, False, None],
)
@pytest.mark.parametrize(
    ("parse", "wanted"), [(parse_count, "is not a count such as"), (parse_size, "is not a size such as")]
)
def test_anything_else_is_refused_with_an_example(text: object, parse: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_size, "10", "has no unit; write 10GiB or 10MB"),
        (parse_size, "1e3", "has no unit; write 1e3GiB"),
        (parse_duration, " 5 ", "has no unit; write 5s, 5m or 5h"),
    ],
)
def test_bytes_and_seconds_that_people_write_want_a_unit(parse: Callable[[str], float], text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_a_size_is_no_count_and_a_count_is_no_size() -> None:
    with pytest.raises(ValueError, match="count"):
        parse_count("16GiB")
    with pytest.raises(ValueError, match="size"):
        parse_size("16k")


@modest
@given(st.integers(0, 2**53), st.sampled_from([("", 1), ("k", 10**3), ("M", 10**6), ("g", 10**9), ("B", 10**9)]))
def test_whole_counts_are_read_exactly(number: int, suffix: tuple[str, int]) -> None:
    number //= suffix[1]
    assert parse_count(f"{number}{suffix[0]}") == number * suffix[1]


@modest
@given(st.integers(0, 10**9), st.sampled_from([("k", 3), ("M", 6), ("G", 9)]), st.data())
def test_decimals_are_rounded_to_the_number_meant(number: int, suffix: tuple[str, int], data: st.DataObject) -> None:
    places = data.draw(st.integers(1, suffix[1]))
    text = f"{number // 10**places}.{number % 10**places:0{places}}{suffix[0]}"
    assert parse_count(text) == number * 10 ** (suffix[1] - places)


@modest
@given(st.integers(0, 10**15))
def test_a_count_survives_formatting_to_three_digits(number: int) -> None:
    assert parse_count(format_count(number)) == pytest.approx(number, rel=0.0051)


@modest
@given(st.integers(0, 2**60))
def test_a_size_survives_formatting_to_three_digits(number: int) -> None:
    assert parse_size(format_size(number)) == pytest.approx(number, rel=0.0051)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1k"), (1_234_567, "1.23M"), (2_000_000_000, "2G"), (-1500, "-1.5k"), (0.5, "0.5")],
)
def test_counts_are_written(number: float, text: str) -> None:
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1023, "1023 B"), (1024, "1 KiB"), (2**31, "2 GiB"), (3 * 2**39, "1.5 TiB"),
     (-(2**20), "-1 MiB")],
)  # fmt: skip
def test_sizes_are_written(number: float, text: str) -> None:
    assert format_size(number) == text


@pytest.mark.parametrize("text", ["1e400", "9" * 400])
def test_a_number_beyond_all_reason_is_refused(text: str) -> None:
    for parse in (parse_count, parse_size):
        with pytest.raises(ValueError, match="is not a"):
            parse(text)


def test_large_whole_numbers_are_exact_and_written_without_exponents() -> None:
    assert parse_count(2**53 + 1) == 2**53 + 1
    assert (format_count(999_999), format_size(1023 * 2**10), format_size(1000 * 2**20)) == (
        "1M",
        "1023 KiB",
        "1000 MiB",
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("30m", 1800), ("8h", 28800), ("2d", 172800), ("1h30m", 5400), ("1d 2h", 93600), ("1.5h", 5400),
        (" 5 M ", 300), ("0.5s", 0.5), (120, 120), (2.5, 2.5), ("0", 0),
    ],
)  # fmt: skip
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert isinstance(parse_duration(text), float)


@pytest.mark.parametrize(
    "text", ["", "h", "1w", "1h30", "-5s", "+5s", "1,5h", "1..5h", ".5h", "1h-30m", "nan", "inf", "soon", True, None]
)
def test_any_other_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 90s, 30m or 8h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.4, "0s"), (59.4, "59s"), (59.6, "1m"), (75, "1m15s"), (3600, "1h"), (5400, "1h30m"),
        (3601, "1h"), (86399, "23h59m"), (86400, "1d"), (90000, "1d1h"), (86400 * 400, "400d"),
    ],
)  # fmt: skip
def test_durations_are_written_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@modest
@given(st.integers(0, 10**8))
def test_a_duration_survives_formatting_but_for_its_smallest_units(seconds: int) -> None:
    again = parse_duration(format_duration(seconds))
    unit = next((size for size in (86400, 3600, 60) if seconds >= size), 1)
    assert 0 <= seconds - again < {86400: 3600, 3600: 60, 60: 1, 1: 1}[unit]
