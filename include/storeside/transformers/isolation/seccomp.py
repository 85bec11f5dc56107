"""Restricts the system calls of a decoder process, with a filter of libseccomp.

The filter lists the allowed system calls. Calls that a transformer's author may make on purpose fail with EPERM. All
others fail with ENOSYS, as if the kernel did not have them, so that the C library falls back to older calls.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyseccomp

_ALLOWED = """
    brk madvise mincore mlock mlock2 mmap mprotect mremap msync munlock munmap

    access close close_range copy_file_range dup dup2 dup3 epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2
    faccessat faccessat2 fadvise64 fallocate fcntl fdatasync flock fstat fstatfs fsync ftruncate getcwd getdents64
    lseek lstat memfd_create newfstatat open openat pipe pipe2 poll ppoll pread64 preadv preadv2 pselect6 pwrite64
    pwritev pwritev2 read readahead readlink readlinkat readv select sendfile stat statfs statx umask write writev

    recvfrom recvmsg sendmsg shutdown

    clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times

    pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend sigaltstack

    arch_prctl exit exit_group futex futex_waitv get_robust_list getcpu gettid membarrier prctl rseq
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler
    sched_setaffinity sched_yield set_robust_list set_tid_address

    capget getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
    getrlimit getrusage getsid getuid sysinfo uname
"""
_COMMANDS = "clone execve execveat fork kill pidfd_open prlimit64 setpgid setrlimit setsid tgkill vfork wait4 waitid"
_NETWORK = """
    accept accept4 bind connect getpeername getsockname getsockopt ioctl listen recvmmsg sendmmsg sendto setsockopt
    socket socketpair
"""
_FILES = """
    chdir chmod chown fchdir fchmod fchmodat fchown fchownat inotify_add_watch inotify_init1 inotify_rm_watch ioctl
    lchown link linkat mkdir mkdirat mknod mknodat rename renameat renameat2 rmdir symlink symlinkat truncate unlink
    unlinkat utime utimensat utimes
"""
_NEVER = """
    bpf io_uring_setup keyctl mount open_by_handle_at perf_event_open process_vm_readv process_vm_writev ptrace setns
    umount2 unshare userfaultfd
"""
# System calls that are allowed only with certain arguments; see `_in_part`.
_PARTLY = frozenset(("clone", "ioctl", "kill", "prlimit64", "tgkill"))
_CLONE_THREAD = 0x10000
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX, which Python uses on descriptors.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


def restrict(commands: bool, network: bool, files: bool) -> None:
    """Allow all threads of this process, and threads that they start, only the system calls that decoding needs.

    `commands` also allows starting programs, `network` sockets, and `files` changes to files and folders. Raises
    RuntimeError if libseccomp is absent, and OSError if the kernel refuses the filter.
    """
    import pyseccomp

    chosen = {_COMMANDS: commands, _NETWORK: network, _FILES: files}
    allowed = {*_ALLOWED.split(), *(name for names, yes in chosen.items() if yes for name in names.split())}
    named = {*_NEVER.split(), *(name for names in chosen for name in names.split())}
    filtered = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.ENOSYS))
    for name in allowed:
        _add(filtered, pyseccomp.ALLOW, name)
    for name in named - allowed - _PARTLY:
        _add(filtered, pyseccomp.ERRNO(errno.EPERM), name)
    for name, condition in _in_part():
        if name not in allowed:
            _add(filtered, pyseccomp.ALLOW, name, condition)
    filtered.set_attr(pyseccomp.Attr.CTL_TSYNC, 1)
    with suppress(OSError):  # a tree instead of a list; needs libseccomp 2.5
        filtered.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)
    filtered.load()


def _in_part() -> list[tuple[str, pyseccomp.Arg]]:
    """Return system calls with a condition: only for threads, signals to this process, and reading limits."""
    from pyseccomp import EQ, MASKED_EQ, Arg

    own = Arg(0, EQ, os.getpid())
    return [
        ("clone", Arg(0, MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)),
        ("kill", own),
        ("tgkill", own),
        ("prlimit64", Arg(2, EQ, 0)),
        *(("ioctl", Arg(1, MASKED_EQ, 0xFFFFFFFF, request)) for request in _IOCTLS),
    ]


def _add(filtered: pyseccomp.SyscallFilter, action: int, name: str, *conditions: pyseccomp.Arg) -> None:
    with suppress(OSError):  # the architecture or this version of libseccomp lacks the system call
        filtered.add_rule(action, name, *conditions)
