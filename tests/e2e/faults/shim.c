/* Faults at the n-th file operation of a process, whichever library makes it.
 *
 * Preloaded before libc. Operations on files and folders below `place` are counted from 1. At number `at` there is one
 * fault, `kind`:
 *   k   SIGKILL: half of the bytes of a write are there by then; of renames, every second one is done by then
 *   f   a full disk: half of the bytes are written, and every later write finds no space
 *   t   SIGTERM to the process, which goes on
 *   i   SIGINT to the process, which goes on
 *   j   the clock of the day jumps a day forth and back at every look
 *   l   nothing; the file of every write is listed as an error, a line each
 * A process arms itself by fault_arm(), or from the environment variable FAULT, "KIND OPERATIONS AT PLACE", as its
 * workers do. OPERATIONS are letters: w writes, r renames, u removals, s flushes to the disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char kind, operations[8], place[4096];
static long at;
static atomic_long seen;

#define NEXT(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

void fault_arm(const char *fault, const char *which, long number, const char *where) {
    kind = 0;
    snprintf(operations, sizeof operations, "%s", which);
    snprintf(place, sizeof place, "%s", where);
    at = number;
    atomic_store(&seen, 0);
    kind = fault[0];
}

long fault_seen(void) { return atomic_load(&seen); }

__attribute__((constructor)) static void from_environment(void) {
    char fault[2], which[8], where[4000];
    long number;
    const char *text = getenv("FAULT");
    if (text && sscanf(text, "%1s %7s %ld %3999s", fault, which, &number, where) == 4)
        fault_arm(fault, which, number, where);
}

static int below(const char *path) { return !strncmp(path, place, strlen(place)); }

static int open_below(int descriptor) {
    char link[64], path[4096];
    struct stat about;
    if (fstat(descriptor, &about) || !(S_ISREG(about.st_mode) || S_ISDIR(about.st_mode)))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    if (kind == 'l' && below(path))
        dprintf(2, "writes %s\n", path + strlen(place));
    return below(path);
}

static int named_below(int folder, const char *path) {
    if (path[0] == '/')
        return below(path);
    if (folder != AT_FDCWD)
        return open_below(folder);
    char here[4096];
    return getcwd(here, sizeof here) && below(here);
}

static int chosen(char operation) { return kind && strchr(operations, operation) != NULL; }

/* 1 at the fault; 2 after it on a full disk. */
static int turn(void) {
    int before = errno;
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (number == at && (kind == 't' || kind == 'i'))
        kill(getpid(), kind == 't' ? SIGTERM : SIGINT);
    errno = before;
    return number == at ? 1 : number > at && at > 0 ? 2 : 0;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

#define WRITING(half, whole)                                                                                           \
    if (chosen('w') && open_below(descriptor)) {                                                                       \
        int now = turn();                                                                                              \
        if (kind == 'k' && now == 1) {                                                                                 \
            half;                                                                                                      \
            die();                                                                                                     \
        }                                                                                                              \
        if (kind == 'f' && now) {                                                                                      \
            if (now == 1 && size > 1)                                                                                  \
                return half;                                                                                           \
            errno = ENOSPC;                                                                                            \
            return -1;                                                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    return whole

ssize_t write(int descriptor, const void *bytes, size_t size) {
    WRITING(NEXT(write)(descriptor, bytes, size / 2), NEXT(write)(descriptor, bytes, size));
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t offset) {
    WRITING(NEXT(pwrite)(descriptor, bytes, size / 2, offset), NEXT(pwrite)(descriptor, bytes, size, offset));
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off64_t offset) {
    WRITING(NEXT(pwrite64)(descriptor, bytes, size / 2, offset), NEXT(pwrite64)(descriptor, bytes, size, offset));
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    size_t size = count ? parts[0].iov_len : 0;
    WRITING(NEXT(write)(descriptor, parts[0].iov_base, size / 2), NEXT(writev)(descriptor, parts, count));
}

ssize_t sendfile(int descriptor, int from, off_t *offset, size_t size) {
    WRITING(NEXT(sendfile)(descriptor, from, offset, size / 2), NEXT(sendfile)(descriptor, from, offset, size));
}

#define RENAMING(done)                                                                                                 \
    if (chosen('r') && named_below(folder, new) && turn() == 1 && kind == 'k') {                                       \
        if (at % 2)                                                                                                    \
            done;                                                                                                      \
        die();                                                                                                         \
    }                                                                                                                  \
    return done

int rename(const char *old, const char *new) {
    int folder = AT_FDCWD;
    RENAMING(NEXT(rename)(old, new));
}

int renameat(int from, const char *old, int folder, const char *new) {
    RENAMING(NEXT(renameat)(from, old, folder, new));
}

int renameat2(int from, const char *old, int folder, const char *new, unsigned int flags) {
    RENAMING(NEXT(renameat2)(from, old, folder, new, flags));
}

#define REMOVING(done)                                                                                                 \
    if (chosen('u') && named_below(folder, path) && turn() == 1 && kind == 'k')                                        \
        die();                                                                                                         \
    return done

int unlink(const char *path) {
    int folder = AT_FDCWD;
    REMOVING(NEXT(unlink)(path));
}

int rmdir(const char *path) {
    int folder = AT_FDCWD;
    REMOVING(NEXT(rmdir)(path));
}

int unlinkat(int folder, const char *path, int flags) { REMOVING(NEXT(unlinkat)(folder, path, flags)); }

#define FLUSHING(done)                                                                                                 \
    if (chosen('s') && open_below(descriptor) && turn() == 1 && kind == 'k')                                           \
        die();                                                                                                         \
    return done

int fsync(int descriptor) { FLUSHING(NEXT(fsync)(descriptor)); }

int fdatasync(int descriptor) { FLUSHING(NEXT(fdatasync)(descriptor)); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = NEXT(clock_gettime)(clock, now);
    if (kind == 'j' && clock == CLOCK_REALTIME && !failed)
        now->tv_sec += atomic_fetch_add(&seen, 1) % 2 ? 86400 : -86400;
    return failed;
}
