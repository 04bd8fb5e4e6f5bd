"""The files of a cluster, all in its state directory: Slurm's configuration, hosts, passwd, munge key, fake GPUs."""

import os
import secrets
import stat
from pathlib import Path

from bench.layout import GPUS_PER_NODE, LOGIN, OTHER_UID, OTHER_USER, Layout

SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={login}({login_address})
SlurmUser=root
AuthType=auth/munge
# A requeued job waits until its old credential has expired: 120 s unless told.
AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=20
StateSaveLocation={state}/slurmctld
SlurmdSpoolDir={state}/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={state}/log/slurmctld.log
SlurmdLogFile={state}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=256
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=30
SlurmctldTimeout=30
KillWait=5
SchedulerParameters=bf_interval=2,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node[1-{count}] NodeAddr=10.78.0.[1-{count}] CPUs=8 CoresPerSocket=8 RealMemory=16000 Gres=gpu:{gpus}
PartitionName=batch Nodes=ALL Default=YES State=UP MaxTime=60 PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL State=UP MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=low-cancel Nodes=ALL State=UP MaxTime=60 PriorityTier=1 PreemptMode=CANCEL GraceTime=5
PartitionName=high Nodes=ALL State=UP MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""

CGROUP_CONF = "CgroupPlugin={plugin}\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"


def build_slurm_conf(layout: Layout) -> str:
    return SLURM_CONF.format(
        name=layout.name,
        login=LOGIN,
        login_address=layout.address(LOGIN, 1),
        state=layout.state,
        proctrack=layout.proctrack,
        count=layout.node_count,
        gpus=GPUS_PER_NODE,
    )


def build_hosts(layout: Layout, host: str, is_loopback: bool = False) -> str:
    """The hosts file of one host; `is_loopback` gives its own name 127.0.1.1, as Debian's installer does."""
    lines = ["127.0.0.1 localhost", "::1 ip6-localhost"]
    for other in layout.hosts:
        own = other == host and is_loopback
        lines.append(f"{'127.0.1.1' if own else layout.address(other, 0)} {other}")
        lines.append(f"{layout.address(other, 1)} {other}-b")
    return "\n".join(lines) + "\n"


def build_passwd(layout: Layout) -> str:
    """This machine's users, with the test users' homes on the shared file system and one user more."""
    ids = layout.ids
    kept = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in ids]
    ours = [f"{user}:x:{uid}:{gid}::{layout.home(user)}:/bin/bash" for user, (uid, gid) in ids.items()]
    return "\n".join(kept + ours) + "\n"


def build_group() -> str:
    kept = [line for line in Path("/etc/group").read_text().splitlines() if line.split(":")[0] != OTHER_USER]
    return "\n".join([*kept, f"{OTHER_USER}:x:{OTHER_UID}:"]) + "\n"


def write_hosts(layout: Layout, host: str, is_loopback: bool = False) -> None:
    """Written in place: the host has this very file bound over /etc/hosts."""
    (layout.state / "etc" / f"hosts.{host}").write_text(build_hosts(layout, host, is_loopback))


def write_files(layout: Layout) -> None:
    """Make everything that the daemons expect to find. The state directory itself exists."""
    state = layout.state
    for part in ("etc/slurm", "log", "slurmctld", "spool", "gpu", "hosts"):
        (state / part).mkdir(parents=True)
    for node in layout.nodes:
        (state / "spool" / node).mkdir()
    for gpu in range(GPUS_PER_NODE):
        # Slurm takes device files only; these are /dev/null's number under another name.
        os.mknod(state / "gpu" / f"gpu{gpu}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    gpus = f"{state}/gpu/gpu[0-{GPUS_PER_NODE - 1}]"
    plugin = "cgroup/v1" if layout.proctrack == "cgroup" else "autodetect"
    slurm = state / "etc" / "slurm"
    (slurm / "slurm.conf").write_text(build_slurm_conf(layout))
    (slurm / "gres.conf").write_text(f"AutoDetect=off\nNodeName=node[1-{layout.node_count}] Name=gpu File={gpus}\n")
    (slurm / "cgroup.conf").write_text(CGROUP_CONF.format(plugin=plugin))
    (state / "etc" / "passwd").write_text(build_passwd(layout))
    (state / "etc" / "group").write_text(build_group())
    for host in layout.hosts:
        write_hosts(layout, host)
    write_munge(state / "munge")
    write_shared(layout)


def write_munge(place: Path) -> None:
    place.mkdir(mode=0o755)
    key = place / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(128))


def write_shared(layout: Layout) -> None:
    """Homes, and a /tmp that all hosts share: pytest's directories go there."""
    for user, (uid, gid) in layout.ids.items():
        layout.home(user).mkdir(parents=True)
        layout.home(user).chmod(0o700)
        os.chown(layout.home(user), uid, gid)
    scratch = layout.shared / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
