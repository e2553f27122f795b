"""Senders and receivers as processes of their own, to be stopped and killed."""

SENDER = """
    import sys, numpy, transfer
    phase = sys.argv[2]
    context = transfer.Context()
    push = context.socket(transfer.PUSH, sndtimeo=20000, reconnect_ivl=10)
    push.connect(sys.argv[1])
    print("ready", flush=True)
    shared = context.empty(200_000, "float32")
    shared[:] = 1
    plain = numpy.ones(200_000, "float32")
    push.wait_for_peers(1, 20)
    count = 0
    while True:
        if phase == "plain":
            push.send_tensor(plain)
        elif phase == "lent":
            push.send_tensor(shared).wait(20)
        elif phase == "small":
            push.send(b"x" * 100)
        else:
            push.send_tensors({"a": plain, "b": plain})
            push.send_tensor(shared).wait(20)
        count += 1
        if count == 3:
            print("going", flush=True)
"""

RECEIVER = """
    import sys, transfer
    phase = sys.argv[2]
    context = transfer.Context()
    pull = context.socket(transfer.PULL, rcvtimeo=20000, reconnect_ivl=10)
    pull.connect(sys.argv[1])
    print("ready", flush=True)
    kept = []
    count = 0
    while True:
        kept.append(pull.recv_multipart(copy=False))
        if phase == "takes":
            kept.clear()
        count += 1
        if count == (1 if phase == "asleep" else 3):
            print("going", flush=True)
            if phase == "asleep":
                sys.stdin.readline()
"""
