"""Settings of the host that change under a run: each change is told once, against what the node started with."""

from pathlib import Path

from retinue.node.host_settings import (
    SETTINGS,
    Drift,
    DriftWatch,
    has_drifted,
    read_baseline,
    read_settings,
    write_baseline,
)
from retinue.node.host_watch import build_note


def write_setting(root: Path, name: str, text: str) -> None:
    path = root / name.replace(".", "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def build_root(where: Path) -> Path:
    root = where / "sys"
    write_setting(root, "kernel.core_pattern", "core")
    write_setting(root, "kernel.pid_max", "32768")
    write_setting(root, "net.ipv4.ip_local_port_range", "32768\t60999")
    return root


def test_what_the_kernel_does_not_have_is_left_out_and_blanks_are_one(tmp_path: Path) -> None:
    assert read_settings(root=build_root(tmp_path)) == {
        "kernel.core_pattern": "core",
        "kernel.pid_max": "32768",
        "net.ipv4.ip_local_port_range": "32768 60999",
    }


def test_the_list_names_no_setting_twice_and_has_what_a_program_that_got_out_would_change() -> None:
    assert len(SETTINGS) == len(set(SETTINGS))
    assert {"kernel.core_pattern", "kernel.modprobe", "fs.binfmt_misc.status", "user.max_user_namespaces"} <= set(
        SETTINGS
    )


def test_a_change_is_told_once_and_the_change_back_again(tmp_path: Path) -> None:
    root = build_root(tmp_path)
    watch = DriftWatch(read_settings(root=root), root)
    assert watch.find_new() == ()
    write_setting(root, "kernel.core_pattern", "|/tmp/x")
    assert watch.find_new() == (Drift("kernel.core_pattern", "core", "|/tmp/x"),)
    assert watch.find_new() == ()
    write_setting(root, "kernel.core_pattern", "core")
    assert watch.find_new() == (Drift("kernel.core_pattern", "|/tmp/x", "core"),)


def test_a_setting_that_comes_or_goes_is_a_change(tmp_path: Path) -> None:
    root = build_root(tmp_path)
    watch = DriftWatch(read_settings(root=root), root)
    write_setting(root, "kernel.modprobe", "/sbin/modprobe")
    (root / "kernel" / "pid_max").unlink()
    assert watch.find_new() == (Drift("kernel.modprobe", "", "/sbin/modprobe"), Drift("kernel.pid_max", "32768", ""))


def test_an_agent_that_starts_again_measures_against_what_the_first_one_saw(tmp_path: Path) -> None:
    root, node_dir = build_root(tmp_path), str(tmp_path)
    first = write_baseline(node_dir, root)
    write_setting(root, "kernel.pid_max", "400")
    assert write_baseline(node_dir, root) == first == read_baseline(node_dir)
    assert DriftWatch(first, root).find_new() == (Drift("kernel.pid_max", "32768", "400"),)


def test_a_service_asks_whether_the_host_is_still_what_it_was(tmp_path: Path) -> None:
    root = build_root(tmp_path)
    baseline = write_baseline(str(tmp_path), root)
    assert not has_drifted(baseline, root)
    write_setting(root, "kernel.core_pattern", "|/tmp/x")
    assert has_drifted(baseline, root) == (Drift("kernel.core_pattern", "core", "|/tmp/x"),)


def test_no_baseline_is_said_and_not_taken_for_no_change(tmp_path: Path) -> None:
    assert read_baseline(str(tmp_path)) is None
    (tmp_path / "host-settings.json").write_text("{half")
    assert read_baseline(str(tmp_path)) is None


def test_the_event_says_what_it_was_and_what_it_is() -> None:
    note = build_note(Drift("kernel.core_pattern", "core", ""))
    assert (note.what, note.role) == ("HostSettingChanged kernel.core_pattern", "security")
    assert "'core'" in note.reason
    assert "not there" in note.reason
