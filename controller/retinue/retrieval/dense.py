"""Nearest vectors: the one door to faiss.

Every query is searched alone: faiss adds up in another order when it gets many at once, and a passage's score must not
depend on who else asks. Vectors have length 1, so the inner product is the cosine.
"""

import importlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retinue.errors import PermanentError, TransientError
from retinue.retrieval.foreign import Foreign
from retinue.retrieval.fusion import find_complete
from retinue.retrieval.passages import Damaged
from retinue.retrieval.records import DENSE, VECTORS, Hit, Progress

EXACT_MAX = 50_000
"""Passages up to which every vector is compared: 5 ms and less."""
TRAINED = 64
"""Vectors per list that the lists are trained on."""
LISTS_MAX = 65_536
PROBES_MIN = 16
PROBE_SHARE = 32
"""One list of so many is looked through."""
ADD_ROWS = 65_536
FLOAT_BYTES = 4


def import_faiss() -> tuple[Any, Any]:
    """Import faiss and numpy. Errors: PermanentError with what to install."""
    try:
        return importlib.import_module("faiss"), importlib.import_module("numpy")
    except ImportError as error:
        raise PermanentError(f"cannot use vectors: {error}; pip install 'retinue[retrieval]'") from None


def choose_shape(total: int, is_exact: bool | None) -> tuple[int, int]:
    """Choose (lists, probes); (0, 0): every vector is compared."""
    if is_exact if is_exact is not None else total <= EXACT_MAX:
        return 0, 0
    lists = min(LISTS_MAX, 2 ** max(4, round(math.log2(4 * math.sqrt(total)))), max(1, total // TRAINED))
    return lists, min(lists, max(PROBES_MIN, lists // PROBE_SHARE))


def build_dense(directory: Path, total: int, dimension: int, shape: tuple[int, int], progress: Progress) -> None:
    """Write the index of the vectors that are in the directory.

    Shape:  `VECTORS` holds `total` rows of `dimension` floats.
    Errors: TransientError when the file system fails.
    """
    faiss, numpy = import_faiss()
    rows = numpy.memmap(directory / VECTORS, dtype="<f4", mode="r", shape=(total, dimension))
    lists, _ = shape
    kind = f"IVF{lists},SQ8" if lists else "Flat"
    with Foreign(f"cannot write {directory / DENSE}", TransientError):
        index = faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)
        if lists:
            progress("training lists of vectors", 0, 0)
            sample = numpy.linspace(0, total - 1, min(total, lists * TRAINED)).astype("int64")
            index.train(numpy.ascontiguousarray(rows[sample]))
        for first in range(0, total, ADD_ROWS):
            index.add(numpy.ascontiguousarray(rows[first : first + ADD_ROWS]))
            progress("indexing vectors", min(total, first + ADD_ROWS), total)
        faiss.write_index(index, str(directory / DENSE))
        with open(directory / DENSE, "rb") as stream:
            os.fsync(stream.fileno())


class Dense:
    """An open index of vectors; any thread may search."""

    def __init__(self, directory: Path, dimension: int, probes: int) -> None:
        """Map it. Errors: Damaged."""
        self._faiss, self._numpy = import_faiss()
        with Foreign(f"cannot open {directory / DENSE}", Damaged):
            self._index = self._faiss.read_index(str(directory / DENSE), self._faiss.IO_FLAG_MMAP_IFC)
        if self._index.d != dimension:
            raise Damaged(f"cannot open {directory / DENSE}: vectors of {self._index.d} numbers, not {dimension}")
        if probes:
            self._index.nprobe = probes

    @property
    def count(self) -> int:
        """How many passages it has."""
        return int(self._index.ntotal)

    def prepare_thread(self) -> None:
        """Say that searches of this thread run in it alone: threads are what requests share the CPUs by."""
        self._faiss.omp_set_num_threads(1)

    def search(self, vector: Sequence[float], count: int) -> list[Hit]:
        """Find the nearest passages."""
        query = self._numpy.asarray([vector], dtype="float32")
        with Foreign("cannot search the vectors", Damaged):
            return find_complete(lambda asked: self._find(query, min(asked, max(1, self.count))), count)

    def _find(self, query: Any, asked: int) -> list[Hit]:
        scores, places = self._index.search(query, asked)
        found = zip(scores[0].tolist(), places[0].tolist(), strict=True)
        return [Hit(place, score) for score, place in found if place >= 0]
