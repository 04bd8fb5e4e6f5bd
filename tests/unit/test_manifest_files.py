"""Files: what cannot be read is one clear line, and templates are found where they should be."""

import tomllib
from pathlib import Path

import pytest

from retinue.errors import ManifestError
from retinue.manifest.files import MAX_BYTES, find_shipped, read_manifest, read_shelf, read_templates

ROOT = Path(__file__).resolve().parents[2]
HEAD = "retinue: 1\nrun: {name: x}\n"


def refuse(path: Path) -> str:
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(path), "m")


def test_a_file_that_is_not_there_and_a_directory_say_so(tmp_path: Path) -> None:
    assert refuse(tmp_path / "none.yaml") == "m: cannot read the file: no such file or directory"
    assert refuse(tmp_path) == "m: cannot read the file: is a directory"


def test_a_file_of_the_wrong_kind_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"\x7fELF\0\0\0")
    assert refuse(path) == "m: the file is binary, not YAML text; is this the right file?"
    path.write_bytes(b"retinue: 1\nrun: {name: \xe9t\xe9}\n")
    assert refuse(path) == "m:2:13: byte 0xe9 is not UTF-8; save the file as UTF-8"
    path.write_bytes("retinue: 1\n".encode("utf-16"))
    assert refuse(path) == "m:1:1: byte 0xff is not UTF-8; save the file as UTF-8"
    path.write_bytes(b"")
    assert refuse(path) == "m: the file is empty; a manifest begins with 'retinue: 1'"


def test_a_file_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    with path.open("wb") as file:
        file.truncate(100 * MAX_BYTES)
    assert refuse(path) == "m: the file is larger than 4 MiB; is this the right file?"


def test_a_teams_directory_is_relative_to_the_manifest_and_comes_before_the_shipped_ones(tmp_path: Path) -> None:
    team = tmp_path / "team"
    team.mkdir()
    (team / "command.yaml").write_text("template: 1\ndescription: ours\nservice: {command: [ours]}\n")
    manifest = tmp_path / "m.yaml"
    manifest.write_text(f"{HEAD}templates: [team]\nservices: {{a: {{template: command}}}}\n")
    assert read_manifest(manifest).services["a"].command == ("ours",)
    shelf = read_shelf(["team"], tmp_path)
    assert {"command", "http-server"} <= set(shelf.texts)
    assert shelf.unreadable == {}


def test_a_team_directory_that_is_missing_and_a_broken_file_in_one_are_findings(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "bad.yaml").write_bytes(b"\xff")
    manifest = tmp_path / "m.yaml"
    manifest.write_text(f"{HEAD}templates: [none, odd]\nservices: {{a: {{command: [x]}}}}\n")
    assert refuse(manifest) == (
        "m:3:13: templates.none: cannot read 'none': no such file or directory\n"
        f"m:3:19: templates.odd: cannot read 'odd': {tmp_path}/odd/bad.yaml:1:1: byte 0xff is not UTF-8; "
        "save the file as UTF-8"
    )


def test_the_resolved_manifest_does_not_need_the_teams_directory_any_more(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    manifest = tmp_path / "m.yaml"
    manifest.write_text(f"{HEAD}templates: [team]\nservices: {{a: {{command: [x]}}}}\n")
    assert read_manifest(manifest).templates == ()


def test_every_shipped_template_is_right_and_can_be_used(tmp_path: Path) -> None:
    given = {"http-server": "{directory: /srv}", "command": "{argv: [sleep, 1, '{port}']}"}
    names = [read.name for read in read_templates()]
    assert set(given) <= set(names)
    for name, parameters in given.items():
        manifest = tmp_path / "m.yaml"
        manifest.write_text(f"{HEAD}services: {{a: {{template: {name}, with: {parameters}}}}}\n")
        assert read_manifest(manifest).services["a"].has_port


def test_every_file_shipped_on_top_and_every_room_is_in_the_wheel() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = (ROOT / "controller").rglob("__init__.py")
    rooms = [".".join(init.parent.relative_to(ROOT / "controller").parts) for init in packages]
    shipped = [name for name in ("sbatch", "templates") if any(find_shipped(name).glob("[!.]*"))]
    assert "templates" in shipped
    assert sorted(setuptools["packages"]) == sorted([*rooms, *(f"retinue._share.{name}" for name in shipped)])
    for name in shipped:
        assert setuptools["package-dir"][f"retinue._share.{name}"] == name
        patterns = setuptools["package-data"][f"retinue._share.{name}"]
        found = {file for pattern in patterns for file in (ROOT / name).glob(pattern)}
        assert found == set((ROOT / name).glob("[!.]*"))
