"""Linux's walls around a process, none of which needs root.

Each function raises OSError where the kernel or the machine's rules refuse it, and the launcher
goes on without it. Standard library only: the launcher imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import secrets
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

_MOUNTS, _IPC, _USER, _PIDS, _NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NAMES = {
    _USER: "user namespace",
    _PIDS: "process namespace",
    _NET: "network namespace",
    _MOUNTS: "mount namespace",
    _IPC: "ipc namespace",
}
_NOSUID, _NODEV, _BIND, _RECURSIVE, _PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_READ_ONLY, _ATTR_NOSUID = 442, -100, 0x8000, 1, 2
_PR_PARENT_DEATH, _PR_SUBREAPER, _PR_NO_NEW_PRIVS = 1, 36, 38
_CAPABILITIES_3 = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FILE_RIGHTS = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000  # execute, write, read, truncate, device control
_READ_RIGHTS = 0x1 | 0x4 | 0x8  # execute, read a file, list a folder

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _syscall(number: int, what: str, *arguments: int | bytes | None) -> int:
    values = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *values), what)


def _prctl(option: int, value: int) -> None:
    rest = [ctypes.c_ulong(v) for v in (value, 0, 0, 0)]
    _checked(_libc.prctl(option, *rest), f"prctl {option}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _checked(result, f"mount {target}")


def separate() -> list[str]:
    """Move this process, and its children to come, into namespaces of their own.

    Returns:
        The names of the new namespaces, as many as the kernel gives; [] where it gives none.

    Raises:
        OSError: a user namespace was made but could not be set up. There is no way back from it.
    """
    uid, gid = os.getuid(), os.getgid()
    # Root needs no user namespace for the others, and keeps its right to take another user id.
    base = _USER if uid else 0
    for wanted in (_PIDS | _NET | _MOUNTS | _IPC, _PIDS | _NET, _NET):
        if _libc.unshare(base | wanted) == 0:
            break
    else:
        return []
    if base:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"1000 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"1000 {gid} 1")
    return [name for flag, name in _NAMES.items() if (base | wanted) & flag]


def small_disk(folder: str, size: int, owner: int | None) -> None:
    """Lay an empty disk in memory over a folder.

    Args:
        size: bytes it can hold.
        owner: user and group id that owns it; None: this process's.
    """
    own = f",uid={owner},gid={owner}" if owner is not None else ""
    options = f"size={size},nr_inodes=4096,mode=700{own}"
    _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, options)


def private_mounts() -> None:
    """Let no mount made here reach the rest of the machine."""
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)


def private_root(
    stage: str, folder: str, readable: Sequence[str], size: int, owner: int | None
) -> None:
    """Leave nothing of the file system but what is readable, and a folder with a small disk.

    Args:
        stage: an empty folder, over which the new root is built.
        folder: the folder to write in; keeps its path.
        readable: files and folders, none within another; they keep their paths.
        size: bytes that the folder can hold.
        owner: user and group id that owns the folder; None: this process's.
    """
    if platform.machine() not in _PIVOT_ROOT:
        raise OSError("no private root on this machine")
    _mount("tmpfs", stage, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    for path in readable:
        inside = Path(stage + path)
        if Path(path).is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()
        _mount(path, str(inside), None, _BIND | _RECURSIVE)
    Path(stage + folder).mkdir(parents=True, exist_ok=True)
    attributes = struct.pack("QQQQ", _ATTR_READ_ONLY | _ATTR_NOSUID, 0, 0, 0)
    root = os.fsencode(stage)
    _syscall(
        _MOUNT_SETATTR, "mount_setattr", _AT_FDCWD, root, _AT_RECURSIVE, attributes, len(attributes)
    )
    small_disk(stage + folder, size, owner)
    os.chdir(stage)
    # Both names are ".": the old root then lies over the new one, and is taken off.
    _syscall(_PIVOT_ROOT[platform.machine()], "pivot_root", b".", b".")
    _checked(_libc.umount2(b".", _DETACH), "umount2")
    os.chdir("/")


def spare_user() -> int | None:
    """A user id that nobody has, for a process that runs as root; None elsewhere.

    Limits on processes do not bind root, and root's files are open to root.
    """
    if os.getuid() != 0:
        return None
    inside, _, length = (int(word) for word in Path("/proc/self/uid_map").read_text().split()[:3])
    if inside == 0 and length >= 0x7FFFFFFF:
        # A number per run, so that runs side by side do not count each other's processes.
        return 0x70000000 + secrets.randbelow(0x0FFFFFFF)
    return 65534


def become(user: int) -> None:
    """Take a user and group id for good; raises OSError where Python cannot be read as that user.

    The capabilities of root end with it.
    """
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        with Path(os.__file__).open("rb"):
            pass
    finally:
        os.seteuid(0)
        os.setegid(0)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def no_new_privileges() -> None:
    """Give up every capability, and the right to gain one by starting a program."""
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")
    _prctl(_PR_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PR_PARENT_DEATH, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SUBREAPER, 1)


def landlock(readable: Sequence[str], folder: str) -> None:
    """Refuse all files but what is readable and the folder; refuse TCP and outward signals too.

    The version of the kernel's Landlock decides how much of this there is: files from 1, TCP from
    4, signals and abstract sockets from 6. no_new_privs must be set.
    """
    version = _syscall(_LANDLOCK_CREATE, "landlock", None, 0, 1)
    files = 0x1FFF | (0x2000 if version > 1 else 0) | (0x4000 if version > 2 else 0)
    files |= 0x8000 if version > 4 else 0
    words = [files] + [3] * (version > 3) + [3] * (version > 5)
    attributes = struct.pack(f"={len(words)}Q", *words)
    ruleset = _syscall(_LANDLOCK_CREATE, "landlock", attributes, len(attributes), 0)
    try:
        for path, rights in [*((path, _READ_RIGHTS) for path in readable), (folder, files)]:
            if path.startswith("/dev/"):
                rights = _READ_RIGHTS | 0x2
            if not Path(path).is_dir():
                rights &= _FILE_RIGHTS
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("=Qi", rights & files, beneath)
                _syscall(_LANDLOCK_ADD, "landlock", ruleset, 1, rule, 0)
            finally:
                os.close(beneath)
        _syscall(_LANDLOCK_RESTRICT, "landlock", ruleset, 0)
    finally:
        os.close(ruleset)


def tasks_of(uid: int) -> int:
    """How many processes and threads a user has now."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                count += sum(1 for _ in (entry / "task").iterdir())
        except OSError:
            continue
    return count


def counts_by_namespace() -> bool:
    """Whether the kernel counts a user's processes in each user namespace apart."""
    version = platform.release().split(".")
    return (int(version[0]), int("".join(filter(str.isdigit, version[1])))) >= (5, 14)


def sweep(seconds: float) -> None:
    """Kill every descendant that is left, for at most so many seconds.

    For want of a process namespace; `adopt_orphans` must have been called.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _descendants():
            with contextlib.suppress(OSError, ValueError):
                # First: no more children. A killer alone may lose the race against a fork bomb.
                resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of a program may hold spaces and brackets.
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(words[1])
    found, size = {os.getpid()}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return sorted(found - {os.getpid()})
