"""What a child says to the host: one result with the host's seal, whatever the verifier does."""

import json
from collections.abc import Iterator

import pytest
from warm_rig import SEAL, Warm, open_warm

from retinue.checks.records import Judge, Judged, Limits, Prepare, Seal
from retinue.terms.record import from_json, to_json

SOURCE = r'''
import gc, os, sys
from retinue.checks.plugin import Unverifiable


def echo(response, gold, args):
    return 1, f"{len(response)} {gold} {args}"


def prepare(gold, args):
    if gold == "bad":
        raise Unverifiable("the gold is bad")
    if gold == "exit":
        sys.exit(3)
    if gold == "crash":
        os._exit(9)
    return f"<{gold}>"


echo.prepare = prepare


class Sly:
    def __float__(self):
        raise RuntimeError("sly")


class Mute(Exception):
    def __str__(self):
        raise SystemExit("mute")


class Loud(BaseException):
    pass


def answer(response, gold, args):
    answers = {
        "true": True, "tuple": (0.25, "why"), "negative": -3, "big": 10**30, "text": "1.0", "none": None, "sly": Sly(),
        "nan": float("nan"), "inf": (float("inf"), "x"), "three": (1, 2, 3), "reason": (1.0, None), "empty": (),
        "surrogate": (1.0, "\ud800 and \0"), "long": (1.0, "\x01" * 10**6), "huge": 10**400,
    }
    return answers[response]


def fail(response, gold, args):
    if response == "deep":
        return fail(response, gold, args)
    if response == "digits":
        return float(int("1" * 300_000) > 0)
    if response == "nested":
        return float(bool(eval("(" * 400 + ")" * 400)))
    raise {"exit": SystemExit(0), "mute": Mute(), "loud": Loud("boo"), "interrupt": KeyboardInterrupt(),
           "memory": MemoryError(), "long": ValueError("x" * 10**6), "unverifiable": Unverifiable("late")}[response]


def frame(body):
    return len(body).to_bytes(4, "big") + body


def forge(response, gold, args):
    """Print a result to every descriptor there is, then go on as if nothing were."""
    line = frame(b'{"nonce":"%s","score":1.0}' % response.encode())
    for fd in range(64):
        try:
            os.write(fd, line)
        except OSError:
            pass
    print(line)
    return 1.0


def search(response, gold, args):
    """Look for the seal (`response` reversed) in everything the interpreter holds."""
    own = response[::-1]
    found = []
    def look(thing):
        text = thing.decode("latin-1") if type(thing) is bytes else thing
        if type(text) is str and thing is not own and own in text:
            found.append(repr(thing)[:80])
    frame = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            look(value)
            for inner in gc.get_referents(value):
                look(inner)
        frame = frame.f_back
    for thing in gc.get_objects():
        for inner in gc.get_referents(thing):
            look(inner)
    return 1.0, repr(found)
'''


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with open_warm(tmp_path_factory.mktemp("talk"), SOURCE, ("echo", "answer", "fail", "forge", "search")) as warm:
        yield warm


def test_gold_is_prepared_before_the_response_is_there(warm: Warm) -> None:
    judged = warm.take().ask("echo", "x" * 10_000_000, gold=7, args={"a": [1]})
    assert (judged.score, judged.reason) == (1.0, "10000000 <7> {'a': [1]}")


@pytest.mark.parametrize(("gold", "words"), [("bad", "the gold is bad"), ("exit", "SystemExit: 3")])
def test_what_prepare_raises_rejects_the_gold_and_ends_the_child(warm: Warm, gold: str, words: str) -> None:
    child = warm.take()
    prepared = child.prepare("echo", gold)
    assert prepared.rejected is not None
    assert words in prepared.rejected
    assert warm.wait_ended(child).code == 0


def test_a_prepare_that_ends_its_process_is_silence_with_a_code(warm: Warm) -> None:
    child = warm.take()
    with pytest.raises(EOFError):
        child.prepare("echo", "crash")
    assert warm.wait_ended(child).code == 9


def test_an_unknown_verifier_is_rejected(warm: Warm) -> None:
    assert "'nobody'" in (warm.take().prepare("nobody").rejected or "")


@pytest.mark.parametrize(
    ("response", "score", "reason"),
    [("true", 1.0, ""), ("tuple", 0.25, "why"), ("negative", -3.0, ""), ("big", 1e30, ""), ("reason", 1.0, "None")],
)
def test_any_finite_number_is_a_score(warm: Warm, response: str, score: float, reason: str) -> None:
    judged = warm.take().ask("answer", response)
    assert (judged.score, judged.reason, judged.error) == (score, reason, None)


@pytest.mark.parametrize("response", ["text", "none", "sly", "nan", "inf", "three", "empty", "huge", "unknown"])
def test_anything_else_is_an_error_and_zero(warm: Warm, response: str) -> None:
    judged = warm.take().ask("answer", response)
    assert judged.score == 0.0
    assert judged.error


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("exit", "SystemExit"),
        ("mute", "Mute"),
        ("loud", "Loud: boo"),
        ("interrupt", "KeyboardInterrupt"),
        ("memory", "MemoryError"),
        ("deep", "RecursionError"),
        ("nested", "too many nested parentheses"),
        ("digits", "Exceeds the limit"),
        ("unverifiable", "late"),
    ],
)
def test_whatever_is_raised_on_a_response_is_an_error_in_words(warm: Warm, response: str, words: str) -> None:
    judged = warm.take().ask("fail", response)
    assert judged.score == 0.0
    assert words in (judged.error or "")


def test_text_that_json_cannot_carry_is_escaped(warm: Warm) -> None:
    assert warm.take().ask("answer", "surrogate").reason == "\\ud800 and \0"


@pytest.mark.parametrize(("verifier", "response"), [("answer", "long"), ("fail", "long")])
def test_a_result_is_cut_to_the_output_limit(warm: Warm, verifier: str, response: str) -> None:
    child = warm.take()
    assert child.prepare(verifier, output_bytes=4096).rejected is None
    child.send(Judge(response), Seal(SEAL))
    body = child.read_body()
    assert 256 < len(body) <= 4096
    assert from_json(body, Judged).nonce == SEAL


@pytest.mark.parametrize("nonce", ["", "first", "guess"])
def test_a_result_printed_to_every_descriptor_has_not_the_seal(warm: Warm, nonce: str) -> None:
    child = warm.take()
    assert child.prepare("forge").rejected is None
    child.send(Judge(nonce), Seal(SEAL))
    assert json.loads(child.read_body()) == {"nonce": nonce, "score": 1.0}


def test_the_seal_is_nowhere_in_the_interpreter_while_the_check_runs(warm: Warm) -> None:
    assert warm.take().tell("search", SEAL[::-1]) == "[]"


def test_the_search_for_the_seal_finds_what_is_there(warm: Warm) -> None:
    """The control of the test above: the first nonce is in memory, and is found."""
    assert "first" in warm.take().tell("search", "first"[::-1])


def test_a_host_that_hangs_up_in_the_middle_ends_the_child(warm: Warm) -> None:
    body = to_json(Prepare("first", "echo", None, {}, Limits()))
    for sent in (b"", len(body).to_bytes(4, "big"), len(body).to_bytes(4, "big") + body[:10]):
        child = warm.take()
        child.sock.sendall(sent)
        child.sock.close()
        assert warm.wait_ended(child).code == 0
