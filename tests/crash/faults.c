// Preloaded before the C library: lets calls that change a file system fail, below one folder, one call or all from one on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];
static atomic_long seen, first = -1, how_many;
static atomic_int error;

// Lets calls [at, at + num) fail with an error, or end the process where that is 0, counted from here on; returns how
// many were counted before.
long stoker_faults(const char *below, long at, long num, int number) {
    first = -1;
    snprintf(folder, sizeof folder, "%s/", below);
    error = number;
    how_many = num;
    first = at;
    return atomic_exchange(&seen, 0);
}

static int fails(const char *path) {
    if (first < 0 || strncmp(path, folder, strlen(folder)) != 0) return 0;
    long now = atomic_fetch_add(&seen, 1);
    if (now < first || now >= first + how_many) return 0;
    if (error == 0) _exit(9);  // before the call: all that came before it is there
    errno = error;
    return 1;
}

static int fails_at(int fd, const char *name) {
    char link[64], path[8192];
    if (first < 0) return 0;
    if (name != NULL && name[0] == '/') return fails(name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = fd == AT_FDCWD ? -1 : readlink(link, path, 4096);
    if (size < 0) return 0;
    snprintf(path + size, sizeof path - size, "/%s", name == NULL ? "" : name);
    return fails(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    return fails_at(fd, NULL) ? -1 : REAL(pwrite64)(fd, data, size, offset);
}
ssize_t write(int fd, const void *data, size_t size) { return fails_at(fd, NULL) ? -1 : REAL(write)(fd, data, size); }
int ftruncate64(int fd, off64_t size) { return fails_at(fd, NULL) ? -1 : REAL(ftruncate64)(fd, size); }
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    return fails_at(fd, NULL) ? -1 : REAL(fallocate64)(fd, mode, offset, size);
}
int renameat(int from, const char *name, int to, const char *other) {
    return fails_at(to, other) ? -1 : REAL(renameat)(from, name, to, other);
}
int rename(const char *name, const char *other) { return fails_at(AT_FDCWD, other) ? -1 : REAL(rename)(name, other); }
int unlinkat(int fd, const char *name, int flags) { return fails_at(fd, name) ? -1 : REAL(unlinkat)(fd, name, flags); }
int unlink(const char *name) { return fails_at(AT_FDCWD, name) ? -1 : REAL(unlink)(name); }
int linkat(int from, const char *name, int to, const char *other, int flags) {
    return fails_at(to, other) ? -1 : REAL(linkat)(from, name, to, other, flags);
}
int symlinkat(const char *target, int fd, const char *name) {
    return fails_at(fd, name) ? -1 : REAL(symlinkat)(target, fd, name);
}
int mkdirat(int fd, const char *name, mode_t mode) { return fails_at(fd, name) ? -1 : REAL(mkdirat)(fd, name, mode); }
int mkdir(const char *name, mode_t mode) { return fails_at(AT_FDCWD, name) ? -1 : REAL(mkdir)(name, mode); }
int openat64(int fd, const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return (flags & O_CREAT) && fails_at(fd, name) ? -1 : REAL(openat64)(fd, name, flags, mode);
}
int open64(const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return (flags & O_CREAT) && fails_at(AT_FDCWD, name) ? -1 : REAL(open64)(name, flags, mode);
}
