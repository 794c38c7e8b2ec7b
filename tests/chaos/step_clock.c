/* The wall clock of one process, moved by a file while it runs: preload it. CLOCK_REALTIME has no
 * namespace, and Debian's libfaketime breaks the absolute sleeps of Python 3.11.
 * The file that STEP_CLOCK names holds one int64: nanoseconds to add. Every other clock is as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile int64_t *step;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("STEP_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    if (found == MAP_FAILED)
        abort();
    step = found;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    if (!real_clock_gettime)
        real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(id, now);
    if (!failed && step && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t all = now->tv_sec * 1000000000LL + now->tv_nsec + *step;
        now->tv_sec = all / 1000000000LL;
        now->tv_nsec = all % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *kept)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (kept)
        *kept = precise.tv_sec;
    return precise.tv_sec;
}
