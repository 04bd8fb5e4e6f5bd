"""The room's one door to the disk: reads manifests and templates, finds what is shipped.

Everything else in this room is pure. Never writes.
"""

from collections.abc import Sequence
from pathlib import Path

from retinue.errors import Finding, ManifestError
from retinue.manifest.load import load_manifest
from retinue.manifest.schema import Manifest
from retinue.manifest.template import ReadTemplate, Shelf, parse_template

MAX_BYTES = 4 * 2**20
"""A manifest is written by hand; something larger is another file."""


def read_manifest(path: Path) -> Manifest:
    """Read, check and resolve a manifest file.

    Errors: ManifestError with every finding; a file that cannot be read is one too.
    """
    text = read_text(path)
    return load_manifest(text, str(path), lambda directories: read_shelf(directories, path.parent))


def read_text(path: Path) -> str:
    """Read a text file of at most 4 MiB.

    Errors: ManifestError says why it cannot be read: missing, a directory, too large, binary, not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise _unreadable(path, f"cannot read the file: {why}") from None
    if len(data) > MAX_BYTES:
        raise _unreadable(path, f"the file is larger than {MAX_BYTES // 2**20} MiB", "is this the right file?")
    if b"\0" in data[:8192] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(path, "the file is binary, not YAML text", "is this the right file?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        what = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise ManifestError(str(path), [Finding(line, column, "", what, "save the file as UTF-8")]) from None


def _unreadable(path: Path, what: str, hint: str = "") -> ManifestError:
    return ManifestError(str(path), [Finding(0, 0, "", what, hint)])


def find_shipped(name: str) -> Path:
    """Find a directory that is shipped with the package: `templates` or `sbatch`.

    Shape: in a wheel `retinue/_share/<name>`; in a checkout the top-level directory people edit.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "_share" / name
    return installed if installed.is_dir() else package.parents[1] / name


def read_shelf(directories: Sequence[str], relative_to: Path) -> Shelf:
    """Read every template of the directories, then the shipped ones; of two with one name the first counts."""
    texts: dict[str, tuple[str, str]] = {}
    unreadable: dict[str, str] = {}
    for asked in (*directories, ""):
        directory = relative_to / asked if asked else find_shipped("templates")
        try:
            files = sorted(file for file in directory.iterdir() if file.suffix == ".yaml")
        except OSError as error:
            unreadable[asked or str(directory)] = (error.strerror or type(error).__name__).lower()
            continue
        for file in files:
            try:
                texts.setdefault(file.stem, (str(file), read_text(file)))
            except ManifestError as error:
                unreadable[asked or str(directory)] = str(error)
    return Shelf(texts, unreadable)


def read_templates(directories: Sequence[str] = (), relative_to: Path = Path()) -> list[ReadTemplate]:
    """Read and check all templates, by name: for `retinue template list` and `show`.

    Errors: ManifestError of the first template that is wrong.
    """
    shelf = read_shelf(directories, relative_to)
    for directory, why in shelf.unreadable.items():
        raise ManifestError(directory, [Finding(0, 0, "", f"cannot read templates: {why}")])
    return [parse_template(text, name, file) for name, (file, text) in sorted(shelf.texts.items())]
