"""Pods in namespaces behind a caching name server: they come, die, and vanish, and nothing is lost unseen."""

from __future__ import annotations

import json
import time

import pytest

from tests.discovery.namespaces import Cluster
from tests.discovery.waits import until

pytestmark = pytest.mark.netns

PORT = 5590

#: sends a number each 5 ms to whoever the endpoint stands for; tells what it knows when it is asked
PUSHER = """
    import json, sys, threading, transfer
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        push.sndtimeo = 20
        push.resend = sys.argv[2] == "resend"
        push.connect(sys.argv[1])
        stop = threading.Event()
        state = {"sent": 0}
        def work():
            while not stop.wait(0.005):
                try:
                    push.send(b"%d" % state["sent"])
                except transfer.Again:
                    continue
                state["sent"] += 1
        thread = threading.Thread(target=work)
        thread.start()
        print("ready", flush=True)
        for line in sys.stdin:
            if line == "stop\\n":
                stop.set()
                thread.join()
            peers = {peer.endpoint: (peer.sent, peer.unconfirmed + peer.queued) for peer in push.peers()}
            print(json.dumps({**state, "peers": peers, "counts": push._links.state.counts}), flush=True)
"""

#: receives, and writes what it has received into a file
PULLER = """
    import os, sys, threading, transfer
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.bind(sys.argv[1])
        if len(sys.argv) > 3:
            pull.announce(sys.argv[3], lease=1.0).wait(20)
        file = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        print("ready", flush=True)
        def receive():
            try:
                while True:
                    os.write(file, pull.recv() + b" ")
            except transfer.Closed:
                return
        threading.Thread(target=receive, daemon=True).start()
        sys.stdin.read()
"""

#: a broker whose registry is at 10.77.0.1
BROKER = """
    import sys
    from dataclasses import replace
    from tests.broker.in_process_broker import ANYWHERE
    from transfer.broker.fronts.native import NativeSettings
    from transfer.broker.server import Broker
    with Broker(sys.argv[1], replace(ANYWHERE, native=NativeSettings("tcp://10.77.0.1:5580", "", ""))):
        print("ready", flush=True)
        sys.stdin.read()
"""


class Scene:
    """A follower and its pods, and how long what took. The times are told and not asserted."""

    def __init__(self, cluster, folder, endpoint, *extra, resend=False):
        self.cluster, self.folder, self.extra = cluster, folder, extra
        self.pods = {}
        self.push = cluster.follower(PUSHER, endpoint, "resend" if resend else "")
        assert self.push.line() == "ready"

    def start(self, number):
        where = f"tcp://10.77.0.{number}:{PORT}"
        pod = self.cluster.pod(number, PULLER, where, self.folder / str(number), *self.extra)
        assert pod.line() == "ready"
        self.pods[number] = pod

    def state(self, word="tell"):
        return json.loads(self.push.ask(word))

    def received(self, number):
        return [int(word) for word in (self.folder / str(number)).read_bytes().split()]

    def sent_to(self, number):
        """Messages that this peer was given; None: it is no peer."""
        return self.state()["peers"].get(f"tcp://10.77.0.{number}:{PORT}", [None])[0]

    def gets_work(self, number):
        begin = time.monotonic()
        until(lambda: self.received(number), f"work for {number}")
        return time.monotonic() - begin

    def gets_none(self, number, begin):
        """Seconds from `begin` to the last message that it was given."""
        last, since = self.sent_to(number), time.monotonic()
        while time.monotonic() - since < 1.5:
            now = self.sent_to(number)
            if now is not None and now != last:
                last, since = now, time.monotonic()
            assert time.monotonic() - begin < 30
        return max(0.0, since - begin)


@pytest.fixture
def cluster():
    with Cluster(ttl=2) as made:
        yield made


def end(scene):
    """(what was told, what each pod received), when those who live have taken all that they were given."""
    scene.state("stop")
    until(lambda: not any(waits for _, waits in scene.state()["peers"].values()))
    received = {number: scene.received(number) for number in scene.pods}
    return scene.state(), received


def check_counts(state, received):
    """Nothing is lost in silence, and nothing is there twice."""
    together = set().union(*received.values())
    assert sum(map(len, received.values())) == len(together), "each message went to one"
    assert state["sent"] <= len(together) + state["counts"].get("unconfirmed", 0)


def test_a_headless_service(cluster, tmp_path, capsys):
    scene = Scene(cluster, tmp_path, f"dns://pods:{PORT}")
    scene.start(11)
    cluster.list(11)
    scene.gets_work(11)
    begun, asked = time.monotonic(), cluster.asked()
    scene.start(12)
    cluster.list(11, 12)
    came = scene.gets_work(12)
    scene.start(13)
    cluster.list(11, 12, 13)
    scene.gets_work(13)
    # One is killed, as by the kernel for its memory.
    begin = time.monotonic()
    scene.pods[12].kill()
    killed = scene.gets_none(12, begin)
    # One vanishes, and DNS does not know yet.
    begin, had = time.monotonic(), scene.sent_to(13)
    cluster.cut(13)
    vanished = scene.gets_none(13, begin)
    assert scene.sent_to(13) - had < 700, "it was not given what would have waited for it"
    cluster.list(11)
    begin = time.monotonic()
    until(lambda: scene.sent_to(13) is None)
    dropped = time.monotonic() - begin
    # All are gone from DNS, and whoever answers keeps its work.
    cluster.list()
    time.sleep(3)
    had = scene.sent_to(11)
    until(lambda: scene.sent_to(11) > had)
    seconds = time.monotonic() - begun
    assert cluster.asked() - asked <= seconds / 2 + 3, "the cache answers, for as long as its TTL says"
    check_counts(*end(scene))
    with capsys.disabled():
        print(f"\ndns, TTL 2 s: new {came:.2f}, killed {killed:.2f}, vanished {vanished:.2f}, "
              f"dropped after DNS {dropped:.2f} s")  # fmt: skip


def test_a_link_that_comes_back_loses_nothing(cluster, tmp_path):
    scene = Scene(cluster, tmp_path, f"dns://pods:{PORT}")
    for number in (11, 12):
        scene.start(number)
    cluster.list(11, 12)
    for number in (11, 12):
        scene.gets_work(number)
    cluster.cut(12)
    scene.gets_none(12, time.monotonic())
    cluster.cut(12, down=False)
    had = scene.sent_to(12)
    until(lambda: scene.sent_to(12) > had)
    state, received = end(scene)
    check_counts(state, received)
    assert not state["counts"].get("unconfirmed") and state["counts"]["connected"] == 2


def test_a_registry(cluster, capsys, tmp_path):
    broker = cluster.follower(BROKER, tmp_path / "broker")
    assert broker.line() == "ready"
    name = "registry://10.77.0.1:5580/pods"
    scene = Scene(cluster, tmp_path, name, name, resend=True)
    scene.start(11)
    scene.gets_work(11)
    scene.start(12)
    came = scene.gets_work(12)
    scene.start(13)
    scene.gets_work(13)
    begin = time.monotonic()
    scene.pods[12].kill()
    killed = scene.gets_none(12, begin)
    begin = time.monotonic()
    cluster.cut(13)
    vanished = scene.gets_none(13, begin)
    until(lambda: scene.sent_to(13) is None, "its lease is over")
    dropped = time.monotonic() - begin
    state, received = end(scene)
    assert set().union(*received.values()) == set(range(state["sent"])), "what the dead ones had came again"
    assert state["counts"]["member:removed"] == 2
    with capsys.disabled():
        print(f"\nregistry: new {came:.2f}, killed {killed:.2f}, vanished {vanished:.2f}, "
              f"dropped after {dropped:.2f} s (lease 1 s)")  # fmt: skip
