"""A picture of a page, by a real browser, small enough for a README.

python docs/images/screenshot.py runs/report.html docs/images/report.png --width 1280 --height 900
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def shoot(page: Path, out: Path, width: int, height: int, *, dark: bool = False, colours: int = 64) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"there is none of {', '.join(BROWSERS)}: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "shot.png")
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        command += [f"--window-size={width},{height}", f"--screenshot={shot}", *["--force-dark-mode"] * dark]
        subprocess.run([*command, page.resolve().as_uri()], check=True, capture_output=True)
        with Image.open(shot) as image:
            image.convert("RGB").quantize(colours).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    shoot(given.page, given.out, given.width, given.height, dark=given.dark)
