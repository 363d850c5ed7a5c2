"""What a decoder child gives up before it sees a byte of an upload, by what the kernel offers without privileges.

Three layers, each enough to keep a taken-over decoder from files and networks:
*resource limits* (POSIX), *Landlock* (Linux 5.13: no file, no TCP, no signal to others), *seccomp* (Linux: no system
call but those that computing and talking over the open socket need, so no open, socket, clone or execve at all).
What is missing on a machine is left out and named: `videosieve doctor` shows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path

RESOURCE_LIMITS = "resource limits"
LANDLOCK = "Landlock"
SECCOMP = "seccomp"
LAYERS = (RESOURCE_LIMITS, LANDLOCK, SECCOMP)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38


def confine(*, memory_bytes: int, open_files: int) -> tuple[str, ...]:
    """Confines this process for good; which of LAYERS are in force. Raises OSError where a layer fails half-way."""
    _limit_resources(memory_bytes, open_files)
    if sys.platform != "linux":
        return (RESOURCE_LIMITS,)
    with contextlib.suppress(OSError):  # when memory runs short, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)  # where dumps go to a program, the limit on their size does not stop them
    layers = [RESOURCE_LIMITS]
    if _landlock():
        layers.append(LANDLOCK)
    if _seccomp():
        layers.append(SECCOMP)
    return tuple(layers)


def die_with_parent() -> None:
    """Has the kernel end this process when the one that started it ends, however that happens."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_resources(memory_bytes: int, open_files: int) -> None:
    """No core dumps, no files written, no processes, few files, bounded memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # root is exempt; seccomp is not
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [*arguments, 0, 0, 0, 0][:4]
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in padded]
    if libc.prctl(ctypes.c_int(option), *words) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


# Landlock: a ruleset that handles every right and grants none (landlock(7))

_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446  # the same numbers on every architecture
_LANDLOCK_VERSION = 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI -> how many rights about files there are
_NET_RIGHTS = 0b11  # bind and connect, from ABI 4
_SCOPES = 0b11  # abstract UNIX sockets and signals, from ABI 6


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))))


def _landlock() -> bool:
    abi = landlock_abi()
    if not abi:
        return False
    rights = (1 << _FILE_RIGHTS[min(abi, max(_FILE_RIGHTS))]) - 1
    fields = [rights, _NET_RIGHTS if abi >= 4 else 0, _SCOPES if abi >= 6 else 0]
    ruleset = struct.pack("=3Q", *fields)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(_LANDLOCK_CREATE, ruleset, ctypes.c_size_t(len(ruleset)), ctypes.c_uint32(0))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        if libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(fd), ctypes.c_uint32(0)) != 0:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    finally:
        os.close(fd)
    return True


# seccomp: a list of what is allowed (seccomp(2)); all else answers EPERM

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOWED: dict[str, tuple[int, ...]] = {
    "x86_64": (
        *(45, 44, 202, 228, 9, 11, 12, 10, 28, 25),  # recvfrom sendto futex clock_gettime mmap munmap brk
        *(0, 1, 19, 20, 17, 3, 5, 8, 72, 7, 271),  # read write readv writev pread64 close fstat lseek fcntl poll ppoll
        *(13, 14, 15, 131, 219, 60, 231),  # signals; exit exit_group
        *(24, 204, 309, 39, 186, 273, 334, 324),  # sched_yield … getcpu getpid gettid set_robust_list rseq membarrier
        *(96, 201, 229, 230, 35, 98, 100, 97, 160, 99, 63, 318),  # times, getrlimit setrlimit sysinfo uname getrandom
    ),
    "aarch64": (
        *(207, 206, 98, 113, 222, 215, 214, 226, 233, 216),
        *(63, 64, 65, 66, 67, 57, 80, 62, 25, 73),
        *(134, 135, 139, 132, 128, 93, 94),
        *(124, 123, 168, 172, 178, 99, 293, 283),
        *(169, 114, 115, 101, 165, 153, 163, 164, 179, 160, 278),
    ),
}
_GUARDED = {  # mmap and mprotect are allowed above, but for memory that can be executed
    "x86_64": {"mmap": 9, "mprotect": 10, "ioctl": 16, "tgkill": 234, "prlimit64": 302},
    "aarch64": {"mmap": 222, "mprotect": 226, "ioctl": 29, "tgkill": 131, "prlimit64": 261},
}
_PROT_EXEC = 4
_FIONBIO = 0x5421
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_FILTER_MODE = 2


def _seccomp() -> bool:
    """False where the machine is none of those whose system calls are listed, or its kernel has no filters."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return False
    program = b"".join(_filter(machine))
    count = len(program) // 8
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", count, ctypes.addressof(code))
    try:
        _prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.create_string_buffer(header, len(header)))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def _filter(machine: str) -> list[bytes]:
    """The BPF program: the architecture, the calls whose arguments matter, then those allowed as they are."""
    guarded = _GUARDED[machine]
    own = os.getpid()
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    for name in ("mmap", "mprotect"):
        program += _call(guarded[name], 2, _step(_JUMP_SET, _PROT_EXEC, 1, 0))
    program += _call(guarded["ioctl"], 1, _step(_JUMP_EQUAL, _FIONBIO, 0, 1))
    program += _call(guarded["tgkill"], 0, _step(_JUMP_EQUAL, own, 0, 1))
    program += _call(guarded["prlimit64"], 0, _step(_JUMP_EQUAL, 0, 0, 1))
    for number in _ALLOWED[machine]:
        program += [_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW)]
    return [*program, _step(_RETURN, _ERRNO)]


def _call(number: int, argument: int, test: bytes) -> list[bytes]:
    """Allows the call where `test`, of the low half of its argument, falls through; else EPERM."""
    return [
        _step(_JUMP_EQUAL, number, 0, 4),
        _step(_LOAD, _ARGUMENTS_AT + 8 * argument),
        test,
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _ERRNO),
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
