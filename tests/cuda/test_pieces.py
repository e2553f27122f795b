"""Tensors in memory that was mapped piece by piece, lent to a peer, on a driver without a GPU. Never ran on a
GPU."""

from __future__ import annotations

import pytest

from tests.cuda.test_mapped import HEAD, SLOW, TAIL

HEAD += """
from tests.cuda.null_driver.segment import PIECE, Segment
"""


def test_pieces_are_lent_without_a_copy(run):
    """A tensor that begins inside one piece and ends inside another; the receiver writes to it."""
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(6)
    part = segment.part(1000, 4 * PIECE)
    end.null.fill(segment.pointer, 1, segment.nbytes)
    end.fill(part, 7, delay=0.05)
    tracker = end.socket.send_tensor(part, copy=False)
    end.hear()
    assert end.socket.peers()[0].gpu.startswith("mapped")
    assert not tracker.done
    assert end.bytes_of(part) == {9}, "the receiver wrote there"
    assert end.bytes_of(segment.part(0, 1000)) == {1}
    end.tell()
    tracker.wait(PATIENCE)
    assert end.null.count(BYTES) == part.nbytes + 1000, "of `bytes_of`: nothing was copied"
    segment.close()
    assert end.null.pieces() == 0

def receive(end):
    end.want()
    tensor = end.socket.recv_tensor(device="cuda:0")
    assert end.null.pieces() == 5
    assert end.bytes_of(tensor) == {7}
    end.null.fill(tensor.__cuda_array_interface__["data"][0], 9, tensor.nbytes)
    end.context.synchronize(0)
    end.tell()
    end.hear()
    del tensor
    until(lambda: end.null.pieces() == 0)
"""
    run(HEAD + program + TAIL, **SLOW)


def test_they_are_unmapped_after_the_receivers_work(run):
    """The receiver deletes the tensor while its kernel still waits to write there: an unmap then ends it."""
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(3)
    part = segment.part(0, segment.nbytes)
    for byte in range(1, 6):
        end.fill(part, byte)
        end.socket.send_tensor(part, copy=False).wait(PATIENCE)
        assert end.bytes_of(part) == {byte + 100}
    segment.close()

def receive(end):
    end.want()
    for byte in range(1, 6):
        tensor = end.socket.recv_tensor(device="cuda:0")
        assert end.bytes_of(tensor) == {byte}
        pointer = tensor.__cuda_array_interface__["data"][0]
        end.null.fill(pointer, byte + 100, tensor.nbytes, delay=0.05)
        del tensor
"""
    run(HEAD + program + TAIL, **SLOW)


def test_more_pieces_than_one_message_has(run):
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(100)
    before = len(os.listdir("/proc/self/fd"))
    for byte in (1, 2):
        end.null.fill(segment.pointer, byte, segment.nbytes)
        end.socket.send_tensor(segment.part(0, segment.nbytes), copy=False).wait(PATIENCE)
    assert len(os.listdir("/proc/self/fd")) == before
    segment.close()

def receive(end):
    end.want()
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {1}
    before = len(os.listdir("/proc/self/fd"))
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {2}
    until(lambda: end.null.pieces() == 0)
    assert len(os.listdir("/proc/self/fd")) <= before
"""
    run(HEAD + program + TAIL)


def test_pieces_of_which_some_are_new(run):
    """What is at an address may be other memory when the next tensor there is sent."""
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(3)
    for byte in range(1, 6):
        end.null.fill(segment.pointer, byte, segment.nbytes)
        end.socket.send_tensor(segment.part(0, segment.nbytes), copy=False).wait(PATIENCE)
        segment.unmap(1)
        segment.map(1)
    segment.close()

def receive(end):
    end.want()
    for byte in range(1, 6):
        assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {byte}
"""
    run(HEAD + program + TAIL)


def test_a_dict_of_parts_of_one_segment(run):
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(8)
    parts = {str(number): segment.part(number * PIECE // 2, PIECE // 2) for number in range(16)}
    for name, part in parts.items():
        end.fill(part, int(name))
    tracker = end.socket.send_tensors(parts, copy=False)
    end.hear()
    tracker.wait(PATIENCE)
    assert end.null.count(BYTES) == 0
    segment.close()

def receive(end):
    end.want()
    found, _ = end.socket.recv_tensors(device="cuda:0")
    assert {name: end.bytes_of(one) for name, one in found.items()} == {str(n): {n} for n in range(16)}
    del found
    end.tell()
    until(lambda: end.null.pieces() == 0)
"""
    run(HEAD + program + TAIL)


def test_what_cannot_be_exported_is_copied_on_the_gpu(run):
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(2, exportable=False)
    part = segment.part(0, segment.nbytes)
    end.fill(part, 3)
    tracker = end.socket.send_tensor(part, copy=False)
    end.hear()
    assert end.null.count(BYTES) == part.nbytes, "one copy on the GPU"
    gpu = end.socket.peers()[0].gpu
    assert gpu.startswith("mapped") and "as a copy there" in gpu, gpu
    segment.close()
    end.tell()

def receive(end):
    end.want()
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {3}
    end.tell()
    end.hear()
"""
    run(HEAD + program + TAIL)


def test_without_copy_false_it_is_a_copy(run):
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(2)
    part = segment.part(100, PIECE)
    end.fill(part, 3)
    end.socket.send_tensor(part)
    end.fill(part, 4)
    end.hear()
    assert end.null.count(BYTES) == part.nbytes
    segment.close()

def receive(end):
    end.want()
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {3}
    assert end.null.pieces() == 0
    end.tell()
"""
    run(HEAD + program + TAIL, **SLOW)


def test_pieces_that_cannot_be_imported(run):
    """Each receive says so."""
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(2)
    tracker = end.socket.send_tensor(segment.part(0, segment.nbytes), copy=False)
    end.hear()
    assert not tracker.done
    end.tell()
    segment.close()  # its memory is the tensor's, which the tracker keeps; the driver needs nothing of it

def receive(end):
    end.want()
    for _ in range(2):
        try:
            end.socket.recv_tensor(device="cuda:0")
        except DeviceError as error:
            assert "importing" in str(error), str(error)
        else:
            raise AssertionError("it was received")
    end.tell()
    end.hear()

if __name__ == "__main__":
    both(send, receive, NULL_CUDA_PIECES="0")
"""
    run(HEAD + program)


def test_gpus_with_other_numbers(run):
    """The receiver sees the second GPU alone, as its first."""
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(3, device=1)
    part = segment.part(0, segment.nbytes)
    end.fill(part, 5)
    end.socket.send_tensor(part, copy=False).wait(PATIENCE)
    assert end.null.count(BYTES) == 0
    segment.close()

def receive(end):
    end.want()
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {5}

if __name__ == "__main__":
    both(send, receive, NULL_CUDA_FIRST="1")
"""
    run(HEAD + program, NULL_CUDA_DEVICES="2")


def test_a_peer_in_the_same_process(run):
    program = """
from tests.cuda.null_driver import NullDriver

with transfer.Context() as one, transfer.Context() as other:
    with one.socket(transfer.PUSH) as push, other.socket(transfer.PULL) as pull:
        push.sndtimeo = pull.rcvtimeo = 10000
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, timeout=10)
        end, far = End(push, None), End(pull, None)
        far.want()
        end.until_wanted()
        segment = Segment(3)
        part = segment.part(0, segment.nbytes)
        end.fill(part, 6)
        tracker = push.send_tensor(part, copy=False)
        tensor = pull.recv_tensor(device="cuda:0")
        assert tensor.__cuda_array_interface__["data"][0] == part.pointer
        assert end.bytes_of(tensor) == {6}
        del tensor
        tracker.wait(10)
        assert end.null.pieces() == 3
        segment.close()
"""
    run(HEAD + program)


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_a_killed_process(run, who):
    """The receiver's end gives the memory back. The sender's end leaves the receiver its mapping."""
    program = """
WHO = sys.argv[1]

def send(end):
    end.until_wanted()
    segment = Segment(3)
    part = segment.part(0, segment.nbytes)
    end.fill(part, 5)
    tracker = end.socket.send_tensor(part, copy=False)
    end.hear()
    if WHO == "receiver":
        os.kill(end.receiver, signal.SIGKILL)
        try:
            tracker.wait(PATIENCE)
        except Broken:
            pass
        segment.close()
        assert end.null.pieces() == 0
    else:
        end.tell()

def receive(end):
    end.want()
    tensor = end.socket.recv_tensor(device="cuda:0")
    end.tell()
    if WHO == "receiver":
        time.sleep(60)
    end.hear()
    assert end.bytes_of(tensor) == {5}

if __name__ == "__main__":
    both(send, receive, status=-signal.SIGKILL if WHO == "receiver" else 0)
"""
    run(HEAD + program, who)


def test_interrupts_leave_nothing_open(run):
    """A signal handler raises anywhere in a send: the tensor comes whole or not, and no descriptor stays."""
    program = """
def send(end):
    end.until_wanted()
    segment = Segment(40)
    part = segment.part(0, segment.nbytes)
    end.fill(part, 5)
    end.context.synchronize(0)
    end.socket.send_tensor(part, copy=False).wait(PATIENCE)
    before = len(os.listdir("/proc/self/fd"))
    signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    for number in range(300):
        try:
            armed.append(True)
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + number * 0.00001)
            end.socket.send_tensor(part, copy=False)
            time.sleep(0.01)
            armed.clear()
        except Interrupt:
            armed.clear()
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    end.socket.send_tensor(numpy.ones(1))
    sent = end.hear()
    assert interrupted > 250, interrupted
    assert sent > 10, sent
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    segment.close()
    until(lambda: end.null.pieces() == 0)

def receive(end):
    end.want()
    count = 0
    while True:
        tensor = end.socket.recv_tensor(device="cuda:0")
        if tensor.shape == (1,):
            break
        pointer = tensor.__cuda_array_interface__["data"][0]
        assert end.null.peek(pointer, 3) + end.null.peek(pointer + tensor.nbytes - 3, 3) == bytes([5] * 6)
        count += 1
        del tensor
    until(lambda: end.null.pieces() == 0)
    end.tell(count)
"""
    run(HEAD + program + TAIL)


@pytest.mark.parametrize("kind", ["pieces", "allocation", "copy"])
def test_interrupts_of_the_receiver(run, kind):
    """A signal handler raises anywhere in a receive. A tensor comes once, is the receiver's until it deletes
    it, and is unmapped before the sender may free it (the driver ends the process otherwise)."""
    program = """
KIND = sys.argv[1]

def send(end):
    end.until_wanted()
    for number in range(1, 401):
        byte = number % 251
        if KIND == "pieces":
            segment = Segment(2)
            array = segment.part(0, segment.nbytes)
        else:
            segment = array = end.array(100_000, typestr="|u1")
        end.fill(array, byte)
        tracker = end.socket.send_tensors({"a": array}, meta=number, copy=None if KIND == "copy" else False)
        end.socket.send_tensors({}, meta=0)
        if tracker is not None:
            tracker.wait(PATIENCE)
        segment.close()
    end.socket.send_tensors({}, meta=-1)
    end.hear()
    assert end.null.pieces() == 0

def receive(end):
    end.want()
    end.socket.wait_for_peers(1, timeout=PATIENCE)
    signal.signal(signal.SIGALRM, interrupt)
    kept, interrupted, count = [], 0, 0
    while True:
        try:
            found = None
            armed.append(True)
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + (interrupted % 40) * 0.00005)
            found = end.socket.recv_tensors(device="cuda:0")
            armed.clear()
        except Interrupt:
            armed.clear()
            interrupted += 1
            if found is None:
                continue
        tensors, number = found
        if number < 0:
            break
        if not tensors:
            continue
        tensor = tensors.pop("a")
        count += 1
        assert number == count
        pointer = tensor.__cuda_array_interface__["data"][0]
        end.context.synchronize(1)
        end.read(tensor)
        assert end.null.peek(pointer, 1) == bytes([count % 251]), (count, end.null.peek(pointer, 1))
        if KIND == "copy":
            kept.append((pointer, count % 251, tensor))
            for where, byte, _ in kept:
                assert end.null.peek(where, 1) == bytes([byte])
            del kept[:-3]
        del tensor
    assert count == 400, count
    assert interrupted > 10, interrupted
    until(lambda: end.null.pieces() == 0)
    end.tell()
"""
    run(HEAD + program + TAIL, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("pieces", 1000), ("allocations", 5000)])
def test_thousands_of_lent_tensors(run, kind, count):
    """More than the control socket holds, all at a time: of a dict, and of messages."""
    program = """
KIND, COUNT = sys.argv[1], int(sys.argv[2])
SIZE = 65536

def send(end):
    end.until_wanted()
    if KIND == "pieces":
        segment = Segment(COUNT * SIZE // PIECE)
    else:
        segment = end.array(COUNT * SIZE, typestr="|u1")
    end.null.fill(segment.pointer, 7, segment.nbytes)
    end.context.synchronize(0)
    part = Segment.part if KIND == "pieces" else lambda whole, offset, nbytes: Part(whole, offset, nbytes)
    parts = {str(n): part(segment, n * SIZE, SIZE) for n in range(COUNT)}
    tracker = end.socket.send_tensors(parts, copy=False)
    assert end.socket.peers()[0].gpu.startswith("mapped"), end.socket.peers()[0].gpu
    end.hear()
    tracker.wait(PATIENCE)
    trackers = [end.socket.send_tensor(part, copy=False) for part in parts.values()]
    for tracker in trackers:
        tracker.wait(PATIENCE)
    segment.close()

def receive(end):
    end.want()
    found, _ = end.socket.recv_tensors(device="cuda:0")
    assert len(found) == COUNT
    del found
    end.tell()
    kept = [end.socket.recv_tensor(device="cuda:0") for _ in range(COUNT)]
    for tensor in kept[::500]:
        assert end.bytes_of(tensor) == {7}
"""
    head = HEAD + "from tests.cuda.null_driver.segment import Part\n"
    run(head + program + TAIL, kind, str(count), NULL_CUDA_MEMORY=str(2 << 30))


def test_a_stopped_sender(run):
    """What it has announced cannot be read now; another peer's messages come, and its own later."""
    program = """
def send(end):
    end.until_wanted()
    endpoint = end.hear()
    segment = Segment(200)
    end.fill(segment.part(0, segment.nbytes), 3)
    end.tell(os.getpid())
    end.hear()
    end.socket.send_tensor(segment.part(0, segment.nbytes), copy=False)
    end.tell()
    end.hear()
    segment.close()

def receive(end):
    end.want()
    end.tell(end.socket.last_endpoint)
    sender = end.hear()
    mappings = end.socket._streams()[0].carrier._gpu_mappings
    mappings._ask = lambda number, block: None  # as if the sender were stopped before it was asked
    end.tell()
    end.hear()
    os.kill(sender, signal.SIGSTOP)
    try:
        with transfer.Context() as context, context.socket(transfer.PUSH) as other:
            other.connect(end.socket.last_endpoint)
            for number in range(2):
                other.send_tensor(numpy.full(3, number))
            del mappings._ask
            got, errors, started = [], 0, time.monotonic()
            while len(got) < 2:
                try:
                    got.append(end.socket.recv_tensor(device="cpu")[0])
                except DeviceError as error:
                    assert "does not answer" in str(error)
                    errors += 1
                assert time.monotonic() - started < PATIENCE
            assert got == [0, 1] and errors, (got, errors)
    finally:
        os.kill(sender, signal.SIGCONT)
    assert end.bytes_of(end.socket.recv_tensor(device="cuda:0")) == {3}
    end.tell()
"""
    run(HEAD + program + TAIL)
