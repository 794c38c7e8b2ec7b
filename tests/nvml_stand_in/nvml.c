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
 *     hang.count = 2.5            the same for init, driver, count, event_wait
 *
 * A reading that the file does not name answers 3, NVML_ERROR_NOT_SUPPORTED. Fields, the parts of
 * a GPU and events are in the files beside this one.
 */
#include "stand_in.h"

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

extern int references, inits;
int mig_of(device_t d, unsigned *gi, unsigned *ci, char *uuid, char *profile);

int nvmlInitWithFlags(unsigned flags) {
    char value[TEXT];
    (void)flags;
    int code = answer(NODE, "init", value);
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
    int code = answer(NODE, "driver", value);
    if (code) return code;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, value);
    return SUCCESS;
}

/* The slot at an index of `present`, or how many there are. */
static int present(int index, int *count) {
    char list[TEXT], *next = list, *word;
    int at = 0, slot = -1;
    if (answer(NODE, "present", list)) list[0] = 0;
    while ((word = strsep(&next, ","))) {
        if (!*word) continue;
        if (at++ == index) slot = atoi(word);
    }
    if (count) *count = at;
    return slot;
}

int nvmlDeviceGetCount_v2(unsigned *to) {
    char value[TEXT];
    int count;
    if (references <= 0) return UNINITIALIZED;
    int code = answer(NODE, "count", value);
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
    unsigned gi, ci;
    char uuid[80], profile[32];
    if (mig_of(d, &gi, &ci, uuid, profile)) return snprintf(to, size, "%s", uuid) < 0;
    return text(d, "uuid", to, size);
}

int nvmlDeviceGetSerial(device_t d, char *to, unsigned size) {
    return text(d, "serial", to, size);
}

int nvmlDeviceGetName(device_t d, char *to, unsigned size) {
    unsigned gi, ci;
    char uuid[80], profile[32], name[TEXT];
    if (mig_of(d, &gi, &ci, uuid, profile) && !answer(slot_of(d), "name", name))
        return snprintf(to, size, "%s MIG %s", name, profile) < 0;
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
    memset(&to->total, 0, sizeof *to - sizeof to->version);
    number64(d, "memory_total", &to->total);
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
    if (!code) number(d, "ecc_mode_pending", pending);
    return code;
}

int nvmlDeviceGetMigMode(device_t d, unsigned *current, unsigned *pending) {
    int code = number(d, "mig_mode", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxClockInfo(device_t d, int kind, unsigned *to) {
    char value[TEXT];
    int code = answer_of(slot_of(d), "clock_max", (unsigned)kind, value);
    if (!code) *to = (unsigned)strtoul(value, NULL, 0);
    return code;
}

int nvmlDeviceGetPersistenceMode(device_t d, unsigned *to) {
    return number(d, "persistence", to);
}

int nvmlDeviceGetPerformanceState(device_t d, unsigned *to) {
    return number(d, "performance_state", to);
}

int nvmlDeviceGetEnforcedPowerLimit(device_t d, unsigned *to) {
    return number(d, "power_limit", to);
}

int nvmlDeviceGetTotalEnergyConsumption(device_t d, unsigned long long *to) {
    return number64(d, "energy", to);
}
