"""Opens and uses sockets of libzmq, argv[1], as each line of its input says; answers each with a line.

bind KIND PORT | connect KIND PORT | close ID | limit ID MESSAGES | send ID FRAME.. | receive ID MILLIS | repeat ID FIRST COUNT
FRAME. Frames are hexadecimal, with - for an empty one. repeat sends messages as engines number them. There is an
answer to every line: `ok ..`, `none`, or `error ..`.
"""

import ctypes
import glob
import os
import sys

path = sys.argv[1]
for beside in glob.glob(os.path.join(os.path.dirname(path), "libsodium*")):
    ctypes.CDLL(beside, mode=ctypes.RTLD_GLOBAL)
zmq = ctypes.CDLL(path, use_errno=True)
zmq.zmq_ctx_new.restype = ctypes.c_void_p
zmq.zmq_socket.restype = ctypes.c_void_p
zmq.zmq_socket.argtypes = [ctypes.c_void_p, ctypes.c_int]
zmq.zmq_close.argtypes = [ctypes.c_void_p]
zmq.zmq_strerror.restype = ctypes.c_char_p
for function in (zmq.zmq_bind, zmq.zmq_connect):
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
zmq.zmq_setsockopt.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
zmq.zmq_getsockopt.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
zmq.zmq_send.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
zmq.zmq_msg_data.restype = ctypes.c_void_p
zmq.zmq_msg_size.restype = ctypes.c_size_t

KINDS = {"PUB": 1, "SUB": 2, "REQ": 3, "DEALER": 5, "ROUTER": 6, "XPUB": 9}
SUBSCRIBE, LINGER, SNDHWM, RCVHWM, RCVTIMEO, LAST_ENDPOINT, XPUB_VERBOSER = 6, 17, 23, 24, 27, 32, 78
SNDMORE = 2
EAGAIN = 11
context = zmq.zmq_ctx_new()
sockets = {}


def check(result):
    if result is None or result == -1:
        raise OSError(zmq.zmq_strerror(ctypes.get_errno()).decode())
    return result


def option(socket, name, value):
    value = ctypes.c_int(value)
    check(zmq.zmq_setsockopt(socket, name, ctypes.byref(value), ctypes.sizeof(value)))


def opened(kind, port, is_bound):
    socket = check(zmq.zmq_socket(context, KINDS[kind]))
    option(socket, LINGER, 0)
    if kind == "XPUB":
        option(socket, XPUB_VERBOSER, 1)
    if kind == "SUB":
        check(zmq.zmq_setsockopt(socket, SUBSCRIBE, b"", 0))
    port = "*" if port == "0" else port
    address = f"tcp://127.0.0.1:{port}".encode()
    check((zmq.zmq_bind if is_bound else zmq.zmq_connect)(socket, address))
    text = ctypes.create_string_buffer(100)
    size = ctypes.c_size_t(100)
    check(zmq.zmq_getsockopt(socket, LAST_ENDPOINT, text, ctypes.byref(size)))
    number = str(len(sockets))
    sockets[number] = socket
    return f"{number} {text.value.decode().rsplit(':', 1)[1]}"


def send(socket, frames):
    for at, frame in enumerate(frames):
        more = SNDMORE if at + 1 < len(frames) else 0
        check(zmq.zmq_send(socket, frame, len(frame), more))


def receive(socket, millis):
    option(socket, RCVTIMEO, int(millis))
    frames = []
    while True:
        message = (ctypes.c_char * 64)()
        zmq.zmq_msg_init(ctypes.byref(message))
        if zmq.zmq_msg_recv(ctypes.byref(message), ctypes.c_void_p(socket), 0) == -1:
            if ctypes.get_errno() == EAGAIN:
                return None
            check(-1)
        size = zmq.zmq_msg_size(ctypes.byref(message))
        data = ctypes.string_at(zmq.zmq_msg_data(ctypes.byref(message)), size)
        more = zmq.zmq_msg_more(ctypes.byref(message))
        zmq.zmq_msg_close(ctypes.byref(message))
        frames.append(data)
        if not more:
            return frames


def done(line):
    name, *words = line.split()
    if name in ("bind", "connect"):
        return "ok " + opened(*words, name == "bind")
    socket = sockets[words[0]]
    if name == "close":
        check(zmq.zmq_close(socket))
    elif name == "limit":
        option(socket, SNDHWM, int(words[1]))
    elif name == "send":
        send(socket, [b"" if it == "-" else bytes.fromhex(it) for it in words[1:]])
    elif name == "repeat":
        first, count, frame = int(words[1]), int(words[2]), bytes.fromhex(words[3])
        for number in range(first, first + count):
            send(socket, [b"", number.to_bytes(8, "big"), frame])
    elif name == "receive":
        frames = receive(socket, words[1])
        if frames is None:
            return "none"
        return "ok " + " ".join(it.hex() or "-" for it in frames)
    return "ok"


for line in sys.stdin:
    try:
        answer = done(line)
    except Exception as error:
        answer = f"error {error!r}"
    print(answer, flush=True)
