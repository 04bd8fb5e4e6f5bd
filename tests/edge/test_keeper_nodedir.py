"""The node directory is ours alone, and removing it removes nothing else."""

import os
import subprocess
from pathlib import Path

import pytest
from keeper_rig import running_node

from retinue.errors import PermanentError
from retinue.node.nodedir import claim_node_dir, remove_node_dir


@pytest.fixture
def node_dir(tmp_path: Path) -> Path:
    return tmp_path / "node"


def test_a_new_directory_is_private_and_goes_away_whole(node_dir: Path) -> None:
    os.close(claim_node_dir(node_dir))
    assert node_dir.stat().st_mode & 0o777 == 0o700
    assert remove_node_dir(node_dir) == []
    assert not node_dir.exists()
    assert remove_node_dir(node_dir) == []


def test_the_controllers_part_is_never_touched(node_dir: Path) -> None:
    (node_dir / "controller").mkdir(parents=True)
    node_dir.chmod(0o700)
    (node_dir / "controller" / "run.json").write_text("{}")
    (node_dir / "leftover").write_text("of a dead launch")
    os.close(claim_node_dir(node_dir))
    assert sorted(os.listdir(node_dir)) == ["controller", "outer.lock"]
    assert remove_node_dir(node_dir) == []
    assert os.listdir(node_dir) == ["controller"]
    assert (node_dir / "controller" / "run.json").read_text() == "{}"


def test_a_directory_in_use_is_refused_until_its_owner_is_gone(node_dir: Path) -> None:
    lock_fd = claim_node_dir(node_dir)
    (node_dir / "agent.log").write_text("alive")
    with pytest.raises(PermanentError, match="another keeper"):
        claim_node_dir(node_dir)
    assert (node_dir / "agent.log").exists()
    os.close(lock_fd)
    os.close(claim_node_dir(node_dir))


def test_a_link_a_file_and_an_open_directory_are_refused(tmp_path: Path, node_dir: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    node_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermanentError, match="not a directory"):
        claim_node_dir(node_dir)
    node_dir.unlink()
    node_dir.write_text("")
    with pytest.raises(PermanentError, match="not a directory"):
        claim_node_dir(node_dir)
    node_dir.unlink()
    node_dir.mkdir()
    node_dir.chmod(0o755)
    with pytest.raises(PermanentError, match="0755"):
        claim_node_dir(node_dir)
    with pytest.raises(PermanentError, match="No such file"):
        claim_node_dir(tmp_path / "missing" / "node")


@pytest.mark.root
def test_somebody_elses_directory_is_refused(node_dir: Path) -> None:
    node_dir.mkdir(mode=0o700)
    os.chown(node_dir, 12345, 12345)
    with pytest.raises(PermanentError, match="uid 12345"):
        claim_node_dir(node_dir)


def test_removal_follows_no_link_and_opens_closed_directories(tmp_path: Path, node_dir: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    os.close(claim_node_dir(node_dir))
    (node_dir / "link").symlink_to(outside)
    (node_dir / "work" / "work").mkdir(parents=True)
    (node_dir / "work" / "work").chmod(0)
    (node_dir / "closed" / "inner").mkdir(parents=True)
    (node_dir / "closed").chmod(0o500)
    assert remove_node_dir(node_dir) == []
    assert not node_dir.exists()
    assert (outside / "precious").read_text() == "kept"


def test_a_tree_deeper_than_stack_and_descriptors_is_removed(node_dir: Path) -> None:
    os.close(claim_node_dir(node_dir))
    fd = os.open(node_dir, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    assert remove_node_dir(node_dir) == []
    assert not node_dir.exists()


def test_another_file_system_below_it_is_not_entered(node_dir: Path) -> None:
    os.close(claim_node_dir(node_dir))
    script = (
        "mkdir $0/mounted && mount -t tmpfs none $0/mounted && touch $0/mounted/precious && "
        "python3 -c 'import sys; from pathlib import Path; from retinue.node.nodedir import remove_node_dir; "
        "print(remove_node_dir(Path(sys.argv[1])))' $0 && ls $0/mounted"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "controller")}
    argv = ["unshare", "-Urm", "sh", "-c", script, str(node_dir)]
    output = subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout
    assert "another file system" in output
    assert output.endswith("precious\n")


def test_a_node_whose_directory_is_refused_says_so_in_its_one_line() -> None:
    with running_node(prepare=lambda node_dir: node_dir.mkdir(mode=0o755)) as node:
        code, report = node.finish()
        assert (code, report["clean"], report["rung"]) == (8, True, "")
        assert "its mode is 0755" in report["note"]
        assert node.marked_pids() == []


def test_a_node_leaves_the_controllers_part_behind() -> None:
    def prepare(node_dir: Path) -> None:
        (node_dir / "controller").mkdir(parents=True)
        node_dir.chmod(0o700)

    with running_node(prepare=prepare) as node:
        node.first_agent()
        assert (node.node_dir / "join.pem").stat().st_mode & 0o777 == 0o600
        node.stop()
        code, report = node.finish()
        assert (code, report["clean"]) == (0, True)
        assert [path.name for path in node.node_dir.iterdir()] == ["controller"]
