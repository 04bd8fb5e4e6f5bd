"""Targets, headers and typed errors, by the letter."""

import json

import pytest

from retinue.gateway.wire import (
    Refusal,
    build_error,
    build_location,
    build_request_headers,
    build_response_headers,
    split_target,
)


@pytest.mark.parametrize(
    ("target", "service", "rest"),
    [
        ("/judge/v1/chat", "judge", "/v1/chat"),
        ("/judge", "judge", "/"),
        ("/judge/", "judge", "/"),
        ("/judge?a=1", "judge", "/?a=1"),
        ("/judge/a%2Fb/%C3%A9?x=%20&y", "judge", "/a%2Fb/%C3%A9?x=%20&y"),
        ("/judge//double//slash", "judge", "//double//slash"),
        ("/judge/../etc/./x", "judge", "/../etc/./x"),
        ("/judge/a?", "judge", "/a?"),
        ("/", "", "/"),
        ("/?x", "", "/?x"),
        ("//judge/x", "", "/judge/x"),
        ("http://anything:80/judge/x?y", "judge", "/x?y"),
        ("http://anything", "", "/"),
        ("http://anything?x=/y", "", "/?x=/y"),
    ],
)
def test_a_target_is_split_byte_for_byte(target: str, service: str, rest: str) -> None:
    assert split_target(target) == (service, rest)


@pytest.mark.parametrize("target", ["*", "127.0.0.1:80", "ftp://x/judge"])
def test_a_target_that_is_no_path_is_refused(target: str) -> None:
    with pytest.raises(Refusal) as caught:
        split_target(target)
    assert caught.value.status == 400


def test_headers_about_one_hop_go_no_further_and_the_prefix_cannot_be_forged() -> None:
    sent = [
        ("Host", "gateway"),
        ("Connection", "keep-alive, X-Secret"),
        ("X-Secret", "1"),
        ("TE", "trailers"),
        ("Transfer-Encoding", "chunked"),
        ("Upgrade", "h2c"),
        ("Expect", "100-continue"),
        ("Content-Length", "3"),
        ("X-Forwarded-Prefix", "/forged"),
        ("Authorization", "Bearer EMPTY"),
        ("Cookie", "a=1"),
        ("Cookie", "b=2"),
    ]
    assert build_request_headers(sent, "judge") == [
        ("Authorization", "Bearer EMPTY"),
        ("Cookie", "a=1"),
        ("Cookie", "b=2"),
        ("X-Forwarded-Prefix", "/judge"),
    ]


def test_repeated_headers_of_an_answer_stay_repeated() -> None:
    sent = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Connection", "close"), ("Content-Length", "5")]
    kept = build_response_headers(sent, "judge", "127.0.0.1:9")
    assert kept == [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Content-Length", "5")]


def test_a_length_beside_a_transfer_coding_is_not_passed_on() -> None:
    sent = [("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("X", "1")]
    assert build_response_headers(sent, "judge", "127.0.0.1:9") == [("X", "1")]


def test_an_answer_header_that_would_be_two_is_refused() -> None:
    with pytest.raises(ValueError, match="control"):
        build_response_headers([("X", "1\r\nSet-Cookie: forged")], "judge", "127.0.0.1:9")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://127.0.0.1:9/v1/x/", "/judge/v1/x/"),
        ("http://127.0.0.1:9", "/judge/"),
        ("http://127.0.0.1:9?q", "/judge/?q"),
        ("http://127.0.0.1:99/v1", "http://127.0.0.1:99/v1"),
        ("/v1/x", "/judge/v1/x"),
        ("/judge/v1/x", "/judge/v1/x"),
        ("/judgement", "/judge/judgement"),
        ("relative", "relative"),
        ("//other/host", "//other/host"),
        ("https://elsewhere/", "https://elsewhere/"),
    ],
)
def test_a_redirect_to_the_replica_stays_behind_the_stable_url(location: str, expected: str) -> None:
    assert build_location(location, "judge", "127.0.0.1:9") == expected


def test_only_our_own_faults_are_infra_failed() -> None:
    for refusal, is_ours in (
        (Refusal.unavailable("judge", "no replica", 0.0), True),
        (Refusal.bad_gateway("judge", "broke"), True),
        (Refusal.bad_request("unreadable"), False),
        (Refusal(404, "retinue_unknown_service", "which?"), False),
    ):
        body, headers = build_error(refusal)
        assert (dict(headers).get("X-Retinue-Outcome") == "infra_failed") is is_ours
        assert json.loads(body)["error"]["retryable"] is False


def test_since_is_a_time_people_can_read() -> None:
    body, _ = build_error(Refusal.unavailable("judge", "no replica", 1_764_520_000.5))
    assert json.loads(body)["error"]["since"] == "2025-11-30T16:26:40+00:00"
