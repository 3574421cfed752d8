"""Measure how long the playground of a running server takes from a key or a click to the answer on the page.

    bert-jax serve MODEL --port=8080
    python scripts/measure_playground.py http://127.0.0.1:8080

For every section, in Chromium: a change in the page, and the time until its answer is drawn, the wait for another key
included. The first change of each kind may compile a program and is not counted. It needs playwright and a Chromium on
the PATH.
"""

import shutil
import statistics
import sys

from playwright.sync_api import Page, sync_playwright

TIMES = 20
SECTIONS = ("masks", "next", "pieces", "journey", "attention", "sides", "senses", "neighbours", "preparation")
CHANGE = """
async ({name, number}) => {
  const section = document.getElementById(name), answer = section.querySelector(".answer");
  const button = section.querySelector("button[name=shuffle], button[name=again]");
  const pieces = section.querySelectorAll("button.piece");
  const field = section.querySelector("textarea, input[name=text]");
  const began = performance.now();
  if (button) button.click();
  else if (pieces.length) pieces[name === "masks" ? 2 : number % 4].click();
  else {
    field.value = number % 2 ? field.value.slice(0, -1) : field.value + ".";
    field.dispatchEvent(new Event("input", {bubbles: true}));
  }
  if (answer.ariaBusy !== "true") throw new Error(`nothing was asked in ${name}`);
  await new Promise((done) => new MutationObserver((_, observer) => {
    if (answer.ariaBusy === "true") return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(done));
  }).observe(answer, {attributes: true, attributeFilter: ["aria-busy"]}));
  return [performance.now() - began, answer.querySelector(".error")?.textContent ?? ""];
}
"""


def milliseconds(page: Page, name: str) -> list[float]:
    """Return the times of the changes in a section."""
    page.click(f'nav a[href="#{name}"]')
    page.locator(f"#{name} .answer[aria-busy=false] > *").first.wait_for(timeout=120_000)
    found = []
    for number in range(TIMES + 4):
        time, error = page.evaluate(CHANGE, {"name": name, "number": number})
        if error:
            raise SystemExit(f"{name}: {error}")
        found.append(time)
    return found[4:]


def main(address: str) -> None:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        print(f"| section | median, ms | slowest of {TIMES}, ms |\n|---|---|---|")
        for name in SECTIONS:
            times = milliseconds(page, name)
            print(f"| {name} | {statistics.median(times):.0f} | {max(times):.0f} |")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
