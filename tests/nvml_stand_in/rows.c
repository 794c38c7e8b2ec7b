/* The text file that drives the stand-in, read again when it changes. */
#include "stand_in.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#define ROWS 2048
#define ANY (-2)

typedef struct {
    int slot;
    uint32_t hash;
    char key[96];
    char value[TEXT];
} row_t;

char slots[SLOTS], migs[SLOTS * MIGS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static row_t rows[ROWS];
static int row_count, any_hang;
static struct stat seen;
static char seen_path[1024];
static struct timespec looked_at;
static int inits_at_load;
int references, inits;

static uint32_t hashed(const char *key, uint32_t hash) {
    while (*key) hash = (hash ^ (unsigned char)*key++) * 16777619u;
    return hash;
}
#define HASH(key) hashed(key, 2166136261u)

static void trim(const char *from, size_t length, char *to, size_t size) {
    while (length && strchr(" \t\r\n", from[0])) from++, length--;
    while (length && strchr(" \t\r\n", from[length - 1])) length--;
    if (length >= size) length = size - 1;
    memcpy(to, from, length);
    to[length] = 0;
}

static void take_row(const char *line) {
    const char *equals = strchr(line, '=');
    row_t *row = rows + row_count;
    char key[96];
    if (line[0] == '#' || !equals) return;
    trim(line, (size_t)(equals - line), key, sizeof key);
    trim(equals + 1, strlen(equals + 1), row->value, TEXT);
    row->slot = NODE;
    char *rest = key;
    if (!strncmp(key, "gpu.", 4)) {
        row->slot = key[4] == '*' ? ANY : atoi(key + 4);
        rest = strchr(key + 4, '.');
        rest = rest ? rest + 1 : key;
    }
    strcpy(row->key, rest);
    row->hash = HASH(row->key);
    any_hang |= !strncmp(row->key, "hang.", 5);
    row_count++;
}

/* Called with the lock held; looks at the file at most once a millisecond, as stat costs. */
static void refresh(void) {
    const char *path = getenv("NVML_STAND_IN");
    struct stat now;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int same = path && !strcmp(path, seen_path);
    if (same && (at.tv_sec - looked_at.tv_sec) * 1000000000L + at.tv_nsec - looked_at.tv_nsec < 1000000L)
        return;
    looked_at = at;
    snprintf(seen_path, sizeof seen_path, "%s", path ? path : "");
    if (!path || stat(path, &now)) {
        row_count = 0;
        memset(&seen, 0, sizeof seen);
        return;
    }
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[512];
    row_count = any_hang = 0;
    while (row_count < ROWS && fgets(line, sizeof line, file)) take_row(line);
    fclose(file);
    seen = now;
    inits_at_load = inits;
}

/* The last line for this slot (or for every slot) and name; called with the lock held. */
static const char *find(int slot, const char *name, uint32_t hash) {
    for (int i = row_count - 1; i >= 0; i--) {
        row_t *row = rows + i;
        if (row->hash == hash && (row->slot == slot || (slot >= 0 && row->slot == ANY)) &&
            !strcmp(row->key, name))
            return row->value;
    }
    return NULL;
}

static void sleep_s(double seconds) {
    struct timespec span = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&span, NULL);
}

static double hang_s(int slot, const char *name) {
    char hang[112];
    snprintf(hang, sizeof hang, "hang.%s", name);
    const char *found = find(slot, hang, HASH(hang));
    if (!found) found = find(slot, "hang.all", HASH("hang.all"));
    return found ? atof(found) : 0;
}

int answer(int slot, const char *name, char *value) {
    double wait_s = 0;
    int code = NOT_SUPPORTED;
    const char *found = NULL;
    pthread_mutex_lock(&lock);
    refresh();
    if (any_hang) wait_s = hang_s(slot, name);
    if (slot >= 0) {
        found = find(slot, "all", HASH("all"));
        if (!found && inits == inits_at_load) found = find(slot, "stale", HASH("stale"));
    }
    if (!found) found = find(slot, name, HASH(name));
    if (found && found[0] == '!') {
        code = atoi(found + 1);
    } else if (found) {
        snprintf(value, TEXT, "%s", found);
        code = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    if (wait_s > 0) sleep_s(wait_s);
    return code;
}

int has_row(int slot, const char *name) {
    pthread_mutex_lock(&lock);
    refresh();
    int has = find(slot, name, HASH(name)) != NULL;
    pthread_mutex_unlock(&lock);
    return has;
}

int answer_of(int slot, const char *name, unsigned number, char *value) {
    char own[96];
    snprintf(own, sizeof own, "%s.%u", name, number);
    return answer(slot, has_row(slot, own) ? own : name, value);
}

int next_event(int after, char *value) {
    int least = 0;
    pthread_mutex_lock(&lock);
    memset(&looked_at, 0, sizeof looked_at);
    refresh();
    for (int i = 0; i < row_count; i++) {
        if (rows[i].slot != NODE || strncmp(rows[i].key, "event.", 6)) continue;
        int n = atoi(rows[i].key + 6);
        if (n > after && (!least || n < least)) {
            least = n;
            snprintf(value, TEXT, "%s", rows[i].value);
        }
    }
    pthread_mutex_unlock(&lock);
    return least;
}

int last_event(void) {
    char value[TEXT];
    int last = 0, next;
    while ((next = next_event(last, value))) last = next;
    return last;
}

int slot_of(device_t device) {
    char *at = (char *)device;
    if (at >= migs && at < migs + sizeof migs) return (int)(at - migs) / MIGS;
    return (int)(at - slots);
}

int text(device_t device, const char *name, char *to, unsigned size) {
    char value[TEXT];
    int code = answer(slot_of(device), name, value);
    if (code) return code;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, value);
    return SUCCESS;
}

int number(device_t device, const char *name, unsigned *to) {
    char value[TEXT];
    int code = answer(slot_of(device), name, value);
    if (!code) *to = (unsigned)strtoul(value, NULL, 0);
    return code;
}

int number64(device_t device, const char *name, unsigned long long *to) {
    char value[TEXT];
    int code = answer(slot_of(device), name, value);
    if (!code) *to = strtoull(value, NULL, 0);
    return code;
}

unsigned long long part(const char *value, int at) {
    char *end = (char *)value;
    unsigned long long found = 0;
    for (int i = 0; i <= at; i++) found = strtoull(end, &end, 0);
    return found;
}

int nvml_is_open(void) {
    return references > 0;
}
