"""FedSOL's toy problem, as its figure draws it."""

import pytest

from unskew.recipes.toy import walk_both


def test_both_end_where_the_paper_says():
    prox, sol = walk_both().values()
    assert prox[0] == sol[0] == (1.0, 1.0) and len(prox) == len(sol) == 4001
    assert prox[-1] == pytest.approx((1 / 1.5, 0.1 / 0.6), abs=4e-3)
    assert sol[-1] == pytest.approx(2 * (1 - 0.5 / 2**0.5,), abs=4e-3)
