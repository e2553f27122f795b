/* This process in shared memory, the processes of its peers, and the sockets that wake them.
 *
 * Names in /dev/shm: PREFIX.PID is a process, from its first open device to its last; PREFIX.qNUMBER is a
 * queue pair, until its peer has opened it. A killed process leaves its own name and those of pairs without a
 * peer: the next process that opens a device removes them.
 */
#define _GNU_SOURCE
#include "null_verbs.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define FOLDER "/dev/shm/"

struct node node = {.lock = PTHREAD_MUTEX_INITIALIZER, .bell = -1};

static void path_of(char path[128], char kind, uint32_t number)
{
    if (kind)
        snprintf(path, 128, FOLDER "%s.%c%u", node.prefix, kind, number);
    else
        snprintf(path, 128, FOLDER "%s.%u", node.prefix, number);
}

static void *map(const char *path, int flags, size_t size)
{
    int fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return NULL;
    void *found = MAP_FAILED;
    if (!(flags & O_CREAT) || !ftruncate(fd, (off_t) size))
        found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    if (found == MAP_FAILED) {
        if (flags & O_CREAT)
            unlink(path);
        errno = error;
        return NULL;
    }
    return found;
}

/* -- what a killed process left ----------------------------------------------------------------------- */

static bool is_gone(uint32_t pid)
{
    return pid && kill((pid_t) pid, 0) && errno == ESRCH;
}

static void remove_leftovers(void)
{
    DIR *folder = opendir(FOLDER);
    if (!folder)
        return;
    size_t length = strlen(node.prefix);
    for (struct dirent *entry; (entry = readdir(folder));) {
        const char *rest = entry->d_name + length + 1;
        if (strncmp(entry->d_name, node.prefix, length) || entry->d_name[length] != '.')
            continue;
        char path[sizeof(FOLDER) + sizeof(entry->d_name)];
        snprintf(path, sizeof(path), FOLDER "%s", entry->d_name);
        uint32_t pid = 0;
        if (*rest == 'q') { /* both begin with the number of the process */
            int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
            if (fd < 0)
                continue;
            if (read(fd, &pid, sizeof(pid)) != sizeof(pid))
                pid = 0;
            close(fd);
        } else {
            pid = (uint32_t) strtoul(rest, NULL, 10);
        }
        if (is_gone(pid))
            unlink(path);
    }
    closedir(folder);
}

/* -- this process ------------------------------------------------------------------------------------- */

static int begin(void)
{
    const char *wanted = getenv("NULL_VERBS_NAME");
    if (wanted && *wanted && strlen(wanted) < sizeof(node.prefix) && !strchr(wanted, '/'))
        strcpy(node.prefix, wanted);
    else
        snprintf(node.prefix, sizeof(node.prefix), "null_verbs-%u", (unsigned) getuid());
    node.pid = (uint32_t) getpid();
    /* Else a security module lets only children be read. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    remove_leftovers();
    char path[128];
    path_of(path, 0, node.pid);
    unlink(path); /* of a former process of this number */
    node.shared = map(path, O_CREAT | O_EXCL, sizeof(struct shared_node));
    if (!node.shared)
        return errno;
    node.shared->pid = node.pid;
    node.shared->port_down = port_is_down;
    node.bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (node.bell < 0) {
        int error = errno;
        munmap(node.shared, sizeof(struct shared_node));
        unlink(path);
        return error;
    }
    /* Numbers of queue pairs are of the whole machine, and not used again soon. */
    if (getrandom(&node.next_number, sizeof(node.next_number), 0) != sizeof(node.next_number))
        node.next_number = node.pid * 2654435761u;
    node.next_region = node.next_number % REGIONS;
    node.regions = 0;
    node.registered = 0;
    return 0;
}

/* For one more device. Returns errno. */
int node_open(void)
{
    pthread_mutex_lock(&node.lock);
    int error = 0;
    if (node.users && node.pid != (uint32_t) getpid()) {
        /* In a forked child all objects are the parent's; it begins without any, and the maps stay. */
        pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
        if (node.bell >= 0)
            close(node.bell);
        memset(&node, 0, sizeof(node));
        node.bell = -1;
        node.lock = unlocked;
        pthread_mutex_lock(&node.lock);
    }
    if (!node.users)
        error = begin();
    if (!error)
        node.users++;
    pthread_mutex_unlock(&node.lock);
    return error;
}

void node_close(void)
{
    pthread_mutex_lock(&node.lock);
    if (!--node.users) {
        char path[128];
        path_of(path, 0, node.pid);
        unlink(path);
        munmap(node.shared, sizeof(struct shared_node));
        close(node.bell);
        node.shared = NULL;
        node.bell = -1;
    }
    pthread_mutex_unlock(&node.lock);
}

/* -- queue pairs -------------------------------------------------------------------------------------- */

struct shared_pair *pair_create(uint32_t *number)
{
    char path[128];
    for (int tries = 0; tries < 1000; tries++) {
        pthread_mutex_lock(&node.lock);
        uint32_t wanted = node.next_number++ & 0xffffff;
        pthread_mutex_unlock(&node.lock);
        if (wanted < 16) /* 0 and 1 have a meaning */
            continue;
        path_of(path, 'q', wanted);
        struct shared_pair *made = map(path, O_CREAT | O_EXCL, sizeof(struct shared_pair));
        if (made) {
            made->pid = node.pid;
            made->number = *number = wanted;
            return made;
        }
        if (errno != EEXIST)
            return NULL;
    }
    errno = ENOMEM;
    return NULL;
}

/* The ring of a peer, for its only producer; its name is not needed any more. NULL: there is none. */
struct shared_pair *pair_open(uint32_t number, uint32_t producer)
{
    char path[128];
    path_of(path, 'q', number);
    struct shared_pair *found = map(path, 0, sizeof(struct shared_pair));
    if (!found)
        return NULL;
    uint32_t none = 0;
    if (!found->pid || !atomic_compare_exchange_strong(&found->producer, &none, producer)) {
        pair_unmap(found);
        return NULL;
    }
    unlink(path);
    return found;
}

void pair_forget(uint32_t number)
{
    char path[128];
    path_of(path, 'q', number);
    unlink(path);
}

void pair_unmap(struct shared_pair *pair)
{
    munmap(pair, sizeof(struct shared_pair));
}

/* -- other processes ---------------------------------------------------------------------------------- */

struct peer *peer_get(uint32_t pid)
{
    pthread_mutex_lock(&node.lock);
    struct peer *peer = node.peers;
    while (peer && (peer->pid != pid || peer->dead))
        peer = peer->next;
    if (!peer && (peer = calloc(1, sizeof(*peer)))) {
        peer->pid = pid;
        peer->pidfd = -1;
        if (pid == node.pid) {
            peer->node = node.shared;
        } else {
            char path[128];
            path_of(path, 0, pid);
            peer->pidfd = (int) syscall(SYS_pidfd_open, (pid_t) pid, 0);
            peer->node = map(path, 0, sizeof(struct shared_node));
        }
        if (!peer->node) {
            if (peer->pidfd >= 0)
                close(peer->pidfd);
            free(peer);
            peer = NULL;
        } else {
            peer->next = node.peers;
            node.peers = peer;
        }
    }
    if (peer)
        peer->users++;
    pthread_mutex_unlock(&node.lock);
    return peer;
}

void peer_put(struct peer *peer)
{
    pthread_mutex_lock(&node.lock);
    if (!--peer->users) {
        struct peer **at = &node.peers;
        while (*at != peer)
            at = &(*at)->next;
        *at = peer->next;
        if (peer->pid != node.pid) {
            munmap(peer->node, sizeof(struct shared_node));
            if (peer->pidfd >= 0)
                close(peer->pidfd);
        }
        free(peer);
    }
    pthread_mutex_unlock(&node.lock);
}

/* Asks the kernel once in a millisecond at most: until then sends to a dead process succeed, as they may. */
bool peer_is_alive(struct peer *peer)
{
    if (peer->pid == node.pid)
        return true;
    if (atomic_load_explicit(&peer->dead, memory_order_relaxed))
        return false;
    uint64_t now = now_ns(CLOCK_MONOTONIC_COARSE);
    if (now - atomic_load_explicit(&peer->checked, memory_order_relaxed) < MS)
        return true;
    atomic_store_explicit(&peer->checked, now, memory_order_relaxed);
    struct pollfd end = {.fd = peer->pidfd, .events = POLLIN};
    bool dead = peer->pidfd >= 0 ? poll(&end, 1, 0) > 0 : is_gone(peer->pid);
    if (dead)
        atomic_store(&peer->dead, true);
    return !dead;
}

/* -- sockets that wake -------------------------------------------------------------------------------- */

/* Abstract names: PREFIX, then binary numbers. They vanish with their socket. */
static socklen_t bell_address(struct sockaddr_un *address, uint32_t pid, uint32_t channel, char kind)
{
    size_t length = strlen(node.prefix);
    char *at = address->sun_path;
    address->sun_family = AF_UNIX;
    *at++ = 0;
    memcpy(at, node.prefix, length);
    at += length;
    memcpy(at, &pid, sizeof(pid));
    memcpy(at + 4, &channel, sizeof(channel));
    at[8] = kind;
    return (socklen_t) (at + 9 - (char *) address);
}

int bell_bind(uint32_t channel, char kind)
{
    struct sockaddr_un address;
    socklen_t length = bell_address(&address, node.pid, channel, kind);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *) &address, length)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Its failures mean that the other process is gone, or that enough messages wait already. */
void bell_ring(uint32_t pid, uint32_t channel, char kind, struct bell_message message)
{
    struct sockaddr_un address;
    socklen_t length = bell_address(&address, pid, channel, kind);
    int before = errno;
    sendto(node.bell, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *) &address,
           length);
    errno = before;
}
