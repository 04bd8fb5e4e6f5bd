"""What callers of `POST /retrieve` send, in every dialect that is spoken, checked; and what they get. Pure.

Source: Search-R1's retrieval_server and retrieval_rerank_server, and the callers in verl, slime and SkyRL.
"""

from collections.abc import Sequence

from retinue.retrieval.index import Found, Wanted
from retinue.retrieval.records import Method
from retinue.retrieval.settings import PASSAGES_MAX, QUERIES_MAX, TOP_K_MAX
from retinue.serving.faults import Fault
from retinue.serving.lenient import read_lenient
from retinue.terms.record import Record, to_json

RERANK_CANDIDATES, RERANK_COUNT = 10, 3
"""What Search-R1's reranking server takes where the request does not say."""


class RetrieveRequest(Record, frozen=True):
    """The body. What is not named here is ignored."""

    queries: list[str] | str | None = None
    query: list[str] | str | None = None
    """SkyRL's name, with one text."""
    topk: int | None = None
    top_k: int | None = None
    topk_retrieval: int | None = None
    topk_rerank: int | None = None
    return_scores: bool | None = None
    method: Method | None = None
    """Ours."""


def parse_request(body: bytes, default_count: int, methods: Sequence[Method], default: Method) -> list[Wanted]:
    """Read and check a request.

    Shape:  one for each query, in their order.
    Errors: Fault 400 names the field, 413 what is too much.
    """
    try:
        request = read_lenient(body, RetrieveRequest)
    except RecursionError:
        raise _refuse("cannot read the body: it is nested too deeply") from None
    except ValueError as error:
        raise _refuse(f"cannot read the body: {error}") from None
    queries = _find_queries(request)
    count, candidates = _find_counts(request, default_count)
    method = request.method or default
    if method not in methods:
        raise _refuse(f"cannot search by {method.value}: this service has {', '.join(one.value for one in methods)}")
    if len(queries) > QUERIES_MAX:
        raise Fault(413, "retrieval_too_many", f"cannot take {len(queries)} queries at once: at most {QUERIES_MAX}")
    if len(queries) * max(count, candidates) > PASSAGES_MAX:
        raise Fault(
            413, "retrieval_too_many", f"cannot give {len(queries)} x {max(count, candidates)} passages in one answer"
        )
    with_scores = bool(request.return_scores)
    return [Wanted(text, count, candidates, method, with_scores) for text in queries]


def build_piece(wanted: Wanted, found: list[Found]) -> bytes:
    """Build what one query gets: `{"document", "score"}` each with scores, the bare documents without."""
    return to_json(found if wanted.with_scores else [one.document for one in found])


def build_reply(pieces: Sequence[bytes]) -> bytes:
    """Build the answer of the queries' pieces."""
    return b'{"result":[' + b",".join(pieces) + b"]}\n"


def _find_queries(request: RetrieveRequest) -> list[str]:
    given = [value for value in (request.queries, request.query) if value is not None]
    if len(given) != 1:
        raise _refuse("cannot tell what to search for: give `queries`, a list of texts, or `query`, one text")
    return [given[0]] if isinstance(given[0], str) else given[0]


def _find_counts(request: RetrieveRequest, default: int) -> tuple[int, int]:
    """Give (passages per query, candidates before reranking; 0: nobody said)."""
    plain = request.topk if request.topk is not None else request.top_k
    if request.topk_retrieval is None and request.topk_rerank is None:
        return _check_count("topk", default if plain is None else plain), 0
    candidates = RERANK_CANDIDATES if request.topk_retrieval is None else request.topk_retrieval
    count = next(given for given in (request.topk_rerank, plain, RERANK_COUNT) if given is not None)
    _check_count("topk_rerank", count)
    return min(count, _check_count("topk_retrieval", candidates)), candidates


def _check_count(name: str, count: int) -> int:
    if not 1 <= count <= TOP_K_MAX:
        raise _refuse(f"cannot use {name} of {count}: it is 1 to {TOP_K_MAX}")
    return count


def _refuse(message: str) -> Fault:
    return Fault(400, "retrieval_bad_request", message)
