"""Who may ask, and what a page may load."""

from __future__ import annotations

import pytest

from autotune.dashboard.security import host_name
from autotune.dashboard.serve import Address, is_loopback
from autotune.values import BadInput
from tests.studies import finished_study


def test_the_policy_allows_nothing_unsafe_and_no_other_host(store, client):
    finished_study(store)
    for path in ("/", "/studies/1", "/nothing", "/studies/1/figures", "/healthz"):
        policy = client.get(path).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "http" not in policy
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy


def test_no_element_carries_a_style_or_a_handler(store, client):
    finished_study(store)
    for path in ("/", "/studies/1", "/studies/1/trials/0", "/compare?s=1", "/read"):
        page = client.get(path).text
        assert " style=" not in page
        assert " onclick=" not in page
        assert "<style" not in page


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8500", "localhost.evil.example", "", "[", "127.0.0.1@evil.example"]
)
def test_a_foreign_name_for_this_host_is_refused(client, host):
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 403
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:8500"])
def test_every_name_of_loopback_is_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


def test_a_post_from_a_foreign_page_is_refused(client):
    form = {"text": "x", "kind": "log"}
    assert client.post("/read", data=form, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/read", data=form, headers={"origin": "null"}).status_code == 403
    assert client.post("/read", data=form, headers={"origin": "http://localhost:8500"}).status_code == 200


@pytest.mark.parametrize("name", ["../app.py", "..%2f..%2fapp.py", "vendor/../../app.py", "app.py", "vendor/README.md"])
def test_only_the_shipped_assets_are_served(client, name):
    assert client.get(f"/static/x/{name}").status_code == 404


def test_the_framework_shows_no_pages_of_its_own(client):
    # They load scripts from another host.
    assert [client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404, 404, 404]


def test_a_network_needs_tls_or_a_proxy(tmp_path):
    with pytest.raises(BadInput, match="ssh -L"):
        Address("0.0.0.0", 8500).check()
    Address("0.0.0.0", 8500, behind_proxy=True).check()
    Address("127.0.0.1", 8500).check()
    with pytest.raises(BadInput, match="belong together"):
        Address("127.0.0.1", 8500, tls_cert=tmp_path / "cert.pem").check()
    with pytest.raises(BadInput, match="no such file"):
        Address("0.0.0.0", 8500, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem").check()


def test_addresses_of_this_host():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "gpu-node", "10.0.0.1")] == [False] * 4
    assert host_name("A.b:80") == "a.b"


def test_too_large_a_text_is_refused(client, monkeypatch):
    from autotune.dashboard import pasted

    monkeypatch.setattr(pasted, "MOST", 1000)
    assert client.post("/read", data={"text": "x" * 1001, "kind": "log"}).status_code == 413
    assert client.post("/read", data={"text": "x" * 4000, "kind": "log"}).status_code == 413
