#!/usr/bin/env python3
"""distant_link.py DELAY_MS LOSS_PERCENT SEED NAMESPACE/INTERFACE NAMESPACE/INTERFACE: a cable between two network namespaces.

Makes a TAP device of 100 Mbit/s in each and prints "ready". What the first device sends arrives at the second DELAY_MS later, but for
LOSS_PERCENT of the frames, which are lost; what the second sends arrives at once. The same seed loses the same frames of a sequence.
Ends with its parent. For tools/emulated-hosts and tests; needs root and /dev/net/tun.
"""
import collections
import ctypes
import fcntl
import os
import random
import select
import signal
import socket
import struct
import sys
import time

PR_SET_PDEATHSIG, TUNSETIFF, IFF_TAP, IFF_NO_PI = 1, 0x400454CA, 0x0002, 0x1000
SIOCETHTOOL, ETHTOOL_SSET = 0x8946, 2
FRAME_BYTES_MAX = 65536

libc = ctypes.CDLL(None, use_errno=True)


def make_tap(place):
    namespace, interface = place.split("/")
    with open("/run/netns/" + namespace) as file:
        if libc.setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns to " + namespace)
    # The device belongs to the namespace in which the file is opened.
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", interface.encode(), IFF_TAP | IFF_NO_PI))
    settings = ctypes.create_string_buffer(struct.pack("IIIH30x", ETHTOOL_SSET, 0, 0, 100))  # of struct ethtool_cmd, the speed
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), ctypes.addressof(settings)))
    return tap


def read_frame(tap):
    try:
        return os.read(tap, FRAME_BYTES_MAX)
    except OSError:
        return None  # there is no frame, or the device is down


def write_frame(tap, frame):
    try:
        os.write(tap, frame)
    except OSError:
        pass  # the device is down: the frame is lost


def main():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    delay, loss, numbers = float(sys.argv[1]) / 1000, float(sys.argv[2]) / 100, random.Random(int(sys.argv[3]))
    near, far = (make_tap(place) for place in sys.argv[4:6])
    print("ready", flush=True)
    under_way = collections.deque()  # (when it arrives, frame): in order, since all take equally long
    while True:
        wait = max(under_way[0][0] - time.monotonic(), 0) if under_way else None
        readable = select.select([near, far], [], [], wait)[0]
        while near in readable and (frame := read_frame(near)):
            if numbers.random() >= loss:
                under_way.append((time.monotonic() + delay, frame))
        while far in readable and (frame := read_frame(far)):
            write_frame(near, frame)
        while under_way and under_way[0][0] <= time.monotonic():
            write_frame(far, under_way.popleft()[1])


main()
