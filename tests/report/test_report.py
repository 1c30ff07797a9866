"""A report from run folders: what is gathered, what the headline says, and that no text gets out of its place."""

import html
import json
import os
import re
import shlex
import shutil

import pytest

from report.made_runs import make_comparison, make_run
from unskew.base.errors import InputError
from unskew.measures import measures
from unskew.report.facts import make_facts
from unskew.report.headline import shorten, write_headline
from unskew.report.page import build_page, embed, render_page
from unskew.report.parts import find_reading
from unskew.report.reading import gather

NASTY = "</script><script>alert(1)</script>&<b>"


def value_of(page):
    """What the page's charts are drawn from."""
    return json.loads(re.search(r'id="facts">(.*?)</script>', page, re.S)[1])


# -------------------------------------------------------------------------------------------- gathering


def test_runs_one_by_one_or_by_their_folder(tmp_path):
    make_comparison(tmp_path, {"fedavg": 0.8, "fedprox": 0.7}, seeds=2)
    both = [tmp_path / "runs" / name for name in ("00-seed0", "01-seed0")]
    assert [run.method for run in gather(both).runs] == ["fedavg", "fedprox"]
    assert len(gather([tmp_path]).runs) == 4
    assert len(gather([tmp_path / "runs", both[0]]).runs) == 4  # none twice


def test_of_a_comparison_only_the_compared_runs(tmp_path):
    make_comparison(tmp_path, {"fedavg": 0.8, "fedprox": 0.7}, seeds=1)
    make_run(tmp_path / "trials" / "t", "fedsol")
    about = {"title": "t", "rows": [], "notes": [], "comparison": {"metric": "last", "runs": ["01-seed0"]}}
    (tmp_path / "table.json").write_text(json.dumps(about))
    assert [run.method for run in gather([tmp_path]).runs] == ["fedprox"]
    (tmp_path / "table.json").unlink()
    assert [run.method for run in gather([tmp_path]).runs] == ["fedavg", "fedprox"]  # trials are no part of it


def test_what_tuning_gave_each_method_is_in_the_table(tmp_path):
    make_comparison(tmp_path, {"fedavg": 0.8, "fedprox": 0.7}, seeds=1)
    rows = [{"method": name, "personal": False, "diverged": False, "settings": "6 of 9", "chosen": "lr=0.1"}
            for name in ("fedavg", "fedprox")]  # fmt: skip
    about = {"title": "t", "rows": rows, "notes": ["tuned"],
             "comparison": {"metric": "last", "runs": ["00-seed0", "01-seed0"]}}  # fmt: skip
    (tmp_path / "table.json").write_text(json.dumps(about))
    (setting,) = make_facts(gather([tmp_path])).settings
    assert setting.table.columns[-2:] == ("settings", "chosen") and setting.table.notes[0] == "tuned"
    assert [cells[-2].text for _, cells in setting.table.rows] == ["6 of 9", "6 of 9"]


def test_runs_of_one_method_and_seed_are_told_apart(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", last=0.7)
    assert [run.method for run in gather([tmp_path]).runs] == ["fedavg [a]", "fedavg [b]"]


def test_an_unfinished_run_is_shown_as_far_as_it_came(tmp_path):
    make_run(tmp_path / "run", finished=False, rounds=10)
    facts = make_facts(gather([tmp_path / "run"]))
    (setting,) = facts.settings
    assert facts.unfinished == 1 and "so far" in setting.headline[0]
    assert setting.notices[0].text.startswith("not finished: 5 of 10 rounds")
    assert len(setting.quantities[0].curves["fedavg"][0]) == 6


def test_a_damaged_run_is_named_and_left_out(tmp_path):
    make_comparison(tmp_path, {"fedavg": 0.8, "fedprox": 0.7}, seeds=1)
    (tmp_path / "runs" / "00-seed0" / "rounds.jsonl").write_text("{")
    found = gather([tmp_path])
    assert [run.method for run in found.runs] == ["fedprox"] and "00-seed0/rounds.jsonl" in found.problems[0]
    assert "00-seed0/rounds.jsonl" in build_page([tmp_path])


def test_links_that_lead_back_are_followed_once(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        make_run(tmp_path / name / "run", last=0.8 if name == "a" else 0.7)
        (tmp_path / name / "other").symlink_to(tmp_path / other)
    (tmp_path / "a" / "above").symlink_to(tmp_path)
    found = gather([tmp_path])
    assert len(found.runs) == 2 and found.problems == []
    assert len(gather([tmp_path / "a", tmp_path / "b"]).runs) == 2


def test_what_cannot_be_read_is_left_out(tmp_path, monkeypatch):
    for name in ("mine", "theirs", "odd"):
        make_run(tmp_path / name, "fedprox" if name == "odd" else "fedavg")
    (tmp_path / "odd" / "rounds.jsonl").unlink()
    (tmp_path / "odd" / "rounds.jsonl").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "theirs" and access(path, mode))
    found = gather([tmp_path])
    assert [run.path.name for run in found.runs] == ["mine"]
    assert found.problems == [f"{tmp_path / 'odd'} cannot be read: Is a directory"]
    with pytest.raises(InputError, match="theirs cannot be read"):
        gather([tmp_path / "theirs"])


@pytest.mark.parametrize(("place", "line"), [("nowhere", "is no folder"), ("", "there are no runs in")])
def test_what_is_no_run_is_refused(tmp_path, place, line):
    with pytest.raises(InputError, match=line):
        gather([tmp_path / place])


def test_an_old_folder_says_that_the_split_is_missing(tmp_path):
    page = build_page([make_run(tmp_path / "run", labels=False)])
    assert "did not write labels.json" in page and value_of(page)["settings"][0]["splits"] == {}


def test_plugins_are_not_needed(tmp_path):
    folder = make_run(tmp_path / "run")
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text.replace("plugins = []", 'plugins = ["/gone/mine.py"]'))
    assert gather([folder]).runs[0].method == "fedavg"


# ----------------------------------------------------------------------------------------------- parts


def test_parts_hold_what_the_rows_say(tmp_path):
    visits = [{"round": 1, "client": n, "samples": 5, "share": 0.5, "fisher_alpha": 3.0, "straggler": n == 1}
              for n in (0, 1)]  # fmt: skip

    def more(number):
        return {"method": {"feedback_layers": ["body.fc1"], "similarity": {"body.fc1": 0.5, "head": 0.1 * number}},
                "measures": {"drift": 1.0 * number, "similarity": {"head": 0.2}, "spectrum": [3.0, 1.0]},
                "dropped": [1]}  # fmt: skip

    make_run(tmp_path / "run", more=more, visits=visits, rounds=4)
    (setting,) = make_facts(gather([tmp_path / "run"])).settings
    assert setting.axes["fedavg"].bytes == [0, 2000, 4000, 6000, 8000]
    assert setting.axes["fedavg"].seconds[-1] == pytest.approx(4.4)
    assert setting.feedback["fedavg"].chosen == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert setting.feedback["fedavg"].values[1] == [0.1, 0.2, 0.3, 0.4]
    assert [visit.straggler for visit in setting.weights["fedavg"]] == [False, True]
    drift, similar, spectrum = setting.measured
    assert drift.curves["fedavg"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)] and "0: they all move" in drift.reading
    assert similar.layers["fedavg"].layers == ["head"] and spectrum.lists["fedavg"] == [3.0, 1.0]
    assert setting.boxes["fedavg"].five == [40, 80, 80, 80, 80] and setting.boxes["fedavg"].worst_tenth == 40
    assert setting.notices[0].text == "4 of 8 replies did not come (drop-outs), in 4 rounds"
    assert setting.seconds["fedavg"] == {"local": 2.4, "aggregate": 0.4, "evaluate": 0.5}


SQUARE = {"shape": [1, 2, 2], "pixels": [0, 1, 2, 3]}
SOME_IMAGES = {"measures": {"condensed": {"0": SQUARE, "x": SQUARE, "1": {"shape": [1, 9], "pixels": []}, "2": 3}}}


@pytest.mark.parametrize(
    "row",
    [
        {"measures": None},
        {"measures": {"spectrum": ["a", 1.0, []], "drift": ["a"]}},
        {"measures": {"condensed": 0.5}},
        SOME_IMAGES,
        {"measures": {"condensed": {"0": {**SQUARE, "pixels": [0]}}}},
        {"method": {"feedback_layers": 3, "similarity": "x", "feedback_no_op_rounds": None}},
        {"method": {"feedback_layers": [["a"]], "feedback_no_op_rounds": "many"}},
        {"class_accuracy": [0.5]},
    ],
)
def test_notes_of_other_kinds_under_known_names_are_left_out(tmp_path, row):
    make_run(tmp_path / "run", finished=False, more=lambda number: row if number == 2 else {})
    (setting,) = make_facts(gather([tmp_path / "run"])).settings
    assert setting.feedback == {} and setting.methods[0].name == "fedavg"
    assert [image.label for own in setting.images.values() for image in own] == ["0"] * (row is SOME_IMAGES)


def test_a_summary_without_times_is_damaged(tmp_path):
    folder = make_run(tmp_path / "run")
    held = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**held, "seconds": {}}))
    with pytest.raises(InputError, match="lacks figures"):
        gather([folder])


def test_a_row_without_times(tmp_path):
    folder = make_run(tmp_path / "run", finished=False)
    first, *others = (folder / "rounds.jsonl").read_text().splitlines()
    row = {key: value for key, value in json.loads(first).items() if key != "seconds"}
    (folder / "rounds.jsonl").write_text("\n".join([json.dumps(row), *others]) + "\n")
    assert make_facts(gather([folder])).settings[0].seconds["fedavg"]["evaluate"] == pytest.approx(0.3)


def test_forgotten_is_the_best_so_far_minus_now(tmp_path):
    values = {1: 0.5, 2: 0.9, 3: 0.6}
    make_run(tmp_path / "run", rounds=3, more=lambda n: {"class_accuracy": [values[n], None, *[1.0] * 8]})
    (setting,) = make_facts(gather([tmp_path / "run"])).settings
    assert setting.class_maps["fedavg"].accuracy[0] == [500, 900, 600]
    assert setting.class_maps["fedavg"].forgotten[0] == [0, 0, 300]
    assert setting.class_maps["fedavg"].accuracy[1] == [None] * 3


def test_every_figure_of_ours_says_how_to_read_it():
    names = [name for each in measures if each != "rounds_to" for name in measures.get(each).reading]
    assert len(names) > 20 and all(find_reading(name).endswith(".") for name in names)
    assert find_reading("hessian_7") and find_reading("projector_inter") and not find_reading("mine")


def test_differences_and_ranks_over_settings(tmp_path):
    accuracies = {"fedavg": 0.5, "fedprox": 0.6, "fedsol": 0.8}
    make_comparison(tmp_path / "a", accuracies, spread=0.0)
    make_comparison(tmp_path / "b", accuracies, spread=0.0, clients=5)
    facts = make_facts(gather([tmp_path]))
    assert len(facts.settings) == 2 and facts.ranks["accuracy %"].mean == (3.0, 2.0, 1.0)
    gap = facts.settings[0].differences["accuracy %"]["fedavg"]["fedsol"]
    assert gap == pytest.approx((30, 30, 30, 3))
    page = render_page(facts)
    assert "Ranks over settings" in page and page.count('class="setting"') == 2
    line = "Over 2 settings, fedsol has the best mean rank, 1.00 of 3, but no method is told apart from it (critical"
    assert line in page and "Without <code>" not in page
    make_run(tmp_path / "b" / "runs" / "03-seed0", "scaffold", last=0.9, clients=5)
    assert "Without <code>scaffold</code>: not in all settings." in build_page([tmp_path])


def test_runs_that_differ_in_more_than_the_method_are_named(tmp_path):
    def find():
        notices = make_facts(gather([tmp_path])).settings[0].notices
        return [(notice.text, notice.serious) for notice in notices if "more than the method" in notice.text]

    make_comparison(tmp_path, {"fedavg": 0.5, "fedprox": 0.6})
    assert find() == []
    make_run(tmp_path / "runs" / "02-seed0", "scaffold", options={"local": {"lr": 0.5}})
    ((text, serious),) = find()
    assert text == "runs differ in more than the method: local.lr (0.05, 0.5)" and not serious
    make_run(tmp_path / "runs" / "03-seed0", "fedsol", options={"evaluation": {"local_test": "holdout"}})
    ((text, serious),) = find()
    assert "evaluation.local_test (proportional, holdout)" in text and serious


def test_a_run_that_goes_on_is_marked_and_compared_by_the_round(tmp_path):
    make_comparison(tmp_path, {"fedavg": 0.5, "fedprox": 0.6}, seeds=1)
    shutil.rmtree(tmp_path / "runs" / "01-seed0")
    make_run(tmp_path / "runs" / "01-seed0", "fedprox", finished=False)
    table = make_facts(gather([tmp_path])).settings[0].table
    assert table.tag("fedprox") == " (not finished)" and table.tag("fedavg") == ""
    rows = {name: dict(zip(table.columns, cells, strict=True)) for name, cells in table.rows}
    assert rows["fedprox"]["time ×"].values == rows["fedprox"]["bytes ×"].values == (1.0,)


# -------------------------------------------------------------------------------------------- headline

BASE = {0: 60.0, 1: 62.0, 2: 61.0}


def shifted(*by):
    return {seed: value + more for (seed, value), more in zip(BASE.items(), by, strict=True)}


def test_a_clear_winner():
    (line,) = write_headline({"accuracy %": {"fedavg": BASE, "b": shifted(5, 5.5, 6)}}, "fedavg", "digits")
    assert line == (
        "Of 2 methods on digits, b wins with 66.50 %: 5.50 points above fedavg (95 % interval 4.26 to 6.74, paired "
        "over 3 seeds)."
    )
    methods = {"fedavg": BASE, "c": shifted(2, 2.2, 2.1), "b": shifted(5, 5.5, 6)}
    (line,) = write_headline({"accuracy %": methods}, "fedavg", "digits")
    assert line.endswith("paired over 3 seeds) and 5.50 above fedavg (4.26 to 6.74).")


def test_no_difference_larger_than_the_spread():
    methods = {"fedavg": BASE, "b": shifted(5, 5.5, 6), "c": shifted(4, 7, 5.4)}
    (line,) = write_headline({"accuracy %": methods}, "fedavg", "digits")
    assert line.startswith("Of 3 methods on digits, b has the highest mean, 66.50 %, with no difference")
    assert "no difference larger than the spread to c (0.03 points; 95 % interval" in line
    assert "but 5.50 points above fedavg (4.26 to 6.74)." in line
    (line,) = write_headline({"accuracy %": {"fedavg": BASE, "b": shifted(9, -5, 1)}}, "fedavg", "digits")
    assert "no difference larger than the spread to fedavg (1.67 points" in line and "but" not in line
    methods = {"fedavg": BASE, "b": shifted(9, -5, 1), "c": shifted(9, -5, 1.1)}
    (line,) = write_headline({"accuracy %": methods}, "fedavg", "digits")
    assert "nor to fedavg (1.70 points; " in line


def test_methods_that_are_level():
    (line,) = write_headline({"accuracy %": {"a": BASE, "b": BASE, "c": BASE}}, "a", "digits")
    assert line == "All 3 methods on digits are level at 61.00 %."
    methods = {"a": BASE, "b": BASE, "c": shifted(-1, -1, -1)}
    (line,) = write_headline({"accuracy %": methods}, "a", "digits")
    assert line == "Of 3 methods on digits, a and b are level at 61.00 %; the next is c with 60.00 %."
    (line,) = write_headline({"global %": {"a": BASE, "b": BASE}}, "a", "digits")
    assert line == "Both methods on digits, with one global model, are level at 61.00 %."


def test_runs_that_diverged_are_said_in_the_headline(tmp_path):
    one = make_run(tmp_path / "one", more=lambda number: {"diverged": True})
    assert make_facts(gather([one])).settings[0].headline == ["The run diverged."]
    make_run(tmp_path / "two", "fedprox")
    make_run(tmp_path / "three", "scaffold", last=0.7)
    (line,) = make_facts(gather([tmp_path])).settings[0].headline
    assert line.startswith("Of 2 methods on digits (1 more diverged), fedprox is ahead")


def test_what_all_methods_share_is_said_once(tmp_path):
    make_comparison(
        tmp_path, {"fedavg": 0.5, "fedprox": 0.6, "scaffold": 0.7}, seeds=2, more=lambda number: {"dropped": [1]}
    )
    page = build_page([tmp_path])
    lines = re.findall(r"<li class=\"\">(.*?)</li>", page)
    assert [line.partition(":")[0] for line in lines if "drop-outs" in line] == [
        "all methods, seed 0",
        "all methods, seed 1",
    ]


def test_commands_on_the_page_can_be_pasted(tmp_path):
    folder = make_run(tmp_path / "my runs" / "it's", finished=False)
    page = html.unescape(build_page([folder]))
    assert f"unskew run {shlex.quote(f'{folder}/run.toml')} --out" in page
    assert f"'unskew resume {shlex.quote(str(folder))}' continues it" in page


def test_long_names_are_said_without_options():
    long = "feddm(ipc=10, steps=50, server_epochs=100)"
    one, two = (f"flfa(inner=fedprox(mu={n}), select=lowest)" for n in (1, 2))
    assert shorten([long, one, two, "b(a=1)"]) == {long: "feddm(…)", one: one, two: two, "b(a=1)": "b(a=1)"}
    (line,) = write_headline({"accuracy %": {long: BASE, one: shifted(-5, -6, -5.5)}}, one, "digits")
    assert line.startswith("Of 2 methods on digits, feddm(…) wins with 61.00 %: 5.50 points above flfa(…)")


def test_one_seed_is_said_to_be_one(tmp_path):
    make_comparison(tmp_path, {"fedavg": 0.5, "fedprox": 0.6}, seeds=1)
    assert "they take three seeds, and there is one." in build_page([tmp_path])


def test_two_seeds_have_no_interval():
    (line,) = write_headline({"accuracy %": {"a": {0: 1.0, 1: 2.0}, "b": {0: 3.0, 1: 3.0}}}, "a", "digits")
    assert line == (
        "Of 2 methods on digits, b is ahead with 3.00 %: 1.50 points above a; with 2 seeds there is no interval (it "
        "takes 3)."
    )


def test_one_method_and_each_kind_has_a_sentence():
    figures = {"global %": {"a": {0: 50.0}}, "personal %": {"a": {0: 60.0}, "p": {0: 70.0}}}
    lines = write_headline(figures, "a", "digits")
    assert lines[0] == "a reaches 50.00 % on digits, with one global model."
    assert lines[1].startswith("Of 2 methods on digits, with the models that clients use, p is ahead with 70.00 %")


# -------------------------------------------------------------------------------------------- escaping


def test_json_stays_in_its_element():
    assert "<" not in embed({NASTY: NASTY}) and json.loads(embed({NASTY: [NASTY]})) == {NASTY: [NASTY]}


def test_names_of_methods_classes_and_folders_are_escaped(tmp_path):
    folder = make_run(tmp_path / "a&<b>")
    held = json.loads((folder / "labels.json").read_text())
    held["classes"][3] = NASTY
    (folder / "labels.json").write_text(json.dumps(held))
    summary = json.loads((folder / "summary.json").read_text())
    found = gather([folder])
    object.__setattr__(found.runs[0], "method", NASTY)
    page = render_page(make_facts(found), command=NASTY)
    assert "alert(1)</script>" not in page and "<b>" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert page.count("</script>") == 3 and summary["method"] == "fedavg"
    assert value_of(page)["settings"][0]["splits"]["0"]["classes"][3] == NASTY


def test_the_page_fetches_nothing(tmp_path):
    page = build_page([make_run(tmp_path / "run")], refresh_seconds=5)
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "default-src 'none'" in own and not re.search(r"""(src|href)=|@import|url\(""", own)
    assert '<meta http-equiv="refresh" content="5">' in own


def test_forty_methods_stay_below_six_megabytes(tmp_path):
    names = [f"fedprox(mu={0.001 * (n + 1):.3f})" for n in range(40)]
    make_comparison(tmp_path, {name: 0.5 + n / 100 for n, name in enumerate(names)}, rounds=30)
    assert len(build_page([tmp_path]).encode()) < 6_000_000
