// SPDX-License-Identifier: Apache-2.0
//
// table.c: the output of protocol 3's lists.
//
// Invariant: a table cuts cells short to its columns' widths, PIDs too, as the real
// one does: programs read the comma-separated form.
#define _GNU_SOURCE
#include "mps.h"

#include <string.h>

// table_begin reads --format and prints the header; false for a format there isn't.
bool table_begin(struct table *t, const struct args *a, struct reply *r, const char *const names[],
                 const unsigned widths[], unsigned columns) {
    const char *format = option(a, "format");
    *t = (struct table){.r = r, .columns = columns};
    memcpy(t->widths, widths, columns * sizeof *widths);
    if (!format) format = "table";
    const char *comma = strchr(format, ',');
    size_t length = comma ? (size_t)(comma - format) : strlen(format);
    t->csv = length == 3 && strncmp(format, "csv", 3) == 0;
    if ((!t->csv && (length != 5 || strncmp(format, "table", 5) != 0)) ||
        (comma && strcmp(comma, ",noheader") != 0)) {
        refuse(r, "Invalid format '%s': table or csv, and ,noheader", format);
        return false;
    }
    if (!comma) table_row(t, names);
    return true;
}

void table_row(struct table *t, const char *const cells[]) {
    for (unsigned i = 0; i < t->columns; i++) {
        bool last = i + 1 == t->columns;
        unsigned width = t->widths[i];
        if (t->csv)
            say(t->r, "%s%s", cells[i], last ? "\n" : ",");
        else if (strlen(cells[i]) > width)
            say(t->r, "%.*s...%s", (int)width - 3, cells[i], last ? "\n" : " ");
        else
            say(t->r, "%-*s%s", last ? 0 : (int)width, cells[i], last ? "\n" : " ");
    }
}
