# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The flusher: a thread that never takes the GIL.

It writes what streams have pending a tick after it was buffered, drains those whose kernel buffer was full,
and sends credits. While it runs it alone frees a closed link, since it may be using one.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.time cimport timespec
from posix.unistd cimport close, read, write

from transfer.transports.core.native.atomic cimport load, load_int, store_int
from transfer.transports.core.native.kernel_writes cimport (
    CREDIT_KIND, CREDIT_NS, F_CONTROL, HEADER, WOULD_BLOCK, flusher_t, link_free, put_header,
    link_reserve, link_t, link_watch_room, link_write, now_ns, segment_t, store_segment, wake,
)
from transfer.transports.core.native.system cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLONESHOT,
    POLLIN, PR_SET_NAME, PR_SET_TIMERSLACK, SIG_SETMASK, epoll_create1, epoll_ctl, epoll_event,
    epoll_wait, eventfd, pollfd, ppoll, prctl, pthread_atfork, pthread_create, pthread_join,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    pthread_mutex_trylock, pthread_sigmask, sigfillset, sigset_t,
)
from transfer.transports.core.native cimport kernel_writes as native_link

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef extern from *:
    """
    static inline void full_fence(void) { __sync_synchronize(); }
    """
    void full_fence() nogil

cdef enum:
    TICK_NS = 100 * 1000            # how long a message waits to be gathered with others
    IDLE_TICKS = 5                  # empty ticks before the thread sleeps


cdef void after_fork_in_child() noexcept nogil:
    native_link.fork_generation += 1
    native_link.main_thread = PyThread_get_thread_ident()


cdef int hook_installed = 0


cdef void watch_forks() noexcept nogil:
    """From now on `fork_generation` counts. Twice is fine."""
    global hook_installed
    if not hook_installed:
        hook_installed = 1
        pthread_atfork(NULL, NULL, after_fork_in_child)


cdef flusher_t* flusher_new() noexcept nogil:
    cdef flusher_t* flusher
    watch_forks()
    flusher = <flusher_t*>calloc(1, sizeof(flusher_t))
    if flusher == NULL:
        return NULL
    pthread_mutex_init(&flusher.mutex, NULL)
    flusher.start = flusher_start
    flusher.generation = native_link.fork_generation
    flusher.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    flusher.reap_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    flusher.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
    if flusher.wake_fd < 0 or flusher.reap_fd < 0 or flusher.epoll_fd < 0:
        flusher_free(flusher)
        return NULL
    return flusher


cdef void close_descriptors(flusher_t* flusher) noexcept nogil:
    if flusher.wake_fd >= 0:
        close(flusher.wake_fd)
    if flusher.reap_fd >= 0:
        close(flusher.reap_fd)
    if flusher.epoll_fd >= 0:
        close(flusher.epoll_fd)
    flusher.wake_fd = flusher.reap_fd = flusher.epoll_fd = -1


cdef void flusher_free(flusher_t* flusher) noexcept nogil:
    close_descriptors(flusher)
    pthread_mutex_destroy(&flusher.mutex)
    free(flusher)


cdef int flusher_start(flusher_t* flusher) noexcept nogil:
    """Starts the thread, once. The caller holds the flusher's mutex."""
    cdef sigset_t every
    cdef sigset_t before
    cdef int answer
    if flusher.stopping or flusher.generation != native_link.fork_generation:
        return -1
    # Signals are for the interpreter's threads: this one must never get them.
    sigfillset(&every)
    pthread_sigmask(SIG_SETMASK, &every, &before)
    answer = pthread_create(&flusher.thread, NULL, flusher_main, flusher)
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    if answer == 0:
        flusher.running = 1
    return answer


cdef void flusher_join(flusher_t* flusher) noexcept nogil:
    """Ends the thread. Twice is fine."""
    cdef uint64_t one = 1
    cdef int running
    if flusher.generation != native_link.fork_generation:
        return
    pthread_mutex_lock(&flusher.mutex)
    flusher.stopping = 1
    running = flusher.running
    pthread_mutex_unlock(&flusher.mutex)
    if running:
        write(flusher.wake_fd, &one, 8)
        pthread_join(flusher.thread, NULL)


cdef void flusher_end(flusher_t* flusher) noexcept:
    """After `flusher_join`. The GIL is held, as where the descriptors are used: a stream that another thread
    closes takes its own from the flusher's epoll, whose number must not have gone to another file by then."""
    if flusher.generation != native_link.fork_generation:
        return
    # Streams of other threads may end in the meantime: see link_dispose.
    pthread_mutex_lock(&flusher.mutex)
    flusher.running = 0
    free_dead(flusher)
    flusher.pending = flusher.credit_head = flusher.credit_tail = NULL
    close_descriptors(flusher)
    pthread_mutex_unlock(&flusher.mutex)


cdef void* flusher_main(void* argument) noexcept nogil:
    cdef flusher_t* flusher = <flusher_t*>argument
    cdef int idle = 0
    cdef int worked
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    prctl(PR_SET_NAME, <unsigned long><char*>"transfer-flush", 0, 0, 0)
    while True:
        pthread_mutex_lock(&flusher.mutex)
        if flusher.stopping:
            pthread_mutex_unlock(&flusher.mutex)
            return NULL
        free_dead(flusher)
        wait_for_work(flusher, idle >= IDLE_TICKS)
        worked = flush_pending(flusher)
        worked += send_due_credits(flusher)
        idle = 0 if worked else idle + 1


cdef void link_dispose(link_t* link) noexcept nogil:
    """Gives a closed link to the flusher thread, which alone knows when it is unused."""
    cdef flusher_t* flusher = link.flusher
    cdef int running
    if flusher.generation != native_link.fork_generation:
        # In a forked child there is no thread, and its mutex may be held for ever: let it leak.
        return
    pthread_mutex_lock(&flusher.mutex)
    running = flusher.running
    if running:
        link.next_dead = flusher.dead
        flusher.dead = link
        wake(flusher)
    pthread_mutex_unlock(&flusher.mutex)
    if not running:
        link_free(link)


cdef void free_dead(flusher_t* flusher) noexcept nogil:
    """Removes closed links from all lists and frees them. Mutex held."""
    cdef link_t* dead = flusher.dead
    cdef link_t** place
    cdef link_t* last
    cdef link_t* following
    flusher.dead = NULL
    if dead == NULL:
        return
    place = &flusher.pending
    while place[0] != NULL:
        if load_int(&place[0].closed):
            place[0] = place[0].next_pending
        else:
            place = &place[0].next_pending
    place = &flusher.credit_head
    last = NULL
    while place[0] != NULL:
        if load_int(&place[0].closed):
            place[0] = place[0].next_credit
        else:
            last = place[0]
            place = &place[0].next_credit
    flusher.credit_tail = last
    while dead != NULL:
        following = dead.next_dead
        link_free(dead)
        dead = following


cdef void wait_for_work(flusher_t* flusher, int idle) noexcept nogil:
    """One tick while there is work, else sleeps until a call wakes it. Enters with the mutex held, returns
    without it."""
    cdef pollfd descriptors[2]
    cdef timespec tick
    cdef timespec* limit = &tick
    cdef int64_t wait = TICK_NS
    cdef uint64_t count
    cdef int watched = 1
    if flusher.pending == NULL and idle:
        flusher.asleep = 1
        watched = 2
        wait = -1
        if flusher.credit_head != NULL:
            wait = flusher.credit_head.credit_due - now_ns()
            if wait < TICK_NS:
                wait = TICK_NS
    pthread_mutex_unlock(&flusher.mutex)
    if wait < 0:
        limit = NULL
    else:
        tick.tv_sec = wait // 1000000000
        tick.tv_nsec = wait % 1000000000
    descriptors[0].fd = flusher.epoll_fd
    descriptors[0].events = POLLIN
    descriptors[1].fd = flusher.wake_fd
    descriptors[1].events = POLLIN
    ppoll(descriptors, watched, limit, NULL)
    if watched == 2:
        pthread_mutex_lock(&flusher.mutex)
        flusher.asleep = 0
        pthread_mutex_unlock(&flusher.mutex)
        read(flusher.wake_fd, &count, 8)
    drain_writable(flusher)


cdef void drain_writable(flusher_t* flusher) noexcept nogil:
    """Writes to links whose kernel buffer has room again: a one-shot event each."""
    cdef epoll_event events[64]
    cdef link_t* link
    cdef int count = epoll_wait(flusher.epoll_fd, events, 64, 0)
    cdef int i
    for i in range(count):
        link = <link_t*>events[i].data.ptr
        pthread_mutex_lock(&link.mutex)
        link.wants_output = 0
        if not link.closed and link.fd >= 0:
            write_and_watch(flusher, link)
        pthread_mutex_unlock(&link.mutex)


cdef void write_and_watch(flusher_t* flusher, link_t* link) noexcept nogil:
    """Writes; if the kernel is full again, waits for room, unless a sender waits there itself."""
    cdef epoll_event event
    cdef pollfd room
    cdef int answer
    link.wants_output = 1      # link_write must not arm: this is the flusher already
    answer = link_write(link)
    link.wants_output = 0
    if answer == WOULD_BLOCK and not load_int(&link.waiters):
        link_watch_room(link, &room)
        event.events = room.events | EPOLLONESHOT  # epoll has poll's numbers
        event.data.ptr = link
        if epoll_ctl(flusher.epoll_fd, EPOLL_CTL_MOD, room.fd, &event) != 0:
            epoll_ctl(flusher.epoll_fd, EPOLL_CTL_ADD, room.fd, &event)
        link.wants_output = 1
    hand_over_finished(flusher, link)


cdef void hand_over_finished(flusher_t* flusher, link_t* link) noexcept nogil:
    """Moves Python objects to the flusher's list and notifies a thread with the GIL."""
    cdef segment_t* last = link.finished
    cdef uint64_t one = 1
    if last == NULL:
        return
    while last.next != NULL:
        last = last.next
    pthread_mutex_lock(&flusher.mutex)
    last.next = flusher.finished
    flusher.finished = link.finished
    pthread_mutex_unlock(&flusher.mutex)
    store_segment(&link.finished, NULL)
    write(flusher.reap_fd, &one, 8)


cdef int flush_pending(flusher_t* flusher) noexcept nogil:
    """Writes output that has waited a tick. Returns the number of links."""
    cdef link_t* link
    cdef link_t* following
    cdef int count = 0
    pthread_mutex_lock(&flusher.mutex)
    link = flusher.pending
    flusher.pending = NULL
    pthread_mutex_unlock(&flusher.mutex)
    while link != NULL:
        count += 1
        if pthread_mutex_trylock(&link.mutex) != 0:
            # Another thread writes there, perhaps for long. As `armed` is set, no thread lists it again.
            following = link.next_pending
            pthread_mutex_lock(&flusher.mutex)
            link.next_pending = flusher.pending
            flusher.pending = link
            pthread_mutex_unlock(&flusher.mutex)
            link = following
            continue
        following = link.next_pending
        link.armed = 0
        if not link.closed and link.fd >= 0 and not load_int(&link.error) and not link.wants_output:
            write_and_watch(flusher, link)
        pthread_mutex_unlock(&link.mutex)
        link = following
    return count


cdef int send_due_credits(flusher_t* flusher) noexcept nogil:
    """Reports to each peer whose turn it is how much was consumed.

    A link leaves the list only one round after `credit_armed` was cleared without news: by then a receiver's
    store that was in progress is visible.
    """
    cdef link_t* link
    cdef int64_t now = now_ns()
    cdef int count = 0
    cdef int again
    while True:
        pthread_mutex_lock(&flusher.mutex)
        link = flusher.credit_head
        if link == NULL or link.credit_due > now:
            pthread_mutex_unlock(&flusher.mutex)
            return count
        flusher.credit_head = link.next_credit
        if flusher.credit_head == NULL:
            flusher.credit_tail = NULL
        again = link.credit_armed
        store_int(&link.credit_armed, 0)
        pthread_mutex_unlock(&flusher.mutex)
        full_fence()
        count += 1
        again = credit_one(flusher, link) or again
        pthread_mutex_lock(&flusher.mutex)
        if (again or link.credit_armed) and not load_int(&link.closed):
            link.credit_due = now + CREDIT_NS
            link.next_credit = NULL
            if flusher.credit_tail == NULL:
                flusher.credit_head = link
            else:
                flusher.credit_tail.next_credit = link
            flusher.credit_tail = link
        else:
            link.credit_listed = 0
        pthread_mutex_unlock(&flusher.mutex)


cdef int credit_one(flusher_t* flusher, link_t* link) noexcept nogil:
    """Whether it must be checked again because there was, or is, something to report. At most one credit is
    in a queue, behind what was queued before it: one that is never empty must not keep the peer waiting."""
    cdef int found = 0
    if pthread_mutex_trylock(&link.mutex) != 0:
        return 1           # another thread writes there: a credit would be late, and others must not wait
    if (not link.closed and link.fd >= 0 and not load_int(&link.error)
            and load(&link.received) != link.credited):
        found = 1
        if link.queued_bytes == 0 or link.written >= link.credit_end:
            put_credit(link)
            if not link.wants_output:
                write_and_watch(flusher, link)
    pthread_mutex_unlock(&link.mutex)
    return found


cdef void put_credit(link_t* link) noexcept nogil:
    cdef char* at = link_reserve(link, HEADER + 9, 0)
    cdef uint64_t consumed = load(&link.received)
    if at == NULL:
        return
    put_header(at, link.socket_type, F_CONTROL, 0, 0, 9, 0)
    at[HEADER] = CREDIT_KIND
    memcpy(at + HEADER + 1, &consumed, 8)
    link.credit_end = link.written + <uint64_t>link.queued_bytes
    link.credited = consumed
