import pytest

from unskew.base.errors import InputError
from unskew.data.partition.splits import splits


def test_client_numbers_are_checked(digits):
    partition = splits.build("virtual").cut(digits, 10, 0)
    assert partition[-1].tolist() == partition[9].tolist()
    for client in (10, -11):
        with pytest.raises(IndexError, match=r"0\.\.9"):
            partition[client]


def test_csv(digits, tmp_path):
    partition = splits.build("virtual:2").cut(digits, 2, 0)
    partition.export_csv(tmp_path / "split.csv", digits.train.y)
    rows = [f"{c},{i},{int(digits.train.y[i])}" for c in (0, 1) for i in partition[c].tolist()]
    assert (tmp_path / "split.csv").read_text().splitlines() == ["client,index,label", *rows]
    with pytest.raises(InputError, match="a CSV lists up to 10000000 samples, these 1000000 clients hold 18000000"):
        splits.build("virtual").cut(digits, 1_000_000, 0).export_csv(tmp_path / "large.csv", digits.train.y)
