# SPDX-License-Identifier: Apache-2.0
#
# unsupported.awk: writes C for every symbol of NVIDIA's library that no file here
# defines, so that a caller gets NOT_SUPPORTED and not a dead process. Input: the names
# that are defined, one a line, then symbols.txt, and nvml.h for NVML. The variable
# "answer" is what the functions return. The arguments need not be known: by the x86-64
# and AArch64 calling conventions the caller owns them.
BEGIN {
    print "// Written by unsupported.awk."
    print "#define EXPORTED __attribute__((visibility(\"default\")))"
    print "extern struct sim_client *me;"
    print "#define UNSUPPORTED(name) EXPORTED int name(void); int name(void) { return " answer "; }"
}
FNR == NR { defined[$1] = 1; next }
/^[a-z][A-Za-z0-9_]*( [0-9]+)?$/ { name = $1 }
match($0, /DECLDIR[ *]+nvml[A-Za-z0-9_]+ *\(/) {
    name = substr($0, RSTART, RLENGTH)
    sub(/ *\(/, "", name)
    sub(/.*[ *]/, "", name)
}
name != "" && !(name in defined) {
    defined[name] = 1
    if ($0 == name " " $2) print "EXPORTED extern char " name "[]; char " name "[" $2 "];"
    else print "UNSUPPORTED(" name ")"
}
{ name = "" }
