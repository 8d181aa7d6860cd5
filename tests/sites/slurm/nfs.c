/* A file system as NFS and Lustre may be mounted, for one process: preloaded before the C library.
 *
 * flock: with NFS_FLOCK=missing it fails; otherwise it is this process's own, and nobody else's is ever seen.
 * stat:  that a file is not there is remembered for good, as a client's cache remembers it for a while. Opening a file
 *        asks the server.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 4096
static char *absent[MOST];
static int count;

int flock(int file, int operation) {
    const char *how = getenv("NFS_FLOCK");
    if (how && !strcmp(how, "missing")) {
        errno = ENOLCK;
        return -1;
    }
    return 0;
}

static int look(const char *path, struct stat *found, int flags) {
    for (int i = 0; i < count; i++)
        if (!strcmp(absent[i], path)) {
            errno = ENOENT;
            return -1;
        }
    int answer = syscall(SYS_newfstatat, AT_FDCWD, path, found, flags);
    if (answer && errno == ENOENT && count < MOST)
        absent[count++] = strdup(path);
    return answer;
}

int stat(const char *path, struct stat *found) { return look(path, found, 0); }
int stat64(const char *path, struct stat64 *found) { return look(path, (struct stat *)found, 0); }
