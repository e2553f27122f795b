"""push, pull, pub, sub, req, rep as processes; their peers are sockets of this process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transfer
from tests.ports import free_port
from transfer.tensors import load, save

ROOT = Path(__file__).parents[2]
ANY = "tcp://127.0.0.1:0"


def objects(output: bytes) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def opened():
    """opened(type, endpoint=None) -> a socket of this process: bound to any port, or connected."""
    with transfer.Context() as context:
        sockets = []

        def make(socket_type, endpoint=None):
            made = context.socket(socket_type)
            sockets.append(made)
            made.sndtimeo = made.rcvtimeo = 30_000
            if endpoint is None:
                made.bind(ANY)
            else:
                made.connect(endpoint)
            return made

        yield make
        for socket in sockets:
            socket.close()


def test_two_commands_talk_to_each_other(start, run):
    pull = start("pull", "--bind", ANY, "--count", 3, "--timeout", 30)
    code, output, said = run("push", "--connect", pull.bound(), stdin=b"one\ntwo\r\nthree")
    assert (code, output) == (0, b"")
    assert "sent 3 messages" in said
    assert pull.end()[:2] == (0, b"one\ntwo\nthree\n")


def test_what_is_sent_is_told_to_programs(opened, run, tmp_path):
    pull = opened(transfer.PULL)
    code, output, _ = run("push", "-c", pull.last_endpoint, "-d", "text", "--repeat", 2, "--json")
    assert code == 0
    assert {key: objects(output)[0][key] for key in ("sent", "bytes")} == {"sent": 2, "bytes": 8}
    assert [pull.recv(), pull.recv()] == [b"text", b"text"]


def test_what_arrives_is_told_to_programs(opened, start):
    pull = start("pull", "--bind", ANY, "--count", 4, "--timeout", 30, "--json")
    push = opened(transfer.PUSH, pull.bound())
    push.send(b"text")
    push.send_multipart([b"\xff\xfe", b""])
    push.send_tensor(np.zeros((2, 3), np.uint8))
    push.send_tensors({"x": np.zeros(3)}, meta={"step": 7})
    code, output, said = pull.end()
    assert code == 0
    text, parts, tensor, tensors = objects(output)
    assert text == {"number": 1, "kind": "bytes", "bytes": 4, "parts": [{"bytes": 4, "text": "text"}]}
    assert parts["parts"] == [{"bytes": 2, "base64": "//4="}, {"bytes": 0, "text": ""}]
    assert (tensor["dtype"], tensor["shape"], tensor["bytes"]) == ("uint8", [2, 3], 6)
    assert tensors["tensors"] == {"x": {"dtype": "float64", "shape": [3]}}
    assert tensors["meta"] == {"step": 7}
    assert "received" not in said


def test_files_are_sent_as_what_they_are(opened, run, tmp_path):
    array = np.arange(600, dtype=np.float32).reshape(20, 30)
    np.save(tmp_path / "a.npy", array)
    save(tmp_path / "b.safetensors", {"x": array, "y": np.zeros(3, np.int64)}, {"step": "7"})
    (tmp_path / "c.txt").write_bytes(b"plain" * 1000)
    pull = opened(transfer.PULL)
    files = [tmp_path / name for name in ("a.npy", "b.safetensors", "c.txt")]
    code, _, said = run("push", "--connect", pull.last_endpoint, *files)
    assert code == 0, said
    assert (pull.recv_tensor() == array).all()
    tensors, meta = pull.recv_tensors()
    assert (tensors["x"] == array).all()
    assert tensors["y"].dtype == np.int64
    assert meta == {"step": "7"}
    assert pull.recv() == b"plain" * 1000


def test_messages_are_written_to_files(opened, start, tmp_path):
    import ml_dtypes

    pull = start("pull", "--bind", ANY, "--count", 4, "--timeout", 30, "--out", tmp_path / "got")
    push = opened(transfer.PUSH, pull.bound())
    array = np.arange(6.0).reshape(2, 3)
    push.send_tensor(array)
    push.send_tensors({"x": array}, meta={"step": 7})
    push.send(b"plain")
    push.send_tensor(np.ones(4, ml_dtypes.bfloat16))  # .npy has no such dtype
    code, output, said = pull.end()
    assert (code, output) == (0, b""), said
    assert (np.load(tmp_path / "got/message-000001.npy") == array).all()
    tensors, meta = load(tmp_path / "got/message-000002.safetensors")
    assert (tensors["x"] == array).all()
    assert meta == {"step": "7"}
    assert (tmp_path / "got/message-000003.bin").read_bytes() == b"plain"
    assert load(tmp_path / "got/message-000004.safetensors")[0]["tensor"].dtype == ml_dtypes.bfloat16


def test_chunks_put_together_are_the_file(opened, start, tmp_path):
    data = np.random.default_rng(1).bytes(300_001)
    (tmp_path / "data").write_bytes(data)
    pull = opened(transfer.PULL)
    push = start("push", "--connect", pull.last_endpoint, "--chunk", "64KiB", tmp_path / "data")
    assert b"".join(pull.recv() for _ in range(5)) == data
    assert push.end()[0] == 0


def test_raw_output_is_the_bytes(opened, start):
    pull = start("pull", "--bind", ANY, "--count", 2, "--timeout", 30, "--raw")
    push = opened(transfer.PUSH, pull.bound())
    push.send(b"\x00\xff\n")
    push.send_tensor(np.arange(3, dtype=np.uint8))
    assert pull.end()[:2] == (0, b"\x00\xff\n\x00\x01\x02")


def test_a_sender_may_bind(opened, start):
    push = start("push", "--bind", ANY, "--whole", "--timeout", 30, stdin=b"a\nb")
    pull = opened(transfer.PULL, push.bound())
    assert pull.recv() == b"a\nb"
    assert push.end()[0] == 0


def test_a_publisher_waits_for_its_subscriber(opened, run):
    sub = opened(transfer.SUB)
    sub.subscribe(b"we")
    code = run("pub", "-c", sub.last_endpoint, "--topic", "weather", "-d", "yes", "--timeout", 30)[0]
    assert code == 0
    assert sub.recv_multipart() == [b"weather", b"yes"]


def test_a_subscriber_gets_its_topics_only(opened, start):
    sub = start("sub", "--bind", ANY, "--topic", "we", "--count", 1, "--timeout", 30)
    pub = opened(transfer.PUB, sub.bound())
    pub.wait_for_peers(1, timeout=30)
    pub.send_multipart([b"sports", b"no"])
    pub.send_multipart([b"weather", b"yes"])
    assert sub.end()[:2] == (0, b"weather\tyes\n")


@pytest.mark.parametrize("how", ["lines", "json"])
def test_a_subscriber_tells_the_topics_of_tensors(opened, start, how):
    sub = start(
        "sub", "--bind", ANY, "--topic", "we", "--count", 4, "--timeout", 30, *["--json"][: how == "json"]
    )
    pub = opened(transfer.PUB, sub.bound())
    pub.compression = "lz4"
    pub.wait_for_peers(1, timeout=30)
    pub.send_tensor(np.zeros(3, "f4"), topic="sports")
    pub.send_tensor(np.zeros((2, 3), "f4"), topic="weather/now")
    pub.send_tensor(np.zeros(30_000, "f4"), topic="weather/compressed")
    pub.send_tensors({"x": np.zeros(3, "f4")}, meta={"step": 1}, topic="weights")
    pub.send_multipart([b"weather", b"text"])
    code, output, said = sub.end()
    assert code == 0, said
    if how == "lines":
        assert output.decode().splitlines() == [
            "weather/now\tfloat32 2×3 (24 B)",
            "weather/compressed\tfloat32 30000 (120000 B)",
            "weights\tx: float32 3 (12 B)",
            "weather\ttext",
        ]
    else:
        told = [json.loads(line) for line in output.splitlines()]
        topics = ["weather/now", "weather/compressed", "weights", None]
        assert [one.get("topic") for one in told] == topics


def test_a_puller_takes_what_is_compressed(opened, start):
    """It finds out what a message is by asking, and must not lose it by that."""
    pull = start("pull", "--bind", ANY, "--count", 3, "--timeout", 30, "--raw")
    push = opened(transfer.PUSH, pull.bound())
    push.compression = "lz4"
    push.send(b"a" * 5000)
    push.send_tensors({"x": np.full(5000, 98, "u1")})
    push.send_multipart([b"c" * 5000, b"d"])
    assert pull.end()[:2] == (0, b"a" * 5000 + b"b" * 5000 + b"c" * 5000 + b"d")


def test_requests_are_answered(opened, start):
    rep = start("rep", "--bind", ANY, "-d", "a", "-d", "b", "--count", 3, "--show", "--timeout", 30)
    req = opened(transfer.REQ, rep.bound())
    replies = []
    for request in (b"1", b"2", b"3"):
        req.send(request)
        replies.append(req.recv())
    assert replies == [b"a", b"b", b"a"]
    assert rep.end()[:2] == (0, b"1\n2\n3\n")


def test_an_echo_gives_tensors_back(opened, start):
    rep = start("rep", "--bind", ANY, "--count", 1, "--timeout", 30)
    req = opened(transfer.REQ, rep.bound())
    req.send_tensor(np.arange(6, dtype=np.int16))
    assert (req.recv_tensor() == np.arange(6)).all()
    assert rep.end()[0] == 0


def test_replies_are_printed(opened, start):
    rep = opened(transfer.REP)
    req = start("req", "--connect", rep.last_endpoint, "-d", "?", "-d", "!", "--timeout", 30)
    for reply in (b"one", b"two"):
        rep.recv()
        rep.send(reply)
    assert req.end()[:2] == (0, b"one\ntwo\n")


def test_an_unreadable_array_is_found_before_anything_is_sent(opened, run, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    pull = opened(transfer.PULL)
    code, _, said = run("push", "-c", pull.last_endpoint, tmp_path / "a.npy", tmp_path / "objects.npy")
    assert code == 2 and "objects.npy" in said and "array of numbers" in said
    pull.rcvtimeo = 200
    with pytest.raises(transfer.Again):
        pull.recv()


def test_confirm_fails_when_nobody_takes_the_messages(opened, run):
    pull = opened(transfer.PULL)  # it never receives
    code, _, said = run("push", "--connect", pull.last_endpoint, "-d", "x", "--confirm", "--timeout", 0.5)
    assert code == 3
    assert "not taken everything; 0 of 1 messages are confirmed\n  hint: give a longer --timeout" in said


def test_confirm_counts_when_the_receiver_leaves(start, run):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    pull = start("pull", "--bind", endpoint, "--count", 300)
    texts = [word for number in range(3000) for word in ("-d", str(number))]
    code, _, said = run("push", "--connect", endpoint, *texts, "--confirm", "--timeout", 2)
    assert pull.end()[0] == 0 and code in (1, 3)
    if code == 3:  # it could not send all
        assert re.search(r"; (300|2\d\d) of \d+ messages are confirmed", said), said


def test_confirm_ends_at_once_when_the_receiver_leaves_after_the_last_message(start, run):
    pull = start("pull", "--bind", ANY, "--count", 3)
    code, output, _ = run("push", "-c", pull.bound(), "-d", "a", "--repeat", 3, "--confirm", "--json")
    assert (code, pull.end()[0], objects(output)[0]["sent"]) == (0, 0, 3)


def test_out_is_a_folder(run, tmp_path):
    (tmp_path / "file").touch()
    code, _, said = run("pull", "-b", ANY, "--out", tmp_path / "file")
    assert code == 2 and "is no folder\n  hint: name a folder" in said


@pytest.mark.parametrize("command", ["pull", "sub", "rep"])
def test_a_receiver_gives_up_after_its_time_out(run, command):
    code, output, said = run(command, "--bind", ANY, "--timeout", 0.1)
    assert (code, output) == (3, b"")
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["push", "pub", "req"])
def test_a_sender_gives_up_when_nobody_is_there(run, command):
    code, _, said = run(command, "--connect", "tcp://127.0.0.1:9", "-d", "x", "--timeout", 0.1)
    assert code == 3
    assert "hint:" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["pull", "push"])
def test_ctrl_c_ends_cleanly(start, command):
    running = start(command, "--bind", ANY, *(["-d", "x"] if command == "push" else []))
    running.bound()
    running.process.send_signal(signal.SIGINT)
    code, _, said = running.end()
    assert code == 130
    assert "Traceback" not in said


def test_a_reader_that_leaves_is_no_error(opened):
    """`transfer pull ... | head -1`, with nobody at the other end of the pipe."""
    push = opened(transfer.PUSH)
    push.immediate = False
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "transfer", "pull", "--connect", push.last_endpoint, "--timeout", "30"]
    with subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        os.close(reader)
        push.send(b"x")
        _, said = process.communicate(timeout=40)
    assert process.returncode == 0
    assert b"Traceback" not in said
    assert b"BrokenPipe" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pull"], "--connect or --bind"),
        (["push", "-b", "nonsense", "-d", "x"], "no scheme"),
        (["push", "-c", "tcp://127.0.0.1:9", "no-such-file"], "there is no file"),
        (["push", "-c", "tcp://127.0.0.1:9", "-", "--repeat", "2"], "read once"),
        (["push", "-c", "tcp://127.0.0.1:9", "--lines", "--whole"], "--lines and --whole contradict"),
        (["push", "-c", "tcp://127.0.0.1:9", "--lines", "--chunk", "1"], "--lines and --chunk contradict"),
        (["pull", "-b", ANY, "--raw", "--json"], "--raw"),
        (["push", "-c", "tcp://127.0.0.1:9", "--chunk", "many"], "'many' is not a size"),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_usage_is_told(capsys, arguments, words):
    from transfer import cli

    assert cli.run(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_confirm_waits_for_other_receivers_when_one_leaves(start, run):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    push = start("push", "--bind", endpoint, *("-d", "x") * 300, "--confirm", "--timeout", 30)
    push.bound()
    leaves = start("pull", "--connect", endpoint, "--count", 1)
    assert leaves.end()[0] == 0
    stays = start("pull", "--connect", endpoint)
    code, _, said = push.end()
    assert code == 1 and "without confirming" in said
    confirmed = int(re.search(r"; (\d+) of 300 messages are confirmed", said)[1])
    stays.process.send_signal(signal.SIGINT)
    _, output, _ = stays.end()
    assert output.count(b"x") <= confirmed <= output.count(b"x") + 1


def test_a_required_transport_without_a_listener_ends_after_the_time_out(run):
    code, _, said = run("push", "-c", f"tcp://127.0.0.1:{free_port()}?policy=require", "-d", "x", "-t", 0.3)
    assert code == 3 and "within 0.3 s: no peer listens" in said and "Connection refused" in said
