// Preloaded before the C library: reads of files below one folder give few bytes at a time, as they may.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST = 1000 };

static size_t of(int fd, size_t size) {
    char link[64], path[4096];
    const char *folder = getenv("FEW_BYTES_BELOW");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t num = folder == NULL ? -1 : readlink(link, path, sizeof path - 1);
    if (num < 0 || size < MOST) return size;
    path[num] = 0;
    return strncmp(path, folder, strlen(folder)) == 0 ? MOST : size;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t read(int fd, void *data, size_t size) { return REAL(read)(fd, data, of(fd, size)); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { return REAL(pread64)(fd, data, of(fd, size), at); }
ssize_t preadv64(int fd, const struct iovec *parts, int num, off64_t at) {
    struct iovec first = {parts[0].iov_base, of(fd, parts[0].iov_len)};
    return first.iov_len < parts[0].iov_len ? REAL(preadv64)(fd, &first, 1, at) : REAL(preadv64)(fd, parts, num, at);
}
