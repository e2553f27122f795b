"""The ZeroMQ guide's broker for load balancing, whose workers and clients are children of fork."""

from __future__ import annotations

from tests.sockets.processes import Program

#: the pattern of lbbroker: each side says READY or asks, by ROUTER, with processes that are forked while
#: others connect
_BROKER = """
    import multiprocessing, sys, time, warnings
    import transfer.zmq as zmq

    warnings.simplefilter("ignore")
    CLIENTS, WORKERS = 6, 3
    front_end, back_end = (f"ipc://{sys.argv[1]}/{name}" for name in ("front", "back"))

    def client(number):
        socket = zmq.Context().socket(zmq.REQ)
        socket.identity = f"client-{number}".encode()
        socket.connect(front_end)
        socket.send(b"HELLO")
        assert socket.recv() == b"OK"

    def worker(number):
        socket = zmq.Context().socket(zmq.REQ)
        socket.identity = f"worker-{number}".encode()
        socket.connect(back_end)
        socket.send(b"READY")
        while True:
            address, empty, request = socket.recv_multipart()
            socket.send_multipart([address, b"", b"OK"])

    def main():
        context = zmq.Context.instance()
        front, back = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
        front.bind(front_end)
        back.bind(back_end)
        fork = multiprocessing.get_context("fork")
        calls = [(client, n) for n in range(CLIENTS)] + [(worker, n) for n in range(WORKERS)]
        children = [fork.Process(target=call, args=(n,), daemon=True) for call, n in calls]
        for child in children:  # the last ones while the first have the first connections here
            child.start()
            time.sleep(0.008)
        poller = zmq.Poller()
        poller.register(back, zmq.POLLIN)
        ready, left = [], CLIENTS
        while left:
            events = dict(poller.poll(10000))
            assert events, f"{left} clients were not served"
            if back in events:
                name, _, address, *rest = back.recv_multipart()
                if not ready:
                    poller.register(front, zmq.POLLIN)
                ready.append(name)
                if address != b"READY":
                    front.send_multipart([address, b"", rest[-1]])
                    left -= 1
            if front in events:
                address, _, request = front.recv_multipart()
                back.send_multipart([ready.pop(0), b"", address, b"", request])
                if not ready:
                    poller.unregister(front)
        for child in children[:CLIENTS]:
            child.join(20)
            assert child.exitcode == 0
        for child in children[CLIENTS:]:
            child.terminate()
        context.destroy(linger=0)

    main()
    print("served")
"""


def test_the_guides_broker_serves_children_of_fork(tmp_path):
    with Program(_BROKER, tmp_path, core="native") as program:
        code, out, errors = program.finish(60)
    assert (code, out.strip()) == (0, "served"), errors[-3000:]
