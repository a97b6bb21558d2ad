// SPDX-License-Identifier: Apache-2.0
//
// ctl.h: what simgpuctl's commands share.
#ifndef VERNIER_SIMGPU_CTL_H
#define VERNIER_SIMGPU_CTL_H

#include "../state/state.h"

// Each command gets its own arguments and returns the exit status.
int cmd_create(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_xid(int argc, char **argv);
int cmd_ecc(int argc, char **argv);
int cmd_lose(int argc, char **argv);
int cmd_recover(int argc, char **argv);
int cmd_links(int argc, char **argv);
int cmd_mps(int argc, char **argv);
int cmd_stretch(int argc, char **argv);
int cmd_gpm(int argc, char **argv);
int cmd_replace(int argc, char **argv);
int cmd_module(int argc, char **argv);
int cmd_driver_root(int argc, char **argv);

// fail prints a message with its remedy and returns 1.
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
// number parses a whole non-negative decimal or 0x number up to max.
bool number(const char *text, uint64_t max, uint64_t *value);
struct sim_state *must_open(void);
// device_arg parses a device's index or UUID; -1 when there is none such.
int device_arg(struct sim_state *s, const char *text);

#endif
