"""The console in a real browser: what a person sees of a broker, and can do to its dead letters."""

from __future__ import annotations

import http.client
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from tests.broker.browser import CHROMIUM, browsing
from tests.broker.http_requests import ask, get_json, until
from tests.broker.in_process_broker import running
from transfer.broker.clients.native import BrokerClient

NASTY = '<img src=x onerror="document.title=1">'


@pytest.fixture
def page(tmp_path):
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium-headless-shell")
    with browsing(tmp_path / "browser") as one:
        yield one
        assert one.errors == []
        hosts = {urlsplit(url).hostname for url in one.requests if not url.startswith("about:")}
        assert hosts <= {"127.0.0.1"}, "nothing comes from elsewhere"


def go(page, broker, name=""):
    page.open(f"http://127.0.0.1:{broker.ports['http']}/#{name}")


def look_again(page):
    """As the page does by itself every two seconds."""
    page.evaluate("attempt(LIVE[openPage()])")


def test_what_happens_is_seen(tmp_path, page):
    with (
        running(tmp_path / "data", http=0) as broker,
        BrokerClient(broker.endpoints["requests"]) as client,
    ):
        consumer = client.consume("rows", "trainers", begin="old")
        client.publish_many("rows", [b"12345678"] * 3)
        client.publish(NASTY, b"x")
        consumer.recv()
        go(page, broker)
        page.wait("#state", "ready")
        figures = page.wait("#figures", "Topics")
        assert "Messages\n4" in figures and "Groups\n1" in figures and "Dead letters\n0" in figures
        look_again(page)
        until(lambda: "–" in page.text("#figures"), False)  # rates, after a second look
        page.click("nav a[href='#topics']")
        assert "rows\t3\t–\t24 B\t–\t3\t24\t0" in page.wait("#topic-rows", "rows")
        assert NASTY in page.text("#topic-rows") and page.evaluate("document.title") == "Broker"
        assert page.text("#figures") == ""
        page.fill("#topic-filter", "img")
        until(lambda: "rows" in page.text("#topic-rows"), False)
        page.click("nav a[href='#groups']")
        assert "rows\ttrainers\t3\t–\t3\t0\t1" in page.wait("#group-rows", "trainers")
        page.click("nav a[href='#fronts']")
        assert f"tcp://127.0.0.1:{broker.ports['rqueue']}" in page.wait("#front-rows", "rqueue")
        assert page.evaluate("document.querySelector('nav a[aria-current]').hash") == "#fronts"


def test_dead_letters_are_inspected_replayed_and_purged(tmp_path, page):
    with (
        running(tmp_path / "data", http=0) as broker,
        BrokerClient(broker.endpoints["requests"]) as client,
    ):
        billing = client.consume("orders", "billing", begin="old")
        archive = client.consume("orders", "archive", begin="old")
        client.publish("orders", b"order 1")
        client.publish("orders", NASTY.encode())
        for _ in range(2):
            archive.ack(archive.recv())
            billing.nack(billing.recv(), "no such customer", retry=False)
        until(lambda: get_json(broker.ports["http"], "overview")["dead_letters"], 2)
        go(page, broker, "letters")
        assert "orders/billing/0\torders\tbilling\tno such customer\t1" in page.wait(
            "#letter-rows", "billing/1"
        )
        page.click("#letter-rows button")
        assert page.wait("#letter-payload", "order") == "order 1"
        assert "no such customer" in page.text("#letter-facts")
        page.fill("#letter-act [name=actor]", "ops@example.com")
        page.fill("#letter-act [name=reason]", "customer is there now")
        page.fill("#letter-act [name=confirm]", "replay")
        page.click("#letter-do")  # not the exact word: the browser does not let it through
        assert get_json(broker.ports["http"], "overview")["dead_letters"] == 2
        page.fill("#letter-act [name=confirm]", "REPLAY")
        page.click("#letter-do")
        page.wait("#letter-result", "The message is published again.")
        again = billing.recv()
        assert again.data == b"order 1"
        billing.ack(again, wait=True)
        until(lambda: "billing/0" in page.text("#letter-rows"), False)  # the list is told behind the dialog
        page.click("#letter-close")
        page.click("#letter-rows button")
        assert page.wait("#letter-payload", "<img") == NASTY
        page.fill("#letter-act [name=confirm]", "PURGE")
        page.click("#letter-do")
        page.wait("#letter-result", "The message is deleted.")
        page.click("#letter-close")
        page.wait("#letter-rows", "no dead letters")
        go(page, broker, "audit")
        found = page.wait("#audit-rows", "purge")
        assert "ops@example.com\treplay\torders/billing/0\tcustomer is there now" in found
        page.click("#audit-verify")
        page.wait("#audit-verdict", "The chain is whole.")
        assert get_json(broker.ports["http"], "groups")["groups"][0]["lag"] == 0, (
            "the archive was not told again"
        )


def test_the_page_asks_for_the_token(tmp_path, page):
    with running(tmp_path / "data", http=0, token="secret") as broker:
        go(page, broker)
        page.wait("#login", "token")
        page.wait("#state", "locked")
        page.fill("#login [name=token]", "wrong")
        page.click("#login button")
        page.wait("#login-error", "The token is wrong.")
        page.fill("#login [name=token]", "secret")
        page.click("#login button")
        page.wait("#state", "ready")
        until(lambda: page.text("#login"), "")
        go(page, broker, "audit")
        page.wait("#audit-rows", "no events")
    page.errors.clear()  # the browser calls answers of 401 and 403 so


def test_a_broker_that_has_gone_is_seen(tmp_path, page):
    with running(tmp_path / "data", http=0) as broker:
        go(page, broker)
        page.wait("#state", "ready")
        broker.drain()
        look_again(page)
        page.wait("#state", "it is being stopped")
    look_again(page)
    page.wait("#state", "the broker does not answer")
    page.errors.clear()


def test_the_page_lets_nothing_of_others_in(tmp_path):
    with running(tmp_path, http=0) as broker:
        with closing(http.client.HTTPConnection("127.0.0.1", broker.ports["http"], timeout=20)) as connection:
            connection.request("GET", "/")
            answer = connection.getresponse()
            body = answer.read().decode()
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "connect-src 'self'" in policy, "the script sends the token to this origin only"
        assert "//" not in body.replace("<!doctype", ""), "no address of another place"
        script = ask(broker.ports["http"], "/console.js")[1]
        assert script.count("fetch(") == 1 and 'mode: "same-origin", redirect: "error"' in script
        assert "localStorage" not in script and "document.cookie" not in script
        assert ask(broker.ports["http"], "/console.css")[0] == 200
        assert ask(broker.ports["http"], "/favicon.ico")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/console.js", "/livez", "/metrics", "/api/overview", "/api/admin/dlq/list", "/nothing"]
)
@pytest.mark.parametrize("shown", ["a", "b"], ids=["token", "wrong"])
def test_browsers_keep_no_answer(tmp_path, path, shown):
    with running(tmp_path, http=0, token="a") as broker:
        with closing(http.client.HTTPConnection("127.0.0.1", broker.ports["http"], timeout=20)) as connection:
            connection.request("GET", path, headers={"X-Admin-Token": shown})
            headers = connection.getresponse().headers
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert not headers.get_all("Access-Control-Allow-Origin")
