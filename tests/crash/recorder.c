/* Records what a process does to the files under one folder, in order; loaded with LD_PRELOAD.

   Syncs return at once: nothing reaches the disk earlier for them, and the model decides what survives. Each
   operation happens and is recorded under one lock. A sync is recorded when it begins and when it ends, so that
   other threads' writes may come in between.

   A record: kind 4 | thread 4 | inode 8 | a 8 | b 8 | bytes 8 | the bytes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE, ALLOCATE, PUNCH, SYNC_BEGIN, SYNC_END, CREATE, MKDIR, RENAME, UNLINK, MARK, OPEN, REFUSED };

struct record { uint32_t kind, thread; uint64_t inode, a, b, size; };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char *trace;
static size_t used, room;
static int on;
static char root[PATH_MAX];
static dev_t device;
static unsigned delay;
/* the inodes under the folder */
static ino_t *known;
static size_t count, slots;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))real_of(#name)

static void *real_of(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void *add(uint32_t kind, uint64_t inode, uint64_t a, uint64_t b, const void *data, size_t size) {
    size_t needed = used + sizeof(struct record) + size;
    if (needed > room) {
        room = needed * 2 + 65536;
        trace = realloc(trace, room);
        if (!trace) abort();
    }
    struct record one = {kind, (uint32_t)syscall(SYS_gettid), inode, a, b, size};
    memcpy(trace + used, &one, sizeof one);
    char *at = trace + used + sizeof one;
    if (data) memcpy(at, data, size);
    used = needed;
    return at;
}

static int find(ino_t inode) {
    for (size_t at = 0; at < count; at++)
        if (known[at] == inode) return (int)at;
    return -1;
}

static void know(ino_t inode) {
    if (find(inode) >= 0) return;
    if (count == slots) known = realloc(known, (slots = slots * 2 + 64) * sizeof *known);
    known[count++] = inode;
}

/* A file elsewhere: if its inode is known, it was that of a file under the folder which has gone. */
static void forget(int fd) {
    struct stat st;
    pthread_mutex_lock(&lock);
    int at = !fstat(fd, &st) && st.st_dev == device ? find(st.st_ino) : -1;
    if (at >= 0) known[at] = known[--count];
    pthread_mutex_unlock(&lock);
}

/* The inode of a descriptor that lies under the folder, or 0. With the lock. */
static ino_t inode_of(int fd) {
    struct stat st;
    if (!on || fstat(fd, &st) || st.st_dev != device || find(st.st_ino) < 0) return 0;
    return st.st_ino;
}

/* The path if it lies under the folder, else NULL. */
static const char *inside(int folder, const char *path, char *buffer) {
    if (!on || !path) return NULL;
    if (path[0] != '/') {
        char base[PATH_MAX], link[64];
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return NULL;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t n = readlink(link, base, sizeof base - 1);
            if (n < 0) return NULL;
            base[n] = 0;
        }
        if (snprintf(buffer, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return NULL;
    } else if (snprintf(buffer, PATH_MAX, "%s", path) >= PATH_MAX) return NULL;
    size_t n = strlen(root);
    if (strncmp(buffer, root, n) || (buffer[n] && buffer[n] != '/')) return NULL;
    return buffer;
}

/* -- the interface for the test program --------------------------------------------------------------- */

void crash_begin(const char *folder, unsigned sync_delay) {
    struct stat st;
    pthread_mutex_lock(&lock);
    used = count = 0;
    snprintf(root, sizeof root, "%s", folder);
    if (stat(folder, &st)) abort();
    device = st.st_dev;
    delay = sync_delay;
    on = 1;
    pthread_mutex_unlock(&lock);
}

void crash_know(uint64_t inode) { know((ino_t)inode); }

void crash_mark(uint64_t number, const char *text) {
    pthread_mutex_lock(&lock);
    if (on) add(MARK, 0, number, 0, text, strlen(text));
    pthread_mutex_unlock(&lock);
}

size_t crash_end(char **data) {
    pthread_mutex_lock(&lock);
    on = 0;
    *data = trace;
    pthread_mutex_unlock(&lock);
    return used;
}

/* -- data --------------------------------------------------------------------------------------------- */

/* Only for the folder's files: a write to a socket may block. */
#define LOCKED(type, call) \
    pthread_mutex_lock(&lock); \
    ino_t inode = inode_of(fd); \
    if (!inode) { \
        pthread_mutex_unlock(&lock); \
        return call; \
    } \
    type done = call; \
    int error = errno;

#define UNLOCKED \
    pthread_mutex_unlock(&lock); \
    errno = error; \
    return done;

/* What was written is read back: it may come from anywhere. */
static void written(int fd, ino_t inode, off_t offset, size_t size) {
        char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    char *at = add(WRITE, inode, offset, 0, NULL, size);
    for (size_t got = 0; got < size;) {
        ssize_t n = syscall(SYS_pread64, other, at + got, size - got, offset + got);
        if (n <= 0) abort();
        got += n;
    }
    close(other);
}

static off_t here(int fd) { return lseek(fd, 0, SEEK_CUR); }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    LOCKED(ssize_t, real(fd, data, size))
    if (done > 0) add(WRITE, inode, here(fd) - done, 0, data, done);
    UNLOCKED
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
    REAL(writev);
    LOCKED(ssize_t, real(fd, parts, number))
    if (done > 0) written(fd, inode, here(fd) - done, done);
    UNLOCKED
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t size, offset_type offset) { \
        REAL(name); \
        LOCKED(ssize_t, real(fd, data, size, offset)) \
        if (done > 0) add(WRITE, inode, offset, 0, data, done); \
        UNLOCKED \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int number, offset_type offset) { \
        REAL(name); \
        LOCKED(ssize_t, real(fd, parts, number, offset)) \
        if (done > 0) written(fd, inode, offset, done); \
        UNLOCKED \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int number, offset_type offset, int flags) { \
        REAL(name); \
        LOCKED(ssize_t, real(fd, parts, number, offset, flags)) \
        if (done > 0) written(fd, inode, offset < 0 ? here(fd) - done : offset, done); \
        UNLOCKED \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

ssize_t copy_file_range(int from, off64_t *in, int fd, off64_t *out, size_t size, unsigned flags) {
    REAL(copy_file_range);
    LOCKED(ssize_t, real(from, in, fd, out, size, flags))
    if (done > 0) written(fd, inode, (out ? *out : here(fd)) - done, done);
    UNLOCKED
}

ssize_t splice(int from, off64_t *in, int fd, off64_t *out, size_t size, unsigned flags) {
    REAL(splice);
    LOCKED(ssize_t, real(from, in, fd, out, size, flags))
    if (done > 0) written(fd, inode, (out ? *out : here(fd)) - done, done);
    UNLOCKED
}

#define SENDFILE(name, offset_type) \
    ssize_t name(int fd, int from, offset_type *offset, size_t size) { \
        REAL(name); \
        LOCKED(ssize_t, real(fd, from, offset, size)) \
        if (done > 0) written(fd, inode, here(fd) - done, done); \
        UNLOCKED \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

/* -- sizes and room ----------------------------------------------------------------------------------- */

#define FTRUNCATE(name, type) \
    int name(int fd, type size) { \
        REAL(name); \
        LOCKED(int, real(fd, size)) \
        if (!done) add(TRUNCATE, inode, size, 0, NULL, 0); \
        UNLOCKED \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define TRUNCATE_PATH(name, type) \
    int name(const char *path, type size) { \
        REAL(name); \
        struct stat st; \
        pthread_mutex_lock(&lock); \
        int done = real(path, size), error = errno; \
        if (!done && on && !stat(path, &st) && st.st_dev == device && find(st.st_ino) >= 0) \
            add(TRUNCATE, st.st_ino, size, 0, NULL, 0); \
        UNLOCKED \
    }
TRUNCATE_PATH(truncate, off_t)
TRUNCATE_PATH(truncate64, off64_t)

#define POSIX_FALLOCATE(name, type) \
    int name(int fd, type offset, type size) { \
        REAL(name); \
        LOCKED(int, real(fd, offset, size)) \
        if (!done) add(ALLOCATE, inode, offset, size, NULL, 0); \
        UNLOCKED \
    }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define FALLOCATE(name, type) \
    int name(int fd, int mode, type offset, type size) { \
        REAL(name); \
        LOCKED(int, real(fd, mode, offset, size)) \
        if (!done) { \
            if (mode & FALLOC_FL_PUNCH_HOLE) add(PUNCH, inode, offset, size, NULL, 0); \
            else if (!mode) add(ALLOCATE, inode, offset, size, NULL, 0); \
            else if (mode != FALLOC_FL_KEEP_SIZE) add(REFUSED, inode, 0, 0, "fallocate", 9); \
        } \
        UNLOCKED \
    }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)

/* Stores into a shared mapping are not seen. */
#define MMAP(name, type) \
    void *name(void *where, size_t size, int protection, int flags, int fd, type offset) { \
        REAL(name); \
        LOCKED(void *, real(where, size, protection, flags, fd, offset)) \
        if (done != MAP_FAILED && (flags & MAP_SHARED) && (protection & PROT_WRITE)) \
            add(REFUSED, inode, 0, 0, "mmap", 4); \
        UNLOCKED \
    }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

/* -- syncs -------------------------------------------------------------------------------------------- */

static int synced(int fd) {
    pthread_mutex_lock(&lock);
    ino_t inode = inode_of(fd);
    if (inode) add(SYNC_BEGIN, inode, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    if (!inode) return 0;
    if (delay) usleep(delay);
    pthread_mutex_lock(&lock);
    if (on) add(SYNC_END, inode, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int fd) { return synced(fd); }
int fdatasync(int fd) { return synced(fd); }
/* These promise nothing for a crash. */
int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) { (void)fd; (void)offset; (void)size; (void)flags; return 0; }
int msync(void *where, size_t size, int flags) { (void)where; (void)size; (void)flags; return 0; }

/* -- names -------------------------------------------------------------------------------------------- */

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    struct stat st;
    if (!inside(folder, path, buffer)) {
        int other = (int)syscall(SYS_openat, folder, path, flags, mode), error = errno;
        if (other >= 0 && (flags & O_CREAT)) forget(other);
        errno = error;
        return other;
    }
    pthread_mutex_lock(&lock);
    int existed = !stat(buffer, &st);
    int done = (int)syscall(SYS_openat, folder, path, flags, mode), error = errno;
    if (on && done >= 0 && !fstat(done, &st)) {
        know(st.st_ino);
        add(existed ? OPEN : CREATE, st.st_ino, S_ISDIR(st.st_mode), 0, buffer, strlen(buffer));
        if (existed && (flags & O_TRUNC)) add(TRUNCATE, st.st_ino, 0, 0, NULL, 0);
    }
    UNLOCKED
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    struct stat st;
    pthread_mutex_lock(&lock);
    const char *its = inside(folder, path, buffer);
    int done = (int)syscall(SYS_mkdirat, folder, path, mode), error = errno;
    if (its && !done && !stat(its, &st)) {
        know(st.st_ino);
        add(MKDIR, st.st_ino, 0, 0, its, strlen(its));
    }
    UNLOCKED
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    char one[PATH_MAX], two[PATH_MAX], both[2 * PATH_MAX];
    pthread_mutex_lock(&lock);
    const char *a = inside(from, old, one), *b = inside(to, new, two);
    int done = (int)syscall(SYS_renameat2, from, old, to, new, flags), error = errno;
    if (!done && (a || b)) {
        int size = snprintf(both, sizeof both, "%s%c%s", a ? a : "", 0, b ? b : "");
        add(a && b && !(flags & ~1u) ? RENAME : REFUSED, 0, 0, 0, a && b ? both : "renameat2", a && b ? size : 9);
    }
    UNLOCKED
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *path, int flags) {
    char buffer[PATH_MAX];
    pthread_mutex_lock(&lock);
    const char *its = inside(folder, path, buffer);
    int done = (int)syscall(SYS_unlinkat, folder, path, flags), error = errno;
    if (its && !done) add(UNLINK, 0, 0, 0, its, strlen(its));
    UNLOCKED
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char buffer[PATH_MAX];
    pthread_mutex_lock(&lock);
    const char *its = inside(to, new, buffer);
    int done = (int)syscall(SYS_linkat, from, old, to, new, flags), error = errno;
    if (its && !done) add(REFUSED, 0, 0, 0, "link", 4);
    UNLOCKED
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }
