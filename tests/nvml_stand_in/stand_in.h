/* What the parts of the stand-in share: the file's rows, and how a call is answered from them. */
#pragma once
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define FUNCTION_NOT_FOUND 13
#define ARGUMENT_VERSION_MISMATCH 25
#define UNKNOWN 999

#define TEXT 256
#define SLOTS 64
#define MIGS 8
#define NODE (-1)  /* the slot of a row that is about the node */
#define NONE 0xffffffffu

typedef struct slot *device_t;

/* The handles: only their addresses mean anything. */
extern char slots[SLOTS], migs[SLOTS * MIGS];

int slot_of(device_t device);
/* Waits as the file says, copies the row `name` to `value`; returns the call's return code. */
int answer(int slot, const char *name, char *value);
/* The same for `name.number`, or for `name` where the file does not have that. */
int answer_of(int slot, const char *name, unsigned number, char *value);
int has_row(int slot, const char *name);
int text(device_t device, const char *name, char *to, unsigned size);
int number(device_t device, const char *name, unsigned *to);
int number64(device_t device, const char *name, unsigned long long *to);
/* The part of a text of numbers, counted from 0. */
unsigned long long part(const char *value, int at);
/* The row event.N with the least N above `after`: its N, or 0. */
int next_event(int after, char *value);
int last_event(void);
int nvml_is_open(void);
