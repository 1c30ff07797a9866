"""Reports of real runs in a real browser: the demo, all methods under three seeds, a run of FedAF."""

import base64
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from report.browsing import NEEDS_CHROMIUM, OVERLAPS, browser, check_silence, open_page

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
MAKEFILE = Path(__file__).parents[2] / "Makefile"
SMALL = "--clients 4 --rounds 3 --epochs 1 --lr 0.01 --split dirichlet:0.5 --jobs 2"


def read_demo():
    """What `make demo` runs, but its folder."""
    text = MAKEFILE.read_text().partition("\ndemo:")[2].partition("\n\n")[0].replace("\\\n", " ")
    return shlex.split(text.partition("unskew ")[2].partition(" --out")[0])


COMMANDS = {
    "demo": read_demo(),
    "all methods": shlex.split(f"compare --methods all --seeds 3 {SMALL}"),
    "fedaf": shlex.split(
        'run --method "fedaf(ipc=5, steps=20, server_epochs=5)" --clients 4 --rounds 3 --measure condensed'
    ),
}


def call(*words):
    """Runs a command in a process of its own, which knows no methods of other tests; it must end well."""
    done = subprocess.run([sys.executable, "-m", "unskew", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=COMMANDS)
def page(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real") / "out"
    call(*COMMANDS[request.param], "--out", str(folder), "--quiet")
    if not (folder / "report.html").exists():
        call("report", str(folder), "-o", str(folder / "report.html"))
    return folder / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_on_a_screen(page, width, dark):
    with browser(width, dark) as driver:
        open_page(driver, page)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert driver.execute_script(OVERLAPS) == []
        empty = "return [...document.querySelectorAll('.plot')].filter((p) => !p.querySelector('svg, canvas')).length"
        assert driver.execute_script(empty) == 0
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(17, 23, 29)" if dark else "rgb(255, 255, 255)")
        check_silence(driver)


def test_in_print(page):
    with browser(dark=True) as driver:
        open_page(driver, page)
        pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
        assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
        check_silence(driver)


def test_its_numbers_are_those_of_the_runs(page):
    with browser() as driver:
        open_page(driver, page)
        shown = {
            row.find_element("css selector", "td").get_attribute("data-value"): [
                cell.text.partition(" ")[0] for cell in row.find_elements("css selector", "td")
            ]
            for row in driver.find_elements("css selector", "table.figures tbody tr:not(.block)")
        }
        heads = [head.text.strip() for head in driver.find_elements("css selector", "table.figures thead th")]
    found = {}
    for path in page.parent.rglob("summary.json"):
        summary = json.loads(path.read_text())
        found.setdefault(summary["method"], []).append(summary)
    assert shown.keys() == found.keys()
    seen = 0
    for name, summaries in found.items():
        if all(own["personal"] for own in summaries):
            value = 100 * sum(own["personal"]["mean"] for own in summaries) / len(summaries)
            assert shown[name][heads.index("clients %")] == f"{value:.2f}"
            seen += 1
    assert seen == len(found)
