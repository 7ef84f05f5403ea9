"""Whether a lab can be made here, and if not, what is missing."""

import functools
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

# The commands of the lab, and the package of Debian and Ubuntu that brings each.
_COMMANDS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
}
_SYS_ADMIN = 21  # the number of CAP_SYS_ADMIN in <linux/capability.h>
_INSTEAD = "Without a lab, several machines can be several torchruns here, all on 127.0.0.1."


@functools.cache
def user_flags() -> list[str]:
    """For `unshare`: who may not make namespaces needs one of users, and is root in that."""
    status = Path("/proc/self/status").read_text("utf-8")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    if effective >> _SYS_ADMIN & 1:
        return []
    return ["-Ur", "--map-auto"] if _has_more_users() else ["-Ur"]


def _has_more_users() -> bool:
    """Whether this user may have other users in a namespace; slurmd changes its groups."""
    names = {pwd.getpwuid(os.getuid()).pw_name, str(os.getuid())}
    return shutil.which("newuidmap", path=search_path()) is not None and all(
        path.exists() and names & {line.partition(":")[0] for line in path.read_text().splitlines()}
        for path in (Path("/etc/subuid"), Path("/etc/subgid"))
    )


def search_path() -> str:
    """PATH, and the folders of the system's commands, which an ordinary user's may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


@functools.cache
def missing() -> str | None:
    """Why there can be no lab here, and what can be done; None if there can be one."""
    if sys.platform != "linux":
        return f"A lab of machines needs the namespaces of Linux. {_INSTEAD}"
    absent = sorted(name for name in _COMMANDS if not shutil.which(name, path=search_path()))
    if absent:
        packages = " ".join(sorted({_COMMANDS[name] for name in absent}))
        names = ", ".join(absent)
        return f"A lab of machines needs {names}: apt install {packages}. {_INSTEAD}"
    command = ["unshare", *user_flags(), "-nmuip", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode == 0:
        return None
    return f"A lab of machines needs namespaces, and {_refused(tried.stderr.strip())}. {_INSTEAD}"


def _refused(said: str) -> str:
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1" and user_flags():
        return (
            "AppArmor keeps them from ordinary users here: use sudo, or "
            f"sudo sysctl kernel.{restricted.name}=0"
        )
    if "No space left" in said:
        return f"none may be made here ({said}): see sysctl user"
    return f"the system refuses them ({said}): use sudo, or ask who runs this container"
