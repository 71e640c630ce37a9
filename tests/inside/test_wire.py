"""The line between a session and its controller: who may speak, in which version, and what is left when one end dies."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading

import pytest

from autotune.inside.wire import PROTOCOL, Listener, Wire, WireClosed, WireError, connect


@pytest.fixture
def listener(tmp_path):
    made = Listener(str(tmp_path / "s"), "right")
    yield made
    made.close()


def hello_from(path: str, **message) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.sendall(
        json.dumps({"type": "hello", "protocol": PROTOCOL, "token": "right", **message}).encode() + b"\n"
    )
    return connection


def test_orders_and_answers_cross(listener, tmp_path):
    session = connect(str(tmp_path / "s"), "right", {"verl": "0.9.1"})
    controller, hello = listener.accept(5.0)
    assert hello["verl"] == "0.9.1"
    controller.send({"type": "step", "id": 1})
    controller.send({"type": "step", "id": 2})
    assert [session.receive(5.0)["id"], session.receive(5.0)["id"]] == [1, 2]
    session.send({"type": "step", "id": 1, "text": "line\nbreak"})
    assert controller.receive(5.0)["text"] == "line\nbreak"
    assert controller.receive(0.0) is None


def test_only_this_user_can_open_the_socket(listener, tmp_path):
    assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o600


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"token": "wrong"}, "token"),
        ({"token": ""}, "token"),
        ({"protocol": PROTOCOL + 1}, "protocol"),
        ({"type": "step"}, "hello"),
    ],
)
def test_a_stranger_is_refused(listener, tmp_path, message, said):
    stranger = hello_from(str(tmp_path / "s"), **message)
    with pytest.raises(WireError, match=said):
        listener.accept(5.0)
    assert stranger.recv(1) == b""  # and the line to it is closed


def test_who_connects_and_leaves_is_nobody(listener, tmp_path):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(tmp_path / "s"))
    connection.close()
    assert listener.accept(5.0) is None


def test_an_end_that_closes_is_noticed_by_the_other(listener, tmp_path):
    session = connect(str(tmp_path / "s"), "right", {})
    controller, _ = listener.accept(5.0)
    threading.Timer(0.1, controller.close).start()
    with pytest.raises(WireClosed):
        session.receive(5.0)
    with pytest.raises(WireClosed):
        session.send({"type": "step", "text": "x" * (8 << 20)})  # more than the kernel would take for a dead end


def test_nobody_listening_is_a_closed_line(tmp_path):
    with pytest.raises(WireClosed, match="nobody listens"):
        connect(str(tmp_path / "absent"), "right", {})


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b'{"id": 1}\n'])
def test_what_is_no_message_is_refused(line):
    ours, theirs = socket.socketpair()
    theirs.sendall(line)
    with pytest.raises(WireError):
        Wire(ours).receive(5.0)
    ours.close()
    theirs.close()


def test_a_message_that_comes_in_pieces_is_put_together():
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    theirs.sendall(b'{"type": "st')
    assert wire.receive(0.05) is None
    theirs.sendall(b'ep"}\n{"type"')
    assert wire.receive(5.0) == {"type": "step"}
    assert wire.receive(0.05) is None
    ours.close()
    theirs.close()
