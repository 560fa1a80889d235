"""What this repository adds to pytest: `few`, `--until` and `--order`."""

from __future__ import annotations

import itertools
import time

import pytest

from few import chosen

pytest_plugins = ["pytester"]

CROSSED = """
import pytest

@pytest.mark.few
@pytest.mark.parametrize("method", ["a", "b", "c"])
@pytest.mark.parametrize("size", [1, 2])
def test_crossed(method, size):
    assert method != "c", size

@pytest.mark.few(2)
@pytest.mark.parametrize("case", range(9))
def test_single(case):
    pass
"""


@pytest.fixture(autouse=True)
def settings(pytester):
    lines = ["[pytest]", "markers = long: takes minutes", "asyncio_default_fixture_loop_scope = function"]
    pytester.makeini("\n".join(lines))


def levels(*numbers: int) -> dict[str, frozenset[tuple[str, int]]]:
    """Every combination of so many values of each parameter."""
    cases = itertools.product(*(range(number) for number in numbers))
    return {str(case): frozenset((f"p{at}", value) for at, value in enumerate(case)) for case in cases}


@pytest.mark.parametrize("numbers", [(1,), (7,), (4, 4), (5, 3, 2)])
def test_each_value_is_shown_once(numbers):
    cases = levels(*numbers)
    kept = chosen(cases)
    assert set().union(*(cases[name] for name in kept)) == set().union(*cases.values())
    assert len(kept) == max(numbers)
    assert chosen(dict(reversed(cases.items()))) == kept


def test_more_cases_show_more_pairs():
    cases = levels(4, 4, 4)
    kept = chosen(cases, 16)
    pairs = {pair for name in kept for pair in itertools.combinations(sorted(cases[name]), 2)}
    assert len(pairs) >= 44  # of 48; of 16 cases taken at random about 31
    assert chosen(cases, 100) == chosen(cases, 64)


@pytest.mark.parametrize(
    ("picked", "passed", "failed"),
    [("", 13, 2), ("not long", 4, 1), ("long", 9, 1)],
)
def test_the_rest_is_long(pytester, picked, passed, failed):
    pytester.makepyfile(CROSSED)
    pytester.runpytest("-p", "few", "-m", picked).assert_outcomes(
        passed=passed, failed=failed, deselected=15 - passed - failed
    )
    again = pytester.runpytest("-p", "few", "-m", picked, "--last-failed")  # also those of which few keeps one
    again.assert_outcomes(failed=failed)


def test_what_failed_runs_again_whatever_is_asked_for(pytester):
    pytester.makepyfile(CROSSED)
    pytester.runpytest("-p", "few").assert_outcomes(passed=13, failed=2)
    for picked in ("long", "not long"):
        pytester.runpytest("-p", "few", "-m", picked, "--last-failed").assert_outcomes(failed=2)


def test_what_comes_too_late_is_left_out_loudly(pytester):
    pytester.makepyfile(CROSSED)
    early = pytester.runpytest("-p", "few", "-p", "budget", "--until", str(time.time() + 1000))
    early.assert_outcomes(passed=13, failed=2)
    assert "want of time" not in early.stdout.str()
    late = pytester.runpytest("-p", "few", "-p", "budget", "--until", str(time.time() - 1))
    late.assert_outcomes(skipped=15)
    late.stdout.fnmatch_lines(["!*15 tests left out for want of time*!", "in 1 files: *"])


def test_the_order_of_files_depends_on_the_word(pytester):
    pytester.makepyfile(**{f"test_{name}": "def test_1(): pass\ndef test_2(): pass" for name in "abcdef"})

    def order(*flags: str) -> list[str]:
        lines = pytester.runpytest("-p", "budget", "-v", *flags).outlines
        return [line.split()[0] for line in lines if "PASSED" in line]

    found = [order("--order", word) for word in ("one", "two", "three")]
    assert len({tuple(names) for names in found}) == 3
    assert order("--order", "one") == found[0]
    for names in (*found, order()):
        assert sorted(names) == sorted(order())
        assert [name.partition("::")[0] for name in names[::2]] == [name.partition("::")[0] for name in names[1::2]]
