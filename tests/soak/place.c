/* A bad place for one process, preloaded before the C library: a slow disk, and a clock that jumps.
 *
 * $SOAK_CONTROL/HOST holds two 64-bit numbers that whoever tests may change at any time: seconds that this host's wall
 * clock is wrong by, and microseconds that every read, write and sync of a file on the control file's own disk takes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile long seconds, microseconds;
};
static struct control nothing, *control = &nothing;
static dev_t disk;

__attribute__((constructor)) static void begin(void) {
    char path[4096], host[256];
    struct stat found;
    const char *folder = getenv("SOAK_CONTROL");
    if (!folder || gethostname(host, sizeof host))
        return;
    snprintf(path, sizeof path, "%s/%s", folder, host);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *seen = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, file, 0);
    if (seen != MAP_FAILED && !fstat(file, &found)) {
        control = seen;
        disk = found.st_dev;
    }
    close(file);
}

static void wait_for_the_disk(int file) {
    struct stat found;
    if (control->microseconds && !fstat(file, &found) && S_ISREG(found.st_mode) && found.st_dev == disk)
        usleep(control->microseconds);
}

#define SLOW(result, name, call, ...)                                                                                  \
    result name(__VA_ARGS__) {                                                                                         \
        wait_for_the_disk(file);                                                                                       \
        return call;                                                                                                   \
    }

SLOW(ssize_t, write, syscall(SYS_write, file, from, size), int file, const void *from, size_t size)
SLOW(ssize_t, read, syscall(SYS_read, file, into, size), int file, void *into, size_t size)
SLOW(ssize_t, writev, syscall(SYS_writev, file, parts, count), int file, const struct iovec *parts, int count)
SLOW(ssize_t, pwrite, syscall(SYS_pwrite64, file, from, size, at), int file, const void *from, size_t size, off_t at)
SLOW(ssize_t, pwrite64, syscall(SYS_pwrite64, file, from, size, at), int file, const void *from, size_t size, off_t at)
SLOW(int, fsync, syscall(SYS_fsync, file), int file)
SLOW(int, fdatasync, syscall(SYS_fdatasync, file), int file)

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, now);
    if (!answer && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += control->seconds;
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int answer = clock_gettime(CLOCK_REALTIME, &exact);
    if (!answer) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return answer;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}

/* The kernel's clock has not jumped: who waits until a moment of the wrong clock means another one of the right. */
static const struct timespec *right(const struct timespec *until, struct timespec *moved) {
    if (until->tv_sec < 1000000000)  /* a monotonic clock's, which counts from the boot */
        return until;
    *moved = *until;
    moved->tv_sec -= control->seconds;
    return moved;
}

#define UNTIL(name, arguments, ...)                                                                                    \
    int name(__VA_ARGS__, const struct timespec *until) {                                                              \
        static int (*real)(__VA_ARGS__, const struct timespec *);                                                      \
        struct timespec moved;                                                                                         \
        if (!real)                                                                                                     \
            real = (int (*)(__VA_ARGS__, const struct timespec *))dlsym(RTLD_NEXT, #name);                             \
        return real arguments;                                                                                         \
    }

UNTIL(pthread_cond_timedwait, (condition, mutex, right(until, &moved)), pthread_cond_t *condition,
      pthread_mutex_t *mutex)
UNTIL(pthread_cond_clockwait, (condition, mutex, clock, right(until, &moved)), pthread_cond_t *condition,
      pthread_mutex_t *mutex, clockid_t clock)
UNTIL(sem_timedwait, (semaphore, right(until, &moved)), sem_t *semaphore)
UNTIL(sem_clockwait, (semaphore, clock, right(until, &moved)), sem_t *semaphore, clockid_t clock)
