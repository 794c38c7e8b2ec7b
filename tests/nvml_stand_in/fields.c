/*
 * nvmlDeviceGetFieldValues. A field is the row `field.ID` or `field.ID.SCOPE`; without one it is
 * what the call of the same meaning answers, so that one row drives both.
 *
 *     gpu.*.fields = !13           the whole call, as a driver before it
 *     gpu.*.fields_end = 230       ids from here on answer 2, as a driver that does not know them
 *     gpu.*.latency = 3            latencyUsec of every field
 *     gpu.*.latency.143 = 4200     of one field, where the others have one too
 */
#include "stand_in.h"

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned value_type, ret;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
        int si;
    } value;
} field_value_t;

static const struct {
    unsigned field;
    const char *name;
    int at;
} aliases[] = {
    {1, "ecc_mode", 0},
    {3, "ecc.volatile.corrected", 0},
    {4, "ecc.volatile.uncorrected", 0},
    {5, "ecc.aggregate.corrected", 0},
    {6, "ecc.aggregate.uncorrected", 0},
    {11, "location.0.0.2", 0},
    {12, "location.1.0.2", 0},
    {22, "location.0.1.2", 0},
    {23, "location.1.1.2", 0},
    {91, "nvlinks", 0},
    {94, "pcie_replays", 0},
    {142, "remapped", 0},
    {143, "remapped", 1},
    {144, "remapped", 2},
    {145, "remapped", 3},
    {185, "power", 0},
};

/* The row that answers a field: its own, else the alias, else its own again: not supported. */
static int read_field(int slot, const field_value_t *field, char *value, int *at) {
    char name[96], scoped[112];
    snprintf(name, sizeof name, "field.%u", field->field);
    snprintf(scoped, sizeof scoped, "%s.%u", name, field->scope);
    *at = 0;
    if (field->scope && has_row(slot, scoped)) return answer(slot, scoped, value);
    if (!has_row(slot, name))
        for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
            if (aliases[i].field == field->field) {
                *at = aliases[i].at;
                return answer(slot, aliases[i].name, value);
            }
    return answer(slot, name, value);
}

int nvmlDeviceGetFieldValues(device_t d, int count, field_value_t *values) {
    char value[TEXT];
    int slot = slot_of(d), at;
    int code = answer(slot, "fields", value);
    if (code != NOT_SUPPORTED && code != SUCCESS) return code;
    unsigned end = answer(slot, "fields_end", value) ? NONE : (unsigned)strtoul(value, NULL, 0);
    for (int i = 0; i < count; i++) {
        field_value_t *field = values + i;
        field->latency_us = 0;
        field->value.ull = ~0ull;  /* a value that is refused is no number */
        if (field->field >= end) {
            field->ret = INVALID_ARGUMENT;
            continue;
        }
        field->ret = (unsigned)read_field(slot, field, value, &at);
        if (!field->ret) {
            unsigned long long found = part(value, at);
            int small = value[0] == '-' || field->field == 82;
            field->value_type = value[0] == '-' ? 5 : small ? 1 : 3;
            if (small) field->value.ui = (unsigned)found; /* the upper half stays as it was */
            else field->value.ull = found;
        }
        if (has_row(slot, "latency") && !answer_of(slot, "latency", field->field, value))
            field->latency_us = strtoll(value, NULL, 0);
    }
    return SUCCESS;
}
