"""Suggestions for names that do not exist."""

import pytest

from tailrace.base.nearest import find_nearest, suggest_name

KNOWN = ["top_n_sigma", "top_p", "--port", "serve"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("topNSigma", "top_n_sigma"),
        ("TOP-P", "top_p"),
        ("prot", "--port"),
        ("sreve", "serve"),
        ("nothing", ""),
        ("", ""),
        ("a" * 100_000, ""),
    ],
)
def test_the_nearest_name(name, nearest):
    assert find_nearest(name, KNOWN) == nearest
    assert suggest_name(name, KNOWN) == (f" (did you mean {nearest}?)" if nearest else "")


def test_of_names_that_differ_in_signs_alone_the_first_is_found():
    assert find_nearest("topp", ["top_p", "top-p"]) == "top_p"
    assert find_nearest("top_q", ["top_p"], cutoff=0.8) == ""
