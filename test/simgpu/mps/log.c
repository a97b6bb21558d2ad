// SPDX-License-Identifier: Apache-2.0
//
// log.c: the log files, control.log and server.log; in the foreground the control
// daemon's goes to its standard output.
#define _GNU_SOURCE
#include "mps.h"

#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static FILE *out;
static const char *role = "Other";

// log_open appends to a file of the log folder; to standard output without a name.
void log_open(const char *name, const char *who) {
    char path[512];
    role = who;
    if (!name) {
        out = stdout;
        return;
    }
    mkdir(mps.log_dir, 0755);
    snprintf(path, sizeof path, "%s/%s", mps.log_dir, name);
    out = fopen(path, "ae");
}

void log_line(const char *format, ...) {
    struct timespec t;
    struct tm at;
    char when[32];
    va_list args;
    if (!out) return;
    clock_gettime(CLOCK_REALTIME, &t);
    localtime_r(&t.tv_sec, &at);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &at);
    fprintf(out, "[%s.%03ld %s %5d] ", when, t.tv_nsec / 1000000, role, (int)getpid());
    va_start(args, format);
    vfprintf(out, format, args);
    va_end(args);
    fputc('\n', out);
    fflush(out);
}
