/*
 * What is in and around a GPU: memory by location, row remapper, MIG, processes, NVLink, fabric.
 *
 *     gpu.*.sram = 1 2 3 4 5 6 7 8 9 10 11   aggregate parity, sec-ded, corrected; volatile the
 *                                            same; aggregate by l2, sm, pcie, mcu, other
 *     gpu.*.location.KIND.COUNTER.PLACE      nvmlDeviceGetMemoryErrorCounter
 *     gpu.*.mig.0 = GI CI UUID PROFILE       a MIG instance; mig_max: how many there may be
 *     gpu.*.processes = PID MIB GI CI; ...   - for no instance
 *     gpu.*.nvlink_state.3 = 0               also nvlink_error.LINK.COUNTER, or without numbers
 *     gpu.*.fabric = STATE STATUS CLIQUE HEALTH HEX   of nvmlDeviceGetGpuFabricInfoV
 *     gpu.*.fabric_version = 2               the newest form that this driver knows
 */
#include "stand_in.h"

typedef struct {
    unsigned version;
    unsigned long long numbers[11];
    unsigned threshold_exceeded;
} sram_v1_t;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
    unsigned char summary;
} fabric_t;

typedef struct {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
} fabric_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gi, ci;
} process_t;

int nvmlDeviceGetSramEccErrorStatus(device_t d, sram_v1_t *to) {
    char value[TEXT];
    if (to->version != (sizeof *to | 1u << 24)) return ARGUMENT_VERSION_MISMATCH;
    int code = number(d, "sram_threshold_exceeded", &to->threshold_exceeded);
    if (code) return code;
    code = answer(slot_of(d), "sram", value);
    for (int i = 0; i < 11; i++) to->numbers[i] = code ? 0 : part(value, i);
    return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(device_t d, int kind, int counter, int place,
                                    unsigned long long *to) {
    char name[96];
    snprintf(name, sizeof name, "location.%d.%d.%d", kind, counter, place);
    return number64(d, name, to);
}

/* remapped = CORRECTABLE UNCORRECTABLE PENDING FAILURE */
int nvmlDeviceGetRemappedRows(device_t d, unsigned *cor, unsigned *unc, unsigned *pending,
                              unsigned *failure) {
    char value[TEXT];
    int code = answer(slot_of(d), "remapped", value);
    if (code) return code;
    return sscanf(value, "%u %u %u %u", cor, unc, pending, failure) == 4 ? SUCCESS : UNKNOWN;
}

int nvmlDeviceGetRowRemapperHistogram(device_t d, unsigned to[5]) {
    char value[TEXT];
    int code = answer(slot_of(d), "histogram", value);
    for (int i = 0; !code && i < 5; i++) to[i] = (unsigned)part(value, i);
    return code;
}

/* repair = CHANNEL TPC */
int nvmlDeviceGetRepairStatus(device_t d, unsigned to[3]) {
    char value[TEXT];
    if (to[0] != (12 | 1u << 24)) return ARGUMENT_VERSION_MISMATCH;
    int code = answer(slot_of(d), "repair", value);
    for (int i = 0; !code && i < 2; i++) to[i + 1] = (unsigned)part(value, i);
    return code;
}

int nvmlDeviceGetUnrepairableMemoryFlag_v1(device_t d, unsigned to[2]) {
    return number(d, "unrepairable", to + 1);
}

int nvmlDeviceGetRetiredPages(device_t d, int cause, unsigned *count, unsigned long long *to) {
    char value[TEXT];
    int code = answer_of(slot_of(d), "retired", (unsigned)cause, value);
    if (code) return code;
    unsigned pages = (unsigned)strtoul(value, NULL, 0);
    for (unsigned i = 0; to && i < pages && i < *count; i++) to[i] = 4096ull * i;
    code = pages && !to ? INSUFFICIENT_SIZE : SUCCESS;
    *count = pages;
    return code;
}

int nvmlDeviceGetRetiredPagesPendingStatus(device_t d, unsigned *to) {
    return number(d, "retired_pending", to);
}

int nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *to) {
    return number(d, "mig_max", to);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned index, device_t *to) {
    char value[TEXT], name[96];
    if (index >= MIGS) return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "mig.%u", index);
    int code = answer(slot_of(d), name, value);
    if (!code) *to = (device_t)(migs + slot_of(d) * MIGS + (int)index);
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}

/* The words of a MIG instance's row; 1 when the handle is one. */
int mig_of(device_t d, unsigned *gi, unsigned *ci, char *uuid, char *profile) {
    char *at = (char *)d, name[96], value[TEXT];
    if (at < migs || at >= migs + sizeof migs) return 0;
    snprintf(name, sizeof name, "mig.%d", (int)(at - migs) % MIGS);
    if (answer(slot_of(d), name, value)) return 0;
    return sscanf(value, "%u %u %79s %31s", gi, ci, uuid, profile) == 4;
}

int nvmlDeviceGetGpuInstanceId(device_t d, unsigned *to) {
    unsigned ci;
    char uuid[80], profile[32];
    return mig_of(d, to, &ci, uuid, profile) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetComputeInstanceId(device_t d, unsigned *to) {
    unsigned gi;
    char uuid[80], profile[32];
    return mig_of(d, &gi, to, uuid, profile) ? SUCCESS : INVALID_ARGUMENT;
}

static int running(device_t d, const char *name, unsigned *count, process_t *to) {
    char value[TEXT], gi[16], ci[16], *next = value, *one;
    unsigned found = 0, pid;
    unsigned long long mib;
    int code = answer(slot_of(d), name, value);
    if (code) return code;
    while ((one = strsep(&next, ";"))) {
        if (sscanf(one, "%u %llu %15s %15s", &pid, &mib, gi, ci) != 4) continue;
        if (to && found < *count)
            to[found] = (process_t){pid, mib << 20, gi[0] == '-' ? NONE : (unsigned)atoi(gi),
                                    ci[0] == '-' ? NONE : (unsigned)atoi(ci)};
        found++;
    }
    code = found > (to ? *count : 0) ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *count, process_t *to) {
    return running(d, "processes", count, to);
}

int nvmlDeviceGetComputeRunningProcesses_v2(device_t d, unsigned *count, process_t *to) {
    return running(d, "processes_v2", count, to);
}

int nvmlDeviceGetNvLinkState(device_t d, unsigned link, unsigned *to) {
    char value[TEXT];
    int code = answer_of(slot_of(d), "nvlink_state", link, value);
    if (!code) *to = (unsigned)strtoul(value, NULL, 0);
    return code;
}

int nvmlDeviceGetNvLinkErrorCounter(device_t d, unsigned link, unsigned counter,
                                    unsigned long long *to) {
    char value[TEXT], own[96];
    snprintf(own, sizeof own, "nvlink_error.%u.%u", link, counter);
    int code = answer(slot_of(d), has_row(slot_of(d), own) ? own : "nvlink_error", value);
    if (!code) *to = strtoull(value, NULL, 0);
    return code;
}

static int fabric(device_t d, const char *name, fabric_v1_t *to, unsigned *health) {
    char value[TEXT], hex[TEXT] = "";
    unsigned state, byte;
    int code = answer(slot_of(d), name, value);
    if (code) return code;
    memset(to, 0, sizeof *to);
    if (sscanf(value, "%u %u %u %i %64s", &state, &to->status, &to->clique, (int *)health, hex) < 4)
        return UNKNOWN;
    to->state = (unsigned char)state;
    for (int i = 0; i < 16 && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
        to->cluster[i] = (unsigned char)byte;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(device_t d, fabric_v1_t *to) {
    unsigned health;
    return fabric(d, "fabric_v1", to, &health);
}

int nvmlDeviceGetGpuFabricInfoV(device_t d, fabric_t *to) {
    unsigned known = 3, health, form = to->version >> 24;
    fabric_v1_t found;
    size_t size = form == 3 ? sizeof *to : 36;
    number(d, "fabric_version", &known);
    if (form > known) return ARGUMENT_VERSION_MISMATCH;
    if ((to->version & 0xffffff) != size) return ARGUMENT_VERSION_MISMATCH;
    int code = fabric(d, "fabric", &found, &health);
    if (code) return code;
    memcpy(to->cluster, found.cluster, 16);
    to->status = found.status;
    to->clique = found.clique;
    to->state = found.state;
    to->health = health;
    if (form == 3) to->summary = 1;
    return SUCCESS;
}
