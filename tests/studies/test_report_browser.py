"""The report in a real browser: no console errors, every figure drawn, nothing cut off or on top of something else."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from farspan.studies.report import build
from report_fixture import mini_cells, probe_cells, write_study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
]

# Put into a copy of the page, which itself has no script. Rotated letters have larger boxes than ink and are left out.
MEASURE = """
<script>
const shown = [...document.querySelectorAll("figure")].map(figure => {
  const svg = [...figure.querySelectorAll("svg")].find(s => s.getBoundingClientRect().width > 0);
  if (!svg) return {id: figure.id, drawn: false};
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")]
    .filter(t => t.textContent.trim() && !/rotate\\((?!-?0[ ,)])/.test(t.getAttribute("transform") || ""))
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  const outside = texts.filter(([, b]) =>
    b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1);
  const touching = [];
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    const [a, b] = [texts[i][1], texts[j][1]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 0.35 * Math.min(a.height, b.height)) touching.push([texts[i][0], texts[j][0]]);
  }
  const letters = Math.min(...texts.map(([, b]) => b.height));
  return {id: figure.id, drawn: true, outside: outside.map(t => t[0]), touching, letters};
});
parent.postMessage(JSON.stringify({
  shown, width: innerWidth, scroll: document.documentElement.scrollWidth,
  ink: getComputedStyle(document.querySelector("svg text")).fill,
  page: getComputedStyle(document.body).backgroundColor,
}), "*");
</script>
"""
# A headless window is never narrower than 500 pixels; a frame is.
FRAME = """<!doctype html><meta name="color-scheme" content="light dark">
<script>onmessage = event => document.documentElement.dataset.measured = event.data</script>
<iframe src="measured.html" style="width: {width}px; height: 900px; border: 0"></iframe>
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the PATH to load the report"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write_study(tmp_path_factory.mktemp("runs") / "study", [*mini_cells(), *probe_cells(depths=(4,))])
    return build(folder).html


def load(page, profile, dark=False):
    """The DOM after loading, and what the browser wrote to its console."""
    command = [
        CHROMIUM,
        *QUIET,
        f"--user-data-dir={profile}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--window-size=1400,900",
        "--virtual-time-budget=2000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measure(report, folder, width, dark=False):
    """What `MEASURE` finds at a width in pixels."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text())
    (folder / "measured.html").write_text(text.replace("</body>", f"{MEASURE}</body>"))
    (folder / "frame.html").write_text(FRAME.format(width=width))
    dom, console = load(folder / "frame.html", folder / "profile", dark)
    assert not console
    found = re.search(r'data-measured="([^"]*)"', dom)
    return json.loads(html.unescape(found.group(1)))


def test_the_page_loads_without_console_errors(report, tmp_path):
    dom, console = load(report, tmp_path / "profile")
    assert not console
    assert dom.count("<figure") == 10


@pytest.mark.parametrize("width", [360, 700, 1280])
def test_every_figure_is_drawn_whole_with_letters_apart(report, tmp_path, width):
    seen = measure(report, tmp_path, width)
    assert len(seen["shown"]) == 10
    assert all(figure["drawn"] for figure in seen["shown"])
    assert {f["id"]: f["outside"] for f in seen["shown"] if f["outside"]} == {}
    assert {f["id"]: f["touching"] for f in seen["shown"] if f["touching"]} == {}
    assert min(figure["letters"] for figure in seen["shown"]) > 8.5


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_never_scrolls_sideways(report, tmp_path, width):
    seen = measure(report, tmp_path, width)
    assert seen["width"] == width
    assert seen["scroll"] <= width


def test_figures_follow_the_dark_theme(report, tmp_path):
    light, dark = measure(report, tmp_path, 1280), measure(report, tmp_path, 1280, dark=True)
    assert light["page"] != dark["page"]
    assert light["ink"] != dark["ink"]
