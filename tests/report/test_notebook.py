"""Results show themselves in notebooks: HTML with everything escaped, figures as objects."""

import re

import pytest
from matplotlib.figure import Figure

import unskew
from made_runs import make_run
from small_runs import SMALL
from unskew.runs.comparison import CellResult, Cells

PICTURE = re.compile(r"<img [^>]*src='data:image/png;base64,[A-Za-z0-9+/=]+'>")


@pytest.fixture(scope="module")
def result():
    return unskew.run(**SMALL)


def test_a_result(result):
    html = result._repr_html_()
    assert repr(result).startswith("<result of fedavg on digits, seed ") and "\n" not in repr(result)
    assert PICTURE.search(html) and f"{100 * result.accuracy:.2f} %" in html and "fedavg on digits" in html
    assert isinstance(result.plot(), Figure) and result.plot(x="bytes").axes[0].get_xlabel().startswith("sent (")
    with pytest.raises(unskew.InputError, match="no run recorded 'drift'"):
        result.plot("drift")


def test_a_run_in_its_folder(tmp_path):
    html = unskew.open(make_run(tmp_path / "half", done=8))._repr_html_()
    assert "8 rounds of 20, not finished" in html and PICTURE.search(html)
    assert not PICTURE.search(unskew.open(make_run(tmp_path / "begun", done=-1))._repr_html_())


def test_a_comparison_is_a_list_that_shows_itself(tmp_path):
    cells = unskew.compare(["fedavg", "fedprox(mu=0.1)"], seeds=2, out=tmp_path, **{
        key: value for key, value in SMALL.items() if key != "method"})  # fmt: skip
    assert isinstance(cells, list) and len(cells) == 4 and cells[0].method == "fedavg"
    assert repr(cells) == "<comparison of fedavg, fedprox(mu=0.1): 4 runs>"
    html = cells._repr_html_()
    assert PICTURE.search(html) and "fedprox(mu=0.1)" in html and "2 seeds" in html
    assert len(cells.plot(width="column").axes[0].lines) == 2
    shown = cells.table("a title", metric="last", columns="macro_f1")
    assert str(shown).startswith("**a title**") and "macro" in shown.to_text("csv") and "<table>" in shown._repr_html_()


def test_everything_is_escaped():
    evil = "<script>alert(1)</script>"
    summary = {
        "accuracy": {"last": 0.5, "best_on_test": 0.5}, "accuracy_of": "global model", "personal": None, "data": evil,
        "seconds": {"clients": 1.0}, "bytes_up": 1, "bytes_down": 1, "diverged": False, "rounds": 2,
    }  # fmt: skip
    rounds = [{"round": n, "accuracy": 0.5} for n in (1, 2)]
    html = Cells([CellResult(f"a{evil}", 0, None, summary, rounds, False, "global")])._repr_html_()
    assert "<script" not in html and "&lt;script&gt;" in html


def test_nothing_to_show_is_no_error():
    assert "no runs to make a table of" in Cells()._repr_html_()


def test_progress_is_said_only_if_it_is_wanted(capsys):
    unskew.run(**SMALL)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(unskew.InputError, match="give one of them"):
        unskew.run(**SMALL, progress=True, watch=print)
    with pytest.raises(unskew.InputError, match="progress: expected True or False"):
        unskew.run(**SMALL, progress="yes")
