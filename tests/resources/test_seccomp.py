"""The filter of system calls, run on an interpreter of its instructions: what the kernel would decide."""

from __future__ import annotations

import errno
import struct

import pytest

from agentfly_lib.resources.seccomp import filter_program

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(program: bytes, number: int, argument: int = 0, audit: int = AUDIT["x86_64"]) -> int:
    """Runs a classic BPF program over a `struct seccomp_data`."""
    data = struct.pack("<IIQ6Q", number, audit, 0, argument, 0, 0, 0, 0, 0)
    steps = list(struct.iter_unpack("<HBBI", program))
    accumulator = place = 0
    while True:
        code, yes, no, value = steps[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            place += yes if holds else no


PROGRAM = filter_program("x86_64") or b""


@pytest.mark.parametrize("number", [0, 1, 9, 39, 57, 59, 61, 231, 257, 436])
def test_everyday_calls_pass(number):
    assert decide(PROGRAM, number) == ALLOW


@pytest.mark.parametrize(
    "number", [29, 64, 68, 101, 155, 165, 166, 248, 250, 272, 298, 308, 310, 319, 321, 323, 425, 429, 430, 442, 447]
)
def test_calls_that_have_no_place_here_are_refused(number):
    assert decide(PROGRAM, number) == ERRNO | errno.EPERM


def test_clone_makes_threads_and_processes_but_no_namespaces():
    thread, process = 0x3D0F00, 0x11
    assert decide(PROGRAM, 56, thread) == decide(PROGRAM, 56, process) == ALLOW
    for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000):
        assert decide(PROGRAM, 56, flag | process) == ERRNO | errno.EPERM
    assert decide(PROGRAM, 435) == ERRNO | errno.ENOSYS


def test_sockets_are_local_or_ip():
    assert [decide(PROGRAM, 41, family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert [decide(PROGRAM, 41, family) for family in (0, 17, 38, 40)] == [ERRNO | errno.EPERM] * 4


def test_other_interfaces_of_the_kernel_are_no_way_around_it():
    assert decide(PROGRAM, 165, audit=0x40000003) == KILL  # 32-bit calls have other numbers
    assert decide(PROGRAM, 0x40000000 | 165) == ERRNO | errno.ENOSYS


def test_arm_and_machines_that_we_know_nothing_of():
    arm = filter_program("aarch64") or b""
    for number in (40, 186, 190, 194, 279, 447):
        assert decide(arm, number, audit=AUDIT["aarch64"]) == ERRNO | errno.EPERM
    assert decide(arm, 64, audit=AUDIT["aarch64"]) == ALLOW
    assert filter_program("riscv64") is None
