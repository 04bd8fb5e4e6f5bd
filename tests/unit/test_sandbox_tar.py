"""The tar stream reader believes nothing, and reads what GNU tar and Python write; the writer is read by both."""

import io
import random
import tarfile
import tracemalloc

import pytest

from retinue.sandbox import tar_write
from retinue.sandbox.tar_header import BadTar, parse_number
from retinue.sandbox.tar_read import EXTRA_MAX_BYTES, Kind, Member, TarStream

Found = list[tuple[Member, bytes]]


def read_all(data: bytes, piece_bytes: int = 1 << 20) -> Found:
    """Everything in an archive that comes in pieces."""
    stream = TarStream()
    found: Found = []

    def consume():  # type: ignore[no-untyped-def]
        while (member := (yield from stream.read_member())) is not None:
            content = yield from stream.read(member.data_bytes)
            yield from stream.skip(-member.data_bytes % 512)
            found.append((member, content))

    work = consume()
    pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    for number, piece in enumerate(pieces or [b""]):
        stream.feed(piece, number >= len(pieces) - 1)
        if next(work, "done") == "done":
            break
    return found


def make_header(name: bytes = b"a", kind: bytes = b"0", size: int = 0, **changes: bytes) -> bytes:
    """A header; changes: what stands at an offset instead (`at124=...`), with the checksum made good."""
    block = bytearray(tar_write.build_header(kind, name, 0o644, 0, size))
    for place, value in changes.items():
        at = int(place.removeprefix("at"))
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def make_pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    data = b"".join(tar_write._build_record(*record) for record in records)
    return make_header(b"pax", kind, len(data)) + data + tar_write.pad(len(data))


def python_tar(form: int, name: str, link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as tar:
        member = tarfile.TarInfo(name)
        member.mtime, member.size = 1_600_000_000, 3
        tar.addfile(member, io.BytesIO(b"abc"))
        if link:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            tar.addfile(member)
    return buffer.getvalue()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["a", "d/" * 100 + "x", "x" * 255, "line\nbreak", "ümlaut" * 30, "bad\udcff" * 40])
@pytest.mark.parametrize("piece_bytes", [1 << 20, 513, 7])
def test_names_of_all_kinds_come_through_whatever_wrote_them(form: int, name: str, piece_bytes: int) -> None:
    raw = name.encode(errors="surrogateescape")
    (file, content), (link, _) = read_all(python_tar(form, name, "to/" + name), piece_bytes)
    assert (file.name, file.kind, content, file.mtime_ns) == (raw, Kind.FILE, b"abc", 1_600_000_000 * 10**9)
    assert (link.kind, link.link) == (Kind.SYMLINK, b"to/" + raw)


@pytest.mark.parametrize("name", [b"a", b"d/" * 100 + b"x", b"line\nbreak", b"bad\xff" * 40, b"n" * 100, b"n" * 101])
def test_what_is_written_python_reads_the_same(name: bytes) -> None:
    data = tar_write.build_header(tar_write.FILE, name, 0o4751, 1_600_000_000, 3) + b"abc" + tar_write.pad(3)
    data += tar_write.build_header(tar_write.SYMLINK, b"l", 0o777, -5, link=name) + tar_write.END
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        file, link = tar.getmembers()
        assert file.name.encode(errors="surrogateescape") == name
        assert (file.mode, file.mtime, tar.extractfile(file).read()) == (0o4751, 1_600_000_000, b"abc")  # type: ignore[union-attr]
        assert (link.linkname.encode(errors="surrogateescape"), link.mtime) == (name, -5)
    assert [member.name for member, _ in read_all(data)] == [name, b"l"]


def test_a_size_that_no_octal_field_holds_goes_into_a_pax_header() -> None:
    (header,) = read_all(tar_write.build_header(tar_write.SYMLINK, b"s", 0, 0, 2**40) + tar_write.END)
    assert header[0].kind is Kind.SYMLINK
    block = tar_write.build_header(tar_write.FILE, b"s", 0, 0, 2**40)
    with tarfile.open(fileobj=io.BytesIO(block), mode="r|") as tar:
        assert tar.next().size == 2**40  # type: ignore[union-attr]


@pytest.mark.parametrize("length", [90, 95, 96, 97, 98, 99, 100, 985, 990, 995])
def test_a_pax_record_counts_its_own_length(length: int) -> None:
    record = tar_write._build_record(b"path", b"x" * length)
    assert int(record.split(b" ")[0]) == len(record)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b"x", "cut short"),
        (b"\x1f\x8b" + bytes(510), "gzip"),
        (b"PK\x03\x04" + bytes(510), "zip"),
        (b"hello" * 200, "checksum"),
        (make_header(), "cut short"),
        (make_header(size=3) + b"ab", "cut short"),
        (make_header(at124=b"\xff" * 12), "bytes"),
        (make_header(at124=b"\x80" + b"\x7f" * 11), "bytes"),
        (make_header(at124=b"99999999999\0"), "none"),
        (make_header(kind=b"L", size=EXTRA_MAX_BYTES + 1), "is the most"),
        (make_header(kind=b"x", at124=b"\x80" + b"\0" * 5 + b"\xff" * 6), "is the most"),
        (make_header(kind=b"x", size=0) * 17, "more than 16"),
        (make_pax((b"path", b"a")) + tar_write.END, "announced"),
        (make_pax((b"path", b"a\0b")) + make_header(), "NUL"),
        (make_pax((b"size", b"-1")) + make_header(), "none"),
        (make_pax((b"size", b"9" * 5000)) + make_header(), "none"),
        (make_pax((b"mtime", b"1e9")) + make_header(), "none"),
        (make_header(b"p", b"x", 5) + b"99 a=" + bytes(507) + make_header(), "pax"),
        (make_header(b"p", b"x", 5) + b"x a=b" + bytes(507) + make_header(), "none"),
        (make_pax((b"GNU.sparse.map", b"0,5,3,5"), (b"GNU.sparse.size", b"20")) + make_header(size=10), "order"),
        (make_pax((b"GNU.sparse.map", b"0,5,9"), (b"GNU.sparse.size", b"20")) + make_header(size=5), "odd"),
        (make_pax((b"GNU.sparse.map", b"0,5"), (b"GNU.sparse.size", b"4")) + make_header(size=5), "fit"),
        (make_pax((b"GNU.sparse.map", b"0,5"), (b"GNU.sparse.size", b"9")) + make_header(size=6), "fit"),
        (make_pax((b"GNU.sparse.size", b"20")) + make_header(size=10), "without a map"),
        (
            make_pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9"))
            + make_header(size=1024)
            + b"99999999999\n".ljust(1024, b"\0"),
            "pieces",
        ),
        (
            make_pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9"))
            + make_header(size=512)
            + b"9\n".ljust(1024, b"\0"),
            "no end",
        ),
    ],
)
def test_an_archive_that_is_none_says_what_is_wrong(data: bytes, word: str) -> None:
    with pytest.raises(BadTar, match=word):
        read_all(data)


def test_what_is_announced_to_be_huge_is_not_waited_for_in_memory() -> None:
    data = make_header(kind=b"x", size=EXTRA_MAX_BYTES) + bytes(1024) + make_header(size=2**33) + bytes(4096)
    tracemalloc.start()
    with pytest.raises(BadTar):
        read_all(data)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_global_header_may_set_the_time_and_never_a_name() -> None:
    data = make_pax((b"path", b"evil"), (b"mtime", b"7"), (b"size", b"9"), kind=b"g") + make_header(b"x")
    ((member, _),) = read_all(data + tar_write.END)
    assert (member.name, member.mtime_ns, member.data_bytes) == (b"x", 7 * 10**9, 0)


def test_unknown_types_are_passed_over_with_their_data_and_links_have_none() -> None:
    data = make_header(b"m", b"M", 3) + b"abc" + bytes(509) + make_header(b"l", b"2", 7) + make_header(b"f")
    assert [(m.name, m.kind, m.data_bytes) for m, _ in read_all(data + tar_write.END)] == [
        (b"m", Kind.OTHER, 3),
        (b"l", Kind.SYMLINK, 0),
        (b"f", Kind.FILE, 0),
    ]


def test_a_time_beyond_what_file_systems_keep_is_cut() -> None:
    header = make_header(at136=b"\x80" + b"\x7f" * 11)
    assert read_all(header + tar_write.END)[0][0].mtime_ns == 2**33 * 10**9
    pax = make_pax((b"mtime", b"1600000000.123456789999")) + make_header()
    assert read_all(pax + tar_write.END)[0][0].mtime_ns == 1_600_000_000_123_456_789
    assert read_all(make_pax((b"mtime", b"-1.5")) + make_header() + tar_write.END)[0][0].mtime_ns == 0


def test_numbers_of_old_programs_are_read() -> None:
    assert [parse_number(text) for text in (b" 644 \0", b"\0" * 8, b"0000644\0", b"\x80\0\0\1\0", b"\xff\xff")] == [
        0o644,
        0,
        0o644,
        256,
        -1,
    ]


def test_damage_anywhere_is_an_error_or_another_archive_never_a_crash() -> None:
    whole = bytearray(python_tar(tarfile.PAX_FORMAT, "ü" * 80, "x" * 200) + python_tar(tarfile.GNU_FORMAT, "y" * 150))
    chance = random.Random(5)
    outcomes = set()
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 0x20, 0x30, 0x39, 0x80, 0xFF))
        try:
            read_all(bytes(damaged[: chance.randint(0, len(damaged))]), chance.choice((512, 700, 1 << 20)))
            outcomes.add("read")
        except BadTar:
            outcomes.add("bad")
    assert outcomes == {"read", "bad"}
