"""While a file is being replaced, what readers see is the older one, whole."""

from pathlib import Path

import pytest

from retinue.journal import files


def test_a_reader_in_the_middle_of_a_replacement_sees_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(b"older")
    seen: list[bytes] = []

    def write_with_reader(descriptor: int, content: bytes) -> tuple[int, OSError | None]:
        half = len(content) // 2
        seen.append(path.read_bytes())
        write_some(descriptor, content[:half])
        seen.append(path.read_bytes())
        return write_some(descriptor, content[half:])

    write_some = files.write_some
    monkeypatch.setattr(files, "write_some", write_with_reader)
    files.replace_file(str(path), b"newer and longer", 0o600)
    assert seen == [b"older", b"older"]
    assert path.read_bytes() == b"newer and longer"
