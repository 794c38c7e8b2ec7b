/*
 * A small libnvidia-ml.so.1: the entry points that nvidia-ml-py calls for our reads, answered from
 * a text file named by NVML_STAND_IN, which is read again whenever it changes. `present` is what
 * the bus shows: with `present = 0,2` index 1 is slot 2, as after a GPU fell out of the count.
 *
 *     driver = 570.86.15          answer of nvmlSystemGetDriverVersion
 *     present = 0,1,2             slots in index order
 *     init = !9                   nvmlInit answers 9; also driver, count
 *     gpu.*.temperature = 41      every slot; a later line wins over an earlier one
 *     gpu.2.temperature = !999    the call answers 999
 *     gpu.2.all = !15             every call on that slot, its handle too
 *     gpu.2.handle = !15          only nvmlDeviceGetHandleByIndex
 *     gpu.2.stale = !15           every call, until NVML is initialised after the file was changed
 *     gpu.2.hang.power = 2.5      that call sleeps so many seconds first (hang.all: every call)
 *     hang.count = 2.5            the same for init, driver, count
 *
 * A reading that the file does not name answers 3, NVML_ERROR_NOT_SUPPORTED.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define ARGUMENT_VERSION_MISMATCH 25
#define UNKNOWN 999

#define ROWS 1024
#define TEXT 96
#define SLOTS 64

typedef struct {
    char key[TEXT];
    char value[TEXT];
} row_t;

typedef struct slot *device_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info_t;

typedef struct {
    unsigned gpu, memory;
} utilization_t;

typedef struct {
    unsigned long long total, free, used;
} memory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

typedef struct {
    unsigned version, sensor;
    int temperature;
} temperature_v1_t;

typedef struct {
    unsigned version;
    int margin;
} margin_v1_t;

typedef struct {
    unsigned version;
    unsigned long long agg_unc_parity, agg_unc_secded, agg_cor, vol_unc_parity, vol_unc_secded,
        vol_cor, agg_l2, agg_sm, agg_pcie, agg_mcu, agg_other;
    unsigned threshold_exceeded;
} sram_v1_t;

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned value_type, ret;
    union {
        double d;
        unsigned ui;
        unsigned long ul;
        unsigned long long ull;
        long long sll;
        int si;
        unsigned short us;
    } value;
} field_value_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static row_t rows[ROWS];
static int row_count;
static struct stat seen;
static int references;
static int inits, inits_at_load;
static char slots[SLOTS];

static void trim(const char *from, size_t length, char *to) {
    while (length && strchr(" \t\r\n", from[0])) from++, length--;
    while (length && strchr(" \t\r\n", from[length - 1])) length--;
    if (length >= TEXT) length = TEXT - 1;
    memcpy(to, from, length);
    to[length] = 0;
}

/* Called with the lock held. */
static void refresh(void) {
    const char *path = getenv("NVML_STAND_IN");
    struct stat now;
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
    row_count = 0;
    while (row_count < ROWS && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        if (line[0] == '#' || !equals) continue;
        trim(line, (size_t)(equals - line), rows[row_count].key);
        trim(equals + 1, strlen(equals + 1), rows[row_count].value);
        row_count++;
    }
    fclose(file);
    seen = now;
    inits_at_load = inits;
}

/* The last line for this slot (or for every slot) and name; called with the lock held. */
static const char *find(int slot, const char *name) {
    char key[TEXT], any[TEXT];
    if (slot < 0) {
        snprintf(key, sizeof key, "%s", name);
        snprintf(any, sizeof any, "%s", name);
    } else {
        snprintf(key, sizeof key, "gpu.%d.%s", slot, name);
        snprintf(any, sizeof any, "gpu.*.%s", name);
    }
    for (int i = row_count - 1; i >= 0; i--)
        if (!strcmp(rows[i].key, key) || !strcmp(rows[i].key, any)) return rows[i].value;
    return NULL;
}

static void sleep_s(double seconds) {
    struct timespec span = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&span, NULL);
}

/* Waits as the file says, then copies the answer to `value`; returns the call's return code. */
static int answer(int slot, const char *name, char *value) {
    char hang[TEXT];
    double wait_s = 0;
    int code = NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    refresh();
    snprintf(hang, sizeof hang, "hang.%s", name);
    const char *found = find(slot, hang);
    if (!found) found = find(slot, "hang.all");
    if (found) wait_s = atof(found);
    found = slot < 0 ? NULL : find(slot, "all");
    if (!found && slot >= 0 && inits == inits_at_load) found = find(slot, "stale");
    if (!found) found = find(slot, name);
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

static int slot_of(device_t device) {
    return (int)((char *)device - slots);
}

static int text(device_t device, const char *name, char *to, unsigned size) {
    char value[TEXT];
    int code = answer(slot_of(device), name, value);
    if (code) return code;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, value);
    return SUCCESS;
}

static int number(device_t device, const char *name, unsigned *to) {
    char value[TEXT];
    int code = answer(slot_of(device), name, value);
    if (!code) *to = (unsigned)strtoul(value, NULL, 0);
    return code;
}

static int number64(device_t device, const char *name, unsigned long long *to) {
    char value[TEXT];
    int code = answer(slot_of(device), name, value);
    if (!code) *to = strtoull(value, NULL, 0);
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    char value[TEXT];
    (void)flags;
    int code = answer(-1, "init", value);
    if (code == NOT_SUPPORTED) code = SUCCESS;
    if (code == SUCCESS) {
        __sync_fetch_and_add(&references, 1);
        __sync_fetch_and_add(&inits, 1);
    }
    return code;
}

int nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void) {
    if (references <= 0) return UNINITIALIZED;
    __sync_fetch_and_sub(&references, 1);
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case 0: return "Success";
        case 19: return "In use by another client";
        case 21: return "No data";
        case 25: return "Argument version mismatch";
        case 26: return "Deprecated";
        case 27: return "Not Ready";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    char value[TEXT];
    if (references <= 0) return UNINITIALIZED;
    int code = answer(-1, "driver", value);
    if (code) return code;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, value);
    return SUCCESS;
}

/* The slot at an index of `present`, or how many there are. */
static int present(int index, int *count) {
    char list[512], *next = list, *part;
    int at = 0, slot = -1;
    pthread_mutex_lock(&lock);
    refresh();
    const char *found = find(-1, "present");
    snprintf(list, sizeof list, "%s", found ? found : "");
    pthread_mutex_unlock(&lock);
    while ((part = strsep(&next, ","))) {
        if (!*part) continue;
        if (at++ == index) slot = atoi(part);
    }
    if (count) *count = at;
    return slot;
}

int nvmlDeviceGetCount_v2(unsigned *to) {
    char value[TEXT];
    int count;
    if (references <= 0) return UNINITIALIZED;
    int code = answer(-1, "count", value);
    if (code != NOT_SUPPORTED && code != SUCCESS) return code;
    present(-1, &count);
    *to = (unsigned)count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *to) {
    char value[TEXT];
    if (references <= 0) return UNINITIALIZED;
    int slot = present((int)index, NULL);
    if (slot < 0 || slot >= SLOTS) return INVALID_ARGUMENT;
    int code = answer(slot, "handle", value);
    if (code != NOT_SUPPORTED && code != SUCCESS) return code;
    *to = (device_t)(slots + slot);
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t d, char *to, unsigned size) {
    return text(d, "uuid", to, size);
}

int nvmlDeviceGetSerial(device_t d, char *to, unsigned size) {
    return text(d, "serial", to, size);
}

int nvmlDeviceGetName(device_t d, char *to, unsigned size) {
    return text(d, "name", to, size);
}

int nvmlDeviceGetPciInfo_v3(device_t d, pci_info_t *to) {
    char value[TEXT];
    int code = answer(slot_of(d), "pci", value);
    if (code) return code;
    memset(to, 0, sizeof *to);
    snprintf(to->bus_id, sizeof to->bus_id, "%.31s", value);
    if (sscanf(value, "%x:%x:%x", &to->domain, &to->bus, &to->device) != 3) return UNKNOWN;
    snprintf(to->bus_id_legacy, sizeof to->bus_id_legacy, "%04X:%02X:%02X.0",
             to->domain & 0xffff, to->bus & 0xff, to->device & 0xff);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device_t d, int kind, int counter, unsigned long long *to) {
    static const char *names[2][2] = {
        {"ecc.volatile.corrected", "ecc.aggregate.corrected"},
        {"ecc.volatile.uncorrected", "ecc.aggregate.uncorrected"},
    };
    if (kind < 0 || kind > 1 || counter < 0 || counter > 1) return INVALID_ARGUMENT;
    return number64(d, names[kind][counter], to);
}

/* remapped = CORRECTABLE UNCORRECTABLE PENDING FAILURE */
int nvmlDeviceGetRemappedRows(device_t d, unsigned *cor, unsigned *unc, unsigned *pending,
                              unsigned *failure) {
    char value[TEXT];
    int code = answer(slot_of(d), "remapped", value);
    if (code) return code;
    return sscanf(value, "%u %u %u %u", cor, unc, pending, failure) == 4 ? SUCCESS : UNKNOWN;
}

int nvmlDeviceGetSramEccErrorStatus(device_t d, sram_v1_t *to) {
    if (to->version != (sizeof *to | 1u << 24)) return ARGUMENT_VERSION_MISMATCH;
    return number(d, "sram_threshold_exceeded", &to->threshold_exceeded);
}

int nvmlDeviceGetTemperature(device_t d, int sensor, unsigned *to) {
    if (sensor != 0) return INVALID_ARGUMENT;
    return number(d, "temperature", to);
}

int nvmlDeviceGetTemperatureV(device_t d, temperature_v1_t *to) {
    unsigned value;
    if (to->version != (sizeof *to | 1u << 24)) return ARGUMENT_VERSION_MISMATCH;
    int code = number(d, "temperature_v", &value);
    if (!code) to->temperature = (int)value;
    return code;
}

int nvmlDeviceGetTemperatureThreshold(device_t d, int threshold, unsigned *to) {
    char name[TEXT];
    snprintf(name, sizeof name, "threshold.%d", threshold);
    return number(d, name, to);
}

int nvmlDeviceGetMarginTemperature(device_t d, margin_v1_t *to) {
    char value[TEXT];
    if (to->version != (sizeof *to | 1u << 24)) return ARGUMENT_VERSION_MISMATCH;
    int code = answer(slot_of(d), "margin", value);
    if (!code) to->margin = atoi(value);
    return code;
}

int nvmlDeviceGetFieldValues(device_t d, int count, field_value_t *values) {
    char value[TEXT], name[TEXT];
    int code = answer(slot_of(d), "fields", value);
    if (code != NOT_SUPPORTED && code != SUCCESS) return code;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "field.%u", values[i].field);
        values[i].ret = (unsigned)answer(slot_of(d), name, value);
        values[i].value_type = 3;
        values[i].value.ull = values[i].ret ? 0 : strtoull(value, NULL, 0);
    }
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device_t d, unsigned *to) {
    return number(d, "power", to);
}

int nvmlDeviceGetUtilizationRates(device_t d, utilization_t *to) {
    to->memory = 0;
    return number(d, "utilization", &to->gpu);
}

int nvmlDeviceGetMemoryInfo(device_t d, memory_t *to) {
    memset(to, 0, sizeof *to);
    return number64(d, "memory_used_v1", &to->used);
}

int nvmlDeviceGetMemoryInfo_v2(device_t d, memory_v2_t *to) {
    if (to->version != (sizeof *to | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    return number64(d, "memory_used", &to->used);
}

int nvmlDeviceGetClockInfo(device_t d, int kind, unsigned *to) {
    char name[TEXT];
    snprintf(name, sizeof name, "clock.%d", kind);
    return number(d, name, to);
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t d, unsigned long long *to) {
    return number64(d, "clocks_event_reasons", to);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device_t d, unsigned long long *to) {
    return number64(d, "clocks_throttle_reasons", to);
}

int nvmlDeviceGetPcieReplayCounter(device_t d, unsigned *to) {
    return number(d, "pcie_replays", to);
}

int nvmlDeviceGetCurrPcieLinkWidth(device_t d, unsigned *to) {
    return number(d, "pcie_width", to);
}

int nvmlDeviceGetMaxPcieLinkWidth(device_t d, unsigned *to) {
    return number(d, "pcie_width_max", to);
}

int nvmlDeviceGetCurrPcieLinkGeneration(device_t d, unsigned *to) {
    return number(d, "pcie_generation", to);
}

int nvmlDeviceGetMaxPcieLinkGeneration(device_t d, unsigned *to) {
    return number(d, "pcie_generation_max", to);
}

int nvmlDeviceGetEccMode(device_t d, unsigned *current, unsigned *pending) {
    int code = number(d, "ecc_mode", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMigMode(device_t d, unsigned *current, unsigned *pending) {
    int code = number(d, "mig_mode", current);
    *pending = *current;
    return code;
}
