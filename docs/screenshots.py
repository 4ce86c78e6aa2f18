"""Take the screenshots of the home page, with a Chromium: ``python docs/screenshots.py``.

They are pictures of today's pages of explore and of a study, 1,280 pixels wide.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import twofold as tf
from experiments.explore.explore import Exploration
from experiments.explore.server import Serving
from experiments.explore.session import open_session
from experiments.settings import Settings

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
TRACE = ROOT / "traces" / "samples" / "gpu-dp2-tp4"
SIZE = {"width": 1280, "height": 800}
STUDY: dict[str, Any] = {
    "name": "links",
    "workloads": [{"trace": str(TRACE)}],
    "cluster": "dgx-a100",
    "settings": {"nodes": 2},
    "space": {
        "scale_out.bandwidth": {"log": ["6.25 GB/s", "100 GB/s"], "steps": 9},
        "scale_up.bandwidth": {"log": ["75 GB/s", "1.2 TB/s"], "steps": 9},
    },
    "constraints": ["step_s <= 32 ms"],
    "objectives": {"step_s": "min", "scale_up.bandwidth": "min"},
}


def main() -> None:
    """Write ``explore.webp`` and ``study.webp``."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        session = open_session(TRACE, "dgx-a100", Settings(nodes=2))
        with Exploration(Serving(session)) as served:
            page.goto(f"{served.address}?scale_out.bandwidth=2&compute=2")
            page.wait_for_selector("html[data-settled=yes]", timeout=60_000)
            take(page, "explore")
        tf.study(STUDY, Path(folder) / "study", cache=False)
        report = Path(folder) / "report.html"
        tf.report(Path(folder) / "study").to_html(report)
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        page.evaluate(
            "document.querySelector('.study-front').closest('section')"
            ".scrollIntoView({behavior: 'instant'})"
        )
        take(page, "study")
        browser.close()


def take(page: Any, name: str) -> None:
    """Write what is seen of a page as WebP."""
    from io import BytesIO

    from PIL import Image  # comes with matplotlib

    IMAGES.mkdir(exist_ok=True)
    Image.open(BytesIO(page.screenshot())).save(IMAGES / f"{name}.webp", quality=82, method=6)


if __name__ == "__main__":
    main()
