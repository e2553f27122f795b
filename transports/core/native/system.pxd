# The system calls that the core makes, declared once. Linux.

from libc.stdint cimport uint32_t
from posix.time cimport timespec

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_trylock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_create(pthread_t*, void*, void* (*)(void*) noexcept nogil, void*)
    int pthread_join(pthread_t, void**)
    int pthread_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil)

cdef extern from "<sys/socket.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int, const msghdr*, int)
    ssize_t recv(int, void*, size_t, int)
    ssize_t send(int, const void*, size_t, int)
    int shutdown(int, int)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int MSG_PEEK
    int SHUT_RDWR

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int, unsigned long, int*)
    unsigned long FIONREAD

cdef extern from "<sys/uio.h>" nogil:
    ssize_t readv(int, const iovec*, int)

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void*, size_t, int)
    int MADV_HUGEPAGE

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int, int)
    int EFD_CLOEXEC
    int EFD_NONBLOCK

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event*)
    int epoll_wait(int, epoll_event*, int, int)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLONESHOT

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd*, unsigned long, int)
    int ppoll(pollfd*, unsigned long, const timespec*, const void*)
    short POLLIN
    short POLLOUT

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, unsigned long, unsigned long, unsigned long, unsigned long)
    int PR_SET_TIMERSLACK
    int PR_SET_NAME

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t*)
    int pthread_sigmask(int, const sigset_t*, sigset_t*)
    int SIG_SETMASK

cdef extern from "<sched.h>" nogil:
    int sched_yield()
