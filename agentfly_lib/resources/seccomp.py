"""A system-call filter for sandboxed processes, as the classic BPF program that the kernel takes.

It refuses what has no place in a sandbox and would widen the kernel's surface: making namespaces and mounts (in a
namespace of its own a process could mount a file system without a quota), files in memory that lie in no file system
and so under no quota, System V's memory, queues and semaphores, which are under none either and outlive their process,
tracing others, kernel keys, BPF, io_uring, modules, and sockets other than local and IP ones (`AF_VSOCK` reaches the
host of a virtual machine past every network namespace). A refused call fails with EPERM; `clone3`, whose flags a filter
cannot see, with ENOSYS, upon which libraries use `clone`.
"""

from __future__ import annotations

import errno
import os
import struct

__all__ = ["filter_program"]

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_GREATER_EQUAL = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000
_NEW_NAMESPACE = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""

_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "memfd_secret": 447,
}  # fmt: skip
_REFUSED = {
    "x86_64": _COMMON | {
        "shmget": 29, "semget": 64, "msgget": 68,
        "ptrace": 101, "pivot_root": 155, "chroot": 161, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169, "init_module": 175, "delete_module": 176, "quotactl": 179, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": _COMMON | {
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "unshare": 97,
        "kexec_load": 104, "init_module": 105, "delete_module": 106, "ptrace": 117, "reboot": 142, "msgget": 186,
        "semget": 190, "shmget": 194,
        "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "perf_event_open": 241,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}  # fmt: skip
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE3 = 435


def filter_program(machine: str | None = None) -> bytes | None:
    """The program for a kind of processor (this one's if None); None if we have none for it."""
    machine = machine or os.uname().machine
    if machine not in _REFUSED:
        return None
    refuse = _ERRNO | errno.EPERM
    lines = [
        _step(_LOAD_WORD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, _AUDIT[machine], yes=1),
        _step(_RETURN, _KILL),
        _step(_LOAD_WORD, _NUMBER),
        _step(_JUMP_GREATER_EQUAL, _X32, no=1),  # the x32 interface has numbers of its own, past every check below
        _step(_RETURN, _ERRNO | errno.ENOSYS),
        _step(_JUMP_EQUAL, _CLONE3, no=1),
        _step(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in sorted(_REFUSED[machine].values()):
        lines += [_step(_JUMP_EQUAL, number, no=1), _step(_RETURN, refuse)]
    lines += [
        _step(_JUMP_EQUAL, _CLONE[machine], no=4),
        _step(_LOAD_WORD, _FIRST_ARGUMENT),
        _step(_JUMP_ANY_BIT, _NEW_NAMESPACE, no=1),
        _step(_RETURN, refuse),
        _step(_RETURN, _ALLOW),
        _step(_JUMP_EQUAL, _SOCKET[machine], no=2 + len(_SOCKET_FAMILIES)),
        _step(_LOAD_WORD, _FIRST_ARGUMENT),
    ]
    for left, family in zip(range(len(_SOCKET_FAMILIES), 0, -1), _SOCKET_FAMILIES, strict=True):
        lines.append(_step(_JUMP_EQUAL, family, yes=left))
    lines += [_step(_RETURN, refuse), _step(_RETURN, _ALLOW)]
    return b"".join(lines)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction, struct sock_filter: jumps count the instructions that are skipped."""
    return struct.pack("=HBBI", code, yes, no, value)
