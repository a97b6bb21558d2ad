# SPDX-License-Identifier: Apache-2.0
#
# proc_table.awk: writes the table that cuGetProcAddress searches. Input: the
# names of all exported functions, one a line, in the C locale's order.
BEGIN {
    print "// Written by proc_table.awk."
    print "#include <stddef.h>"
}
{ names[NR] = $1; print "extern int " $1 "();" }
END {
    print "struct proc { const char *name; void *function; };"
    print "__attribute__((visibility(\"hidden\"))) extern const struct proc proc_table[];"
    print "__attribute__((visibility(\"hidden\"))) extern const size_t proc_count;"
    print "const struct proc proc_table[] = {"
    for (i = 1; i <= NR; i++) print "    {\"" names[i] "\", (void *)" names[i] "},"
    print "};"
    print "const size_t proc_count = " NR ";"
}
