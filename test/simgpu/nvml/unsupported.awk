# SPDX-License-Identifier: Apache-2.0
#
# unsupported.awk: writes C for every function that nvml.h declares and no file
# here defines, so that a caller who binds lazily gets NVML_ERROR_NOT_SUPPORTED
# and not a dead process. Input: the names that are defined, one a line, then
# nvml.h. The arguments need not be known: by the x86-64 and AArch64 calling
# conventions the caller owns them.
BEGIN {
    print "// Written by unsupported.awk."
    print "#define UNSUPPORTED(name) __attribute__((visibility(\"default\"))) int name(void); int name(void) { return 3; }"
}
FNR == NR { defined[$1] = 1; next }
match($0, /DECLDIR[ *]+nvml[A-Za-z0-9_]+ *\(/) {
    name = substr($0, RSTART, RLENGTH)
    sub(/ *\(/, "", name)
    sub(/.*[ *]/, "", name)
    if (!(name in defined)) { defined[name] = 1; print "UNSUPPORTED(" name ")" }
}
