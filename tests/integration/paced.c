/* Sends of more than PACE_MIN bytes take as long as a link of PACE_MBPS megabytes per second would need. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void pace(ssize_t sent) {
    const char *rate = getenv("PACE_MBPS");
    if (rate == NULL || sent < 65536) return;
    double seconds = sent / (atof(rate) * 1e6);
    struct timespec t = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static int is_socket(int fd) {
    int type;
    socklen_t length = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*next)(int, const struct iovec *, int);
    if (!next) next = dlsym(RTLD_NEXT, "writev");
    ssize_t sent = next(fd, parts, count);
    if (sent > 0 && is_socket(fd)) pace(sent);
    return sent;
}

ssize_t send(int fd, const void *data, size_t length, int flags) {
    static ssize_t (*next)(int, const void *, size_t, int);
    if (!next) next = dlsym(RTLD_NEXT, "send");
    ssize_t sent = next(fd, data, length, flags);
    if (sent > 0) pace(sent);
    return sent;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    static ssize_t (*next)(int, const struct msghdr *, int);
    if (!next) next = dlsym(RTLD_NEXT, "sendmsg");
    ssize_t sent = next(fd, message, flags);
    if (sent > 0) pace(sent);
    return sent;
}
