"""Who may ask a server what: hosts, origins, tokens, rates."""

import base64
import hashlib
import logging

import pytest
from stand_in_engines import QuickEngine, models
from starlette.testclient import TestClient

from bert_jax.config.serving import ServeConfig, named_models
from bert_jax.errors import UserError
from bert_jax.tools.serving import security
from bert_jax.tools.serving.app import make_app
from bert_jax.tools.serving.security import find_token, page_policy

TOKEN = "a-secret!"


def client_of(token: str = "", base_url: str = "http://localhost:8080", **options):
    config = ServeConfig(playground=False, **{"access_log": False, **options})
    return TestClient(make_app(QuickEngine(models()), config, token.encode()), base_url=base_url)


def status(client, **headers) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/tokenize", json={"inputs": "a"}, headers=named).status_code


@pytest.mark.parametrize(
    "host, expected",
    [
        *(("localhost", 200), ("LOCALHOST:1", 200), ("127.0.0.1:8080", 200), ("127.9.9.9", 200), ("[::1]:8080", 200)),
        *(("localhost.", 200), ("models.example.org:80", 200), ("evil.example.org", 421), ("localhost.evil.org", 421)),
        *(("127.0.0.1.evil.org", 421), ("10.0.0.1", 421), ("0.0.0.0", 421), ("2130706433", 421), ("0x7f.1", 421)),
        *(("", 400), ("a b", 400), ("localhost:80:80", 400), ("localhost/", 400), ("user@localhost", 400)),
        *(("[::1", 400), ("localhost, evil.org", 400), ("localhost:x", 400)),
    ],
)
def test_other_hosts_are_refused(host, expected):
    """A page whose name was made to mean 127.0.0.1 says its own name."""
    assert status(client_of(allowed_hosts=("models.example.org",)), host=host) == expected


def test_an_address_that_others_reach_is_called_by_its_address():
    client = client_of(TOKEN, host="0.0.0.0")
    for host, expected in ("192.168.1.2:8080", 200), ("evil.example.org", 421):
        assert status(client, host=host, authorization=f"Bearer {TOKEN}") == expected


@pytest.mark.parametrize(
    "headers, expected",
    [
        ({"origin": "http://localhost:8080"}, 200),
        ({"origin": "http://localhost:9999"}, 403),
        ({"origin": "https://evil.example.org"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "https://app.example.org"}, 200),
        ({"origin": "https://app.example.org.evil.org"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),  # a form: only GET may be a link
    ],
)
def test_pages_of_other_origins_are_refused(headers, expected):
    client = client_of(allowed_origins=("https://app.example.org",))
    assert status(client, **headers) == expected
    assert client.get("/models", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).is_success


def test_only_allowed_origins_may_read_answers():
    client = client_of(TOKEN, allowed_origins=("https://app.example.org",))
    ours = {"origin": "https://app.example.org"}
    before = client.options("/embed", headers={**ours, "access-control-request-method": "POST"})
    assert before.status_code == 204 and "authorization" in before.headers["access-control-allow-headers"]
    assert status(client, **ours) == 401
    answer = client.post("/tokenize", json={"inputs": "a"}, headers={**ours, "authorization": f"Bearer {TOKEN}"})
    assert answer.is_success and answer.headers["access-control-allow-origin"] == ours["origin"]
    for other in client.options("/embed", headers={"origin": "https://evil.org"}), client.get("/health"):
        assert not any(name.startswith("access-control") for name in other.headers)


@pytest.mark.parametrize(
    "given, expected",
    [
        *(
            (f"Bearer {TOKEN}", 200),
            (f"bearer   {TOKEN}", 200),
            (f"Bearer {TOKEN}x", 401),
            (f"Bearer {TOKEN[:-1]}", 401),
        ),
        *(("Bearer", 401), ("", 401), (TOKEN, 401), (f"Token {TOKEN}", 401), ("Bearer \u00e9".encode("latin-1"), 401)),
        *((b"Basic " + base64.b64encode(f"me:{TOKEN}".encode()), 200), ("Basic !!!", 401), ("Basic bWU=", 401)),
        *((b"Basic " + base64.b64encode(TOKEN.encode()), 401), ("Bearer " + "x" * 5000, 401)),
    ],
)
def test_the_token_is_needed(given, expected):
    assert status(client_of(TOKEN), authorization=given) == expected


def test_what_needs_no_token_and_how_it_is_asked_for():
    client = client_of(TOKEN)
    assert [client.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
    for path in "/", "/docs", "/openapi.json", "/metrics", "/models", "/v1/models", "/none":
        assert client.get(path).status_code == 401
    assert client.get("/models").headers["www-authenticate"] == "Bearer"
    page = client.get("/docs", headers={"accept": "text/html,*/*"})
    assert page.headers["www-authenticate"].startswith("Bearer, Basic realm=")  # which a browser asks its user for
    assert client.get("/v1/models").json()["error"]["code"] == "invalid_api_key"


def test_the_token_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(security.hmac, "compare_digest", lambda *both: compared.append(both) or True)
    assert status(client_of(TOKEN), authorization="Bearer x") == 200
    assert compared == [tuple(hashlib.sha256(each).digest() for each in (b"x", TOKEN.encode()))]


def test_a_client_has_a_rate(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(security.time, "monotonic", lambda: now[0])
    keeper = security.Doorkeeper(ServeConfig(rate=0.5, burst=2), b"")

    def ask(address: str, path: str = "/embed"):
        headers = [(b"host", b"localhost")]
        keeper.check({"type": "http", "method": "POST", "path": path, "headers": headers, "client": (address, 1)})

    ask("10.0.0.1"), ask("10.0.0.1")
    with pytest.raises(security.Refusal, match="more than 0.5 requests") as refused:
        ask("10.0.0.1")
    assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "2"})
    ask("10.0.0.2")
    ask("10.0.0.1", "/health")
    now[0] += 2
    ask("10.0.0.1")
    ask("2001:db8:1:2:3::4"), ask("2001:db8:1:2:9::9")  # one network: a machine has all its addresses
    with pytest.raises(security.Refusal):
        ask("2001:db8:1:2::5")
    monkeypatch.setattr(security, "CLIENTS", 5)
    for number in range(50):
        ask(f"10.1.0.{number}")
    assert len(keeper._buckets) <= 5


def test_where_the_token_is_from(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.delenv(security.VARIABLE, raising=False)
    assert find_token(ServeConfig()) == b""
    assert find_token(ServeConfig(token_file=str(file), host="0.0.0.0")) == TOKEN.encode()
    assert find_token(ServeConfig(host="0.0.0.0", without_token=True)) == b""
    for host in "0.0.0.0", "::", "192.168.1.2", "models.example.org":
        with pytest.raises(UserError, match="clients need a token; put one into a file"):
            find_token(ServeConfig(host=host))
    for wrong in "", "two words", "two\nlines", "\u00e9", "x" * 5000:
        file.write_text(wrong)
        with pytest.raises(UserError, match="1 to 4096 characters"):
            find_token(ServeConfig(token_file=str(file)))
    monkeypatch.setenv(security.VARIABLE, TOKEN)
    assert find_token(ServeConfig(host="0.0.0.0")) == TOKEN.encode()


def test_a_page_of_ours_runs_what_is_in_it_alone():
    policy = page_policy("<style>a</style><script>b</script>")
    style, script = "ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs=", "PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0="
    assert f"script-src 'sha256-{script}'; style-src 'sha256-{style}'" in policy
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy


def test_the_log_of_requests_has_no_texts(capsys, caplog):
    caplog.set_level(logging.DEBUG)
    client = client_of(access_log=True)
    client.post("/tokenize?q=private", json={"inputs": "a private text"})
    client.get("/private%0A127.0.0.1%20GET%20/fake%20200", headers={"user-agent": "private"})
    said = capsys.readouterr()
    assert [line.split(" ")[1:4] for line in said.err.splitlines()] == [
        ["POST", "/tokenize", "200"],
        ["GET", "other", "404"],
    ]
    assert "private" not in said.err + said.out and not any("a private text" in each for each in caplog.messages)


def test_models_have_the_names_of_their_places(tmp_path):
    assert named_models(["runs/mrpc/", "hf://owner/name@main", "mood=runs/x", str(tmp_path / "a=b")]) == {
        "mrpc": "runs/mrpc/",
        "owner/name": "hf://owner/name@main",
        "mood": "runs/x",
        "a=b": str(tmp_path / "a=b"),
    }
    for words in ["a", "b/a"], ["=a"], ["a="]:
        with pytest.raises(UserError, match="NAME=MODEL"):
            named_models(words)
    with pytest.raises(UserError, match="there are no models to serve"):
        named_models([])
