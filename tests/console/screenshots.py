"""Makes the pictures of the console in ``docs/images``: ``make screenshots``, with Chromium."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from kvstore.clock import SystemClock
from tests.cli.commands import process
from tests.console.chromium import browsing, chromium
from tests.console.demo_store import HOUR_MS, build

IMAGES = Path(__file__).parents[2] / "docs/images"
STORE = Path("/tmp/kvstore-demo")
WIDTH = 1280
PICTURES = {
    "overview": ("light", 760, "/"),
    "changes": ("light", 760, "/tables/1/changes?writer=formatter"),
    "undo": ("dark", 760, "/tables/1/undo?start=earliest&writer=formatter"),
    "replica": ("light", 700, "/replicas/replica?name=backup"),
}


def main() -> int:
    """Make all of them."""
    if chromium() is None:
        sys.stderr.write("The pictures need Chromium: apt-get install chromium\n")
        return 1
    STORE.mkdir()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=STORE, prefix="other-") as other:
        store = build(STORE, SystemClock().now_ms() - 72 * HOUR_MS)
        with process("ui", store, "--port", "0", "--no-browser") as served:
            assert served.stdout is not None
            url = served.stdout.readline().strip()
            with browsing(Path(other)) as browser:
                browser.open(url)
                for name, (scheme, height, path) in PICTURES.items():
                    browser.size(WIDTH, height)
                    browser.prefer(prefers_color_scheme=scheme)
                    browser.open(url.partition("/?")[0] + path)
                    (IMAGES / f"console-{name}.png").write_bytes(browser.screenshot())
            served.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
