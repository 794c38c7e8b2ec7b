/*
 * Events. A row `event.N = SLOT TYPE DATA [GI CI]` is delivered once, in the order of N, to a set
 * in which that slot is registered for that type; what stands in the file before that never is.
 *
 *     gpu.*.events = 0xffff        the types that the GPU supports
 *     event_wait = !15             the wait fails; hang.event_wait = 3600: it does not return
 */
#include "stand_in.h"

#include <limits.h>
#include <poll.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    unsigned long long types[SLOTS];
    int delivered, registered, watch;
} set_t;

typedef struct {
    device_t device;
    unsigned long long type, data;
    unsigned gi, ci;
} event_t;

int nvmlEventSetCreate(set_t **to) {
    char value[TEXT], path[PATH_MAX];
    const char *file = getenv("NVML_STAND_IN");
    int code = answer(NODE, "event_set", value);
    if (!nvml_is_open()) return UNINITIALIZED;
    if (code != NOT_SUPPORTED && code != SUCCESS) return code;
    *to = calloc(1, sizeof **to);
    (*to)->watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(path, sizeof path, "%s", file ? file : ".");
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
    inotify_add_watch((*to)->watch, slash ? path : ".", IN_MOVED_TO | IN_CLOSE_WRITE);
    return SUCCESS;
}

int nvmlEventSetFree(set_t *set) {
    close(set->watch);
    free(set);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(device_t d, unsigned long long *to) {
    return number64(d, "events", to);
}

int nvmlDeviceRegisterEvents(device_t d, unsigned long long types, set_t *set) {
    unsigned long long supported;
    int code = number64(d, "events", &supported);
    if (code) return code;
    if (types & ~supported) return NOT_SUPPORTED;
    if (!set->registered) set->delivered = last_event();
    set->registered = 1;
    set->types[slot_of(d)] |= types;
    return SUCCESS;
}

static int take(set_t *set, event_t *to) {
    char value[TEXT];
    int next;
    while ((next = next_event(set->delivered, value))) {
        int slot = -1, fields;
        set->delivered = next;
        to->gi = to->ci = NONE;
        fields = sscanf(value, "%d %lli %lli %u %u", &slot, (long long *)&to->type,
                        (long long *)&to->data, &to->gi, &to->ci);
        if (fields < 3 || slot < 0 || slot >= SLOTS || !(set->types[slot] & to->type)) continue;
        to->device = (device_t)(slots + slot);
        return 1;
    }
    return 0;
}

static long long now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000LL + at.tv_nsec / 1000000;
}

int nvmlEventSetWait_v2(set_t *set, event_t *to, unsigned timeout_ms) {
    char value[TEXT], read_away[4096];
    long long ends = now_ms() + timeout_ms, left;
    int code = answer(NODE, "event_wait", value);
    if (code != NOT_SUPPORTED && code != SUCCESS) return code;
    for (;;) {
        if (take(set, to)) return SUCCESS;
        if (!nvml_is_open()) return UNINITIALIZED;
        if ((left = ends - now_ms()) <= 0) return TIMEOUT;
        struct pollfd watched = {set->watch, POLLIN, 0};
        poll(&watched, 1, (int)left);
        while (read(set->watch, read_away, sizeof read_away) > 0) continue;
    }
}
