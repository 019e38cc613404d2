"""The page in a real browser, headless. Screenshots go to the folder $ANTIPHON_SCREENSHOTS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import PROMPT, Server

from antiphon.serve.page import trace_page

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


def open_page(browser: Any, server: Server, scheme: str = "light", width: int = 1280) -> Any:
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.set_default_timeout(20_000)
    page.goto(server.url)
    page.fill("#prompt", PROMPT)
    page.problems = problems
    return page


def keep(page: Any, name: str) -> None:
    folder = os.environ.get("ANTIPHON_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_methods_side_by_side(browser: Any, server: Server, scheme: str) -> None:
    page = open_page(browser, server, scheme)
    page.select_option("#left", "smc")
    page.select_option("#right", "speculative")
    page.fill("#tokens", "60")
    page.click("button.go")
    page.wait_for_function(
        "document.querySelectorAll('.facts').length === 2 && "
        "[...document.querySelectorAll('.facts')].every((f) => f.textContent.includes('passes'))"
    )
    for index, method in enumerate(["smc", "speculative"]):
        side = page.locator("section").nth(index)
        assert side.locator("h2").inner_text() == method
        assert side.locator(".text span.draft").count() > 0
        assert side.locator(".strip i").count() > 0
        assert len(side.locator(".text").inner_text().split()) > 5
    keep(page, f"page-{scheme}")
    assert not page.problems


def test_it_is_usable_by_keyboard(browser: Any, server: Server) -> None:
    page = open_page(browser, server)
    page.focus("#prompt")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Write":
            break
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.facts')?.textContent.includes('passes')")
    page.focus(".text")
    page.keyboard.press("ArrowRight")
    first = page.inner_text(".detail")
    page.keyboard.press("ArrowRight")
    assert "target p" in first
    assert "rank" in first
    assert page.inner_text(".detail") != first
    assert page.locator(".text span.chosen").count() == 1


def test_it_fits_a_phone_and_tells_errors(browser: Any, server: Server) -> None:
    page = open_page(browser, server, width=375)
    page.select_option("#left", "smc")
    page.fill("#temperature", "0")
    page.click("button.go")
    page.wait_for_selector(".facts.error")
    assert "temperature" in page.inner_text(".facts.error")
    page.fill("#temperature", "1")
    page.click("button.go")
    page.wait_for_function("document.querySelector('.facts')?.textContent.includes('passes')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    keep(page, "page-phone")


def test_stop_ends_the_writing(browser: Any, server: Server) -> None:
    page = open_page(browser, server)
    page.fill("#tokens", "900")
    page.select_option("#left", "autoregressive")
    page.fill("#prompt", "Count.")
    page.click("button.go")
    page.wait_for_selector(".text span")
    stop = page.locator("#stop")
    if stop.is_enabled():  # A short text may have ended by itself.
        stop.click()
    page.wait_for_function("document.querySelector('#stop').disabled")
    assert page.inner_text(".facts")


def test_a_stored_trace_is_shown(browser: Any, tmp_path: Path) -> None:
    tokens = [{"text": "a<b>", "who": "draft", "logprob": -0.5}]
    statistics = {
        "completion_tokens": 1,
        "tokens_per_second": 1.0,
        "target_passes": 1,
        "draft_passes": 2,
        "draft_acceptance_rate": 1.0,
        "num_draft_tokens": 1,
        "num_accepted_draft_tokens": 1,
    }
    rounds = [{"proposed": 1, "provenance": ["draft"], "notes": {"fired": 1}}]
    sample = {
        "title": "one",
        "tokens": tokens,
        "statistics": statistics,
        "rounds": rounds,
        "seed": 3,
    }
    file = tmp_path / "trace.html"
    file.write_text(trace_page("x.jsonl", [sample]))
    page = browser.new_context().new_page()
    page.goto(file.as_uri())
    assert page.inner_text(".text") == "a<b>"
    assert "seed 3" in page.inner_text(".facts")
    assert page.locator(".strip i.fired").count() == 1
    assert not page.is_visible("#form")
