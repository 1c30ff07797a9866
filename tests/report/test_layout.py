"""Figures: axes keep their height, nothing covers data, PDFs carry their fonts."""

import re
import zlib
from itertools import combinations

import pytest

from made_runs import NAMES, make_row
from unskew import InputError
from unskew.report.curves import draw_measures
from unskew.report.figures import Played, draw_runs, read_width
from unskew.report.layout import save

WIDTHS = ["column", "full", "12", None]


def play(count, seeds=3, **row):
    personal = ("fedper", "fedrep", "lg_fedavg", "fedrod", "fedbn", "fedala", "local", "fedas", "cd2_pfed")
    return [
        Played(name, "personal" if name in personal else "global", [
            make_row(n, seed, best=0.5 + 0.4 * (11 * place % count) / count, personal=name in personal, **row)
            for n in range(11)
        ])
        for place, name in enumerate(NAMES[:count]) for seed in range(seeds)
    ]  # fmt: skip


def find_boxes(figure):
    """The boxes of axes' insides and of all text around them, in inches."""
    renderer = figure.canvas.get_renderer()
    figure.draw_without_rendering()
    inside = [axes.get_window_extent(renderer) for axes in figure.axes]
    texts = [text.get_window_extent(renderer) for text in figure.texts if text.get_text()]
    texts += [legend.get_window_extent(renderer) for legend in figure.legends]
    return inside, texts, figure.bbox


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, 7, 13, 40])
def test_text_covers_neither_data_nor_other_text(count, width):
    inside, texts, page = find_boxes(draw_runs(play(count), width=width, title="" if width else "a title"))
    for axes in inside:
        assert not [text for text in texts if axes.overlaps(text)]
    for one, other in combinations(texts, 2):
        assert not one.overlaps(other)
    for box in (*inside, *texts):
        assert page.x0 <= box.x0 and box.x1 <= page.x1 + 1 and page.y0 <= box.y0 and box.y1 <= page.y1 + 1


@pytest.mark.parametrize("width", WIDTHS)
def test_the_height_of_axes_depends_on_the_width_alone(width):
    found = {round(find_boxes(draw_runs(play(count), width=width))[0][0].height, 3) for count in (1, 2, 7, 13, 30)}
    assert len(found) == 1 and found.pop() > 150


def test_every_method_is_named():
    figure = draw_runs(play(40), width="full")
    said = " ".join(text.get_text() for legend in figure.legends for text in legend.get_texts())
    said += " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    assert not [name for name in NAMES if name[:12] not in said]


def test_names_that_are_cut_keep_their_figures_and_can_be_told_apart():
    kinds = {f"finetuned(inner=fedprox(mu=0.{n}))": "global" for n in range(6)} | {"fedper": "personal"}
    runs = [Played(name, kind, [make_row(1, 0, personal=kind != "global")]) for name, kind in kinds.items()]
    labels = [text.get_text() for text in draw_runs(runs).legends[0].get_texts()]
    assert all(label.endswith(" %)") and "…" in label for label in labels) and len(set(labels)) == 6


@pytest.mark.parametrize("count", [2, 13, 40])
def test_measures_are_no_strip(count):
    series = {n: {name: [[(1, 1.0), (2, 2.0)]] for name in NAMES[:count]} for n in ("drift", "rank", "a", "b")}
    inside, texts, _ = find_boxes(draw_measures(series, NAMES[:count], NAMES[:7]))
    assert len(inside) == 4 and all(box.height > 200 for box in inside)
    assert not [text for text in texts for axes in inside if axes.overlaps(text)]


def test_a_pdf_has_its_width_and_its_fonts(tmp_path):
    figure, path = draw_runs(play(7), width="column"), tmp_path / "f.pdf"
    save(figure, path)
    data = path.read_bytes()
    width = float(re.search(rb"/MediaBox \[\s*0 0 ([\d.]+)", data)[1])
    assert width == pytest.approx(8.4 / 2.54 * 72, abs=0.1)
    text = data + b"".join(_inflate(part) for part in re.findall(rb"stream\n(.*?)\nendstream", data, re.S))
    assert b"/FontFile2" in text and b"/Type3" not in text
    figure.savefig(tmp_path / "plain.pdf")
    assert b"/Type3" not in (tmp_path / "plain.pdf").read_bytes()
    save(figure, tmp_path / "again.pdf")
    assert (tmp_path / "again.pdf").read_bytes() == data


def _inflate(part):
    try:
        return zlib.decompress(part)
    except zlib.error:
        return b""


def test_measures_and_costs():
    runs = play(2, measures={"drift": 2.0})
    axes = draw_runs(runs, measure="drift", x="bytes").axes[0]
    assert axes.get_ylabel() == "drift" and axes.get_xlabel() == "sent (kB)"
    where, values = axes.lines[0].get_data()
    assert where[0] == pytest.approx(2.01) and values[0] == pytest.approx(2 * 2.718281828**-0.1)  # 2000, 2010, 2020
    assert draw_runs(runs, x="seconds").axes[0].get_xlabel() == "training (seconds)"
    with pytest.raises(InputError, match=r"no run recorded 'rank'; recorded: drift, train_loss, loss, lr"):
        draw_runs(runs, measure="rank")


@pytest.mark.parametrize(("text", "found"), [("column", 8.4), ("full", 17.4), ("12", 12.0), ("12.5 cm", 12.5)])
def test_widths(text, found):
    assert read_width(text) == found


@pytest.mark.parametrize("text", ["0", "1e9", "wide", "-3", "nan", "3in"])
def test_no_widths(text):
    with pytest.raises(InputError, match="--width expects column"):
        read_width(text)


def test_a_figure_shows_itself_in_a_notebook():
    assert draw_runs(play(2))._repr_png_().startswith(b"\x89PNG")
