"""Reads KV events with libzmq. Prints each batch as a line of JSON: its topic, number and payload."""

import json
import sys

import msgpack
import zmq


def show(topic, sequence, payload):
    number = int.from_bytes(sequence, "big")
    time, events, rank = msgpack.unpackb(payload)
    assert time > 1e9 and rank == 0, (time, rank)
    print(json.dumps({"topic": topic, "sequence": number, "events": events}), flush=True)


def follow(address, topic=""):
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.subscribe(topic)
    # The server must answer heartbeats.
    socket.heartbeat_ivl, socket.heartbeat_timeout = 200, 300_000
    socket.connect(address)
    while True:
        topic, sequence, payload = socket.recv_multipart()
        show(topic.decode(), sequence, payload)


def replay(address, start, topic=None):
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.rcvtimeo = 60_000
    socket.connect(address)
    request = [b"", int(start).to_bytes(8, "big")]
    socket.send_multipart(request + ([topic.encode()] if topic else []))
    while True:
        delimiter, of, sequence, payload = socket.recv_multipart()
        assert delimiter == b""
        if sequence == b"\xff" * 8:
            assert of == payload == b""
            return
        show(of.decode(), sequence, payload)


{"follow": follow, "replay": replay}[sys.argv[1]](*sys.argv[2:])
