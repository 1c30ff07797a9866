"""The report in a real browser: Debian's Chromium (apt-get install chromium chromium-driver), without any network."""

import base64
import json
import shutil
import subprocess
import time

import pytest

from report.browsing import NEEDS_CHROMIUM, OVERLAPS, browser, check_silence, open_page, webdriver
from report.made_runs import make_comparison, make_run
from unskew.report.page import build_page
from unskew.report.serving import serve_page

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
LONG = [f"flfa(inner=fedprox(mu={0.001 * (n + 1):.3f}), select=highest, n_layers=2)" for n in range(39)]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
ON_DATA = """
const plots = document.querySelector('[data-part=curves] .plot').getBoundingClientRect();
const paths = [...document.querySelectorAll('[data-part=curves] .plot svg path')].filter(
  (p) => p.getAttribute('fill') === 'none' && +p.getAttribute('stroke-width') > 1);
const right = Math.max(...paths.map((p) => p.getBoundingClientRect().right));
return [...document.querySelectorAll('[data-part=curves] .lines button')].filter((b) => {
  const box = b.getBoundingClientRect(), frame = b.parentNode.getBoundingClientRect(); // which may scroll
  const bottom = Math.min(box.bottom, frame.bottom);
  return bottom > box.top && box.left < right - 1 && bottom > plots.top + 1 && box.top < plots.bottom - 1;
}).length;
"""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    place = tmp_path_factory.mktemp("few")
    make_comparison(place, {"fedavg": 0.6, "fedprox": 0.7, "scaffold": 0.8, "fedsol": 0.85}, rounds=12)
    (place / "report.html").write_text(build_page([place]))
    return place


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Many methods, half of them with no global model, so that these have no line among the first curves."""
    place = tmp_path_factory.mktemp("mixed")
    for output, names in (("global", ["fedavg", *LONG[:11]]), ("personal", LONG[11:23])):
        make_comparison(place / output, {name: 0.5 + n / 100 for n, name in enumerate(names)}, 1, output=output)
    (place / "report.html").write_text(build_page([place]))
    return place / "report.html"


@pytest.fixture(scope="module")
def forty(tmp_path_factory):
    place = tmp_path_factory.mktemp("forty")
    make_comparison(place, {name: 0.5 + n / 100 for n, name in enumerate(["fedavg", *LONG])}, rounds=20)
    (place / "report.html").write_text(build_page([place]))
    return place / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_forty_names_neither_overlap_nor_overflow(forty, width, dark):
    with browser(width, dark) as driver:
        open_page(driver, forty)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert driver.execute_script(OVERLAPS) == []
        assert driver.execute_script(ON_DATA) == 0
        highest = "Math.max(...[...document.querySelectorAll('table.figures td')].map((cell) => cell.offsetHeight))"
        assert driver.execute_script(f"return {highest}") < 45  # no cell breaks
        heights = "[...document.querySelectorAll('table.figures tr')].map((row) => row.getBoundingClientRect().height)"
        odd = [height for height in driver.execute_script(f"return {heights}") if height % 1]
        assert odd == []  # else the column that stays in place covers lines between rows
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(17, 23, 29)" if dark else "rgb(255, 255, 255)")
        check_silence(driver)


def test_forty_methods_open_within_two_seconds(forty):
    with browser() as driver:
        assert min(open_page(driver, forty) for _ in range(3)) < 2000  # others may be at work on this machine


def names_in(driver):
    return [
        cell.get_attribute("data-value")
        for cell in driver.find_elements("css selector", "table.figures td:first-child")
    ]


@pytest.mark.parametrize("width", [1280, 390])
def test_a_double_click_singles_out_the_name_it_began_on(mixed, width):
    with browser(width) as driver:
        open_page(driver, mixed)
        names = driver.find_elements("css selector", "[data-part=curves] [data-method]")
        chosen = sorted(names, key=lambda name: (name.rect["y"], name.rect["x"]))[3]
        assert len(names) == 12
        webdriver.ActionChains(driver).double_click(chosen).perform()
        assert [name for name in names if name.get_attribute("aria-pressed") == "true"] == [chosen]
        colour = "return arguments[0].style.getPropertyValue('--c')"
        assert driver.execute_script(colour, chosen) in COLOURS  # not grey
        webdriver.ActionChains(driver).pause(1).double_click(chosen).perform()
        assert all(name.get_attribute("aria-pressed") == "true" for name in names)


def test_sort_hide_hover_and_switch(comparison):
    with browser() as driver:
        open_page(driver, comparison / "report.html")
        assert names_in(driver) == ["fedavg", "fedprox", "scaffold", "fedsol"]
        head = driver.find_element("css selector", "button[data-column='1']")
        head.click()
        assert names_in(driver) == ["fedsol", "scaffold", "fedprox", "fedavg"]
        head.click()
        assert names_in(driver) == ["fedavg", "fedprox", "scaffold", "fedsol"]

        button = driver.find_element("css selector", "[data-part=curves] [data-method=fedsol]")
        drawn = "return echarts.getInstanceByDom(document.querySelector('[data-part=curves] .plot')).getOption()"
        lines = f"{drawn}.series.filter((s) => s.type === 'line').map((s) => s.name)"
        assert sorted(driver.execute_script(lines)) == ["fedavg", "fedprox", "fedsol", "scaffold"]
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        assert "fedsol" not in driver.execute_script(lines) and button.get_attribute("aria-pressed") == "false"
        time.sleep(0.7)
        button.click()
        assert "fedsol" in driver.execute_script(lines)
        time.sleep(0.7)
        webdriver.ActionChains(driver).double_click(button).perform()
        assert driver.execute_script(lines) == ["fedsol"]
        time.sleep(0.7)
        webdriver.ActionChains(driver).double_click(button).perform()
        assert len(driver.execute_script(lines)) == 4

        plot = driver.find_element("css selector", "[data-part=curves] .plot")
        webdriver.ActionChains(driver).move_to_element(plot).perform()
        time.sleep(0.3)
        hovered = driver.execute_script("return document.querySelector('[data-part=curves] .plot').textContent")
        assert "round " in hovered and "±" in hovered

        for choice, title in (("bytes", "bytes sent"), ("seconds", "seconds of work"), ("rounds", "round")):
            driver.find_element("css selector", f"[data-part=curves] [data-choice={choice}]").click()
            assert driver.execute_script(f"{drawn}.xAxis[0].name").startswith(title)
        before = driver.execute_script(f"{drawn}.series.at(-1).data.at(-1)[1]")
        driver.execute_script(
            "const slider = document.querySelector('[data-part=curves] input');"
            "slider.value = 0.9; slider.dispatchEvent(new Event('input'))"
        )
        assert driver.execute_script(f"{drawn}.series.at(-1).data.at(-1)[1]") < before
        driver.find_element("css selector", "[data-part=class_maps] [data-choice=forgotten]").click()
        check_silence(driver)


def test_ten_numbers_are_those_of_summary_json(comparison):
    names, seen = ["fedavg", "fedprox", "scaffold", "fedsol"], 0
    with browser() as driver:
        open_page(driver, comparison / "report.html")
        rows = {
            row.find_element("css selector", "td").get_attribute("data-value"): [
                cell.text.partition(" ")[0] for cell in row.find_elements("css selector", "td")
            ]
            for row in driver.find_elements("css selector", "table.figures tbody tr")
        }
    for number, name in enumerate(names):
        found = [
            json.loads((comparison / "runs" / f"{number:02}-seed{seed}" / "summary.json").read_text())
            for seed in range(3)
        ]
        for place, value in (
            (1, [own["accuracy"]["last"] for own in found]),
            (2, [own["personal"]["mean"] for own in found]),
            (3, [own["personal"]["worst_decile"] for own in found]),
        ):
            assert rows[name][place] == f"{100 * sum(value) / 3:.2f}"
            seen += 1
    assert seen >= 10


def test_print_is_on_white_with_closed_details(comparison, tmp_path):
    with browser(dark=True) as driver:
        open_page(driver, comparison / "report.html")
        pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
        assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
        assert driver.execute_script("return document.querySelectorAll('details[open]').length") == 0
        check_silence(driver)


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs pdftotext: apt-get install poppler-utils")
def test_a_long_table_has_its_head_on_every_printed_page(forty, tmp_path):
    with browser() as driver:
        open_page(driver, forty)
        pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    (tmp_path / "page.pdf").write_bytes(pdf)
    words = ["pdftotext", "-layout", tmp_path / "page.pdf", "-"]
    pages = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\f")
    rows = [page for page in pages if page.count(" ± ") > 8]
    assert len(rows) > 1 and all("accuracy %" in page for page in rows)


def test_nasty_names_do_not_run(tmp_path):
    folder = make_run(tmp_path / "run")
    held = json.loads((folder / "labels.json").read_text())
    held["classes"][0] = "</script><img src=x onerror=alert(1)>"
    (folder / "labels.json").write_text(json.dumps(held))
    (tmp_path / "report.html").write_text(build_page([folder]))
    with browser(390) as driver:
        open_page(driver, tmp_path / "report.html")
        plot = driver.find_element("css selector", "[data-part=split] .plot")
        webdriver.ActionChains(driver).move_to_element(plot).perform()
        assert driver.find_elements("css selector", "img") == []
        check_silence(driver)


def test_a_page_that_refreshes_keeps_what_was_chosen(tmp_path):
    make_comparison(tmp_path, {"fedavg": 0.5, "fedprox": 0.6, "scaffold": 0.7}, seeds=1)
    make_run(tmp_path / "runs" / "03-seed0", "fedsol", finished=False)
    with serve_page(tmp_path) as address, browser() as driver:
        driver.get(address)
        wait_until(driver, "document.documentElement.dataset.ready")
        for choice in (
            "[data-part=curves] [data-choice=bytes]",
            "[data-part=curves] [data-method=scaffold]",
            "button[data-column='1']",
            "details summary",
        ):
            driver.execute_script("document.querySelector(arguments[0]).click()", choice)
        sorted_names = names_in(driver)
        driver.execute_script("window.before = true")
        wait_until(driver, "!window.before && document.documentElement.dataset.ready")
        pressed = "return document.querySelector(arguments[0]).getAttribute('aria-pressed')"
        assert driver.execute_script(pressed, "[data-part=curves] [data-choice=bytes]") == "true"
        assert driver.execute_script(pressed, "[data-part=curves] [data-method=scaffold]") == "false"
        assert driver.execute_script(pressed, "[data-part=curves] [data-method=fedavg]") == "true"
        assert names_in(driver) == sorted_names != ["fedavg", "fedprox", "scaffold", "fedsol"]
        assert driver.execute_script("return document.querySelector('details').open")
        assert driver.get_log("browser") == []


def wait_until(driver, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not driver.execute_script(f"return Boolean({condition})"):
        assert time.monotonic() < deadline, condition
        time.sleep(0.2)


def test_all_settings_are_printed(tmp_path):
    for clients in (5, 8):
        make_comparison(tmp_path / str(clients), {"fedavg": 0.5, "fedprox": 0.6}, clients=clients)
    (tmp_path / "report.html").write_text(build_page([tmp_path]))
    with browser() as driver:
        open_page(driver, tmp_path / "report.html")
        settings = "[...document.querySelectorAll('.setting')]"
        shown = f"return {settings}.map((own) => !own.hidden && own.querySelectorAll('svg').length)"
        first = driver.execute_script(shown)
        assert first[0] and first[1] is False
        driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert driver.execute_script(shown) == [first[0], first[0]]
        driver.execute_script("dispatchEvent(new Event('afterprint'))")
        assert driver.execute_script(shown) == first
        check_silence(driver)
