"""Pages in a real browser: Debian's Chromium (apt-get install chromium chromium-driver), without any network."""

import json
import shutil
import time
from contextlib import contextmanager

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra dev")
NEEDS_CHROMIUM = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs Chromium: apt-get install chromium chromium-driver",
)
OVERLAPS = """
const boxes = [];
for (const chart of document.querySelectorAll('.chart')) {
  const found = [...chart.querySelectorAll('.plot svg text, .lines button span')].filter(
    (e) => e.textContent.trim() && e.getBoundingClientRect().width);
  boxes.push(...found.map((e) => [chart, e, e.getBoundingClientRect()]));
}
const wrong = [];
for (let i = 0; i < boxes.length; i++) {
  const [chart, one, a] = boxes[i];
  const frame = chart.getBoundingClientRect();
  if (a.left < frame.left - 2 || a.right > frame.right + 2) wrong.push('outside: ' + one.textContent);
  for (let j = i + 1; j < boxes.length; j++) {
    const [other, two, b] = boxes[j];
    if (chart !== other) continue;
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 1.5 && y > 4) wrong.push(one.textContent + ' | ' + two.textContent);
  }
}
return wrong.slice(0, 10);
"""


@contextmanager
def browser(width=1280, dark=False):
    options = webdriver.ChromeOptions()
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-device-scale-factor=1",
    ):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        yield driver
    finally:
        driver.quit()


def open_page(driver, path):
    """Opens a page; gives the milliseconds until all of it was drawn."""
    driver.get(f"file://{path}")
    for _ in range(200):
        if took := driver.execute_script("return document.documentElement.dataset.ready"):
            return int(took)
        time.sleep(0.1)
    raise AssertionError("the page was not drawn within 20 s")


def check_silence(driver):
    """No error on the console, and nothing fetched but the page itself."""
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked)
