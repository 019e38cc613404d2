"""A filter of system calls: no sockets, no new namespaces, no way around the other walls.

Standard library only: the launcher imports it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# Per machine: its audit number, then the numbers of the calls that are refused.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_REFUSED = {
    # A socket reaches other programs even without a network. socketpair() stays: asyncio uses it.
    "socket": (41, 198),
    # io_uring makes system calls that no filter sees.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Other processes' memory and descriptors.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Memory that no limit counts.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # Parts of the kernel that no test needs.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
}
# Where other processes can be seen, a signal may go to the process itself only.
_SIGNALS_BY_PROCESS = {"kill": (62, 129), "tgkill": (234, 131)}
_SIGNALS = {
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_FORKS = ((57, 58), ())  # fork and vfork, which aarch64 lacks
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW flag that clone() takes
_X32 = 0x40000000  # calls of x86's third interface carry this bit

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data, little-endian
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_SECCOMP, _FILTER_MODE = 22, 2


def _filter(machine: str, forks: bool, only: int | None) -> list[tuple[int, int, int, int]]:
    """The filter as instructions: code, jump if true, jump if false, constant."""
    arch, column = _MACHINES[machine]
    refuse = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    # Each test is a pair: skip the answer that follows it, or give it.
    lines = [(_LOAD, 0, 0, _ARCH_AT), (_JUMP_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL)]
    lines.append((_LOAD, 0, 0, _NUMBER_AT))
    if machine == "x86_64":
        lines += [(_JUMP_AT_LEAST, 0, 1, _X32), refuse]
    refused = [*_REFUSED.values(), *(_SIGNALS.values() if only is not None else ())]
    for numbers in refused:
        lines += [(_JUMP_EQUAL, 0, 1, numbers[column]), refuse]
    # The flags of clone3() lie in memory, where no filter looks. Without it libc calls clone().
    lines += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    if not forks:
        for number in (_CLONE[column], *_FORKS[column]):
            lines += [(_JUMP_EQUAL, 0, 1, number), refuse]
    if only is not None:
        for numbers in _SIGNALS_BY_PROCESS.values():
            lines += [(_JUMP_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
            lines += [(_JUMP_EQUAL, 1, 0, only), refuse, (_RETURN, 0, 0, _ALLOW)]
    lines += [(_JUMP_EQUAL, 0, 3, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    lines += [(_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES), refuse]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return lines


def install(forks: bool = True, only: int | None = None) -> None:
    """Filter this process and all it starts, for good; no_new_privs must be set.

    Args:
        forks: False refuses new processes and threads too.
        only: the one process that may be sent a signal; None: all that can be seen.

    Raises:
        OSError: the machine or the kernel has no such filter.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    lines = _filter(machine, forks, only)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    mode = ctypes.c_ulong(_FILTER_MODE)
    if libc.prctl(_PR_SET_SECCOMP, mode, program, none, none) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "seccomp")
