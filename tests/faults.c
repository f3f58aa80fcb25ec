/* A disk that fails on demand, below every library of a process: LD_PRELOAD this, and tell it what to do by
 * faults_begin. Calls on files below a folder are counted; the chosen one fails with an errno, or kills the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READS, CHANGES };

static char below[PATH_MAX];
static size_t length;
static atomic_long counted[2];
static long wanted[2] = {-1, -1};
static int answer; /* errno, or 0 to kill */
static char struck[64];
static void (*listener)(int kind, const char *name, const char *path);
static _Thread_local int listening; /* what the listener itself opens is none of the calls */

/* To be told of every call that is counted, or NULL. */
void faults_listen(void (*to)(int, const char *, const char *)) { listener = to; }
void faults_begin(const char *folder, long read, long change, int error) {
    strncpy(below, folder, sizeof below - 1);
    length = strlen(below);
    counted[READS] = counted[CHANGES] = 0;
    wanted[READS] = read;
    wanted[CHANGES] = change;
    answer = error;
    struck[0] = 0;
}
long faults_counted(int kind) { return counted[kind]; }
const char *faults_struck(void) { return struck; }
void faults_end(void) { length = 0; }

static int is_below(const char *path) { return strncmp(path, below, length) == 0 && (path[length] == '/' || !path[length]); }

/* -1 with errno set if this call is the one that fails. */
static int strike(int kind, const char *name, const char *path) {
    if (listening) return 0;
    if (listener) {
        int before = errno;
        listening = 1;
        listener(kind, name, path);
        listening = 0;
        errno = before;
    }
    if (atomic_fetch_add(&counted[kind], 1) != wanted[kind]) return 0;
    strncpy(struck, name, sizeof struck - 1);
    if (answer == 0) {
        kill(getpid(), SIGKILL);
        pause();
    }
    errno = answer;
    return -1;
}

static int at_fd(int fd, int kind, const char *name) {
    char link[64], path[PATH_MAX];
    if (!length) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = before;
    if (n <= 0) return 0;
    path[n] = 0;
    return is_below(path) ? strike(kind, name, path) : 0;
}

static int at_path(int folder, const char *path, int kind, const char *name) {
    char whole[2 * PATH_MAX], link[64];
    if (!length || !path) return 0;
    if (path[0] == '/') return is_below(path) ? strike(kind, name, path) : 0;
    int before = errno;
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, whole, PATH_MAX - 1);
    errno = before;
    if (n <= 0) return 0;
    snprintf(whole + n, sizeof whole - n, "/%s", path);
    return is_below(whole) ? strike(kind, name, whole) : 0;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

#define KIND(flags) (((flags) & (O_CREAT | O_TRUNC)) || ((flags) & O_ACCMODE) != O_RDONLY ? CHANGES : READS)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); MODE(flags) \
        return at_path(AT_FDCWD, path, KIND(flags), "open") ? -1 : real(path, flags, mode); }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); MODE(flags) \
        return at_path(folder, path, KIND(flags), "open") ? -1 : real(folder, path, flags, mode); }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(FILE *, #name, const char *, const char *); \
        return at_path(AT_FDCWD, path, strpbrk(mode, "wa+") ? CHANGES : READS, "open") ? NULL : real(path, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) FOPEN(fopen) FOPEN(fopen64)

ssize_t read(int fd, void *to, size_t n) {
    REAL(ssize_t, "read", int, void *, size_t);
    return at_fd(fd, READS, "read") ? -1 : real(fd, to, n);
}
ssize_t write(int fd, const void *from, size_t n) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return at_fd(fd, CHANGES, "write") ? -1 : real(fd, from, n);
}
ssize_t writev(int fd, const struct iovec *from, int n) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    return at_fd(fd, CHANGES, "write") ? -1 : real(fd, from, n);
}
#define PWRITE(name) \
    ssize_t name(int fd, const void *from, size_t n, off_t at) { \
        REAL(ssize_t, #name, int, const void *, size_t, off_t); \
        return at_fd(fd, CHANGES, "write") ? -1 : real(fd, from, n, at); }
PWRITE(pwrite) PWRITE(pwrite64)

#define BY_FD(name, type) \
    int name(int fd) { REAL(int, #name, int); return at_fd(fd, CHANGES, type) ? -1 : real(fd); }
BY_FD(fsync, "fsync") BY_FD(fdatasync, "fsync")
#define RESIZE(name) \
    int name(int fd, off_t size) { REAL(int, #name, int, off_t); return at_fd(fd, CHANGES, "truncate") ? -1 : real(fd, size); }
RESIZE(ftruncate) RESIZE(ftruncate64)

int rename(const char *one, const char *other) {
    REAL(int, "rename", const char *, const char *);
    return at_path(AT_FDCWD, other, CHANGES, "rename") ? -1 : real(one, other);
}
int renameat(int from, const char *one, int to, const char *other) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return at_path(to, other, CHANGES, "rename") ? -1 : real(from, one, to, other);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return at_path(AT_FDCWD, path, CHANGES, "mkdir") ? -1 : real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    return at_path(folder, path, CHANGES, "mkdir") ? -1 : real(folder, path, mode);
}
int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    return at_path(AT_FDCWD, path, CHANGES, "unlink") ? -1 : real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    return at_path(folder, path, CHANGES, "unlink") ? -1 : real(folder, path, flags);
}
int rmdir(const char *path) {
    REAL(int, "rmdir", const char *);
    return at_path(AT_FDCWD, path, CHANGES, "unlink") ? -1 : real(path);
}
