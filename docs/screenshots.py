#!/usr/bin/env python3
"""Pictures of both views of a running service, at 1280 and 390 pixels, light and dark, by the browser of the tests:

raydist serve runs/docs --reader runs/quickstart serving.mined=runs/retrieval
python docs/screenshots.py "Who set up the company Kekdrotar?" --out pictures
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.browser import Browser, chromium

ENTER = "\ue007"
WIDTHS = {1280: 660, 390: 844}  # heights


def show_answer(browser: Browser, address: str, question: str) -> None:
    browser.open(f"{address}/")
    browser.until_text("passages", "#facts")
    browser.type("#question", question + ENTER)
    browser.until_text(" s.", "#status")


def show_pair(browser: Browser, address: str, question: str) -> None:
    browser.open(f"{address}/judge")
    browser.until(lambda: browser.text("#pair"))


VIEWS = {"ask": show_answer, "judge": show_pair}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--address", default="http://127.0.0.1:8100")
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile) / "empty") as browser:
        for name, show in VIEWS.items():
            show(browser, given.address, given.question)
            for width, height in WIDTHS.items():
                for dark in (False, True):
                    browser.look(width=width, height=height, dark=dark)
                    browser.run("window.scrollTo(0, 0); document.activeElement.blur()")
                    file = given.out / f"{name}-{width}{'-dark' * dark}.png"
                    browser.picture(file)
                    print(file)


if __name__ == "__main__":
    main()
